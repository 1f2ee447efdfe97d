//! Requests alone and beside bulk traffic: latency, its growth within blocks, and the rates of the
//! bulk traffic.

use std::collections::{BTreeMap, HashMap};

use results::{Cell, Results, Role, Status, Unit};

use crate::detail::{Detail, PERCENTILES, quantile};
use crate::gain::quotient;
use crate::style::plain;
use crate::unit::{Scale, of_interval, range, three_digits};
use crate::work::Work;

/// Returns the tables across panels: the effect of settings, and of traffic beside requests.
pub(crate) fn across(results: &Results) -> Vec<Detail> {
    crate::detail::steps(results).into_iter().chain(tables(results)).collect()
}

/// Requests over one path. The first cell is alone, the others beside traffic.
pub(crate) struct Path<'a> {
    pub(crate) mode: &'a str,
    pub(crate) offload: &'a str,
    pub(crate) cells: Vec<&'a Cell>,
}

/// Name of the traffic beside a cell's requests.
pub(crate) fn name(cell: &Cell) -> &'static str {
    cell.beside.map_or("alone", |beside| beside.name())
}

/// Returns the paths by work whose requests were measured alone and beside traffic.
pub(crate) fn compared(results: &Results) -> Vec<(Work<'_>, Vec<Path<'_>>)> {
    let measured = results.cells.iter().filter(|c| c.status == Status::Ok && c.role != Role::Aa);
    // The order in the file is the plan's order.
    let mut places: HashMap<(Work<'_>, &str, &str), usize> = HashMap::new();
    let mut paths: Vec<(Work<'_>, Path<'_>)> = Vec::new();
    for cell in measured {
        let work = Work { beside: None, ..Work::of(cell) };
        let (mode, offload) = (cell.mode.as_str(), cell.offload.name());
        let place = *places.entry((work, mode, offload)).or_insert_with(|| {
            paths.push((work, Path { mode, offload, cells: Vec::new() }));
            paths.len() - 1
        });
        paths[place].1.cells.push(cell);
    }
    paths.retain_mut(|(_, path)| {
        path.cells.sort_by_key(|cell| cell.beside);
        path.cells.dedup_by_key(|cell| cell.beside);
        // Without the requests alone there is nothing to compare with.
        path.cells.len() > 1 && path.cells[0].beside.is_none()
    });
    let mut works: BTreeMap<Work<'_>, Vec<Path<'_>>> = BTreeMap::new();
    for (work, path) in paths {
        works.entry(work).or_default().push(path);
    }
    works.into_iter().collect()
}

/// Returns a table for each work with traffic beside it.
pub(crate) fn tables(results: &Results) -> Vec<Detail> {
    let all = compared(results);
    all.iter().map(|(work, paths)| table(results, work, paths)).collect()
}

fn table(results: &Results, work: &Work<'_>, paths: &[Path<'_>]) -> Detail {
    let rates = paths.iter().flat_map(|path| &path.cells).filter_map(|cell| cell.beside_rates);
    let rates = rates.flat_map(|rates| [rates.forward_bits_per_s, rates.reverse_bits_per_s]);
    let scale = Scale::new(Unit::Bits, rates.flatten().fold(0.0, f64::max));
    // The table of the cell has the last percentile.
    let percentiles = &PERCENTILES[..PERCENTILES.len() - 1];
    let heads = ["beside"].into_iter().chain(percentiles.iter().map(|(_, head)| *head));
    let heads = heads.chain(["p50 ÷ alone", "interval", "→", "←"]).map(String::from).collect();
    let row = |alone: &Cell, cell: &Cell| {
        let growth = match cell.beside {
            None => None,
            Some(_) => quotient(results, cell, alone, |sample| Some(sample.latency_us?.p50)),
        };
        let latency = percentiles.iter().map(|(p, _)| {
            quantile(&cell.histogram, *p).map_or_else(|| "–".to_string(), three_digits)
        });
        let rate = |bits: Option<f64>| bits.map(|bits| scale.number(bits)).unwrap_or_default();
        let rates = cell.beside_rates.unwrap_or_default();
        std::iter::once(name(cell).to_string())
            .chain(latency)
            .chain([
                growth.as_ref().map(of_interval).unwrap_or_default(),
                growth.as_ref().map(range).unwrap_or_default(),
                rate(rates.forward_bits_per_s),
                rate(rates.reverse_bits_per_s),
            ])
            .collect::<Vec<_>>()
    };
    let groups = paths.iter().map(|path| {
        let rows = path.cells.iter().map(|cell| row(path.cells[0], cell)).collect();
        (format!("{}, offload {}", plain(path.mode), plain(path.offload)), rows)
    });
    let title = format!(
        "{}: latency in µs alone and beside bulk traffic, its payload in {} from client to server \
         (→) and back (←)",
        work.title(),
        scale.label
    );
    Detail { title, grouped_by: "mode", heads, groups: groups.collect() }
}
