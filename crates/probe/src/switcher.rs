//! Settings of a serving machine that a client's search may switch.
//!
//! The server gives up its rights before it faces clients, so another process keeps the right to
//! change settings: [`serve`]. It is asked over a socket by [`Switcher`], the server's side, and
//! trusts it with nothing but the choice among [`crate::features`] of the allowed devices. It
//! restores the settings when it is asked to, when the server has gone for any reason, and
//! [`MOST_OFF`] after it has switched them off.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use settings::journal::Journal;
use settings::trial::Trial;

use crate::answering::ServerSettings;
use crate::message::validate_features;
use crate::switch::switch_off;

/// Longest time that settings are off for one step of a search.
pub const MOST_OFF: Duration = Duration::from_secs(60);
/// Time limit of an answer: shorter than that of a client that waits for it.
const ANSWER: Duration = Duration::from_secs(12);
/// Time limit for the rest of a message that has begun.
const REST: Duration = Duration::from_secs(1);
/// Longest message, bytes.
const LONGEST: usize = 16 << 10;

/// Order of the server.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Order {
    Off { device: String, features: Vec<String> },
    Restore,
}

/// Result of an order, or of the start; the reason of a failure as text.
pub type Outcome = std::result::Result<(), String>;

/// The server's side of the process that switches settings. Dropping it ends the process.
#[derive(Debug)]
pub struct Switcher {
    socket: Mutex<UnixStream>,
    devices: Vec<String>,
}

impl Switcher {
    /// Waits until the process at the other end of the socket is ready. It changes features of these
    /// devices only.
    ///
    /// # Errors
    /// Why the process cannot change settings, as text.
    pub fn connect(socket: UnixStream, devices: Vec<String>) -> std::result::Result<Self, String> {
        let timeout = socket.set_read_timeout(Some(ANSWER));
        timeout.map_err(|error| format!("set timeout of a socket: {error}"))?;
        let switcher = Switcher { socket: Mutex::new(socket), devices };
        switcher.exchange(None)?;
        Ok(switcher)
    }

    fn exchange(&self, order: Option<&Order>) -> Outcome {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let exchanged = order
            .map_or(Ok(()), |order| send(&socket, order))
            .and_then(|()| receive::<Outcome>(&socket));
        exchanged.unwrap_or_else(|error| {
            // A late answer would be taken for that of the next order. The process restores the
            // settings when the connection ends.
            let _ = socket.shutdown(std::net::Shutdown::Both);
            Err(format!("the process that switches settings does not answer: {error}"))
        })
    }
}

impl ServerSettings for Switcher {
    fn may_switch(&self, device: &str) -> Outcome {
        allowed(&self.devices, device)
    }

    fn switch_off(&self, device: &str, features: &[String]) -> Outcome {
        let (device, features) = (device.to_owned(), features.to_vec());
        self.exchange(Some(&Order::Off { device, features }))
    }

    fn restore(&self) -> Outcome {
        self.exchange(Some(&Order::Restore))
    }
}

fn allowed(devices: &[String], device: &str) -> Outcome {
    // Only devices that the administrator named on the command line may be switched.
    if devices.iter().any(|allowed| allowed == device) {
        return Ok(());
    }
    let allowed = devices.join(", ");
    Err(format!("its administrator allows to switch settings of {allowed}, not of {device}"))
}

/// Switches settings as the other end of the socket orders, in the namespace of the calling thread,
/// until that end has gone. If the process is not `prepared`, it only tells that end.
///
/// # Errors
/// If a setting could not be restored at the end, as text. Its entry stays in the journal.
pub fn serve(
    socket: &UnixStream,
    journal: &Path,
    devices: &[String],
    prepared: Outcome,
) -> Outcome {
    serve_for(socket, journal, devices, prepared, MOST_OFF)
}

/// As [`serve`], with another limit on the time that settings are off. For tests.
#[doc(hidden)]
pub fn serve_for(
    socket: &UnixStream,
    journal: &Path,
    devices: &[String],
    prepared: Outcome,
    most_off: Duration,
) -> Outcome {
    let mut keeping = Keeping { journal, devices, most_off, off: None, late: None };
    // Report at the start, rather than to the first client, that the journal cannot be used.
    let usable = || Journal::open(journal).map(drop).map_err(|error| error.to_string());
    let ready = prepared.and_then(|()| usable());
    let is_ready = ready.is_ok();
    let timeout = socket.set_read_timeout(Some(REST));
    // Nothing is switched yet, so there is nothing to restore.
    if timeout.and_then(|()| send(socket, &ready)).is_err() || !is_ready {
        return Ok(());
    }
    loop {
        match is_asked(socket, keeping.off.as_ref().map(|(_, until)| *until)) {
            Ok(true) => {}
            Ok(false) => {
                keeping.take_back_late();
                continue;
            }
            // The server is gone, or its socket is broken: restore, and end.
            Err(_) => break,
        }
        // The server has gone, or sends something that is no order.
        let Ok(order) = receive::<Order>(socket) else { break };
        // Nobody reads the answers any more: restore, and end.
        if send(socket, &keeping.obey(order)).is_err() {
            break;
        }
    }
    keeping.restore()
}

/// State of the process that switches settings.
struct Keeping<'a> {
    journal: &'a Path,
    devices: &'a [String],
    most_off: Duration,
    /// Settings that are off, and when they are restored without an order.
    off: Option<(Trial, Instant)>,
    /// Result of restoring them without an order.
    late: Option<String>,
}

impl Keeping<'_> {
    fn obey(&mut self, order: Order) -> Outcome {
        match order {
            Order::Restore => self.restore(),
            Order::Off { device, features } => {
                // The process that asks faces clients, so its request is checked again.
                allowed(self.devices, &device)?;
                validate_features(&features)?;
                self.restore()?;
                let trial = switch_off(self.journal, &device, &features)?;
                self.off = Some((trial, Instant::now() + self.most_off));
                Ok(())
            }
        }
    }

    fn restore(&mut self) -> Outcome {
        // An error of a restoration by time limit is reported with the next order.
        if let Some(late) = self.late.take() {
            return Err(late);
        }
        let Some((mut trial, _)) = self.off.take() else { return Ok(()) };
        trial.take_back().map_err(|error| format!("{error}; see overlane undo --list there"))
    }

    /// Restores the settings without an order. The step that they were off for proves nothing.
    fn take_back_late(&mut self) {
        let limit = self.most_off.as_secs();
        self.late = Some(match self.restore() {
            Ok(()) => format!("the settings were restored after {limit} s"),
            Err(error) => error,
        });
    }
}

/// Waits for an order until a time. Returns whether one came.
fn is_asked(socket: &UnixStream, until: Option<Instant>) -> Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(PollTimeout::NONE, sys::wait::at_most);
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if until.is_some_and(|until| Instant::now() >= until) => return Ok(false),
            // A signal, or a wait that ended before its time.
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn send(mut socket: &UnixStream, message: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(|_| Error::from(ErrorKind::InvalidData))?;
    socket.write_all(&[&length.to_ne_bytes(), bytes.as_slice()].concat())
}

fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> Result<T> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_ne_bytes(length) as usize;
    // The server may be compromised: the length must not allocate memory at its will.
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}
