//! The detail page of a route, a hop or a drop.

use observe::{DropSeen, HopSeen, Latency, PathSeen, Rates, Snapshot, per_second};
use ratatui::text::Line;

use super::history::{KEPT, PlaceKey, Point, Subject};
use super::line::{fit, right, width, wrap};
use super::list::flow;
use super::look::{Look, faint};
use super::number::{blocks, megabits, micros, percent, short};
use super::rows::{Chosen, Row};
use super::state::State;

/// Width of the name of a value.
const NAME: usize = 22;
/// Width of a table column.
const FIGURE: usize = 9;

/// Returns the lines of the page, each at most `columns` wide.
pub fn lines(state: &State, chosen: &Chosen, columns: usize, look: Look) -> Vec<Line<'static>> {
    let mut page = Page { state, columns, look, lines: Vec::new() };
    let shown = state.shown.as_ref();
    match shown.and_then(|snapshot| Some((snapshot, chosen.find(snapshot)?))) {
        Some((snapshot, Row::Path(path))) => page.path(snapshot, &snapshot.paths[path]),
        Some((snapshot, Row::Hop(path, hop))) => page.hop(snapshot, &snapshot.paths[path], hop),
        Some((snapshot, Row::Drop(drop))) => page.drops(snapshot, &snapshot.drops[drop]),
        // The selected route may be missing in a later interval; keep the page open.
        None => page.text("not seen in this interval"),
    }
    page.lines
}

struct Page<'a> {
    state: &'a State,
    columns: usize,
    look: Look,
    lines: Vec<Line<'static>>,
}

impl Page<'_> {
    fn title(&mut self, text: &str) {
        self.lines.push(Line::styled(fit(text, self.columns), self.look.title()));
    }

    fn head(&mut self, text: &str) {
        self.lines.extend([Line::raw(""), Line::styled(text.to_owned(), faint())]);
    }

    fn text(&mut self, text: &str) {
        self.lines.extend(wrap(text, self.columns).into_iter().map(Line::raw));
    }

    fn value(&mut self, name: &str, value: &str) {
        // On very narrow screens, at least one column is left for the value.
        let room = self.columns.saturating_sub(NAME + 1).max(1);
        for (number, part) in wrap(value, room).into_iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            self.lines.push(Line::raw(format!("{} {part}", fit(name, NAME))));
        }
    }

    fn path(&mut self, snapshot: &Snapshot, path: &PathSeen) {
        self.title(&flow(path));
        self.text(&format!("one of {} sampled packets on this route", path.packets));
        self.head("Sampled packets");
        let rate = per_second(path.packets, snapshot.seconds);
        self.value("sampled per second", &short(rate));
        self.value("most frequent end", &path.ending);
        self.value("hops", &path.hops.len().to_string());
        self.times("Times, µs", &[("first to last hop", &path.took)]);
        self.history(&Subject::path(path), "sampled/s");
        let times: Vec<_> = path.hops.iter().map(|hop| (name(hop), &hop.since_before)).collect();
        let times: Vec<_> = times.iter().map(|(name, times)| (name.as_str(), *times)).collect();
        self.times("Hops, µs", &times);
    }

    fn hop(&mut self, snapshot: &Snapshot, path: &PathSeen, number: usize) {
        // The route may have fewer hops in this interval.
        let Some(hop) = path.hops.get(number) else { return };
        self.title(&name(hop));
        let of = path.hops.len();
        self.text(&format!("hop {} of {of} on the route of {}", number + 1, flow(path)));
        self.head("All packets, counted by the device");
        self.text(&hop.counted.as_ref().map_or("this hop has no counters".to_owned(), counted));
        if let Some(queued) = hop.queued {
            self.value("packets in the queue", &queued.to_string());
        }
        let rate = per_second(path.packets, snapshot.seconds);
        self.head("Sampled packets on this route");
        self.value("sampled per second", &short(rate));
        self.value("mean bytes", &short(hop.bytes.round()));
        let gso = if hop.gso_packets > 1.0 { short(hop.gso_packets) } else { "none".into() };
        self.value("packets per GSO packet", &gso);
        self.value("segmented by the CPU", &percent(hop.cut));
        self.value("merged", &percent(hop.merged));
        self.value("checksummed by the CPU", &percent(hop.checksummed));
        let tunnel = hop.encapsulation.map(|encapsulation| encapsulation.within(hop.vni));
        self.value("tunnel", tunnel.as_deref().unwrap_or("none"));
        self.times(
            "Times, µs",
            &[("since previous hop", &hop.since_before), ("waited here", &hop.waited)],
        );
        self.history(&Subject::Place(PlaceKey::of(hop)), "packets/s");
    }

    fn drops(&mut self, snapshot: &Snapshot, drop: &DropSeen) {
        self.title(&format!("dropped: {}", drop.reason));
        if let Some(meaning) = &drop.meaning {
            self.text(meaning);
        }
        self.head("All packets");
        self.value("namespace", &drop.namespace);
        self.value("device", drop.device.as_deref().unwrap_or("none"));
        self.value("function", drop.function.as_deref().unwrap_or("not reported by kernel"));
        self.value("packets", &drop.packets.to_string());
        let rate = per_second(drop.packets, snapshot.seconds);
        self.value("packets per second", &short(rate));
        if let Some(check) = &drop.check {
            self.value("check for the cause", &format!("overlane doctor explain {check}"));
        }
        self.history(&Subject::drop(drop), "packets/s");
    }

    /// Adds a table of percentiles, one line per name.
    fn times(&mut self, title: &str, times: &[(&str, &Latency)]) {
        let names = times.iter().map(|(name, _)| width(name)).max().unwrap_or(0).max(NAME);
        // Shorten names rather than numbers.
        let names = names.min(self.columns.saturating_sub(4 * FIGURE)).max(6);
        let head = ["p50", "p99", "p99.9", "packets"].map(|name| right(name, FIGURE)).concat();
        self.head(&format!("{}{head}", fit(title, names)));
        for (name, times) in times {
            let figures = match times.count {
                // Without samples, percentiles would be meaningless.
                0 => ["-", "-", "-", "0"].map(|none| right(none, FIGURE)).concat(),
                count => {
                    [times.p50_ns, times.p99_ns, times.p999_ns]
                        .map(|ns| right(&micros(ns), FIGURE))
                        .concat()
                        + &right(&short(count as f64), FIGURE)
                }
            };
            self.lines.push(Line::raw(format!("{}{figures}", fit(name, names))));
        }
    }

    /// Adds charts of the last intervals, with minimum, maximum and last value.
    fn history(&mut self, subject: &Subject, rate: &str) {
        self.head(&format!("Last {KEPT} intervals: min, max, last"));
        let series =
            |value: &dyn Fn(&Point) -> Option<f64>| self.state.history.series(subject, value);
        let mut drawn = vec![(rate, series(&|point| Some(point.packets_per_s)))];
        let megabits = series(&|point| point.bytes_per_s.map(megabits));
        // Routes and places without counters have no byte rate.
        if megabits.iter().any(Option::is_some) {
            drawn.push(("Mbit/s", megabits));
        }
        // Drops have no duration.
        if !matches!(subject, Subject::Drop(..)) {
            drawn.push(("p99, µs", series(&|point| Some(point.p99_ns as f64 / 1000.0))));
        }
        for (name, values) in drawn {
            let line = self.drawn(name, &values);
            self.lines.push(Line::raw(line));
        }
    }

    fn drawn(&self, name: &str, values: &[Option<f64>]) -> String {
        const NAME: usize = 10;
        let seen = || values.iter().flatten().copied();
        let figures =
            [seen().reduce(f64::min), seen().reduce(f64::max), values.last().copied().flatten()];
        let figures = figures.map(|value| right(&value.map_or("-".to_owned(), short), 7)).concat();
        let room = self.columns.saturating_sub(NAME + width(&figures)).min(KEPT);
        format!("{}{}{figures}", fit(name, NAME), blocks(values, room))
    }
}

fn counted(rates: &Rates) -> String {
    let (packets, dropped) = (short(rates.packets_per_s), short(rates.dropped_per_s));
    let megabits = short(megabits(rates.bytes_per_s));
    format!("{packets} packets/s, {megabits} Mbit/s, {dropped} dropped/s")
}

fn name(hop: &HopSeen) -> String {
    format!("{} {} {}", hop.namespace, hop.device.as_deref().unwrap_or("-"), hop.side.name())
}
