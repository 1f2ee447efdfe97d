//! Smaller tables below a panel: latency percentiles, schedule, NDR and PDR, places of losses, and
//! the effect of each step of a varied setting.

use std::collections::BTreeSet;

use std::collections::HashMap;

use results::stats::median;
use results::{Bin, Cell, DropGoal, Results, Role, Status, Task, Unit};

use crate::gain::gain;
use crate::panel::{Panel, name};
use crate::retransmits::retransmits;
use crate::style::plain;
use crate::unit::{Scale, of_interval, percent, range, three_digits};
use crate::work::Work;

/// A table of text, its rows in named groups.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Detail {
    /// Heading.
    pub(crate) title: String,
    /// Kind of the groups (`offload`, `mode`).
    pub(crate) grouped_by: &'static str,
    /// Heads of the columns. The first is the head of the row names.
    pub(crate) heads: Vec<String>,
    /// Rows by group, each group with its heading; never empty.
    pub(crate) groups: Vec<(String, Vec<Vec<String>>)>,
}

/// Returns the tables below a panel.
pub(crate) fn details(panel: &Panel<'_>) -> Vec<Detail> {
    let all = [
        tcp(panel),
        flows(panel),
        by_second(panel),
        latency(panel),
        schedule(panel),
        drop_point(panel),
        lost(panel),
    ];
    all.into_iter().flatten().collect()
}

fn table(
    panel: &Panel<'_>,
    title: &str,
    heads: &[String],
    row: impl Fn(&Cell) -> Option<Vec<String>>,
) -> Option<Detail> {
    let groups: Vec<(String, Vec<Vec<String>>)> = panel
        .groups
        .iter()
        .map(|group| {
            let rows = group.cells.iter().filter_map(|cell| {
                let mut fields = vec![name(cell)];
                fields.extend(row(cell)?);
                Some(fields)
            });
            (plain(group.offload), rows.collect::<Vec<_>>())
        })
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    let heads = [&["mode".to_string()], heads].concat();
    let title = title.to_string();
    (!groups.is_empty()).then_some(Detail { title, grouped_by: "offload", heads, groups })
}

/// Percentiles over the transactions of all valid samples.
pub(crate) const PERCENTILES: [(f64, &str); 5] =
    [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (0.9999, "p99.99")];

fn latency(panel: &Panel<'_>) -> Option<Detail> {
    let mut heads: Vec<String> = PERCENTILES.iter().map(|(_, head)| head.to_string()).collect();
    heads.push("max".to_string());
    table(panel, "latency in µs, all samples combined", &heads, |cell| {
        let largest = cell.histogram.last()?;
        let figures = PERCENTILES
            .iter()
            .map(|(p, _)| quantile(&cell.histogram, *p).map_or("–".to_string(), three_digits));
        Some(figures.chain([three_digits(largest.us)]).collect())
    })
}

/// Returns the upper end of the bin that holds the `p`-quantile. `None` if fewer than ten
/// transactions lie beyond it, because it would depend on single transactions. The median needs one
/// transaction only.
pub(crate) fn quantile(bins: &[Bin], p: f64) -> Option<f64> {
    let total = bins.iter().fold(0_u64, |sum, bin| sum.saturating_add(bin.count));
    let beyond = (1.0 - p) * total as f64;
    // The tolerance absorbs the rounding of 1 − p.
    if total == 0 || p > 0.5 && beyond < 10.0 - 1e-6 {
        return None;
    }
    let wanted = p * total as f64;
    let mut seen = 0_u64;
    bins.iter()
        .find(|bin| {
            seen = seen.saturating_add(bin.count);
            seen as f64 >= wanted
        })
        .map(|bin| bin.us)
}

/// Returns the state of the client's connections.
fn tcp(panel: &Panel<'_>) -> Option<Detail> {
    let heads = ["control", "RTT µs", "cwnd", "retransmits"].map(String::from);
    table(panel, "TCP at the client, end of a sample, median over samples", &heads, |cell| {
        let tcp = cell.tcp.as_ref()?;
        Some(vec![
            plain(&tcp.congestion_control),
            three_digits(tcp.rtt_us),
            three_digits(tcp.cwnd),
            retransmits(cell).map_or(String::new(), three_digits),
        ])
    })
}

/// Returns the rates of the flows, in the workload's unit even at a given load.
fn flows(panel: &Panel<'_>) -> Option<Detail> {
    let shares = panel.cells().filter_map(|cell| cell.flow_shares);
    let largest = shares.map(|shares| shares.most).fold(0.0, f64::max);
    let scale = Scale::new(panel.first().workload.workload().unit(), largest);
    let heads = ["least", "median", "most", "Jain's index"].map(String::from);
    let title = format!("rates of single flows, {}, median over samples", scale.label);
    table(panel, &title, &heads, |cell| {
        let shares = cell.flow_shares?;
        let rates = [shares.least, shares.median, shares.most].map(|rate| scale.number(rate));
        Some(rates.into_iter().chain([format!("{:.2}", shares.jain)]).collect())
    })
}

/// Returns the rates by second of long samples: warm-up and throttling show in the first and last.
fn by_second(panel: &Panel<'_>) -> Option<Detail> {
    let long = |cell: &Cell| {
        let valid = cell.samples.iter().filter(|sample| sample.valid);
        valid
            .map(|sample| sample.rates_by_second.clone())
            .filter(|r| r.len() > 1)
            .collect::<Vec<_>>()
    };
    let all = panel.cells().flat_map(long).flatten();
    let scale = Scale::new(panel.first().workload.workload().unit(), all.fold(0.0, f64::max));
    let heads = ["first", "second", "last", "least", "most"].map(String::from);
    let title = format!("rate by second within samples, {}, median over samples", scale.label);
    table(panel, &title, &heads, |cell| {
        let samples = long(cell);
        let of = |figure: fn(&[f64]) -> f64| {
            let figures: Vec<f64> = samples.iter().map(|rates| figure(rates)).collect();
            Some(scale.number(median(&figures)?))
        };
        Some(vec![
            of(|rates| rates[0])?,
            of(|rates| rates[1])?,
            of(|rates| rates[rates.len() - 1])?,
            of(|rates| rates.iter().copied().fold(f64::INFINITY, f64::min))?,
            of(|rates| rates.iter().copied().fold(0.0, f64::max))?,
        ])
    })
}

fn schedule(panel: &Panel<'_>) -> Option<Detail> {
    let heads = ["intended/s", "sent/s", "late p50", "late p99", "late max"];
    table(
        panel,
        "schedule, sample with the largest delay; late in µs",
        &heads.map(String::from),
        |cell| {
            let pace = cell.pace?;
            Some(vec![
                three_digits(pace.intended_per_s),
                three_digits(pace.sent_per_s),
                three_digits(pace.late_p50_us),
                three_digits(pace.late_p99_us),
                three_digits(pace.late_max_us),
            ])
        },
    )
}

/// Returns the loss limits of these cells, strictest first.
pub(crate) fn goals<'a>(cells: impl Iterator<Item = &'a Cell>) -> Vec<f64> {
    let goals = cells.filter_map(|cell| cell.drop_point.as_ref()).flat_map(|point| &point.goals);
    let losses: BTreeSet<u64> = goals.map(|goal| goal.loss.to_bits()).collect();
    losses.into_iter().map(f64::from_bits).collect()
}

/// Names the rate for a loss limit: `NDR` (no-drop rate, RFC 2544), `PDR 0.1%` (partial drop rate).
pub(crate) fn goal_name(loss: f64) -> String {
    if loss == 0.0 { "NDR".to_string() } else { format!("PDR {}", percent(loss)) }
}

/// Returns a cell's entry for a loss limit.
pub(crate) fn goal(cell: &Cell, loss: f64) -> Option<DropGoal> {
    cell.drop_point.as_ref()?.goals.iter().find(|goal| goal.loss == loss).copied()
}

fn drop_point(panel: &Panel<'_>) -> Option<Detail> {
    let losses = goals(panel.cells());
    let largest = panel
        .cells()
        .flat_map(|cell| losses.iter().filter_map(|loss| goal(cell, *loss)))
        .fold(0.0, |largest, goal| f64::max(largest, goal.per_s));
    let scale = Scale::new(Unit::Datagrams, largest);
    let mut heads: Vec<String> = losses.iter().map(|loss| goal_name(*loss)).collect();
    heads.extend(["trials", "void"].map(String::from));
    let title =
        format!("NDR and PDR, {} received at the highest rate within each loss limit", scale.label);
    table(panel, &title, &heads, |cell| {
        let point = cell.drop_point.as_ref()?;
        let mut fields: Vec<String> = losses
            .iter()
            .map(|loss| match goal(cell, *loss) {
                // No higher rate exceeded the limit, so the path may carry more.
                Some(goal) if goal.missed.is_none() => format!("≥ {}", scale.number(goal.per_s)),
                Some(goal) => scale.number(goal.per_s),
                None => String::new(),
            })
            .collect();
        fields.extend([point.trials.to_string(), point.void_trials.to_string()]);
        Some(fields)
    })
}

fn lost(panel: &Panel<'_>) -> Option<Detail> {
    // Other workloads lose by design or not at all, so the place does not matter.
    if panel.first().workload != Task::DropPoint {
        return None;
    }
    let groups: Vec<(String, Vec<Vec<String>>)> = panel
        .groups
        .iter()
        .map(|group| {
            (plain(group.offload), group.cells.iter().flat_map(|cell| places(cell)).collect())
        })
        .filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty())
        .collect();
    let heads = ["mode", "datagrams", "share", "place"].map(String::from).to_vec();
    let title = "where datagrams were lost".to_string();
    (!groups.is_empty()).then_some(Detail { title, grouped_by: "offload", heads, groups })
}

/// Returns a row per place, largest share first.
fn places(cell: &Cell) -> Vec<Vec<String>> {
    let Some(loss) = &cell.loss else { return Vec::new() };
    let lost = loss.sent.saturating_sub(loss.received);
    let mut places: Vec<(u64, String)> =
        loss.places.iter().map(|(place, count)| (*count, plain(place))).collect();
    places.push((loss.unattributed, "unattributed".to_string()));
    // Places without losses say nothing.
    places.retain(|(count, _)| *count > 0);
    places.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let row = |(count, place): (u64, String)| {
        vec![name(cell), count.to_string(), percent(count as f64 / lost.max(1) as f64), place]
    };
    places.into_iter().map(row).collect()
}

/// Returns a table for all cells that differ in the varied setting only: the effect of each step
/// relative to the first, block by block.
pub(crate) fn steps(results: &Results) -> Vec<Detail> {
    let mut works: Vec<Work<'_>> =
        results.cells.iter().map(|cell| Work { setting: None, ..Work::of(cell) }).collect();
    works.sort();
    works.dedup();
    works.into_iter().filter_map(|work| steps_of(results, work)).collect()
}

fn steps_of(results: &Results, work: Work<'_>) -> Option<Detail> {
    let cells: Vec<&Cell> = results
        .cells
        .iter()
        .filter(|cell| Work { setting: None, ..Work::of(cell) } == work)
        .filter(|cell| cell.role != Role::Aa && cell.status == Status::Ok)
        .collect();
    // The order in the file is the plan's order.
    let mut settings: HashMap<&Option<String>, usize> = HashMap::new();
    let mut paths: Vec<((&str, &str), Vec<&Cell>)> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for cell in &cells {
        let next = settings.len();
        settings.entry(&cell.setting).or_insert(next);
        let path = (cell.mode.as_str(), cell.offload.name());
        let place = *places.entry(path).or_insert_with(|| {
            paths.push((path, Vec::new()));
            paths.len() - 1
        });
        paths[place].1.push(cell);
    }
    // A single setting has nothing to be compared with.
    if settings.len() < 2 {
        return None;
    }
    let largest = cells.iter().filter_map(|cell| cell.median).fold(0.0, f64::max);
    let scale = Scale::new(cells[0].unit, largest);
    let groups = paths
        .into_iter()
        .map(|((mode, offload), mut cells)| {
            // Keep the first of several identical cells.
            cells.sort_by_key(|cell| settings[&cell.setting]);
            cells.dedup_by_key(|cell| settings[&cell.setting]);
            let first = cells[0];
            let rows = cells.iter().map(|cell| {
                let is_first = std::ptr::eq(first, *cell);
                // The first step is the reference.
                let change = if is_first { None } else { gain(results, cell, first) };
                vec![
                    cell.setting.as_deref().map_or("as found".to_string(), plain),
                    cell.median.map(|median| scale.number(median)).unwrap_or_default(),
                    change.as_ref().map(of_interval).unwrap_or_default(),
                    change.as_ref().map(range).unwrap_or_default(),
                ]
            });
            (format!("{}, offload {}", plain(mode), plain(offload)), rows.collect::<Vec<_>>())
        })
        .collect::<Vec<_>>();
    let heads = ["setting", scale.label, "÷ first", "interval"].map(String::from).to_vec();
    let title = format!("{}: by setting", work.described(true, false));
    (!groups.is_empty()).then_some(Detail { title, grouped_by: "mode", heads, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_from_the_bin_that_holds_them() {
        let bins = [
            Bin { us: 10.0, count: 900 },
            Bin { us: 20.0, count: 90 },
            Bin { us: 90.0, count: 10 },
        ];
        assert_eq!(quantile(&bins, 0.5), Some(10.0));
        assert_eq!(quantile(&bins, 0.9), Some(10.0));
        assert_eq!(quantile(&bins, 0.99), Some(20.0));
        assert_eq!(quantile(&bins, 0.999), None, "one transaction lies beyond it");
        assert_eq!(quantile(&[], 0.5), None);
    }
}
