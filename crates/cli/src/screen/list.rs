//! Formats the rows of the list.

use observe::{HopSeen, PathSeen, Snapshot, per_second};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;

use super::columns::{Column, Columns};
use super::history::{PlaceKey, Point, Subject};
use super::line::{fit, right, width};
use super::look::Look;
use super::number::{blocks, megabits, micros, short};
use super::rows::Row;
use super::state::State;

/// Minimum share of packets for a letter in the notes of a hop.
const WORTH_TELLING: f64 = 0.01;

/// Returns the header line.
pub fn column_names(columns: &Columns) -> String {
    let mut names = fit("  routes and hops", columns.place);
    for (column, width) in &columns.others {
        names += &match column {
            Column::Packets => right("pkt/s", *width),
            Column::Megabits => right("Mbit/s", *width),
            Column::Bytes => right("bytes", *width),
            Column::Gso => right("GSO", *width),
            Column::P50 => right("µs p50", *width),
            Column::P99 => right("p99", *width),
            Column::History => fit(" history", *width),
            Column::Notes => fit(" notes", *width),
        };
    }
    names
}

pub fn list_row(
    state: &State,
    snapshot: &Snapshot,
    index: usize,
    columns: &Columns,
    look: Look,
) -> Line<'static> {
    let is_selected = index == state.selected;
    let cursor = if is_selected { ">" } else { " " };
    let (text, style) = match state.rows.get(index) {
        Some(Row::Path(path)) => {
            let path = &snapshot.paths[*path];
            (path_row(state, snapshot, path, columns), look.title())
        }
        Some(Row::Hop(path, hop)) => {
            (hop_row(state, &snapshot.paths[*path].hops[*hop], columns), Style::new())
        }
        Some(Row::Drop(drop)) => (drop_row(snapshot, *drop, columns), Style::new()),
        None => (String::new(), Style::new()),
    };
    let style = if is_selected { style.add_modifier(Modifier::REVERSED) } else { style };
    Line::styled(format!("{cursor}{text}"), style)
}

fn path_row(state: &State, snapshot: &Snapshot, path: &PathSeen, columns: &Columns) -> String {
    let subject = Subject::path(path);
    let mark = if state.is_open(&subject) { '-' } else { '+' };
    let rate = per_second(path.packets, snapshot.seconds);
    let before_times = [Column::Packets, Column::Megabits, Column::Bytes, Column::Gso];
    // The flow of a route spans the columns before the times, because those have no value for it.
    let room =
        columns.place + before_times.map(|column| columns.width(column)).iter().sum::<usize>();
    let rate = right(&format!("{}/s", short(rate)), 8.min(room));
    let flow = format!("{mark} {}", flow(path));
    let mut row = fit(&flow, room.saturating_sub(rate.len() + 1)) + &rate;
    row += &right(&micros(path.took.p50_ns), columns.width(Column::P50));
    row += &right(&micros(path.took.p99_ns), columns.width(Column::P99));
    let (history, notes) = (columns.width(Column::History), columns.width(Column::Notes));
    if columns.has_words() {
        row += &drawn(state, &subject, history);
        row += &fit(&format!(" {}", path.ending), notes);
    } else {
        // In little space, the end of the packets is more useful than the history.
        row += &fit(&format!(" {}", path.ending), history + notes);
    }
    row
}

/// Returns the flow of one packet of the route.
pub fn flow(path: &PathSeen) -> String {
    path.example.as_ref().map_or("no IP".to_owned(), ToString::to_string)
}

fn drawn(state: &State, subject: &Subject, columns: usize) -> String {
    if columns == 0 {
        return String::new();
    }
    let series = state.history.series(subject, |point: &Point| Some(point.packets_per_s));
    format!(" {}", blocks(&series, columns - 1))
}

fn hop_row(state: &State, hop: &HopSeen, columns: &Columns) -> String {
    let mut row = format!("  {}", place(hop, columns.place.saturating_sub(3)));
    let counted = hop.counted.as_ref();
    let dash = || "-".to_owned();
    // The first hop has no previous one.
    let time = |ns: u64| if hop.since_before.count == 0 { dash() } else { micros(ns) };
    for (column, width) in &columns.others {
        let text = match column {
            Column::Packets => counted.map_or_else(dash, |rates| short(rates.packets_per_s)),
            Column::Megabits => {
                counted.map_or_else(dash, |rates| short(megabits(rates.bytes_per_s)))
            }
            Column::Bytes => short(hop.bytes.round()),
            // A value of 1 means no GSO packets.
            Column::Gso if hop.gso_packets > 1.0 => short(hop.gso_packets),
            Column::Gso => dash(),
            Column::P50 => time(hop.since_before.p50_ns),
            Column::P99 => time(hop.since_before.p99_ns),
            Column::History => {
                row += &drawn(state, &Subject::Place(PlaceKey::of(hop)), *width);
                continue;
            }
            Column::Notes => {
                let notes = if columns.has_words() { hop.notes().join(", ") } else { letters(hop) };
                row += &fit(&format!(" {notes}"), *width);
                continue;
            }
        };
        row += &right(&text, *width);
    }
    row
}

/// Formats namespace, device and side. Truncates the namespace first.
fn place(hop: &HopSeen, columns: usize) -> String {
    let namespace = foreign::plain(&hop.namespace);
    let device = foreign::plain(hop.device.as_deref().unwrap_or("-")).into_owned();
    let behind = format!(" {device} {}", hop.side.name());
    let room = columns.saturating_sub(width(&behind));
    // Fewer than 4 columns of a namespace would be meaningless.
    if width(&namespace) <= room || room < 4 {
        return fit(&format!("{namespace}{behind}"), columns);
    }
    fit(&namespace, room) + &behind
}

fn letters(hop: &HopSeen) -> String {
    let dropped = hop.counted.as_ref().is_some_and(|rates| rates.dropped_per_s > 0.0);
    let letters = [
        (hop.encapsulation.is_some(), 'v'),
        (hop.cut >= WORTH_TELLING, 'c'),
        (hop.merged >= WORTH_TELLING, 'm'),
        (hop.checksummed >= WORTH_TELLING, 's'),
        (hop.waited.count > 0, 'w'),
        (dropped, 'd'),
    ];
    letters.into_iter().filter(|(is_so, _)| *is_so).map(|(_, letter)| letter).collect()
}

fn drop_row(snapshot: &Snapshot, drop: usize, columns: &Columns) -> String {
    let drop = &snapshot.drops[drop];
    let rate = per_second(drop.packets, snapshot.seconds);
    let device = drop.device.as_deref().unwrap_or("-");
    let place = fit(&format!("{} {device}", drop.namespace), columns.place.saturating_sub(3));
    let meaning = drop.meaning.as_ref().map(|meaning| format!(": {meaning}")).unwrap_or_default();
    let rest = columns.others.iter().map(|(_, width)| width).sum::<usize>();
    let why = fit(&format!("{}{meaning}", drop.reason), rest.saturating_sub(9));
    format!("  {place}{} {why}", right(&format!("{}/s", short(rate)), 8))
}
