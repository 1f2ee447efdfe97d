//! A process that leaves connections to conntrack when the process of the fast path is killed.
//!
//! Conntrack accepts any sequence number of connections on the fast path; the guard, a BPF program,
//! refuses wrong ones. The kernel detaches it when its process ends. The caretaker is forked before,
//! waits on a socket, and replaces the entries when the other end closes without a last word. It
//! accepts no request.
//!
//! Limit: whoever kills both processes, for example all of a control group or of a container's
//! process namespace, leaves the entries to the next start.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netstate::connection::Connections;
use sys::monitor;
use sys::netns::NetNs;

use super::renewal::take_over;
use crate::Result;

/// The process must end without doing anything.
const DONE: u8 = b'k';
const LIMIT: Duration = Duration::from_secs(10);
/// A list may miss entries that change meanwhile.
const PASSES: usize = 2;

/// The process of the fast path holds this. If it is dropped, or the process is killed, the
/// caretaker replaces the entries.
#[derive(Debug)]
pub struct Caretaker {
    socket: UnixStream,
    pid: u32,
}

impl Caretaker {
    /// Starts the process for connections of `home`. `prepare` drops privileges that it does not
    /// need. Call this before any thread exists.
    ///
    /// # Errors
    /// If the process cannot be started, or not prepared.
    pub fn start(home: &NetNs, prepare: impl FnOnce() -> sys::Result<()>) -> Result<Caretaker> {
        let home = home.try_clone()?;
        let kept = [home.as_fd().as_raw_fd()];
        let socket = monitor::fork_with(c"accel-caretaker", &kept, |socket| {
            home.enter_for_good()?;
            prepare()?;
            wait(socket);
            Ok(())
        })?;
        let failed = |e| sys::Error::io("start", "caretaker of connections", &e);
        socket.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        let mut pid = [0; 4];
        (&socket).read_exact(&mut pid).map_err(failed)?;
        Ok(Caretaker { socket, pid: u32::from_ne_bytes(pid) })
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the process: the connections were left to conntrack, or to a successor.
    pub fn end(self) {
        // It was killed, so there is nothing to end.
        let _ = (&self.socket).write_all(&[DONE]);
    }
}

/// The child process.
fn wait(mut socket: UnixStream) {
    // Opened now: if it fails, the fast path does not start.
    let Ok(connections) = Connections::open() else { return };
    // Ready.
    if socket.write_all(&std::process::id().to_ne_bytes()).is_err() {
        return;
    }
    let mut word = [0];
    loop {
        match socket.read(&mut word) {
            Ok(1) => return,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // The other end has closed.
            _ => break,
        }
    }
    (0..PASSES).for_each(|_| take_over(&connections));
}
