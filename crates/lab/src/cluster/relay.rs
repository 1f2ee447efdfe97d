//! A port of loopback in one host that leads to the same port of loopback in another, as
//! the proxy on each node of some clusters leads to the API server. The nodes have no other
//! device for it, and the wire carries nothing of it.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use sys::netns::NetNs;
use testbed::Host;

use crate::Result;

/// Ends when dropped; connections end with the programs at their ends.
pub(super) struct Relay {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Leads a port in `from` to the same in `to`.
    pub(super) fn start(from: &Host, to: &Host, port: u16) -> Result<Relay> {
        let at = (Ipv4Addr::LOCALHOST, port);
        let listener = from.netns().run(|| TcpListener::bind(at))?;
        let what = || format!("loopback, port {port}, in {}", from.name());
        let listener = Arc::new(listener.map_err(|e| sys::Error::io("listen at", what(), &e))?);
        let (taken, to) = (listener.clone(), to.netns().clone());
        let thread = std::thread::spawn(move || {
            // Shutting the socket down ends it.
            while let Ok((near, _)) = taken.accept() {
                carry(near, &to, at);
            }
        });
        Ok(Relay { listener, thread: Some(thread) })
    }
}

/// Joins a connection to one in `to`. Without one there it is closed, as the port would be.
fn carry(near: TcpStream, to: &NetNs, at: (Ipv4Addr, u16)) {
    let Ok(Ok(far)) = to.run(|| TcpStream::connect(at)) else { return };
    // Descriptors have run out: closed, as without a server.
    let (Ok(near_copy), Ok(far_copy)) = (near.try_clone(), far.try_clone()) else { return };
    for (mut from, mut into) in [(near, far_copy), (far, near_copy)] {
        std::thread::spawn(move || {
            // A connection that breaks is an error of the programs at its ends, who see it.
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
            // A panic of the thread has been printed; drop has nobody to tell.
            let _ = thread.join();
        }
    }
}
