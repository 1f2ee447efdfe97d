//! The same work by several load engines.

use measure::results::{Cell, Results, Role, Status};

use super::bars::{Bars, Mark, Row, draw};
use super::scale::{Kind, short};
use super::{Chart, offload_words, offloads, spread, unit_words};
use crate::style::plain;
use crate::work::Work;

/// A chart for each work that more than one engine did.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let anyones = |cell| Work { engine: "overlane", ..Work::of(cell) };
    let shown =
        || results.cells.iter().filter(|cell| cell.status == Status::Ok && cell.role != Role::Aa);
    let mut works: Vec<Work<'_>> = shown().map(anyones).collect();
    works.sort();
    works.dedup();
    let mut engines: Vec<&str> = Vec::new();
    for cell in shown() {
        if !engines.contains(&cell.engine.as_str()) {
            engines.push(&cell.engine);
        }
    }
    let mut charts = Vec::new();
    for work in works {
        for offload in offloads(results) {
            let cells: Vec<&Cell> =
                shown().filter(|c| c.offload == offload && anyones(c) == work).collect();
            let Some(first) = cells.first() else { continue };
            if cells.iter().all(|cell| cell.engine == first.engine) {
                continue;
            }
            let mut modes: Vec<&str> = Vec::new();
            for cell in &cells {
                if !modes.contains(&cell.mode.as_str()) {
                    modes.push(&cell.mode);
                }
            }
            let mut rows = Vec::new();
            for mode in modes {
                rows.push(Row { name: plain(mode), heading: true, ..Row::default() });
                rows.extend(cells.iter().filter(|cell| cell.mode == mode).filter_map(|cell| {
                    let at = cell.median?;
                    let style = engines.iter().position(|engine| *engine == cell.engine);
                    let mark = Mark { style: style.unwrap_or(0), at, ends: spread(cell) };
                    let (name, figure) = (plain(&cell.engine), short(at));
                    Some(Row { name, marks: vec![mark], figure, ..Row::default() })
                }));
            }
            let words = unit_words(&first.unit);
            let bars = Bars { words, kind: Kind::Linear, mark: None, legend: Vec::new(), rows };
            charts.extend(Chart::new(
                "engines",
                format!("{}{}", work.title(), offload_words(results, &plain(offload))),
                "Medians, from the smallest to the largest sample.",
                draw(&bars),
            ));
        }
    }
    charts
}
