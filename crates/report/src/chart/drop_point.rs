//! Charts of NDR and PDR: rates within each loss limit. There is a row per mode, or per step of a
//! varied setting.

use results::{Cell, Results, Status};

use super::Chart;
use super::bars::{Bars, Mark, Row, draw};
use super::scale::{Kind, short};
use super::{distinct, groups, offload_words};
use crate::detail::{goal, goal_name, goals};
use crate::panel::name;
use crate::style::plain;
use crate::work::Work;

/// Returns a chart for each search and offload profile, all settings together.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let unset = |cell| Work { setting: None, ..Work::of(cell) };
    let searched = |c: &Cell| c.drop_point.is_some() && c.status == Status::Ok;
    let mut charts = Vec::new();
    for (work, offload, cells) in groups(results, searched, unset) {
        let first = cells[0];
        let losses = goals(cells.iter().copied());
        let varied = cells.iter().any(|cell| cell.setting != first.setting);
        let modes = distinct(cells.iter().map(|cell| name(cell)));
        let mut rows = Vec::new();
        for mode in modes {
            if varied {
                rows.push(Row::heading(mode.clone()));
            }
            rows.extend(cells.iter().filter(|cell| name(cell) == mode).map(|cell| {
                Row {
                    name: if varied { setting(cell) } else { mode.clone() },
                    marks: marks(cell, &losses),
                    figure: losses
                        .first()
                        .and_then(|loss| goal(cell, *loss))
                        .map(|goal| short(goal.per_s))
                        .unwrap_or_default(),
                    ..Row::default()
                }
            }));
        }
        let bars = Bars {
            words: "datagrams per second".to_string(),
            kind: Kind::Linear,
            mark: None,
            legend: losses.iter().map(|loss| goal_name(*loss)).collect(),
            rows,
        };
        charts.extend(Chart::new(
            "drop-point",
            format!("{}{}", work.title(), offload_words(results, &plain(offload))),
            "Rate received at the highest offered rate within each loss limit: no loss (NDR), or \
             at most this share (PDR). The line extends to the lowest offered rate that lost more. \
             The figure belongs to the strictest limit.",
            draw(&bars),
        ));
    }
    charts
}

fn marks(cell: &Cell, losses: &[f64]) -> Vec<Mark> {
    let of = |(style, loss): (usize, &f64)| {
        let goal = goal(cell, *loss)?;
        let ends = goal.missed.map(|missed| (goal.per_s.min(missed), missed));
        Some(Mark { style, at: goal.per_s, ends })
    };
    losses.iter().enumerate().filter_map(of).collect()
}

/// Returns a setting's short name: `netdev_budget=1000`.
fn setting(cell: &Cell) -> String {
    cell.setting.as_deref().map_or("as found".to_string(), |setting| {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        // The last part distinguishes settings best, and rows have little room.
        let name = name.rsplit(['.', ':']).next().unwrap_or(name);
        plain(&if value.is_empty() { name.to_string() } else { format!("{name}={value}") })
    })
}
