//! Three sentences computed from the figures. Each states a proven result with its interval, or
//! that nothing is proven.

use std::collections::{BTreeMap, BTreeSet};

use results::{Cell, Interval, Profile, Results, Role, Status};

use crate::gain::gain;
use crate::remark::widest;
use crate::skb::{Fate, fate};
use crate::style::plain;
use crate::unit::{bytes, count, plus_minus, ratio, with_unit};
use crate::work::{Work, is_time, place, worth};

/// Returns one sentence each on the costliest mode, on where GSO packets are cut, and on promising
/// changes.
pub fn summary(results: &Results) -> [String; 3] {
    [costliest(results), cuts(results), advice(results)]
}

fn measured(results: &Results) -> impl Iterator<Item = &Cell> {
    results.cells.iter().filter(|cell| cell.status == Status::Ok && cell.role == Role::Measured)
}

fn costliest(results: &Results) -> String {
    let baseline = plain(&results.plan.baseline);
    // Compare upper ends, the loss that is certain.
    let proven = measured(results)
        .filter_map(|cell| Some((cell, worth(cell)?)))
        .filter(|(_, ratio)| ratio.high < 1.0)
        .min_by(|(_, a), (_, b)| a.high.total_cmp(&b.high).then(a.median.total_cmp(&b.median)));
    let Some((cell, lost)) = proven else {
        return match widest(results).filter(|_| measured(results).next().is_some()) {
            Some(width) => format!(
                "No mode is proven slower than {baseline}: every interval includes 1 (the widest \
                 is {}); more blocks would narrow them.",
                plus_minus(width)
            ),
            None => format!("Nothing was measured besides {baseline}, so no cost is known."),
        };
    };
    // The ratio of a varied setting is to the same mode as found.
    let baseline = match cell.setting {
        Some(_) => format!("{} as found", plain(&cell.mode)),
        None => baseline,
    };
    let demand = cell.service_demand.as_ref();
    let cpu = demand.and_then(|demand| Some((demand.ratio?, demand.unit.name())));
    let cpu = match cpu {
        // Only a proven difference in CPU time is worth mentioning.
        Some((cpu, unit)) if cpu.low > 1.0 || cpu.high < 1.0 => {
            let per = unit.split_once('/').map_or("unit of work", |(_, per)| per);
            format!(
                ", and takes {} times the CPU time per {per} ({})",
                ratio(cpu.median),
                range(&cpu)
            )
        }
        _ => String::new(),
    };
    let (shown, comparison) = match cell.ratio.filter(|_| is_time(cell)) {
        Some(time) => (time, format!("takes {} times as long as {baseline}", ratio(time.median))),
        None => (lost, format!("runs at {} of {baseline}", ratio(lost.median))),
    };
    format!(
        "{} costs most: {} {comparison} ({} interval {}){cpu}.",
        plain(&cell.mode),
        place(results, cell),
        percent_of(shown.confidence),
        range(&shown),
    )
}

/// Modes of one offload profile, grouped by the fate of their GSO packets.
#[derive(Default)]
struct Fates {
    uncut: Vec<String>,
    never: Vec<String>,
    /// `host:device` → modes, the largest skb before, the smallest after.
    cut: BTreeMap<String, (Vec<String>, f64, f64)>,
}

fn cuts(results: &Results) -> String {
    let mut profiles: BTreeMap<(usize, &str), Fates> = BTreeMap::new();
    for cell in results.cells.iter().filter(|cell| cell.status == Status::Ok) {
        // The A/A cell repeats the baseline.
        let Some(fate) = (cell.role != Role::Aa).then(|| fate(cell)).flatten() else { continue };
        let order = results.plan.offload.iter().position(|name| *name == cell.offload);
        let fates = profiles.entry((order.unwrap_or(usize::MAX), cell.offload.name())).or_default();
        let mode = plain(&cell.mode);
        match fate {
            Fate::Uncut => push_once(&mut fates.uncut, mode),
            Fate::NeverBuilt => push_once(&mut fates.never, mode),
            Fate::Cut { before, at } => {
                let hop = format!("{}:{}", plain(&at.host), plain(&at.device));
                let entry = fates.cut.entry(hop).or_insert((Vec::new(), 0.0, f64::MAX));
                push_once(&mut entry.0, mode);
                entry.1 = entry.1.max(before);
                entry.2 = entry.2.min(at.mean_skb_bytes);
            }
        }
    }
    if profiles.is_empty() {
        return "Where GSO packets are cut is unknown: no stream of messages above the MTU was \
            measured."
            .to_string();
    }
    let clauses: Vec<String> = profiles
        .iter()
        .enumerate()
        .map(|(i, ((_, offload), fates))| {
            let (with, what) =
                if i == 0 { ("With", "GSO packets are") } else { ("with", "they are") };
            format!("{with} offload {} {what} {}", plain(offload), fates.clause())
        })
        .collect();
    format!("{}.", clauses.join("; "))
}

impl Fates {
    fn clause(&self) -> String {
        // A mode may have several fates: one per message size or MTU.
        let cut = self.cut.values().flat_map(|(modes, ..)| modes);
        let modes: BTreeSet<&String> = cut.chain(&self.never).chain(&self.uncut).collect();
        let modes = modes.len();
        let named = |list: &[String]| match list {
            // Long lists of modes are shortened to their number.
            [_, _, ..] if list.len() == modes => format!("all {modes} modes"),
            [_, _, _, _, ..] => format!("{} of {modes} modes", list.len()),
            [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => list.join(""),
        };
        let mut parts: Vec<String> = Vec::new();
        let mut hops: Vec<_> = self.cut.iter().collect();
        // The most common place of cutting first.
        hops.sort_by_key(|(_, (modes, ..))| std::cmp::Reverse(modes.len()));
        for (hop, (list, before, after)) in hops {
            let (before, after) = (bytes(*before), bytes(*after));
            parts.push(format!("cut at {hop} in {} (from {before} to {after})", named(list)));
        }
        if !self.never.is_empty() {
            parts.push(format!("never built in {}", named(&self.never)));
        }
        if !self.uncut.is_empty() {
            parts.push(format!("uncut in {}", named(&self.uncut)));
        }
        match parts.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{}, and {last}", rest.join(", ")),
            _ => parts.join(""),
        }
    }
}

fn push_once(list: &mut Vec<String>, mode: String) {
    if !list.contains(&mode) {
        list.push(mode);
    }
}

/// A change, what it gains, and the cells that show it.
struct Proposal<'a> {
    what: String,
    gain: Interval,
    better: &'a Cell,
    worse: &'a Cell,
}

fn advice(results: &Results) -> String {
    let best = |proposals: Vec<Proposal<'_>>| {
        let proven = proposals.into_iter().filter(|proposal| proposal.gain.low > 1.0);
        // Compare lower ends, the gain that is certain.
        proven.max_by(|a, b| a.gain.low.total_cmp(&b.gain.low)).map(|proposal| {
            let Proposal { what, gain, better, worse } = proposal;
            format!(
                "{what}: {} {} times as fast ({}; {} against {}, {})",
                if better.mode == worse.mode {
                    plain(&better.mode) + " is"
                } else {
                    "it is".into()
                },
                ratio(gain.median),
                range(&gain),
                with_unit(better.median.unwrap_or(0.0), better.unit),
                with_unit(worse.median.unwrap_or(0.0), worse.unit),
                if better.mode == worse.mode {
                    better.workload.to_string()
                } else {
                    place(results, better)
                },
            )
        })
    };
    let proven: Vec<String> =
        [best(other_offload(results)), best(other_mode(results)), best(varied_setting(results))]
            .into_iter()
            .flatten()
            .collect();
    // Advice without a proven gain would be a guess.
    if !proven.is_empty() {
        return format!("To try: {}.", proven.join("; "));
    }
    let narrow = match widest(results) {
        Some(width) => {
            let more = count(results.plan.blocks_done as usize, "block");
            format!(
                "more than {more} would narrow the intervals (the widest is {})",
                plus_minus(width)
            )
        }
        None => "there is no ratio".to_string(),
    };
    // A run does not switch the offloads of real NICs (`as-found`).
    let switched = results.plan.offload.iter().all(|profile| *profile != Profile::AsFound);
    let compare = if results.plan.offload.len() < 2 && switched {
        ", and --offload full,none would show the effect of the offloads"
    } else {
        ""
    };
    format!("To try: nothing measured here is proven to help; {narrow}{compare}.")
}

/// Returns the gains of a mode with more offload.
fn other_offload(results: &Results) -> Vec<Proposal<'_>> {
    let mut proposals = Vec::new();
    for better in measured(results).filter(|cell| cell.offload == Profile::Full) {
        for worse in measured(results).filter(|cell| {
            cell.mode == better.mode
                && cell.offload != Profile::Full
                && Work::of(cell) == Work::of(better)
        }) {
            let what = if worse.offload == Profile::NoTunnel {
                "check that the NIC segments tunnelled packets (ethtool -k: \
                 tx-udp_tnl-segmentation)"
            } else {
                "check that TSO, GSO and GRO are on at the NIC (ethtool -k)"
            };
            proposals.extend(propose(results, what, better, worse));
        }
    }
    proposals
}

/// Returns the gains of varied settings over the same mode as found.
fn varied_setting(results: &Results) -> Vec<Proposal<'_>> {
    let mut proposals = Vec::new();
    for better in measured(results) {
        let Some(setting) = &better.setting else { continue };
        let as_found = results.cells.iter().filter(|cell| {
            cell.setting.is_none()
                && cell.role != Role::Aa
                && cell.mode == better.mode
                && cell.offload == better.offload
                && Work::of(cell) == Work { setting: None, ..Work::of(better) }
        });
        for worse in as_found {
            proposals.extend(propose(results, &plain(setting), better, worse));
        }
    }
    proposals
}

/// Returns the gains of alternative modes, as named by the modes themselves, with the same offload.
fn other_mode(results: &Results) -> Vec<Proposal<'_>> {
    let mut proposals = Vec::new();
    for record in &results.modes {
        for other in &record.alternatives {
            for worse in measured(results).filter(|cell| cell.mode == record.mode) {
                for better in measured(results).filter(|cell| {
                    cell.mode == other.mode
                        && cell.offload == worse.offload
                        && Work::of(cell) == Work::of(worse)
                }) {
                    proposals.extend(propose(results, &plain(&other.advice), better, worse));
                }
            }
        }
    }
    proposals
}

fn propose<'a>(
    results: &Results,
    what: &str,
    better: &'a Cell,
    worse: &'a Cell,
) -> Option<Proposal<'a>> {
    let gain = gain(results, better, worse)?;
    Some(Proposal { what: what.to_string(), gain, better, worse })
}

fn range(interval: &Interval) -> String {
    format!("{} to {}", ratio(interval.low), ratio(interval.high))
}

fn percent_of(confidence: f64) -> String {
    format!("{}%", (1e4 * confidence).round() / 100.0)
}
