//! Signals as sockets, for verbs that run until a signal.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Sockets that become readable on signals.
pub struct Signals {
    /// Readable after SIGINT or SIGTERM: exit.
    pub end: UnixStream,
    /// Readable after SIGUSR1: print the counters.
    pub show: UnixStream,
}

impl Signals {
    /// Installs the handlers. From then on, these signals no longer kill the process.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn new() -> anyhow::Result<Signals> {
        Ok(Signals { end: on_signals(&[SIGINT, SIGTERM])?, show: on_signals(&[SIGUSR1])? })
    }
}

/// Returns a socket that becomes readable on any of these signals.
///
/// # Errors
/// If no descriptors are left.
pub fn on_signals(signals: &[i32]) -> anyhow::Result<UnixStream> {
    let pair = || {
        let (receiver, sender) = UnixStream::pair()?;
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
        }
        std::io::Result::Ok(receiver)
    };
    pair().context("install signal handlers")
}

/// Waits until a descriptor is readable or closed by its peer. Returns which ones are.
///
/// # Errors
/// Errors of poll(2) other than `EINTR`.
pub fn wait<const N: usize>(fds: [BorrowedFd<'_>; N]) -> anyhow::Result<[bool; N]> {
    wait_beside(fds, &[])
}

/// Like [`wait`], but the descriptors in `beside` also end the wait.
pub fn wait_beside<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    beside: &[BorrowedFd<'_>],
) -> anyhow::Result<[bool; N]> {
    let all = fds.iter().chain(beside);
    let mut ready: Vec<_> = all.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    loop {
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => return Ok(std::array::from_fn(|at| ready[at].any().unwrap_or(false))),
            // A signal that is not waited for interrupted the call.
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
    }
}

/// Clears a signal socket. It has one byte per signal; several signals count as one.
pub fn take(mut socket: &UnixStream) {
    let _ = socket.read(&mut [0; 64]);
}
