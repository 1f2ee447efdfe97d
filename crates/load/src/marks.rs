//! Congestion marks (ECN): counts of datagrams by codepoint, and of segments by the state of their
//! connection.

use std::net::TcpStream;

use results::EcnCounts;
use sys::udp::Codepoints;

use super::control::Phase;
use super::flow::FlowReport;

/// Segments that a connection has delivered since its start, and those of them that the receiver
/// reported as marked CE. `None` without ECN, and before Linux 4.18.
pub(super) fn delivered(state: &sys::tcp::TcpInfo) -> Option<(u64, u64)> {
    let (delivered, ce) = state.delivered.filter(|_| state.ecn)?;
    Some((u64::from(delivered), u64::from(ce)))
}

/// Returns the segments delivered between two readings.
pub(super) fn between(begin: (u64, u64), end: (u64, u64)) -> EcnCounts {
    EcnCounts {
        arrived: end.0.saturating_sub(begin.0),
        ce: end.1.saturating_sub(begin.1),
        not_ect: None,
    }
}

impl FlowReport {
    /// Adds datagrams that were read in the measured interval.
    pub fn count_datagrams(&mut self, codepoints: Codepoints) {
        let Codepoints { not_ect, ect, ce } = codepoints;
        let counts = EcnCounts { arrived: not_ect + ect + ce, ce, not_ect: Some(not_ect) };
        self.ecn.get_or_insert_default().add(counts);
    }

    /// Adds the segments of a whole connection. One that has fallen back to no ECN is left out: its
    /// segments cannot be marked.
    pub fn count_connection(&mut self, stream: &TcpStream) -> Result<(), sys::Error> {
        if let Some(end) = delivered(&sys::tcp::state(stream)?) {
            // The SYN counts as delivered, and never has a codepoint.
            self.ecn.get_or_insert_default().add(between((1, 0), end));
        }
        Ok(())
    }
}

/// Reads the state of a connection when its thread notices the start and the end of the measured
/// interval.
pub(super) struct Delivering<'a> {
    stream: &'a TcpStream,
    begin: Option<(u64, u64)>,
    end: Option<(u64, u64)>,
}

impl<'a> Delivering<'a> {
    pub fn new(stream: &'a TcpStream) -> Delivering<'a> {
        Delivering { stream, begin: None, end: None }
    }

    /// Reads the state if a phase begins or ends the interval.
    pub fn turn(&mut self, phase: Phase) {
        if phase >= Phase::Measure && self.begin.is_none() {
            self.begin = self.read();
        }
        if phase > Phase::Measure && self.end.is_none() {
            self.end = self.read();
        }
    }

    /// Returns the segments of the interval. `None` if it has not ended, or without ECN.
    pub fn counts(self) -> Option<EcnCounts> {
        Some(between(self.begin?, self.end?))
    }

    fn read(&self) -> Option<(u64, u64)> {
        delivered(&sys::tcp::state(self.stream).ok()?)
    }
}
