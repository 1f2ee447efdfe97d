//! Effects of faults on traffic, one table for all modes of an offload profile and MTU.

use results::stats::median;
use results::{FaultCost, FaultRecord, Profile, Results};

use crate::detail::Detail;
use crate::style::plain;
use crate::unit::three_digits;

/// Above this the number of datagrams would break the table's layout. No run sends as many.
const MOST_DIGITS: f64 = 1e7;

/// Returns tables with a row for each fault of each mode; none without faults.
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
            // Records of one mode follow each other in the file.
            Some((name, rows)) if *name == mode => rows.push(row(record)),
            _ => groups.push((mode, vec![row(record)])),
        }
    }
    let interval = results.faults.iter().find(on_wire)?.interval_s;
    let heads =
        ["fault", "trials", "lost", "max", "duplicate", "outage s", "longest"].map(String::from);
    Some(Detail {
        title: format!(
            "Faults, offload {}, MTU {}, one datagram sent every {} ms: datagrams lost and longest \
             gap between arrivals; median and maximum over trials",
            wire.0,
            wire.1,
            three_digits(interval * 1000.0)
        ),
        grouped_by: "mode",
        heads: heads.to_vec(),
        groups,
    })
}

/// Names the testbed into which a fault was injected.
pub(crate) fn place(record: &FaultRecord) -> String {
    format!("{}, offload {}, MTU {}", plain(&record.mode), record.offload, record.mtu)
}

/// Returns the numbers of trials with figures, and of requested trials.
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
        // A run interrupted before the first trial has nothing that failed.
        let why = if record.trials.is_empty() { "–" } else { "failed" };
        row.extend((0..5).map(|_| why.to_owned()));
        return row;
    }
    let lost: Vec<f64> = done.iter().map(|cost| cost.lost() as f64).collect();
    let (middle, most) = middle_and_most(&lost);
    // An edited file may hold any counts: saturate.
    let twice = done.iter().fold(0_u64, |sum, cost| sum.saturating_add(cost.twice));
    row.extend([middle, most, twice as f64].map(datagrams));
    let outages: Vec<f64> = done.iter().map(|cost| cost.outage_s).collect();
    let (middle, most) = middle_and_most(&outages);
    row.extend([middle, most].map(three_digits));
    row
}

/// Formats a number of datagrams, exactly if it fits.
fn datagrams(number: f64) -> String {
    if number < MOST_DIGITS { number.to_string() } else { three_digits(number) }
}

/// Returns median and maximum; 0 without values.
fn middle_and_most(values: &[f64]) -> (f64, f64) {
    (median(values).unwrap_or(0.0), values.iter().copied().fold(0.0, f64::max))
}
