//! Forwards a loopback port of one host to the same loopback port of another. On some clusters a
//! proxy on each node leads to the API server in the same way. Nodes need no other device for
//! it, and it puts no packets on the wire.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use sys::netns::NetNs;
use testbed::Host;

use crate::Result;

/// Stops when dropped. Connections end with the programs at their ends.
pub(super) struct Relay {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts to forward a port of `from` to the same port of `to`.
    pub(super) fn start(from: &Host, to: &Host, port: u16) -> Result<Relay> {
        let at = (Ipv4Addr::LOCALHOST, port);
        let listener = from.netns().run(|| TcpListener::bind(at))?;
        let what = || format!("loopback, port {port}, in {}", from.name());
        let listener = Arc::new(listener.map_err(|e| sys::Error::io("listen at", what(), &e))?);
        let (taken, to) = (listener.clone(), to.netns().clone());
        let thread = std::thread::spawn(move || {
            // `accept` fails when drop shuts the socket down.
            while let Ok((near, _)) = taken.accept() {
                carry(near, &to, at);
            }
        });
        Ok(Relay { listener, thread: Some(thread) })
    }
}

/// Joins a connection to a new one in `to`. If nothing listens there, closes the connection.
fn carry(near: TcpStream, to: &NetNs, at: (Ipv4Addr, u16)) {
    let Ok(Ok(far)) = to.run(|| TcpStream::connect(at)) else { return };
    // Out of descriptors: close, as if nothing listened.
    let (Ok(near_copy), Ok(far_copy)) = (near.try_clone(), far.try_clone()) else { return };
    for (mut from, mut into) in [(near, far_copy), (far, near_copy)] {
        std::thread::spawn(move || {
            // The programs at both ends see a broken connection; the relay need not report it.
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(Shutdown::Write);
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ =
            nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}
