//! What became of requests that do not wait for each other.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::Load;
use super::pace::late_histogram;
use results::Pace;

/// Unanswered requests of the interval are waited for this long after it.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// What became of the requests of the measured interval.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    /// Answered; the latency of each is in the report.
    pub answered: u64,
    /// Lost (UDP): no latency is made up for them.
    pub lost: u64,
    /// Not answered in time, recorded with the time they had waited.
    pub unfinished: u64,
    /// Sent late because as many as allowed were under way.
    pub held_back: u64,
    /// How late requests were sent after they were due, ns.
    pub late: Option<Histogram<u64>>,
}

impl Requests {
    /// Those of all flows.
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

    /// How the schedule was kept, of which `sent_per_s` were sent in the interval.
    pub fn pace(&self, load: &Load, sent_per_s: f64) -> Option<Pace> {
        let us = |ns: u64| ns as f64 / 1e3;
        let late = self.late.as_ref()?;
        Some(Pace {
            intended_per_s: load.transactions_per_s?,
            sent_per_s,
            late_p50_us: us(late.value_at_quantile(0.5)),
            late_p99_us: us(late.value_at_quantile(0.99)),
            late_max_us: us(late.max()),
        })
    }

    /// What a reader must know before believing a latency.
    pub fn notes(&self, load: &Load) -> Vec<String> {
        let mut notes = Vec::new();
        // Without counts: the same of every sample is said once.
        if self.held_back > 0 {
            notes.push(format!(
                "requests were sent late because {} a flow, the most allowed, were under way; \
                 they are timed from when they were due",
                load.outstanding
            ));
        }
        if self.unfinished > 0 {
            notes.push(format!(
                "requests were not answered within {LINGER:.0?} after the interval: timed as far \
                 as they had waited"
            ));
        }
        notes
    }
}
