//! Parses numbers from text, and checks their consistency.

use std::collections::BTreeMap;

use super::{Job, Moved, ToolOutcome, Unexpected};
use crate::{Datagrams, LatencyNs, Measured, Workload};

/// A tool's figures by its own names.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Figures(pub BTreeMap<String, f64>);

impl Figures {
    /// Adds a figure. Duplicates and values that are not finite numbers are errors.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), Unexpected> {
        let value = number(name, text)?;
        match self.0.insert(name.to_owned(), value) {
            None => Ok(()),
            // A repeated figure means an unknown format.
            Some(_) => Err(Unexpected::new(format!("{name} once"))),
        }
    }

    /// Returns a required figure.
    pub fn get(&self, name: &str) -> Result<f64, Unexpected> {
        self.0.get(name).copied().ok_or_else(|| Unexpected::new(format!("a value for {name}")))
    }

    /// Returns a rate or time, which must be above zero.
    pub fn positive(&self, name: &str) -> Result<f64, Unexpected> {
        let value = self.get(name)?;
        if value > 0.0 {
            Ok(value)
        } else {
            Err(Unexpected::new(format!("{name} above 0, not {value}")))
        }
    }

    /// Returns a figure that must be a whole number.
    pub fn count(&self, name: &str) -> Result<u64, Unexpected> {
        whole(name, self.get(name)?)
    }
}

/// Parses a finite number. The error names the figure.
pub(super) fn number(name: &str, text: &str) -> Result<f64, Unexpected> {
    text.trim()
        .parse::<f64>()
        .ok()
        .filter(|value| value.is_finite())
        .ok_or_else(|| Unexpected::new(format!("a number for {name}, not {text:?}")))
}

/// Converts a number to a count.
pub(super) fn whole(name: &str, value: f64) -> Result<u64, Unexpected> {
    /// Above this value not every whole number has a double.
    const MOST: f64 = 9e15;
    if (0.0..=MOST).contains(&value) && value.fract() == 0.0 {
        Ok(value as u64)
    } else {
        Err(Unexpected::new(format!("a count for {name}, not {value}")))
    }
}

/// Returns the number of datagrams of the job's size in `bytes`, which must be a multiple of it.
pub(super) fn datagrams(name: &str, bytes: u64, job: &Job<'_>) -> Result<u64, Unexpected> {
    let size = u64::from(job.load.message_bytes);
    if bytes.is_multiple_of(size) {
        Ok(bytes / size)
    } else {
        Err(Unexpected::new(format!("{name} of whole datagrams of {size} bytes, not {bytes}")))
    }
}

/// Checks that two figures of the same time agree; `coarse` has two decimals.
pub(super) fn same_time(name: &str, seconds: f64, coarse: f64) -> Result<(), Unexpected> {
    // Tools round their duration, so equal within 2% is equal.
    if seconds.is_finite() && (seconds - coarse).abs() <= 0.02 + 0.02 * coarse {
        return Ok(());
    }
    Err(Unexpected::new(format!("{name} and rates that agree, not {coarse} s and {seconds} s")))
}

/// Counts reported by the tool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// Length of the measured interval.
    pub seconds: f64,
    /// Payload received, bytes; one way for transactions.
    pub payload_bytes: u64,
    /// Units received, or transactions completed.
    pub units: u64,
    /// Units sent, or transactions begun.
    pub sent_units: u64,
    /// Time per transaction, if the tool reports enough percentiles.
    pub latency: Option<LatencyNs>,
    /// Retransmitted TCP segments; `None` if the tool does not report them.
    pub tcp_retransmits: Option<u64>,
}

/// Returns the outcome of a run in which the interval covers all traffic.
pub(super) fn outcome(job: &Job<'_>, counted: Counted, figures: Figures) -> ToolOutcome {
    let workload = job.load.workload;
    let datagrams = match workload {
        Workload::UdpStream => {
            Some(Datagrams { intended: None, sent: counted.sent_units, received: counted.units })
        }
        Workload::UdpRr => {
            // Requests in flight at the end are not lost.
            let answered = counted.sent_units.saturating_sub(u64::from(job.load.outstanding));
            let sent = answered.max(counted.units);
            Some(Datagrams { intended: None, sent, received: counted.units })
        }
        _ => None,
    };
    ToolOutcome {
        measured: Measured {
            workload,
            seconds: counted.seconds,
            payload_bytes: counted.payload_bytes,
            // Counters are read before the first and after the last byte.
            under_way_bytes: 0,
            messages_merge: workload == Workload::TcpRr && job.load.outstanding > 1,
            units: counted.units,
            sent_units: counted.sent_units,
            datagrams,
            latency: counted.latency,
            histogram: None,
            pace: None,
            tcp_retransmits: counted.tcp_retransmits,
            tcp: None,
            arrivals: None,
            ecn: None,
            socket_errors: BTreeMap::new(),
            flows: Vec::new(),
            beside: Vec::new(),
            steps: Vec::new(),
            notes: Vec::new(),
        },
        figures: figures.0,
        moved: Moved { units: counted.units, payload_bytes: counted.payload_bytes },
    }
}
