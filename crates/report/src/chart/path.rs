//! Charts of a mode's path from client to server: one line per hop, with the packets that crossed
//! it.

use results::workload::Pattern;
use results::{Cell, HopRecord, RecordKind, Results, Role, Status, Task};

use super::svg::{Anchor, LINE, Svg, WIDTH, fitted};
use super::{Chart, distinct};
use crate::style::plain;
use crate::unit::bytes;

/// Most columns of one chart.
const COLUMNS: usize = 3;
/// Height of a hop, pixels.
const HOP: f64 = 36.0;
/// Left edge of the columns, pixels.
const LEFT: f64 = 140.0;

/// Returns a chart per mode. Columns are workloads and offload profiles.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let shown = || {
        results.cells.iter().filter(|cell| {
            cell.role != Role::Aa && cell.status == Status::Ok && !cell.hops.is_empty()
        })
    };
    let modes = distinct(shown().map(|cell| cell.mode.as_str()));
    let chart = |mode: &&str| {
        let cells: Vec<&Cell> = shown().filter(|cell| cell.mode == *mode).collect();
        let record = results.modes.iter().find(|record| record.mode == *mode);
        let caption = record.map(|record| plain(&record.path)).unwrap_or_default();
        Chart::new("path", plain(mode), &caption, draw(&columns(&cells)))
    };
    modes.iter().filter_map(chart).collect()
}

/// Chooses the most informative cells: streams first, with the largest messages, each offload once.
fn columns<'a>(cells: &[&'a Cell]) -> Vec<&'a Cell> {
    let mut chosen: Vec<&'a Cell> = Vec::new();
    let mut tasks = Task::ALL;
    tasks.sort_by_key(|task| match (task, task.workload().pattern()) {
        (Task::Steady(workload), Pattern::Stream(_)) if workload.is_tcp() => 0,
        (Task::DropPoint, _) => 1,
        (_, Pattern::Stream(_)) => 2,
        (_, Pattern::Requests) => 3,
        (_, Pattern::Connections) => 4,
    });
    for task in tasks {
        let mut of: Vec<&Cell> = cells.iter().copied().filter(|c| c.workload == task).collect();
        of.sort_by_key(|cell| std::cmp::Reverse(cell.message_bytes));
        let mut seen: Vec<&str> = Vec::new();
        for cell in of {
            // Only cells with the same hops can share lines.
            let same = chosen
                .first()
                .is_none_or(|first| forward(first).map(place).eq(forward(cell).map(place)));
            if same && !seen.contains(&cell.offload.name()) && chosen.len() < COLUMNS {
                seen.push(cell.offload.name());
                chosen.push(cell);
            }
        }
    }
    chosen
}

/// Returns the hops in the direction of the counted payload.
fn forward(cell: &Cell) -> impl Iterator<Item = &HopRecord> {
    let way = cell.workload.workload().direction();
    cell.hops.iter().filter(move |hop| hop.direction == way)
}

fn place(hop: &HopRecord) -> (&str, &str) {
    (&hop.host, &hop.device)
}

fn draw(columns: &[&Cell]) -> Option<(String, f64)> {
    let first = columns.first()?;
    let mut svg = Svg::default();
    let width = (WIDTH - LEFT) / columns.len().max(2) as f64;
    let middle = |column: usize| LEFT + width * (column as f64 + 0.5);
    for (i, cell) in columns.iter().enumerate() {
        let fit = |text: &str| fitted(text, width - 6.0);
        svg.text("t b", (middle(i), LINE), Anchor::Middle, &fit(cell.workload.name()));
        let size = bytes(f64::from(cell.message_bytes));
        svg.text("t muted", (middle(i), 2.0 * LINE), Anchor::Middle, &fit(&size));
        svg.text("t muted", (middle(i), 3.0 * LINE), Anchor::Middle, &fit(cell.offload.name()));
    }
    let top = 3.0 * LINE + 10.0;
    let hops: Vec<&HopRecord> = forward(first).collect();
    // A file without hops has no path to draw.
    if hops.is_empty() {
        return None;
    }
    let mut host = "";
    for (row, hop) in hops.iter().enumerate() {
        let y = top + HOP * row as f64;
        let centre = y + 0.5 * HOP;
        if row > 0 {
            let between = if hop.host == host { "axis" } else { "mark" };
            svg.line(between, (16.0, y - 4.0), (16.0, y + 4.0));
        }
        host = &hop.host;
        let class = if row % 2 == 0 { "band" } else { "paper" };
        svg.rect(class, (26.0, y + 3.0), (WIDTH - 28.0, HOP - 6.0), "");
        svg.marker(
            if hop.kind == RecordKind::Process { 1 } else { 0 },
            (16.0, centre),
            hop.kind.name(),
        );
        let name = fitted(&format!("{}: {}", hop.host, hop.device), LEFT - 36.0);
        svg.text("t", (30.0, centre + 4.0), Anchor::Start, &name);
        for (i, cell) in columns.iter().enumerate() {
            // An edited file may lack hops.
            let Some(here) = forward(cell).nth(row) else { continue };
            let mean = here.mean_skb_bytes;
            let bypassed = here.kind == RecordKind::Bypassed;
            let size = match here.packets {
                // A bypassed device must not carry traffic, so its size means nothing.
                _ if bypassed => "bypassed".to_string(),
                0 => "–".to_string(),
                _ => bytes(mean),
            };
            let whole = !bypassed && mean > f64::from(cell.mtu) + 4.0;
            let class = if whole { "t b c0" } else { "t" };
            // Make room for the line of drops.
            let lift = if here.drops > 0 { 7.0 } else { 0.0 };
            let at = (middle(i), centre + 4.0 - lift);
            svg.text(class, at, Anchor::Middle, &fitted(&size, width - 2.0));
            if here.drops > 0 {
                let drops = format!("▼{}", super::scale::short(here.drops as f64));
                let at = (middle(i), centre + 4.0 + lift);
                svg.text("t c1", at, Anchor::Middle, &fitted(&drops, width - 2.0));
            }
        }
    }
    Some(svg.finish(top + HOP * hops.len() as f64 + 4.0))
}
