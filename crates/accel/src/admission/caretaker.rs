//! A process that leaves connections to conntrack when the process of the fast path is killed.
//!
//! Conntrack accepts any sequence number of connections on the fast path. The guard, a BPF program,
//! refuses wrong ones, but the kernel detaches it when its process ends. The caretaker is forked at
//! the start and waits on a socket. If the other end closes after `ARM` and without `DONE`, the
//! caretaker replaces the entries. It accepts no other message.
//!
//! If the caretaker ends first, nothing would replace them. The verdict thread sees the end of the
//! socket, leaves all connections to conntrack, and admits no further ones ([`CaretakerWatch`]).
//!
//! Limit: if both processes are killed, for example with a whole control group or a container's
//! process namespace, the entries remain until the next start.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netstate::connection::Connections;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::monitor;
use sys::netns::NetNs;

use super::renewal::take_over;
use crate::Result;

/// Message to the caretaker: replace entries if the socket closes from now on.
const ARM: u8 = b'a';
/// Message to the caretaker: end without replacing entries.
const DONE: u8 = b'k';
/// Longest time until the caretaker is ready.
const LIMIT: Duration = Duration::from_secs(10);
/// Number of passes: a list may miss entries that change meanwhile.
const PASSES: usize = 2;

/// The caretaker, as the process of the fast path holds it. If this is dropped after
/// [`Caretaker::arm`] and without [`Caretaker::end`], or the process is killed, the caretaker
/// replaces the entries.
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

    /// Call this before the fast path is attached. Earlier errors leave the entries of a running
    /// predecessor alone.
    ///
    /// # Errors
    /// If the process was killed.
    pub fn arm(&self) -> Result<()> {
        let failed = |e| sys::Error::io("arm", "caretaker of connections", &e);
        Ok((&self.socket).write_all(&[ARM]).map_err(failed)?)
    }

    /// Returns a watch for [`Options`](crate::Options).
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn watch(&self) -> Result<CaretakerWatch> {
        let failed = |e| sys::Error::io("watch", "caretaker of connections", &e);
        Ok(CaretakerWatch { socket: self.socket.try_clone().map_err(failed)? })
    }

    /// Ends the process: the connections were left to conntrack, or to a successor.
    pub fn end(self) {
        // An error: the caretaker was killed, so there is nothing to end.
        let _ = (&self.socket).write_all(&[DONE]);
    }
}

/// Shows whether the caretaker runs.
#[derive(Debug)]
pub struct CaretakerWatch {
    socket: UnixStream,
}

impl CaretakerWatch {
    pub(super) fn has_ended(&self) -> bool {
        // POLLHUP is always reported: the caretaker's end is closed.
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        // An error (a signal) is no answer; the caller asks again.
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1))
    }
}

/// The child process.
fn wait(mut socket: UnixStream) {
    // Opened before the fast path starts, which fails if this does.
    let Ok(connections) = Connections::open() else { return };
    // Ready.
    if socket.write_all(&std::process::id().to_ne_bytes()).is_err() {
        return;
    }
    let (mut word, mut is_armed) = ([0], false);
    loop {
        match socket.read(&mut word) {
            Ok(1) if word == [ARM] => is_armed = true,
            Ok(1) => return,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // The other end has closed.
            _ => break,
        }
    }
    if is_armed {
        (0..PASSES).for_each(|_| take_over(&connections));
    }
}
