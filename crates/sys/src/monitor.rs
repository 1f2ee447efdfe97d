//! A separate process that keeps a privilege which the rest of the program drops (privilege
//! separation). It does one task and passes on the results.
//!
//! It is forked before the program drops its privileges, and waits on a socket. When the other end
//! closes for any reason, it exits.

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, recvmsg, sendmsg};
use nix::unistd::{ForkResult, fork};

use crate::{Error, Result};

/// Maximum length of the text of an item, in bytes.
const LONGEST: usize = 64 << 10;
/// Maximum number of items in an answer.
pub const MOST: usize = 4096;

/// Forks a process that runs `work` on the other end of the returned socket and then exits. It
/// ignores signals that end programs, and has no descriptors except the socket and those in `kept`.
/// Call this before there are threads.
///
/// # Errors
/// If no process or descriptor is left. Errors of `work` only close the socket.
pub fn fork_with(
    name: &'static CStr,
    kept: &[RawFd],
    work: impl FnOnce(UnixStream) -> Result<()>,
) -> Result<UnixStream> {
    let text = || name.to_string_lossy().into_owned();
    let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("socketpair", text(), &e))?;
    // SAFETY: glibc allows more in the child of a multithreaded program than fork(2) guarantees,
    // including allocation. The child calls `work`, which takes no lock that a thread of the parent
    // can hold, and never returns.
    match unsafe { fork() }.map_err(|e| Error::new("fork", text(), e))? {
        ForkResult::Child => {
            drop(ours);
            settle(name, kept, theirs.as_raw_fd());
            let _ = work(theirs);
            // SAFETY: ends the process immediately; no code of the parent runs.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { .. } => Ok(ours),
    }
}

/// Separates the process from the parent: signals, name and descriptors.
fn settle(name: &CStr, kept: &[RawFd], socket: RawFd) {
    for ignored in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGPIPE,
    ] {
        // SAFETY: no handler is installed; the signals are only ignored.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    let _ = nix::sys::prctl::set_name(name);
    let _ = nix::sys::prctl::set_dumpable(false);
    // Closes everything inherited from the parent, including its sockets and the terminal.
    close_all_but([kept, &[socket]].concat());
}

/// Closes all descriptors except these.
fn close_all_but(mut kept: Vec<RawFd>) {
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept.into_iter().map(RawFd::cast_unsigned).chain([u32::MAX]) {
        if fd > first {
            // SAFETY: close_range takes numbers. The descriptors belong to code of the parent,
            // which no longer runs in this process.
            unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
        }
        first = fd.saturating_add(1);
    }
}

/// A result: a text and, if there is one, a descriptor.
#[derive(Debug)]
pub struct Item {
    /// An open file that belongs to the result.
    pub descriptor: Option<OwnedFd>,
    /// The text, at most 64 KiB.
    pub text: Vec<u8>,
}

#[derive(Debug)]
pub enum Answer {
    /// The results; there may be none.
    Found(Vec<Item>),
    /// Why there is no result, as text.
    Failed(String),
}

/// The program's side; dropping it ends the other process.
#[derive(Debug)]
pub struct Monitor {
    socket: UnixStream,
    name: &'static CStr,
}

/// The other process's side of the socket.
#[derive(Debug)]
pub struct Asker {
    socket: UnixStream,
}

impl Monitor {
    /// Starts the process: `prepare` drops privileges that it does not need, then `find` is called
    /// for each request. Call this before the program opens anything that the process must not
    /// have, and before there are threads.
    ///
    /// # Errors
    /// If the process cannot be started or prepared.
    pub fn start(
        name: &'static CStr,
        kept: &[RawFd],
        prepare: impl FnOnce() -> Result<()>,
        mut find: impl FnMut(&Asker, &[u8]) -> std::result::Result<Vec<Item>, String>,
    ) -> Result<Monitor> {
        let socket = fork_with(name, kept, |socket| {
            prepare()?;
            let asker = Asker { socket };
            asker.send(0, &[], None)?;
            while let Some(request) = asker.request() {
                let fits = |item: &Item| item.text.len() <= LONGEST;
                let problem = match find(&asker, &request) {
                    Ok(items) if items.len() <= MOST && items.iter().all(fits) => {
                        asker.send(items.len() as i32, &[], None)?;
                        for item in &items {
                            asker.send(
                                item.text.len() as i32,
                                &item.text,
                                item.descriptor.as_ref(),
                            )?;
                        }
                        continue;
                    }
                    Ok(items) => format!("too many results, or too long: {}", items.len()),
                    Err(problem) => problem,
                };
                let problem = &problem.as_bytes()[..problem.len().min(LONGEST)];
                asker.send(-1 - problem.len() as i32, problem, None)?;
            }
            Ok(())
        })?;
        let monitor = Monitor { socket, name };
        // The process does not start if it cannot drop all its privileges.
        monitor.limit(Duration::from_secs(10))?;
        monitor.header("start")?;
        Ok(monitor)
    }

    /// Sends a request and waits at most `limit` for each part of the answer; a signal restarts the
    /// time limit. A request has at most 64 KiB.
    ///
    /// # Errors
    /// `EMSGSIZE` for a longer request; `EAGAIN` after the time limit, which ends the process;
    /// `EPIPE` if it was killed or stopped.
    pub fn ask(&self, request: &[u8], limit: Duration) -> Result<Answer> {
        // The parent has a buffer of this size.
        if request.len() > LONGEST {
            return Err(Error::new("ask", self.text(), Errno::EMSGSIZE));
        }
        // The rest of a late answer would be taken as the answer to the next request.
        self.asked(request, limit).inspect_err(|_| self.stop())
    }

    fn asked(&self, request: &[u8], limit: Duration) -> Result<Answer> {
        let failed = |e| Error::new("ask", self.text(), e);
        self.limit(limit)?;
        let length = (request.len() as u32).to_ne_bytes();
        send_all(&self.socket, &[&length, request].concat()).map_err(failed)?;
        let (count, _) = self.header("ask")?;
        match usize::try_from(count) {
            Ok(count) => (0..count).map(|_| self.item()).collect::<Result<_>>().map(Answer::Found),
            Err(_) => {
                let text = self.bytes((-1 - count) as usize)?;
                Ok(Answer::Failed(String::from_utf8_lossy(&text).into_owned()))
            }
        }
    }

    /// Ends the other process; a caller that waits for an answer gets an error at once.
    pub fn stop(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    fn limit(&self, limit: Duration) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("set timeout of", self.text(), &e);
        self.socket.set_read_timeout(Some(limit)).map_err(failed)
    }

    fn item(&self) -> Result<Item> {
        let (length, descriptor) = self.header("take")?;
        let length =
            usize::try_from(length).map_err(|_| Error::new("take", self.text(), Errno::EPROTO))?;
        Ok(Item { descriptor, text: self.bytes(length)? })
    }

    fn bytes(&self, length: usize) -> Result<Vec<u8>> {
        // The child may be compromised: the length must not allocate memory at its will.
        if length > LONGEST {
            return Err(Error::new("take", self.text(), Errno::EPROTO));
        }
        let mut bytes = vec![0; length];
        (&self.socket).read_exact(&mut bytes).map_err(|e| Error::io("take", self.text(), &e))?;
        Ok(bytes)
    }

    fn header(&self, operation: &'static str) -> Result<(i32, Option<OwnedFd>)> {
        let failed = |e| Error::new(operation, self.text(), e);
        let mut bytes = [0; 4];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_WAITALL;
        let got: RecvMsg<'_, '_, ()> = loop {
            match recvmsg(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                // The kernel does not restart a call with a timeout, whatever the handler requests
                // (signal(7)).
                Err(Errno::EINTR) => {}
                other => break other.map_err(failed)?,
            }
        };
        let mut descriptor = None;
        for message in got.cmsgs().map_err(failed)? {
            if let ControlMessageOwned::ScmRights(all) = message {
                for fd in all {
                    // SAFETY: the kernel has just created this descriptor for this process.
                    descriptor = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
        }
        // End of the stream: the other process was killed.
        if got.bytes < bytes.len() {
            return Err(failed(Errno::EPIPE));
        }
        Ok((i32::from_ne_bytes(bytes), descriptor))
    }
}

impl Asker {
    /// Returns whether the program still waits for the answer.
    pub fn is_there(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        let closed = PollFlags::POLLHUP | PollFlags::POLLERR;
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(_) => !fds[0].revents().is_some_and(|events| events.intersects(closed)),
            // An unknown state: the next request shows it.
            Err(_) => true,
        }
    }

    /// Returns the next request; `None` when the other end has closed.
    fn request(&self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        (&self.socket).read_exact(&mut length).ok()?;
        let length = u32::from_ne_bytes(length) as usize;
        let mut request = vec![0; Some(length).filter(|length| *length <= LONGEST)?];
        (&self.socket).read_exact(&mut request).ok()?;
        Some(request)
    }

    fn send(&self, number: i32, text: &[u8], descriptor: Option<&OwnedFd>) -> Result<()> {
        let number = number.to_ne_bytes();
        let descriptor = descriptor.map(|descriptor| [descriptor.as_raw_fd()]);
        let control: Vec<_> = descriptor.iter().map(|one| ControlMessage::ScmRights(one)).collect();
        let parts = [IoSlice::new(&number)];
        let failed = |e| Error::new("answer", "socket", e);
        let (socket, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
        sendmsg::<()>(socket, &parts, &control, flags, None).map_err(failed)?;
        send_all(&self.socket, text).map_err(failed)
    }
}

fn send_all(socket: &UnixStream, mut bytes: &[u8]) -> nix::Result<()> {
    while !bytes.is_empty() {
        let sent = nix::sys::socket::send(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, Write};
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sys::signal::{SaFlags, SigAction, SigSet, sigaction};

    use super::*;

    fn file(text: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.into()
    }

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn results_come_with_their_descriptors() {
        let item = |number: usize| Item {
            descriptor: (number != 1).then(|| file(&format!("file {number}"))),
            text: vec![b'x'; number * 30_000],
        };
        let monitor = Monitor::start(
            c"finder",
            &[],
            || Ok(()),
            |asker, request| {
                assert!(asker.is_there());
                match request {
                    b"" => Err("what?".into()),
                    other => Ok((0..other.len()).map(item).collect()),
                }
            },
        )
        .unwrap();
        assert!(matches!(monitor.ask(b"", LIMIT), Ok(Answer::Failed(why)) if why == "what?"));
        // The last text is too long to be sent.
        let Ok(Answer::Failed(why)) = monitor.ask(b"four", LIMIT) else { panic!() };
        assert_eq!(why, "too many results, or too long: 4");
        let Ok(Answer::Found(items)) = monitor.ask(b"abc", LIMIT) else { panic!() };
        assert_eq!(items.len(), 3);
        for (number, item) in items.into_iter().enumerate() {
            assert_eq!(item.text, vec![b'x'; number * 30_000]);
            assert_eq!(item.descriptor.is_none(), number == 1);
            let Some(descriptor) = item.descriptor else { continue };
            let mut file = File::from(descriptor);
            let mut text = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("file {number}"));
        }
        let error = monitor.ask(&vec![0; LONGEST + 1], LIMIT).unwrap_err();
        assert_eq!(error.errno, Errno::EMSGSIZE);
    }

    /// Simulates another thread that drops privileges, for which glibc sends a signal to every
    /// thread.
    #[test]
    fn a_signal_does_not_end_waiting() {
        extern "C" fn nothing(_: libc::c_int) {}
        let handler = SigHandler::Handler(nothing);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, and no other test uses this signal.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
        let monitor = Monitor::start(
            c"finder",
            &[],
            || Ok(()),
            |_, _| {
                std::thread::sleep(Duration::from_millis(200));
                Ok(Vec::new())
            },
        )
        .unwrap();
        // SAFETY: takes no arguments and cannot fail.
        let asking = unsafe { libc::pthread_self() };
        let done = AtomicBool::new(false);
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: this scope ends before that thread.
                    assert_eq!(unsafe { libc::pthread_kill(asking, libc::SIGURG) }, 0);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let answer = monitor.ask(b"", LIMIT);
            done.store(true, Ordering::Relaxed);
            answer
        });
        assert!(matches!(&answer, Ok(Answer::Found(items)) if items.is_empty()), "{answer:?}");
    }

    #[test]
    fn one_that_cannot_be_prepared_does_not_start() {
        let prepare = || Err(Error::new("give up", "rights", Errno::EPERM));
        let error = Monitor::start(c"finder", &[], prepare, |_, _| Ok(Vec::new())).unwrap_err();
        assert_eq!(error.errno, Errno::EPIPE);
    }

    #[test]
    fn a_silent_process_is_waited_for_until_the_request_or_the_limit() {
        let find = |asker: &Asker, _: &[u8]| {
            while asker.is_there() {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(Vec::new())
        };
        let monitor = Monitor::start(c"finder", &[], || Ok(()), find).unwrap();
        let error = monitor.ask(b"", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.errno, Errno::EAGAIN);
        let error = monitor.ask(b"", LIMIT).unwrap_err();
        assert_eq!(error.errno, Errno::EPIPE, "a late answer is not the next one's");
        let monitor = Monitor::start(c"finder", &[], || Ok(()), find).unwrap();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| monitor.ask(b"", Duration::from_secs(3600)));
            monitor.stop();
            assert_eq!(asking.join().unwrap().unwrap_err().errno, Errno::EPIPE);
        });
    }
}
