//! A process of its own that faces the network, without the privileges of the process that traces.
//!
//! It listens, authenticates clients, and parses their requests. For the counts of flows it asks the
//! tracing process through a socket pair. Questions and answers are frames: the length as four bytes,
//! then JSON. The tracing process treats the other one as hostile: it limits the length and number of
//! questions, checks which flows they name, and answers nothing but counts.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use channel::message::emit;
use channel::{Event, RateLimit, Tell};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::message::{Asked, Sample};
use super::server::{PeerServer, Source};
use crate::flows::Flows;

/// Longest question, bytes: a request's limit and some more.
const QUESTION: usize = 64 << 10;
/// Longest answer, bytes.
const ANSWER: usize = channel::frame::REPLY_LIMIT;
/// Maximum number of questions per second: those of all sessions.
const QUESTIONS_PER_S: u32 = 1000;
/// Time limit for the process to give up its rights.
const READY: Duration = Duration::from_secs(10);
/// Time limit for the process to end, ms.
const END_MS: u16 = 1000;
/// Maximum length of a line for the operator, characters.
const LINE: usize = 300;

/// From the process that faces the network.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Question {
    /// It has given up its rights; the remaining ones as text.
    Ready(String),
    /// A line for the operator.
    Tell(String),
    /// Asks for an [`Answer`].
    Sample { asked: Asked, received_ns: i64 },
}

/// Counts, or why there are none.
type Answer = std::result::Result<Sample, String>;

/// The process that faces the network. Dropping it ends the process.
#[derive(Debug)]
pub struct Front {
    socket: UnixStream,
    local: SocketAddr,
    is_guarded: bool,
    confinement: String,
}

impl PeerServer {
    /// Moves the server into a process of its own. There, `prepare` gives up all rights, and returns
    /// those that are left, as text. `line` formats events for the operator. Call this before there
    /// are threads.
    ///
    /// # Errors
    /// If the process cannot be started, or cannot give up its rights.
    pub fn separate(
        self,
        prepare: impl FnOnce() -> sys::Result<String>,
        line: impl Fn(Event) -> String + Send + Sync + 'static,
    ) -> sys::Result<Front> {
        let failed = |error: Error| sys::Error::io("confine", "process of --serve", &error);
        let (local, is_guarded) = (self.local(), self.is_guarded());
        let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
        let kept = [self.as_fd(), null.as_fd()].map(|fd| fd.as_raw_fd());
        let socket = sys::monitor::fork_with(c"watch-serve", &kept, |socket| {
            // Otherwise a client's connection could become the standard error of this process.
            let replaced = dup2_stdin(&null)
                .and_then(|()| dup2_stdout(&null))
                .and_then(|()| dup2_stderr(&null));
            replaced.map_err(|errno| failed(errno.into()))?;
            let relay = Relay::new(socket, prepare()?)?;
            face(&self, relay, line)
        })?;
        socket.set_read_timeout(Some(READY)).map_err(failed)?;
        let ready = receive(&mut &socket, QUESTION).and_then(|question| match question {
            Question::Ready(confinement) => Ok(confinement),
            _ => Err(ErrorKind::InvalidData.into()),
        });
        let confinement = ready.map_err(failed)?;
        socket.set_read_timeout(None).map_err(failed)?;
        Ok(Front { socket, local, is_guarded, confinement })
    }
}

impl Front {
    /// Answers the process until it ends or [`Front::stop`] is called. `tell` gets lines for the
    /// operator, without control characters.
    ///
    /// # Errors
    /// If the process ended by itself, or sent something that is no question.
    pub fn answer(&self, flows: &Flows, tell: impl Fn(&str)) -> Result<()> {
        let mut pace = RateLimit::new(QUESTIONS_PER_S);
        loop {
            pace.keep();
            match receive(&mut &self.socket, QUESTION)? {
                Question::Ready(_) => return Err(ErrorKind::InvalidData.into()),
                Question::Tell(line) => {
                    tell(&foreign::plain(&line).chars().take(LINE).collect::<String>());
                }
                Question::Sample { asked, received_ns } => {
                    let answer: Answer = flows.sample(&asked, received_ns);
                    send(&mut &self.socket, &answer)?;
                }
            }
        }
    }

    /// Ends the process. [`Front::answer`] returns an error once it has ended, or after a second.
    pub fn stop(&self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        // The kernel reports POLLHUP without being asked.
        let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::empty())], END_MS);
        // A client may have taken over the process, which then does not end.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Returns the local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns whether clients must know a token.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Describes the rights that the process has left.
    pub fn confinement(&self) -> &str {
        &self.confinement
    }
}

/// The other end of the socket pair, in the process that faces the network.
struct Relay {
    /// Held during a question and its answer.
    socket: Mutex<UnixStream>,
}

impl Relay {
    fn new(socket: UnixStream, confinement: String) -> sys::Result<Relay> {
        let relay = Relay { socket: Mutex::new(socket) };
        let failed = |error: Error| sys::Error::io("answer", "socket", &error);
        relay.with(|socket| send(socket, &Question::Ready(confinement))).map_err(failed)?;
        Ok(relay)
    }

    fn with<T>(&self, of: impl FnOnce(&mut &UnixStream) -> Result<T>) -> Result<T> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        of(&mut &*socket)
    }
}

impl Source for Relay {
    fn sample(&self, asked: &Asked, received_ns: i64) -> Answer {
        let question = Question::Sample { asked: asked.clone(), received_ns };
        let answer = self.with(|socket| {
            send(socket, &question)?;
            receive(socket, ANSWER)
        });
        answer.unwrap_or_else(|error: Error| Err(error.to_string()))
    }
}

/// Serves until the tracing process ends.
fn face(
    server: &PeerServer,
    relay: Relay,
    line: impl Fn(Event) -> String + Send + Sync + 'static,
) -> sys::Result<()> {
    let failed = |error: Error| sys::Error::io("serve", "network", &error);
    let watched = relay.with(|socket| socket.try_clone()).map_err(failed)?;
    let end = move || {
        // Answers are for the thread that asked, so do not wait for data.
        let closed = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);
        loop {
            let mut fds = [PollFd::new(watched.as_fd(), closed)];
            if poll(&mut fds, PollTimeout::NONE).is_ok_and(|ready| ready > 0) {
                // At once: the address must be free for a successor.
                std::process::exit(0);
            }
        }
    };
    std::thread::Builder::new().name("end".to_owned()).spawn(end).map_err(failed)?;
    let relay = Arc::new(relay);
    let teller = Arc::clone(&relay);
    let tell: Arc<Tell> = Arc::new(move |event| {
        // Without the tracing process, this one ends anyway.
        let _ = teller.with(|socket| send(socket, &Question::Tell(line(event))));
    });
    let outcome = server.run_from(Arc::clone(&relay), &tell);
    if let Err(error) = outcome {
        let _ = relay.with(|socket| send(socket, &Question::Tell(error.to_string())));
    }
    Ok(())
}

fn send(socket: &mut &UnixStream, message: &impl Serialize) -> Result<()> {
    let bytes = emit(message);
    let length = u32::try_from(bytes.len()).map_err(|_| Error::from(ErrorKind::InvalidData))?;
    socket.write_all(&[&length.to_ne_bytes(), bytes.as_slice()].concat())
}

fn receive<T: DeserializeOwned>(socket: &mut &UnixStream, most: usize) -> Result<T> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_ne_bytes(length) as usize;
    // The process that faces the network may be compromised: bound the length.
    if length > most {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_end_is_not_waited_for() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let local = ([127, 0, 0, 1], 0).into();
        let front = Front { socket, local, is_guarded: false, confinement: String::new() };
        front.stop();
        let error = receive::<Question>(&mut &front.socket, QUESTION).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn questions_arrive_and_others_are_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        let asked = Asked { flows: Vec::new(), vni: Some(42) };
        send(&mut &one, &Question::Sample { asked: asked.clone(), received_ns: 7 }).unwrap();
        let got = receive(&mut &other, QUESTION).unwrap();
        let Question::Sample { asked: got, received_ns: 7 } = got else { panic!("{got:?}") };
        assert_eq!(got, asked);
        for (bytes, kind) in [
            (&[0xff; 8][..], ErrorKind::InvalidData),
            (&[2, 0, 0, 0, b'{', b'}'], ErrorKind::InvalidData),
            (&[9, 0], ErrorKind::UnexpectedEof),
        ] {
            let (one, other) = UnixStream::pair().unwrap();
            (&one).write_all(bytes).unwrap();
            drop(one);
            let error = receive::<Question>(&mut &other, QUESTION).unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:?}");
        }
    }
}
