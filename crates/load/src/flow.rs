//! One flow at one end: its context, its report, and the mapping of errno values to errors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use hdrhistogram::Histogram;
use results::EcnCounts;
use sys::errno::Errno;

use super::arrivals::Arrivals;
use super::control::{Control, Phase, TICK, Tally};
use super::pace::Kept;
use super::requests::Requests;
use super::{End, EngineError, Load, Stage};

/// Upper bound of the latency histogram, ns.
const LONGEST_NS: u64 = 60_000_000_000;

/// Context of a flow's thread.
pub(super) struct Flow<'a> {
    /// Index of the flow within the load, from 0.
    pub index: u32,
    /// End that this thread serves.
    pub end: End,
    pub load: &'a Load,
    /// Address that the client connects to, or that the server bound.
    pub address: SocketAddr,
    /// Identifies this load's hellos.
    pub token: u64,
    /// The endpoint's phase and counters.
    pub control: &'a Control,
}

impl Flow<'_> {
    /// Waits during a configured stall of the server.
    pub fn stand_still(&self) {
        let Some(stall) = self.load.server_stall else { return };
        // Stalls are counted from the start of traffic.
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

    /// Rests after an answer that came at `ended`, if the load asks for it. Returns the start of
    /// the next request.
    pub fn rested(&self, ended: Instant) -> Instant {
        if self.load.rest.is_zero() {
            return ended;
        }
        std::thread::sleep(self.load.rest);
        Instant::now()
    }
}

/// Final report of a flow's thread.
#[derive(Debug, Default)]
pub(super) struct FlowReport {
    pub index: u32,
    pub cpus: Vec<usize>,
    pub latency: Option<Histogram<u64>>,
    /// ToolOutcome of pipelined requests; `None` without pipelining.
    pub requests: Option<Requests>,
    pub socket_errors: BTreeMap<String, u64>,
    /// Adherence to the schedule in the measured interval, if there is a schedule.
    pub kept: Option<Kept>,
    /// Units per message of the schedule.
    pub units_per_message: u64,
    /// Arrivals of numbered datagrams in the measured interval.
    pub arrivals: Option<Arrivals>,
    /// Packets of the measured interval by ECN codepoint, at the end that counts them.
    pub ecn: Option<EcnCounts>,
    pub notes: Vec<String>,
}

impl FlowReport {
    /// Counts an error of the kernel that does not end the load.
    pub fn count_error(&mut self, errno: Errno, operation: &str) {
        *self.socket_errors.entry(format!("{errno:?} {operation}")).or_default() += 1;
    }
}

/// Returns an empty histogram for transactions, in ns, with three significant digits.
pub(super) fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("1 ns to 60 s in 3 digits is in range")
}

impl Flow<'_> {
    pub fn tally(&self) -> &Tally {
        &self.control.tallies[self.index as usize]
    }

    /// Stage of the flow, for errors.
    pub fn stage(&self) -> Stage {
        match self.control.phase() {
            Phase::Setup => Stage::Hello,
            Phase::Closing | Phase::Done => Stage::Closing,
            _ => Stage::Traffic,
        }
    }

    /// Maps the errno of a socket operation to its meaning for the path.
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
                detail: "the kernel gave up retransmitting (ETIMEDOUT)".into(),
            },
            (end, Errno::ECONNRESET | Errno::ECONNABORTED | Errno::EPIPE) => {
                EngineError::Reset { flow: self.index, end, stage }
            }
            // At the server the address is its own, so no errno describes the path.
            (end, errno) => EngineError::Socket { flow: self.index, end, operation, stage, errno },
        }
    }

    /// Like [`error`](Flow::error), for an error of `std`.
    pub fn io_error(
        &self,
        stage: Stage,
        operation: &'static str,
        error: &std::io::Error,
    ) -> EngineError {
        self.error(stage, operation, errno_of(error))
    }
}

pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    // Errors that `std` creates itself have no errno.
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
