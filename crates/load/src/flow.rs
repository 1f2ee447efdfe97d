//! One flow at one end: what it knows, what it reports, and how the kernel's
//! answers become errors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use hdrhistogram::Histogram;
use sys::errno::Errno;

use super::control::{Control, Phase, TICK, Tally};
use super::pace::Kept;
use super::requests::Requests;
use super::{End, EngineError, Load, Stage};

/// Longest transaction that the histogram tells from a longer one, ns.
const LONGEST_NS: u64 = 60_000_000_000;

/// What a flow's thread knows.
pub(super) struct Flow<'a> {
    /// Index of the flow within the load, from 0.
    pub index: u32,
    /// Which end this is.
    pub end: End,
    /// The load that the flow is part of.
    pub load: &'a Load,
    /// What the client connects to, or what the server bound.
    pub address: SocketAddr,
    /// Tells this load's hellos from another's.
    pub token: u64,
    /// The endpoint's phase and counters.
    pub control: &'a Control,
}

impl Flow<'_> {
    /// Waits while the server stands still.
    pub fn stand_still(&self) {
        let Some(stall) = self.load.server_stall else { return };
        let Some(begun) = self.control.traffic_since() else { return };
        let now = Instant::now();
        let until = now + stall.left(now.saturating_duration_since(begun));
        while !self.control.is_done() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(TICK));
        }
    }

    /// Rests after an answer that came at `ended`, where the load wants it; when the next
    /// request begins.
    pub fn rested(&self, ended: Instant) -> Instant {
        if self.load.rest.is_zero() {
            return ended;
        }
        std::thread::sleep(self.load.rest);
        Instant::now()
    }
}

/// What a flow's thread leaves behind.
#[derive(Debug, Default)]
pub(super) struct FlowReport {
    pub index: u32,
    pub cpus: Vec<usize>,
    pub latency: Option<Histogram<u64>>,
    /// Fate of pipelined requests; `None` where there are none.
    pub requests: Option<Requests>,
    pub socket_errors: BTreeMap<String, u64>,
    /// How the schedule was kept in the measured interval, where there is one.
    pub kept: Option<Kept>,
    /// Units that a message of the schedule stands for.
    pub units_per_message: u64,
    pub notes: Vec<String>,
}

impl FlowReport {
    /// Counts an answer of the kernel that does not end the load.
    pub fn count_error(&mut self, errno: Errno, operation: &str) {
        *self.socket_errors.entry(format!("{errno:?} {operation}")).or_default() += 1;
    }
}

/// An empty histogram for transactions, in ns, three significant digits.
pub(super) fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("1 ns to 60 s in 3 digits is in range")
}

impl Flow<'_> {
    pub fn tally(&self) -> &Tally {
        &self.control.tallies[self.index as usize]
    }

    /// How far the flow has got, for errors.
    pub fn stage(&self) -> Stage {
        match self.control.phase() {
            Phase::Setup => Stage::Hello,
            Phase::Closing | Phase::Done => Stage::Closing,
            _ => Stage::Traffic,
        }
    }

    /// What an errno of a socket operation means for the path.
    pub fn error(&self, stage: Stage, operation: &'static str, errno: Errno) -> EngineError {
        let target = self.address;
        match (self.end, errno) {
            (
                End::Client,
                Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ENETDOWN | Errno::EHOSTDOWN,
            ) => EngineError::Unreachable { target, stage, errno },
            (End::Client, Errno::ECONNREFUSED) => EngineError::Refused {
                target,
                stage,
                answer: if self.load.workload.is_tcp() {
                    "TCP reset or ICMP port unreachable"
                } else {
                    "ICMP port unreachable"
                },
            },
            (End::Client, Errno::EPERM | Errno::EACCES) => {
                EngineError::Prohibited { target, stage, errno }
            }
            (End::Client, Errno::ETIMEDOUT) => EngineError::NoAnswer {
                target,
                stage,
                waited: self.load.setup_limit,
                detail: "the kernel gave up sending again (ETIMEDOUT)".into(),
            },
            (end, Errno::ECONNRESET | Errno::ECONNABORTED | Errno::EPIPE) => {
                EngineError::Reset { flow: self.index, end, stage }
            }
            // At the server the address is its own, and no errno speaks of the way to it.
            (end, errno) => EngineError::Socket { flow: self.index, end, operation, stage, errno },
        }
    }

    /// Like [`error`](Flow::error), of `std`'s error.
    pub fn io_error(
        &self,
        stage: Stage,
        operation: &'static str,
        error: &std::io::Error,
    ) -> EngineError {
        self.error(stage, operation, errno_of(error))
    }
}

/// The errno of `std`'s error.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    // An error of the library's own has no number.
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
