//! A load and its result as messages between processes.

use std::collections::BTreeMap;
use std::time::Duration;

use results::{Beside, EcnCounts, Pacing, TcpState};
use serde::{Deserialize, Serialize};

use super::flow::latency_histogram;
use super::{
    Arrivals, BesideMeasured, Datagrams, EngineError, FlowMeasured, LatencyNs, Load, Measured,
    Workload,
};

/// Maximum number of histogram bins accepted; histograms of the engine have fewer.
const MOST_BINS: usize = 1 << 17;

/// Message form of a [`Load`], without CPUs, which differ between machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRecord {
    workload: String,
    message_bytes: u32,
    flows: u32,
    gso: bool,
    datagrams_per_s: Option<u64>,
    numbered: bool,
    outstanding: u32,
    transactions_per_s: Option<f64>,
    rest: Duration,
    beside: Option<Beside>,
    socket_buffer_bytes: Option<u32>,
    dscp: Option<u8>,
    ecn: bool,
    warmup: Duration,
    duration: Duration,
    setup_limit: Duration,
}

impl LoadRecord {
    /// Converts a load for another machine.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a stalling server, which is for tests in this process only.
    pub fn of(load: &Load) -> Result<LoadRecord, EngineError> {
        // No `..`: a new field must be handled here.
        let Load {
            workload,
            message_bytes,
            flows,
            gso,
            datagrams_per_s,
            numbered,
            outstanding,
            transactions_per_s,
            server_stall,
            rest,
            beside,
            socket_buffer_bytes,
            dscp,
            ecn,
            warmup,
            duration,
            client_cpus: _,
            server_cpus: _,
            setup_limit,
        } = load;
        if let Some(stall) = server_stall {
            // The stall is for tests with both ends in one process.
            let got = format!("{stall:?}");
            return Err(EngineError::invalid("server_stall", "a server in this process", got));
        }
        Ok(LoadRecord {
            workload: workload.name().to_owned(),
            message_bytes: *message_bytes,
            flows: *flows,
            gso: *gso,
            datagrams_per_s: *datagrams_per_s,
            numbered: *numbered,
            outstanding: *outstanding,
            transactions_per_s: *transactions_per_s,
            rest: *rest,
            beside: *beside,
            socket_buffer_bytes: *socket_buffer_bytes,
            dscp: *dscp,
            ecn: *ecn,
            warmup: *warmup,
            duration: *duration,
            setup_limit: *setup_limit,
        })
    }

    /// Converts back. The load is not validated and not pinned.
    ///
    /// # Errors
    /// An unknown workload, as text.
    pub fn load(self) -> Result<Load, String> {
        let workload: Workload = self.workload.parse().map_err(|error| format!("{error}"))?;
        Ok(Load {
            message_bytes: self.message_bytes,
            flows: self.flows,
            gso: self.gso,
            datagrams_per_s: self.datagrams_per_s,
            numbered: self.numbered,
            outstanding: self.outstanding,
            transactions_per_s: self.transactions_per_s,
            rest: self.rest,
            beside: self.beside,
            socket_buffer_bytes: self.socket_buffer_bytes,
            dscp: self.dscp,
            ecn: self.ecn,
            warmup: self.warmup,
            duration: self.duration,
            setup_limit: self.setup_limit,
            ..Load::new(workload)
        })
    }
}

/// Message form of a [`Measured`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRecord {
    workload: String,
    seconds: f64,
    payload_bytes: u64,
    under_way_bytes: u64,
    messages_merge: bool,
    units: u64,
    sent_units: u64,
    /// Intended, sent, received.
    datagrams: Option<(Option<u64>, u64, u64)>,
    arrivals: Option<Arrivals>,
    #[serde(default)]
    ecn: Option<EcnCounts>,
    /// Value in ns, and its count.
    histogram: Option<Vec<(u64, u64)>>,
    pace: Option<Pacing>,
    tcp_retransmits: Option<u64>,
    #[serde(default)]
    tcp: Option<TcpState>,
    socket_errors: BTreeMap<String, u64>,
    flows: Vec<FlowMeasuredRecord>,
    #[serde(default)]
    beside: Vec<BesideRecord>,
    #[serde(default)]
    steps: Vec<f64>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowMeasuredRecord {
    units: u64,
    sent_units: u64,
    payload_bytes: u64,
    client_cpus: Vec<usize>,
    server_cpus: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BesideRecord {
    workload: Workload,
    payload_bytes: u64,
    under_way_bytes: u64,
    seconds: f64,
}

impl From<&BesideMeasured> for BesideRecord {
    fn from(measured: &BesideMeasured) -> BesideRecord {
        let BesideMeasured { workload, payload_bytes, under_way_bytes, seconds } = *measured;
        BesideRecord { workload, payload_bytes, under_way_bytes, seconds }
    }
}

impl From<BesideRecord> for BesideMeasured {
    fn from(record: BesideRecord) -> BesideMeasured {
        let BesideRecord { workload, payload_bytes, under_way_bytes, seconds } = record;
        BesideMeasured { workload, payload_bytes, under_way_bytes, seconds }
    }
}

impl MeasuredRecord {
    /// Converts a result for another process.
    pub fn of(measured: &Measured) -> MeasuredRecord {
        // No `..`: a new field must be handled here.
        let Measured {
            workload,
            seconds,
            payload_bytes,
            under_way_bytes,
            messages_merge,
            units,
            sent_units,
            datagrams,
            arrivals,
            ecn,
            // Derived from the histogram.
            latency: _,
            histogram,
            pace,
            tcp_retransmits,
            tcp,
            socket_errors,
            flows,
            beside,
            steps,
            notes,
        } = measured;
        let flow = |flow: &FlowMeasured| FlowMeasuredRecord {
            units: flow.units,
            sent_units: flow.sent_units,
            payload_bytes: flow.payload_bytes,
            client_cpus: flow.client_cpus.clone(),
            server_cpus: flow.server_cpus.clone(),
        };
        MeasuredRecord {
            workload: workload.name().to_owned(),
            seconds: *seconds,
            payload_bytes: *payload_bytes,
            under_way_bytes: *under_way_bytes,
            messages_merge: *messages_merge,
            units: *units,
            sent_units: *sent_units,
            datagrams: datagrams.map(|d| (d.intended, d.sent, d.received)),
            arrivals: *arrivals,
            ecn: *ecn,
            histogram: histogram.as_ref().map(|histogram| {
                let recorded = histogram.iter_recorded();
                recorded.map(|bin| (bin.value_iterated_to(), bin.count_at_value())).collect()
            }),
            pace: *pace,
            tcp_retransmits: *tcp_retransmits,
            tcp: tcp.clone(),
            socket_errors: socket_errors.clone(),
            flows: flows.iter().map(flow).collect(),
            beside: beside.iter().map(BesideRecord::from).collect(),
            steps: steps.clone(),
            notes: notes.clone(),
        }
    }

    /// Converts back.
    ///
    /// # Errors
    /// Values that cannot belong to a load, as text.
    pub fn measured(self) -> Result<Measured, String> {
        let workload: Workload = self.workload.parse().map_err(|error| format!("{error}"))?;
        // Rates are divided by it, and the other end is not trusted.
        let intervals = self.beside.iter().map(|beside| beside.seconds).chain([self.seconds]);
        for seconds in intervals {
            // A rate over an interval of zero has no meaning.
            if !(seconds.is_finite() && seconds > 0.0) {
                return Err(format!("invalid interval of {seconds} s"));
            }
        }
        let histogram = match self.histogram {
            // The other end is not trusted: bound the work.
            Some(bins) if bins.len() > MOST_BINS => {
                return Err(format!("{} bins of latency: at most {MOST_BINS}", bins.len()));
            }
            Some(bins) => {
                let mut histogram = latency_histogram();
                for (value, count) in bins {
                    // Both ends use the same bins, and the last value of a bin belongs to that bin.
                    histogram.saturating_record_n(value, count);
                }
                Some(histogram)
            }
            None => None,
        };
        let flow = |flow: FlowMeasuredRecord| FlowMeasured {
            units: flow.units,
            sent_units: flow.sent_units,
            payload_bytes: flow.payload_bytes,
            client_cpus: flow.client_cpus,
            server_cpus: flow.server_cpus,
        };
        Ok(Measured {
            workload,
            seconds: self.seconds,
            payload_bytes: self.payload_bytes,
            under_way_bytes: self.under_way_bytes,
            messages_merge: self.messages_merge,
            units: self.units,
            sent_units: self.sent_units,
            datagrams: self.datagrams.map(|(intended, sent, received)| Datagrams {
                intended,
                sent,
                received,
            }),
            arrivals: self.arrivals,
            ecn: self.ecn,
            latency: histogram.as_ref().and_then(LatencyNs::of),
            histogram,
            pace: self.pace,
            tcp_retransmits: self.tcp_retransmits,
            tcp: self.tcp,
            socket_errors: self.socket_errors,
            flows: self.flows.into_iter().map(flow).collect(),
            beside: self.beside.into_iter().map(BesideMeasured::from).collect(),
            steps: self.steps,
            notes: self.notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_arrives_without_its_cpus() {
        let load = Load {
            message_bytes: 9,
            flows: 3,
            outstanding: 4,
            ecn: true,
            transactions_per_s: Some(1.5),
            beside: Some(Beside::TcpMaerts),
            ..Load::new(Workload::TcpRr)
        };
        let pinned = Load { client_cpus: vec![1], server_cpus: vec![0], ..load.clone() };
        let record = serde_json::to_string(&LoadRecord::of(&pinned).unwrap()).unwrap();
        let record: LoadRecord = serde_json::from_str(&record).unwrap();
        assert_eq!(record.load(), Ok(load));
    }

    #[test]
    fn a_measure_arrives_with_every_percentile() {
        let mut histogram = latency_histogram();
        (0..10_000u64).for_each(|i| histogram.saturating_record(10_000 + i * i));
        let measured = Measured {
            workload: Workload::TcpRr,
            seconds: 0.5,
            payload_bytes: 10_000,
            under_way_bytes: 0,
            messages_merge: false,
            units: 10_000,
            sent_units: 10_001,
            datagrams: None,
            arrivals: Some(Arrivals { received: 9, reordered: 1, jitter_ns: 70 }),
            ecn: Some(EcnCounts { arrived: 9, ce: 2, not_ect: Some(1) }),
            latency: LatencyNs::of(&histogram),
            histogram: Some(histogram),
            pace: None,
            tcp_retransmits: Some(1),
            tcp: Some(TcpState { congestion_control: "bbr".into(), rtt_us: 90.0, cwnd: 10.0 }),
            socket_errors: [("EAGAIN sendmmsg".to_owned(), 2)].into(),
            flows: vec![FlowMeasured { units: 10_000, ..FlowMeasured::default() }],
            beside: vec![BesideMeasured {
                workload: Workload::TcpMaerts,
                payload_bytes: 7,
                under_way_bytes: 1,
                seconds: 0.5,
            }],
            steps: vec![1.5, 2.5],
            notes: vec!["slow".to_owned()],
        };
        let record = serde_json::to_string(&MeasuredRecord::of(&measured)).unwrap();
        let record: MeasuredRecord = serde_json::from_str(&record).unwrap();
        let arrived = record.clone().measured().unwrap();
        assert_eq!(MeasuredRecord::of(&arrived), record);
        assert_eq!(
            arrived.latency.map(|latency| (latency.p50, latency.p99_99, latency.count)),
            measured.latency.map(|latency| (latency.p50, latency.p99_99, latency.count))
        );
        assert_eq!(arrived.histogram, measured.histogram);
    }

    #[test]
    fn a_measure_that_is_none_is_refused() {
        let text = r#"{"workload":"tcp_rr","seconds":0.0,"payload_bytes":0,"under_way_bytes":0,
            "messages_merge":false,"units":0,"sent_units":0,"datagrams":null,"histogram":null,
            "pace":null,"tcp_retransmits":null,"socket_errors":{},"flows":[],"notes":[]}"#;
        let record: MeasuredRecord = serde_json::from_str(text).unwrap();
        assert_eq!(record.measured().unwrap_err(), "invalid interval of 0 s");
    }
}
