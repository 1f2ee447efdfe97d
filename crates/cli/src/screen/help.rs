//! Keys, columns, and what cannot be seen.

use ratatui::text::Line;

use super::line::{fit, wrap};
use super::look::Look;
use super::state::State;

const LIVE: &[(&str, &str)] = &[
    ("Up Down, PgUp PgDn", "move"),
    ("Enter or Right", "open a way; all of it, of a hop, of drops"),
    ("Esc or Left", "back; close a way"),
    ("s", "sort ways by packets, p99, drops"),
    ("/", "show what has a text: flow, namespace, device, ending"),
    ("p", "the other host, with --peer"),
    ("f or Space", "freeze, go on"),
    ("? q Ctrl-C", "this page; end"),
];
const RECORDED: &[(&str, &str)] = &[
    ("Up Down, PgUp PgDn", "move"),
    ("Enter", "open a way; all of it, of a hop, of drops"),
    ("Esc", "back; close a way"),
    ("Left Right", "an interval back, on"),
    ("Space", "pause, go on"),
    ("+ -", "twice as fast, half as fast"),
    ("p", "the other host, of a recording with --peer"),
    ("s", "sort ways by packets, p99, drops"),
    ("/", "show what has a text: flow, namespace, device, ending"),
    ("? q Ctrl-C", "this page; end"),
];
const COLUMNS: &[(&str, &str)] = &[
    ("pkt/s, Mbit/s", "counted by the device, all packets; a GSO packet is one"),
    ("/s of a way", "followed packets, by chance: not all there are"),
    ("bytes, GSO", "mean bytes; mean packets in a GSO packet"),
    ("µs p50, p99", "since the hop before; of a way, from first to last"),
    ("history", "packets/s of the last intervals, the largest highest"),
    (
        "notes",
        "v in a tunnel, c cut by the CPU, m merged, s checksummed by the CPU, w waited, d the device dropped",
    ),
    ("dropped", "all packets that the kernel dropped, by reason"),
];
/// Width of a key or the name of a column.
const NAME: usize = 20;

/// The page, in lines of so many columns.
pub fn lines(state: &State, columns: usize, look: Look) -> Vec<Line<'static>> {
    let keys = if state.position.is_some() { RECORDED } else { LIVE };
    let mut lines = vec![Line::styled("Keys", look.title())];
    lines.extend(table(keys, columns));
    lines.push(Line::styled("Columns", look.title()));
    lines.extend(table(COLUMNS, columns));
    let not_seen = state.shown.as_ref().map_or(&[][..], |seen| &seen.not_seen);
    if !not_seen.is_empty() {
        lines.push(Line::styled("Not seen on this machine", look.bad()));
    }
    for reason in not_seen {
        lines.extend(wrap(reason, columns).into_iter().map(Line::raw));
    }
    lines
}

fn table(rows: &[(&str, &str)], columns: usize) -> Vec<Line<'static>> {
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
