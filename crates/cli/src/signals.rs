//! Signals as sockets: what a verb that runs until it is told to end waits for.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Sockets that become readable when a signal came.
pub struct Signals {
    /// Readable after SIGINT or SIGTERM: the verb is to end.
    pub end: UnixStream,
    /// Readable after SIGUSR1: the verb is to print its counters.
    pub show: UnixStream,
}

impl Signals {
    /// From here on these signals no longer end the process.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn new() -> anyhow::Result<Signals> {
        Ok(Signals { end: on_signals(&[SIGINT, SIGTERM])?, show: on_signals(&[SIGUSR1])? })
    }
}

/// A socket that becomes readable when one of these signals came.
///
/// # Errors
/// When descriptors have run out.
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

/// Waits until one can be read, or its other end is gone; says which.
///
/// # Errors
/// What poll(2) answers but `EINTR`.
pub fn wait<const N: usize>(fds: [BorrowedFd<'_>; N]) -> anyhow::Result<[bool; N]> {
    wait_beside(fds, &[])
}

/// [`wait`], also for any of those beside.
///
/// # Errors
/// As [`wait`].
pub fn wait_beside<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    beside: &[BorrowedFd<'_>],
) -> anyhow::Result<[bool; N]> {
    let all = fds.iter().chain(beside);
    let mut ready: Vec<_> = all.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    loop {
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => return Ok(std::array::from_fn(|at| ready[at].any().unwrap_or(false))),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("poll"),
        }
    }
}

/// Takes what a signal has left in its socket: one byte a signal; several at once
/// are answered once.
pub fn take(mut socket: &UnixStream) {
    let _ = socket.read(&mut [0; 64]);
}
