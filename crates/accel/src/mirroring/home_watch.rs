//! Notices the end of the namespace with the NICs.
//!
//! The namespace is deleted by its name (`ip netns del`) or with its container, but the sockets and
//! threads of this process would keep it and its devices alive. A thread checks once a second
//! whether any other process still does, and reports when none does.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use netstate::netns_holder::Held;

use super::search::Finder;
use crate::Result;

/// Interval between checks.
const PERIOD: Duration = Duration::from_secs(1);

/// The thread. Dropping it ends the thread; stop the finder process first.
pub(crate) struct HomeWatch {
    deleted: UnixStream,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HomeWatch {
    pub(crate) fn start(finder: Arc<Finder>) -> Result<HomeWatch> {
        let failed = |error: std::io::Error| sys::Error::io("start", "accel-home", &error);
        let (deleted, tell) = UnixStream::pair().map_err(failed)?;
        let (stop, stopped) = channel();
        // A namespace that is deleted right after the start was seen alive, too.
        let mut state = Past::default();
        state.is_end(finder.holder(None)?);
        let watch = move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                match finder.holder(state.last) {
                    Ok(held) if state.is_end(held) => {
                        tracing::warn!("the network namespace was deleted");
                        // Closing the socket has the same effect.
                        let _ = (&tell).write_all(&[1]);
                        return;
                    }
                    Ok(_) => {}
                    // Without the finder, nothing is known. The descriptor must stay silent.
                    Err(error) => {
                        if !finder.is_stopped() {
                            tracing::warn!(
                                "the end of the network namespace is not noticed: {error}"
                            );
                        }
                        let _ = stopped.recv();
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("accel-home".into()).spawn(watch);
        Ok(HomeWatch { deleted, stop: Some(stop), thread: Some(thread.map_err(failed)?) })
    }

    /// Returns a descriptor that becomes readable when no other process keeps the namespace alive.
    pub(crate) fn deleted(&self) -> BorrowedFd<'_> {
        self.deleted.as_fd()
    }
}

impl Drop for HomeWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Results of earlier checks.
#[derive(Default)]
struct Past {
    /// The process that kept the namespace alive. `None`: none was ever seen.
    last: Option<u32>,
    /// The last check found no process.
    is_alone: bool,
}

impl Past {
    /// Whether the namespace has no other holder any more. Two results in a row must say so, because
    /// a descriptor may pass from a process that is not yet checked to one that is.
    fn is_end(&mut self, held: Held) -> bool {
        let was_alone = std::mem::replace(&mut self.is_alone, held == Held::No);
        if let Held::By(pid) = held {
            self.last = Some(pid);
        }
        // If no holder was ever seen, it is one that the search cannot see.
        was_alone && self.is_alone && self.last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loss_of_a_holder_that_was_seen_is_an_end() {
        use Held::{By, No, Unknown};
        for (results, is_end) in [
            (&[By(1), No, No][..], true),
            (&[By(1), No], false),
            (&[By(1), No, By(7), No], false),
            (&[By(1), No, Unknown, No], false),
            (&[By(1), Unknown, Unknown], false),
            (&[No, No, No], false),
            (&[Unknown, No, No], false),
        ] {
            let mut past = Past::default();
            let last = results.iter().map(|held| past.is_end(*held)).last();
            assert_eq!(last, Some(is_end), "{results:?}");
        }
    }
}
