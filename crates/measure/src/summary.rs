//! Summarises a cell's samples into its entry in the results.

use std::collections::{BTreeMap, BTreeSet};

use crate::path_under_test::PathUnderTest;
use crate::plan::{Plan, PlannedCell};
use crate::sampler::loss;
use results::stats::{median, trend};
use results::{
    Arrivals, BesideRates, Cell, DropGoal, DropPoint, FlowShares, HopRecord, Interval, Latency,
    Offered, Pacing, Role, Sample, ServiceDemand, Status, TcpState,
};

/// Returns a cell without samples.
pub(crate) fn empty(
    plan: &Plan,
    subject: &PathUnderTest,
    planned: &PlannedCell,
    offered: Option<Offered>,
) -> Cell {
    Cell {
        role: planned.role,
        offered,
        setting: planned.setting.map(|at| plan.settings[at].clone()),
        ..planned.ask.cell(&subject.mode, subject.offload, subject.mtu)
    }
}

/// Fills an empty cell. `interval` computes a confidence interval of ratios.
pub(crate) fn filled(
    cell: Cell,
    samples: Vec<Sample>,
    settled_after: Option<u32>,
    interval: &dyn Fn(&[f64]) -> Option<Interval>,
) -> Cell {
    let (status, reason) = failure(&samples);
    let workload = cell.workload.workload();
    let ratios = |figure: fn(&Sample) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter(|s| s.valid).filter_map(figure).collect();
        interval(&values)
    };
    let service_demand_reason = unattributed(&samples);
    let service_demand = median_of(&samples, |sample| sample.service_demand)
        // The rest of the samples would be a selection by their other load.
        .filter(|_| service_demand_reason.is_none())
        .map(|value| ServiceDemand {
            value,
            unit: workload.service_demand_unit(),
            ratio: ratios(|sample| sample.service_demand_ratio),
        });
    Cell {
        status,
        reason,
        median: median_of(&samples, |sample| Some(sample.value)),
        // The baseline's ratio to itself is always 1.
        ratio: if cell.role == Role::Baseline { None } else { ratios(|sample| sample.ratio) },
        flow_shares: flow_shares(&samples),
        tcp: tcp(&samples),
        beside_rates: beside_rates(&samples),
        arrivals: arrivals(&samples),
        service_demand,
        service_demand_reason,
        latency_us: latency(&samples),
        histogram: load::merge_bins(
            samples.iter().filter(|s| s.valid).map(|s| s.histogram.as_slice()),
        ),
        drop_point: drop_point(&samples),
        pace: worst_pace(&samples),
        loss: samples.iter().any(|sample| sample.valid && sample.loss.is_some()).then(|| {
            loss::total(samples.iter().filter(|s| s.valid).filter_map(|s| s.loss.as_ref()))
        }),
        hops: hops(&samples),
        trend: drift(&samples, cell.role),
        settled_after,
        samples,
        ..cell
    }
}

/// Returns the medians of a tool's own figures over the valid samples.
pub(crate) fn tool_figures(samples: &[Sample]) -> BTreeMap<String, f64> {
    let valid = || samples.iter().filter(|sample| sample.valid);
    let names: BTreeSet<&String> = valid().flat_map(|sample| sample.tool_figures.keys()).collect();
    let median =
        |name: &String| median_of(samples, |sample| sample.tool_figures.get(name).copied());
    names.into_iter().filter_map(|name| Some((name.clone(), median(name)?))).collect()
}

/// Returns the schedule of the sample that kept it worst.
fn worst_pace(samples: &[Sample]) -> Option<Pacing> {
    let paces = samples.iter().filter(|s| s.valid).filter_map(|s| s.pace);
    paces.max_by(|a, b| a.late_p99_us.total_cmp(&b.late_p99_us))
}

/// Returns each goal's median over the valid samples, and the sum of trials.
fn drop_point(samples: &[Sample]) -> Option<DropPoint> {
    let points: Vec<&DropPoint> =
        samples.iter().filter(|s| s.valid).filter_map(|s| s.drop_point.as_ref()).collect();
    let of = |at: usize, figure: fn(&DropGoal) -> Option<f64>| {
        median_of(samples, |sample| figure(sample.drop_point.as_ref()?.goals.get(at)?))
    };
    let goals = points.first()?.goals.iter().enumerate().map(|(at, goal)| DropGoal {
        loss: goal.loss,
        per_s: of(at, |goal| Some(goal.per_s)).unwrap_or(0.0),
        kept: of(at, |goal| Some(goal.kept)).unwrap_or(0.0),
        missed: of(at, |goal| goal.missed),
    });
    Some(DropPoint {
        goals: goals.collect(),
        trials: points.iter().map(|point| point.trials).sum(),
        void_trials: points.iter().map(|point| point.void_trials).sum(),
        generator_limit: median_of(samples, |sample| sample.drop_point.as_ref()?.generator_limit),
    })
}

fn tcp(samples: &[Sample]) -> Option<TcpState> {
    let of =
        |figure: fn(&TcpState) -> f64| median_of(samples, |sample| sample.tcp.as_ref().map(figure));
    let last = samples.iter().filter(|sample| sample.valid).rev().find_map(|s| s.tcp.as_ref())?;
    Some(TcpState {
        congestion_control: last.congestion_control.clone(),
        rtt_us: of(|tcp| tcp.rtt_us)?,
        cwnd: of(|tcp| tcp.cwnd)?,
    })
}

fn arrivals(samples: &[Sample]) -> Option<Arrivals> {
    let valid = samples.iter().filter(|sample| sample.valid);
    let all = valid.filter_map(|sample| sample.arrivals);
    let sum = |of: fn(&Arrivals) -> u64| all.clone().map(|a| of(&a)).fold(0, u64::saturating_add);
    Some(Arrivals {
        jitter_us: median_of(samples, |sample| Some(sample.arrivals?.jitter_us))?,
        reordered: sum(|arrivals| arrivals.reordered),
        received: sum(|arrivals| arrivals.received),
    })
}

fn beside_rates(samples: &[Sample]) -> Option<BesideRates> {
    let of = |rate: fn(&BesideRates) -> Option<f64>| {
        median_of(samples, |sample| rate(sample.beside_rates.as_ref()?))
    };
    samples.iter().any(|sample| sample.valid && sample.beside_rates.is_some()).then(|| {
        BesideRates {
            forward_bits_per_s: of(|rates| rates.forward_bits_per_s),
            reverse_bits_per_s: of(|rates| rates.reverse_bits_per_s),
        }
    })
}

fn flow_shares(samples: &[Sample]) -> Option<FlowShares> {
    let of = |figure: fn(&FlowShares) -> f64| {
        median_of(samples, |sample| sample.flow_shares.as_ref().map(figure))
    };
    Some(FlowShares {
        least: of(|shares| shares.least)?,
        median: of(|shares| shares.median)?,
        most: of(|shares| shares.most)?,
        jain: of(|shares| shares.jain)?,
    })
}

fn latency(samples: &[Sample]) -> Option<Latency> {
    let of = |figure: fn(&Latency) -> f64| {
        median_of(samples, |sample| sample.latency_us.as_ref().map(figure))
    };
    Some(Latency {
        p50: of(|l| l.p50)?,
        p90: of(|l| l.p90)?,
        p99: of(|l| l.p99)?,
        p99_9: of(|l| l.p99_9)?,
        p99_99: of(|l| l.p99_99)?,
        max: of(|l| l.max)?,
    })
}

/// Returns medians over the valid samples, hop by hop. All samples of a cell have the same hops in
/// the same order, those of the path.
fn hops(samples: &[Sample]) -> Vec<HopRecord> {
    let Some(first) = samples.iter().find(|sample| sample.valid) else { return Vec::new() };
    let median = |at: usize, figure: fn(&HopRecord) -> u64| {
        median_of(samples, |sample| sample.hops.get(at).map(|hop| figure(hop) as f64))
            .unwrap_or(0.0) as u64
    };
    (0..first.hops.len())
        .map(|at| {
            let (packets, bytes) = (median(at, |h| h.packets), median(at, |h| h.bytes));
            HopRecord {
                packets,
                bytes,
                mean_skb_bytes: if packets > 0 { bytes as f64 / packets as f64 } else { 0.0 },
                drops: median(at, |h| h.drops),
                excused: median(at, |h| h.excused),
                ..first.hops[at].clone()
            }
        })
        .collect()
}

/// Describes the drift of the samples over the run, if there is any. Uses ratios if available:
/// drift common to both ends of a ratio does not belong to the cell.
fn drift(samples: &[Sample], role: Role) -> Option<String> {
    let values: Vec<f64> = samples
        .iter()
        .filter(|sample| sample.valid)
        .filter_map(|sample| if role == Role::Baseline { Some(sample.value) } else { sample.ratio })
        .collect();
    // Too few values show no trend.
    let found = trend(&values).ok()?;
    found.is_significant().then(|| {
        let of = if role == Role::Baseline { "value" } else { "ratio" };
        format!("{of}: {found}")
    })
}

/// Returns the reason of a sample in the middle of the run if the CPU time of most valid samples is
/// not attributed.
fn unattributed(samples: &[Sample]) -> Option<String> {
    let valid = samples.iter().filter(|sample| sample.valid);
    let reasons: Vec<&String> =
        valid.clone().filter_map(|sample| sample.service_demand_reason.as_ref()).collect();
    (reasons.len() * 2 > valid.count()).then(|| (*reasons[reasons.len() / 2]).clone())
}

/// Returns the median of a figure over the valid samples.
fn median_of(samples: &[Sample], figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = samples.iter().filter(|s| s.valid).filter_map(figure).collect();
    median(&values)
}

/// Returns the most frequent reason if a cell has no valid sample.
fn failure(samples: &[Sample]) -> (Status, Option<String>) {
    if samples.iter().any(|sample| sample.valid) {
        // One valid sample is enough for a figure.
        return (Status::Ok, None);
    }
    let mut reasons: Vec<(usize, &str)> = Vec::new();
    for reason in samples.iter().filter_map(|sample| sample.invalid_reason.as_deref()) {
        match reasons.iter_mut().find(|(_, known)| *known == reason) {
            Some((count, _)) => *count += 1,
            None => reasons.push((1, reason)),
        }
    }
    let most = reasons.iter().max_by_key(|(count, _)| *count);
    let reason = most.map_or(Cell::NO_SAMPLE, |(_, reason)| reason);
    (Status::Failed, Some(reason.to_owned()))
}
