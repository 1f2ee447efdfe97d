//! The service of `overlane watch --metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use observe::{Totals, Watch};

use crate::metrics::{self, ListenAddress, Page, Service};
use crate::serving::Serving;

/// Age of the last heartbeat from which on the program counts as hung. Heartbeats come ten times a
/// second, except while it searches for new namespaces between intervals.
const FRESH: Duration = Duration::from_secs(5);

/// The serving thread and its state. Dropping it ends the thread.
pub struct WatchService {
    state: Arc<Progress>,
    _serving: Serving,
}

struct Progress {
    start: Instant,
    /// Time of the last heartbeat, in ms after the start.
    beat: AtomicU64,
    /// Set once the observation has started.
    totals: OnceLock<Arc<Mutex<Totals>>>,
}

impl WatchService {
    /// Starts to serve at an address.
    ///
    /// # Errors
    /// If the address is in use or cannot be bound.
    pub fn at(place: &ListenAddress) -> anyhow::Result<WatchService> {
        let (start, beat) = (Instant::now(), AtomicU64::new(0));
        let state = Arc::new(Progress { start, beat, totals: OnceLock::new() });
        let serving = metrics::look_after(metrics::listen(place)?, Watched(state.clone()))?;
        Ok(WatchService { state, _serving: serving })
    }

    /// Serves the totals of the observation from now on.
    pub fn begin(&self, watch: &mut Watch) {
        self.beat();
        // Cannot fail: only this call sets it.
        let _ = self.state.totals.set(watch.sum_up());
    }

    /// Records a heartbeat.
    pub fn beat(&self) {
        self.state.beat.store(self.state.now_ms(), Ordering::Release);
    }
}

impl Progress {
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
    }

    fn silent_for(&self) -> Duration {
        let beat = self.beat.load(Ordering::Acquire);
        Duration::from_millis(self.now_ms().saturating_sub(beat))
    }
}

struct Watched(Arc<Progress>);

impl Watched {
    fn totals<T>(&self, of: impl FnOnce(&Totals) -> T) -> Option<T> {
        let totals = self.0.totals.get()?;
        Some(of(&totals.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Service for Watched {
    fn metrics(&self) -> Page {
        let page = self.totals(|totals| totals.exposition(env!("CARGO_PKG_VERSION")));
        page.map_or(Page::unavailable("watching is starting\n"), Page::ok)
    }

    fn healthz(&self) -> Page {
        match self.0.silent_for() {
            // Heartbeats start only after the programs are attached.
            _ if self.0.totals.get().is_none() => Page::ok("starting\n"),
            silent if silent < FRESH => Page::ok("ok\n"),
            silent => Page::unavailable(format!("no heartbeat for {silent:.1?}\n")),
        }
    }

    fn readyz(&self) -> Page {
        match self.totals(Totals::intervals) {
            None | Some(0) => Page::unavailable("no interval has ended yet\n"),
            Some(_) if self.0.silent_for() < FRESH => Page::ok("ok\n"),
            Some(_) => Page::unavailable("no heartbeat\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_not_healthy() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let totals = OnceLock::new();
        let state = Arc::new(Progress { start: long_ago, beat: AtomicU64::new(0), totals });
        let watched = Watched(state.clone());
        assert_eq!(watched.healthz(), Page::ok("starting\n"));
        assert_eq!(watched.readyz(), Page::unavailable("no interval has ended yet\n"));
        assert_eq!(watched.metrics(), Page::unavailable("watching is starting\n"));
        state.totals.set(Arc::default()).unwrap();
        assert_eq!(watched.healthz().status, "503 Service Unavailable");
        state.beat.store(state.now_ms(), Ordering::Release);
        assert_eq!(watched.healthz(), Page::ok("ok\n"));
        assert_eq!(watched.readyz(), Page::unavailable("no interval has ended yet\n"));
        assert!(watched.metrics().body.contains("\noverlane_watch_intervals_total 0\n"));
    }
}
