//! Result of a load.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use super::{Arrivals, BesideMeasured, Workload};
use results::{Bin, EcnCounts, FlowShares, Pacing, TcpState, Unit};

/// Result of a load over the measured interval.
#[derive(Clone)]
pub struct Measured {
    /// Workload that made the traffic.
    pub workload: Workload,
    /// Length of the measured interval, seconds. For `udp_stream` this is the time of sending,
    /// without draining.
    pub seconds: f64,
    /// Payload received within the interval, bytes. Streams: at the server. Transactions: `units`
    /// × message size, one way.
    pub payload_bytes: u64,
    /// Upper bound of the payload in the two sockets and on the path when the interval began,
    /// bytes: received within the interval, sent before it. 0 unless traffic goes on over both
    /// ends of the interval (`tcp_stream` and pipelined requests).
    pub under_way_bytes: u64,
    /// Whether the kernel may put several messages into one packet (pipelined requests over TCP).
    /// Packet counts then prove nothing about transactions.
    pub messages_merge: bool,
    /// Work done within the interval: whole messages of payload (`tcp_stream`), datagrams read by
    /// the server until sending ended (`udp_stream`), transactions or connections completed at
    /// the client.
    pub units: u64,
    /// Work begun by the client within the interval, in the same units: messages accepted by its
    /// kernel for streams, requests sent for transactions.
    pub sent_units: u64,
    /// Datagrams sent and received, draining included (`udp_stream`, `udp_rr`).
    pub datagrams: Option<Datagrams>,
    /// Arrivals of numbered datagrams, draining included.
    pub arrivals: Option<Arrivals>,
    /// Packets of the interval by ECN codepoint, draining included: datagrams that the server read with
    /// [`Load::ecn`](super::Load::ecn), or segments of the end that sends the load (`tcp_rr`,
    /// `tcp_crr`: the client) over connections with ECN.
    pub ecn: Option<EcnCounts>,
    /// Time per transaction (rr, crr). For crr it runs from before `connect` until after the
    /// other end has closed.
    pub latency: Option<LatencyNs>,
    /// Distribution behind [`latency`](Measured::latency), ns.
    pub histogram: Option<Histogram<u64>>,
    /// Adherence to the schedule, if there was one.
    pub pace: Option<Pacing>,
    /// Segments retransmitted by the client's kernel within the interval, over all flows
    /// (`TCP_INFO`). Not for `tcp_crr`, whose connections no longer exist.
    pub tcp_retransmits: Option<u64>,
    /// State of the client's connections at the end of the interval, if it sends.
    pub tcp: Option<TcpState>,
    /// Errors of the kernel that did not end the load: counts by errno name and system call
    /// (`EAGAIN sendmmsg`).
    pub socket_errors: BTreeMap<String, u64>,
    /// Share of each flow, by index.
    pub flows: Vec<FlowMeasured>,
    /// Bulk traffic beside the requests, by [`Beside::workloads`](results::Beside::workloads).
    pub beside: Vec<BesideMeasured>,
    /// Rate in each second of an interval of 3 s or more, in the unit of [`rate`](Measured::rate);
    /// empty if unknown.
    pub steps: Vec<f64>,
    /// Remarks that qualify the figures.
    pub notes: Vec<String>,
}

impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Print only the histogram's sum, not its tens of thousands of counts.
        let counted = self.histogram.as_ref().map(Histogram::len);
        f.debug_struct("Measured")
            .field("workload", &self.workload)
            .field("seconds", &self.seconds)
            .field("payload_bytes", &self.payload_bytes)
            .field("under_way_bytes", &self.under_way_bytes)
            .field("messages_merge", &self.messages_merge)
            .field("units", &self.units)
            .field("sent_units", &self.sent_units)
            .field("datagrams", &self.datagrams)
            .field("arrivals", &self.arrivals)
            .field("ecn", &self.ecn)
            .field("latency", &self.latency)
            .field("histogram", &counted)
            .field("pace", &self.pace)
            .field("tcp_retransmits", &self.tcp_retransmits)
            .field("tcp", &self.tcp)
            .field("socket_errors", &self.socket_errors)
            .field("flows", &self.flows)
            .field("beside", &self.beside)
            .field("steps", &self.steps)
            .field("notes", &self.notes)
            .finish()
    }
}

impl Measured {
    /// Rate in the workload's [`unit`](Workload::unit): payload bits/s for TCP streams, units/s
    /// otherwise.
    pub fn rate(&self) -> f64 {
        match self.workload.unit() {
            Unit::Bits => self.bits_per_s(),
            _ => self.units as f64 / self.seconds,
        }
    }

    /// Returns the rates of the flows in the unit of [`rate`](Measured::rate); `None` for a single
    /// flow.
    pub fn flow_shares(&self) -> Option<FlowShares> {
        let rates = self.flows.iter().map(|flow| match self.workload.unit() {
            Unit::Bits => flow.payload_bytes as f64 * 8.0 / self.seconds,
            _ => flow.units as f64 / self.seconds,
        });
        FlowShares::of(&rates.collect::<Vec<_>>())
    }

    /// Payload at the receiver, bits/s.
    pub fn bits_per_s(&self) -> f64 {
        self.payload_bytes as f64 * 8.0 / self.seconds
    }
}

/// Datagrams of the measured interval, draining included. Every datagram is either received or
/// lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Datagrams {
    /// Due by the schedule within the interval; `None` without a schedule.
    pub intended: Option<u64>,
    /// Accepted by the sender's kernel. Includes datagrams that a queueing discipline then
    /// dropped, which the socket does not learn.
    pub sent: u64,
    /// Read by the receiver.
    pub received: u64,
}

impl Datagrams {
    /// Returns the number of datagrams that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// One flow's share of a [`Measured`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowMeasured {
    pub units: u64,
    pub sent_units: u64,
    pub payload_bytes: u64,
    /// CPUs the client's thread was allowed to run on (`sched_getaffinity`).
    pub client_cpus: Vec<usize>,
    /// CPUs the server's thread was allowed to run on.
    pub server_cpus: Vec<usize>,
}

/// Percentiles of a latency distribution, nanoseconds, from an HDR histogram with three
/// significant digits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyNs {
    /// Number of transactions in the histogram.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Shortest transaction.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// 99.99th percentile.
    pub p99_99: u64,
    /// Longest transaction.
    pub max: u64,
}

impl LatencyNs {
    /// Returns the percentiles of a histogram of nanoseconds; `None` if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<LatencyNs> {
        (!histogram.is_empty()).then(|| LatencyNs {
            count: histogram.len(),
            mean: histogram.mean(),
            min: histogram.min(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p99_9: histogram.value_at_quantile(0.999),
            p99_99: histogram.value_at_quantile(0.9999),
            max: histogram.max(),
        })
    }

    /// Converts to microseconds, the unit of the results file.
    pub fn micros(&self) -> results::Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        results::Latency {
            p50: us(self.p50),
            p90: us(self.p90),
            p99: us(self.p99),
            p99_9: us(self.p99_9),
            p99_99: us(self.p99_99),
            max: us(self.max),
        }
    }
}

/// Bins per doubling of latency: 4% each, finer than two samples agree.
const BINS_PER_DOUBLING: f64 = 16.0;

/// Converts a histogram of nanoseconds to the results file's bins of equal ratio, lowest first,
/// without empty bins.
pub fn bins(histogram: &Histogram<u64>) -> Vec<Bin> {
    let mut bins: Vec<(i32, u64)> = Vec::new();
    for value in histogram.iter_recorded() {
        let ns = value.value_iterated_to().max(1) as f64;
        let bin = (ns.log2() * BINS_PER_DOUBLING).ceil() as i32;
        match bins.last_mut() {
            Some((last, count)) if *last == bin => *count += value.count_at_value(),
            _ => bins.push((bin, value.count_at_value())),
        }
    }
    let us = |bin: i32| (f64::from(bin) / BINS_PER_DOUBLING).exp2() / 1e3;
    bins.into_iter().map(|(bin, count)| Bin { us: us(bin), count }).collect()
}

/// Merges the bins of several samples.
pub fn merge_bins<'a>(histograms: impl IntoIterator<Item = &'a [Bin]>) -> Vec<Bin> {
    let mut all: Vec<Bin> = histograms.into_iter().flatten().copied().collect();
    all.sort_by(|a, b| a.us.total_cmp(&b.us));
    all.dedup_by(|next, kept| {
        // Equal bins have bit-identical bounds.
        let same = next.us == kept.us;
        if same {
            kept.count += next.count;
        }
        same
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latencies from 10 µs to 20 ms with a thinning tail.
    fn latencies() -> (Histogram<u64>, Vec<u64>) {
        let mut values: Vec<u64> = (0..1_000_000u64)
            .map(|i| {
                let share = (i as f64 + 0.5) / 1e6;
                // 10 µs minimum, 20 ms at 99.9999%.
                (10_000.0 * (1.0 - share).powf(-0.55)) as u64
            })
            .collect();
        values.sort_unstable();
        let mut histogram = super::super::flow::latency_histogram();
        for &value in &values {
            histogram.saturating_record(value);
        }
        (histogram, values)
    }

    #[test]
    fn percentiles_are_exact_to_three_digits_up_to_the_last() {
        let (histogram, values) = latencies();
        let latency = LatencyNs::of(&histogram).unwrap();
        for (got, quantile) in [
            (latency.p50, 0.5),
            (latency.p99, 0.99),
            (latency.p99_9, 0.999),
            (latency.p99_99, 0.9999),
        ] {
            let exact = values[(quantile * values.len() as f64) as usize - 1] as f64;
            assert!((got as f64 / exact - 1.0).abs() < 1e-3, "{quantile}: {got}, not {exact}");
        }
    }

    #[test]
    fn bins_are_few_and_lose_no_count_and_no_percentile() {
        let (histogram, values) = latencies();
        let bins = bins(&histogram);
        assert!(bins.len() <= 200, "{} bins", bins.len());
        assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), histogram.len());
        for quantile in [0.5, 0.99, 0.9999] {
            let rank = (quantile * values.len() as f64) as u64;
            let mut below = 0;
            let bin = bins.iter().find(|bin| {
                below += bin.count;
                below >= rank
            });
            // The bin's upper bound is at most one bin above the value.
            let ratio = bin.unwrap().us * 1e3 / values[rank as usize - 1] as f64;
            let width = (1.0 / BINS_PER_DOUBLING).exp2() * 1.001;
            assert!((0.999..=width).contains(&ratio), "{quantile}: {ratio}");
        }
    }
}
