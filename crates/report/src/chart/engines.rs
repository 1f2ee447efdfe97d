//! Charts of the same work by several load engines.

use results::{Cell, Results, Role, Status};

use super::bars::{Bars, Mark, Row, draw};
use super::scale::{Kind, short};
use super::{Chart, distinct, groups, offload_words, spread, unit_words};
use crate::style::plain;
use crate::work::Work;

/// Returns a chart for each work measured by more than one engine.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let anyones = |cell| Work { engine: "overlane", ..Work::of(cell) };
    let shown = |cell: &Cell| cell.status == Status::Ok && cell.role != Role::Aa;
    let engines = distinct(results.cells.iter().filter(|c| shown(c)).map(|c| c.engine.name()));
    let mut charts = Vec::new();
    for (work, offload, cells) in groups(results, shown, anyones) {
        let first = cells[0];
        // A single engine has nothing to be compared with.
        if cells.iter().all(|cell| cell.engine == first.engine) {
            continue;
        }
        let modes = distinct(cells.iter().map(|cell| cell.mode.as_str()));
        let mut rows = Vec::new();
        for mode in modes {
            rows.push(Row::heading(plain(mode)));
            rows.extend(cells.iter().filter(|cell| cell.mode == mode).filter_map(|cell| {
                let at = cell.median?;
                let style = engines.iter().position(|engine| *engine == cell.engine.name());
                let mark = Mark { style: style.unwrap_or(0), at, ends: spread(cell) };
                let (name, figure) = (cell.engine.to_string(), short(at));
                Some(Row { name, marks: vec![mark], figure, ..Row::default() })
            }));
        }
        let words = unit_words(first.unit);
        let bars = Bars { words, kind: Kind::Linear, mark: None, legend: Vec::new(), rows };
        charts.extend(Chart::new(
            "engines",
            format!("{}{}", work.title(), offload_words(results, &plain(offload))),
            "Medians. Lines extend from the smallest to the largest sample.",
            draw(&bars),
        ));
    }
    charts
}
