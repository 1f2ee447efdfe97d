//! The help page: keys, columns, and limits of the observation.

use ratatui::text::Line;

use super::line::{fit, wrap};
use super::look::Look;
use super::state::State;

const LIVE: &[(&str, &str)] = &[
    ("Up Down, PgUp PgDn", "move"),
    ("Enter or Right", "open a route; show details of a route, hop or drop"),
    ("Esc or Left", "back; close a route"),
    ("s", "sort routes by packets, p99 or drops"),
    ("/", "filter by text: flow, namespace, device or end"),
    ("p", "show the peer of --peer"),
    ("f or Space", "freeze, resume"),
    ("? q Ctrl-C", "this page; quit"),
];
const RECORDED: &[(&str, &str)] = &[
    ("Up Down, PgUp PgDn", "move"),
    ("Enter", "open a route; show details of a route, hop or drop"),
    ("Esc", "back; close a route"),
    ("Left Right", "previous, next interval"),
    ("Space", "pause, resume"),
    ("+ -", "double, halve the speed"),
    ("p", "show the peer, if recorded with --peer"),
    ("s", "sort routes by packets, p99 or drops"),
    ("/", "filter by text: flow, namespace, device or end"),
    ("? q Ctrl-C", "this page; quit"),
];
const COLUMNS: &[(&str, &str)] = &[
    ("pkt/s, Mbit/s", "counted by the device, all packets; a GSO packet is one"),
    ("/s of a route", "sampled packets only, not all packets"),
    ("bytes, GSO", "mean bytes; mean packets in a GSO packet"),
    ("µs p50, p99", "time since the previous hop; for a route, first to last hop"),
    ("history", "packets/s in the last intervals, scaled to the maximum"),
    (
        "notes",
        "v in a tunnel, c segmented (cut) by the CPU, m merged, s checksummed by the CPU, w waited, d dropped by the device",
    ),
    ("dropped", "all packets that the kernel dropped, by reason"),
];
/// Width of a key or the name of a column.
const NAME: usize = 20;

/// Returns the lines of the page, each at most `columns` wide.
pub fn lines(state: &State, columns: usize, look: Look) -> Vec<Line<'static>> {
    // Left, Right and Space have other functions in a recording.
    let keys = if state.position.is_some() { RECORDED } else { LIVE };
    let mut lines = vec![Line::styled("Keys", look.title())];
    lines.extend(table(keys, columns));
    lines.push(Line::styled("Columns", look.title()));
    lines.extend(table(COLUMNS, columns));
    let not_seen = state.shown.as_ref().map_or(&[][..], |seen| &seen.not_seen);
    // Omit the heading if nothing is missing.
    if !not_seen.is_empty() {
        lines.push(Line::styled("Not visible on this machine", look.bad()));
    }
    for reason in not_seen {
        lines.extend(wrap(reason, columns).into_iter().map(Line::raw));
    }
    lines
}

fn table(rows: &[(&str, &str)], columns: usize) -> Vec<Line<'static>> {
    // On narrow screens, leave at least half of the width for the text.
    let name = NAME.min(columns / 2);
    let room = columns.saturating_sub(name);
    let line = |(key, text): &(&str, &str)| {
        let mut parts = wrap(text, room).into_iter();
        let first = format!("{}{}", fit(key, name), parts.next().unwrap_or_default());
        let rest = parts.map(|part| Line::raw(format!("{}{part}", " ".repeat(name))));
        std::iter::once(Line::raw(first)).chain(rest).collect::<Vec<_>>()
    };
    rows.iter().flat_map(line).collect()
}
