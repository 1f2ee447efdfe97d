//! Events of `accel run`. A separate thread writes them, so that a full disk or a slow reader
//! delays only events.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use accel::events::{Event, What, changes};
use accel::{Accel, Status};
use anyhow::Context;
use nix::libc;

use crate::exit::usage;
use crate::output::follow_trusted;

/// Polling interval. Changes within one interval appear as a single change.
const LOOK: Duration = Duration::from_millis(100);
/// Time that process exit waits for a slow reader.
const PATIENCE: Duration = Duration::from_millis(300);

/// Destination of `accel run --events`: standard output for `-`, otherwise a file to append to.
pub struct Sink(Box<dyn Write + Send>);

/// Returns whether events go to standard output.
pub fn is_stdout(place: &Path) -> bool {
    place.as_os_str() == "-"
}

/// Opens the destination. Call it before confinement, which forbids opening files for writing.
pub fn open(place: &Path) -> anyhow::Result<Sink> {
    if is_stdout(place) {
        return Ok(Sink(Box::new(std::io::stdout())));
    }
    let mut options = OpenOptions::new();
    // Non-blocking, so that opening a named pipe does not wait for its reader.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    options.append(true).create(true).mode(0o640).custom_flags(flags | follow_trusted(place));
    let file = options
        .open(place)
        .map_err(|error| usage("--events", format!("cannot open {}: {error}", place.display())))?;
    Ok(Sink(Box::new(file)))
}

/// The thread that writes events. Dropping it ends the thread.
pub struct Events {
    sender: Option<Sender<What>>,
    thread: Option<JoinHandle<()>>,
}

impl Events {
    /// Starts the thread, which first writes `first`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(sink: Sink, accel: &Arc<Accel>, first: Vec<What>) -> anyhow::Result<Events> {
        let (sender, receiver) = channel();
        let accel = Arc::downgrade(accel);
        let thread = std::thread::Builder::new()
            .name("events".into())
            .spawn(move || follow(sink, &accel, &receiver, first))
            .context("start thread events")?;
        Ok(Events { sender: Some(sender), thread: Some(thread) })
    }

    /// Queues an event without blocking. Has no effect once the thread has ended.
    pub fn send(&self, what: What) {
        if let Some(sender) = &self.sender {
            let _ = sender.send(what);
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.sender = None;
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + PATIENCE;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        // A thread that still waits for its reader ends with the process.
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

fn follow(mut sink: Sink, accel: &Weak<Accel>, receiver: &Receiver<What>, first: Vec<What>) {
    let mut lost = false;
    let mut write = |what: What| {
        // Skip an event that cannot be serialised: it must not stop the thread.
        let Ok(mut line) = serde_json::to_vec(&Event::now(what)) else { return };
        line.push(b'\n');
        // One write per line, so that lines of two processes in one file do not mix.
        let written = sink.0.write_all(&line).and_then(|()| sink.0.flush());
        if let Err(error) = &written
            && !lost
        {
            tracing::warn!("events are lost: {error}");
        }
        lost = written.is_err();
    };
    first.into_iter().for_each(&mut write);
    let mut seen = WrittenState { status: Arc::new(Status::default()), finder_lost: false };
    loop {
        seen.look(accel).into_iter().for_each(&mut write);
        match receiver.recv_timeout(LOOK) {
            Ok(what) => seen.look(accel).into_iter().chain([what]).for_each(&mut write),
            // No event of its own: differences of the state are looked for ten times a second.
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The state that the last written events describe.
struct WrittenState {
    status: Arc<Status>,
    finder_lost: bool,
}

impl WrittenState {
    /// Returns the events since the last call. Releases the fast path before they are written.
    fn look(&mut self, accel: &Weak<Accel>) -> Vec<What> {
        let Some(accel) = accel.upgrade() else { return Vec::new() };
        let now = accel.noted();
        let mut all = Vec::new();
        // The status is replaced as a whole, so an equal pointer means no change.
        if !Arc::ptr_eq(&self.status, &now) {
            all = changes(&self.status, &now);
            self.status = now;
        }
        if !self.finder_lost && accel.vitals().finder_lost {
            self.finder_lost = true;
            all.push(What::FinderLost);
        }
        all
    }
}
