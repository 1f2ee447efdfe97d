//! What faults cost traffic, a table for all modes of an offload profile and MTU.

use results::stats::median;
use results::{FaultCost, FaultRecord, Profile, Results};

use crate::detail::Detail;
use crate::style::plain;
use crate::unit::three_digits;

/// Above this a number of datagrams would tear the table apart; no run has as many.
const MOST_DIGITS: f64 = 1e7;

/// Tables with a row for each fault of each mode; none without faults.
pub(crate) fn faults(results: &Results) -> Vec<Detail> {
    let mut wires: Vec<(Profile, u32)> = Vec::new();
    for wire in results.faults.iter().map(|record| (record.offload, record.mtu)) {
        if !wires.contains(&wire) {
            wires.push(wire);
        }
    }
    wires.into_iter().filter_map(|wire| faults_on(results, wire)).collect()
}

fn faults_on(results: &Results, wire: (Profile, u32)) -> Option<Detail> {
    let mut groups: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    let on_wire = |record: &&FaultRecord| (record.offload, record.mtu) == wire;
    for record in results.faults.iter().filter(on_wire) {
        let mode = plain(&record.mode);
        match groups.last_mut() {
            Some((name, rows)) if *name == mode => rows.push(row(record)),
            _ => groups.push((mode, vec![row(record)])),
        }
    }
    let interval = results.faults.iter().find(on_wire)?.interval_s;
    let heads =
        ["fault", "trials", "lost", "most", "twice", "outage s", "longest"].map(String::from);
    Some(Detail {
        title: format!(
            "Faults, offload {}, MTU {}, while a datagram is sent each {} ms: how many are lost, \
             and the longest time between two arrivals; median and most of the trials",
            wire.0,
            wire.1,
            three_digits(interval * 1000.0)
        ),
        grouped_by: "mode",
        heads: heads.to_vec(),
        groups,
    })
}

/// What a fault befell.
pub(crate) fn place(record: &FaultRecord) -> String {
    format!("{}, offload {}, MTU {}", plain(&record.mode), record.offload, record.mtu)
}

/// Trials with figures, and those that were asked for.
pub(crate) fn trials(results: &Results) -> (usize, u64) {
    let done = results.faults.iter().map(|record| costs(record).count()).sum();
    (done, results.faults.iter().map(|record| u64::from(record.asked)).sum())
}

fn costs(record: &FaultRecord) -> impl Iterator<Item = &FaultCost> {
    record.trials.iter().filter_map(|trial| trial.cost.as_ref())
}

fn row(record: &FaultRecord) -> Vec<String> {
    let done: Vec<&FaultCost> = costs(record).collect();
    let trials = match record.asked {
        asked if asked as usize == done.len() => asked.to_string(),
        asked => format!("{} of {asked}", done.len()),
    };
    let mut row = vec![plain(&record.fault), trials];
    if done.is_empty() {
        // The run may have been interrupted before the first.
        let why = if record.trials.is_empty() { "–" } else { "failed" };
        row.extend((0..5).map(|_| why.to_owned()));
        return row;
    }
    let lost: Vec<f64> = done.iter().map(|cost| cost.lost() as f64).collect();
    let (middle, most) = middle_and_most(&lost);
    let twice = done.iter().fold(0_u64, |sum, cost| sum.saturating_add(cost.twice));
    row.extend([middle, most, twice as f64].map(datagrams));
    let outages: Vec<f64> = done.iter().map(|cost| cost.outage_s).collect();
    let (middle, most) = middle_and_most(&outages);
    row.extend([middle, most].map(three_digits));
    row
}

/// Every datagram, where they fit.
fn datagrams(number: f64) -> String {
    if number < MOST_DIGITS { number.to_string() } else { three_digits(number) }
}

/// Median, and the largest; 0 of none.
fn middle_and_most(values: &[f64]) -> (f64, f64) {
    (median(values).unwrap_or(0.0), values.iter().copied().fold(0.0, f64::max))
}
