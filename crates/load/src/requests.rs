//! ToolOutcome of requests that do not wait for each other.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::Load;
use super::pace::late_histogram;
use results::Pacing;

/// Time after the interval during which its unanswered requests are awaited.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// ToolOutcome of the requests of the measured interval.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    /// Answered; their latency is in the report.
    pub answered: u64,
    /// Lost (UDP). They have no latency.
    pub lost: u64,
    /// Not answered in time; recorded with their waiting time.
    pub unfinished: u64,
    /// Sent late because the maximum was in flight.
    pub held_back: u64,
    /// Delay of sends after their due time, ns.
    pub late: Option<Histogram<u64>>,
}

impl Requests {
    /// Sums up all flows.
    pub fn of<'a>(flows: impl Iterator<Item = &'a Requests>) -> Requests {
        let mut sum = Requests::default();
        for requests in flows {
            sum.answered += requests.answered;
            sum.lost += requests.lost;
            sum.unfinished += requests.unfinished;
            sum.held_back += requests.held_back;
            if let Some(late) = &requests.late {
                let all = sum.late.get_or_insert_with(late_histogram);
                all.add(late).expect("histograms of one shape");
            }
        }
        sum
    }

    /// Returns the adherence to the schedule, with `sent_per_s` sent in the interval.
    pub fn pace(&self, load: &Load, sent_per_s: f64) -> Option<Pacing> {
        let us = |ns: u64| ns as f64 / 1e3;
        let late = self.late.as_ref()?;
        Some(Pacing {
            intended_per_s: load.transactions_per_s?,
            sent_per_s,
            late_p50_us: us(late.value_at_quantile(0.5)),
            late_p99_us: us(late.value_at_quantile(0.99)),
            late_max_us: us(late.max()),
        })
    }

    /// Returns the remarks that qualify the latency.
    pub fn notes(&self, load: &Load) -> Vec<String> {
        let mut notes = Vec::new();
        // No counts in the text: equal notes of all samples are then merged.
        if self.held_back > 0 {
            notes.push(format!(
                "requests were sent late because {} per flow, the maximum, were in flight; they \
                 are timed from their due time",
                load.outstanding
            ));
        }
        if self.unfinished > 0 {
            notes.push(format!(
                "requests were not answered within {LINGER:.0?} after the interval: recorded with \
                 their waiting time so far"
            ));
        }
        notes
    }
}
