//! Renders a recording as one page: summary, time line, paths with their hops, places where packets
//! were cut and dropped, and its cost.

use maud::{Markup, html};
use observe::{DropSeen, HopSeen, PathSeen};

use crate::chart;
use crate::page::{cards, charts, list, page};
use crate::recording::{RecordedPath, Recording};
use crate::recording_peer;
use crate::recording_text::{head, moment};
use crate::unit::{count, percent, three_digits};

/// Paths with charts on the page: each has hundreds of points per line.
const CHARTED: usize = 8;
/// Smallest share worth reporting at a hop.
const WORTH_TELLING: f64 = 0.01;

/// Renders a recording as one page, which loads and runs nothing.
pub fn recording_html(recording: &Recording) -> String {
    let paths = recording.paths();
    let seen: Vec<PathSeen> = paths.iter().map(|path| path.seen()).collect();
    let (drops, seconds) = (recording.drops(), recording.whole().seconds);
    let dropped =
        drops.iter().fold(recording.other_drops, |sum, drop| sum.saturating_add(drop.packets));
    let body = html! {
        section {
            h2 { "In short" }
            @for line in head(recording) { p { (line) } }
            p { (count(paths.len(), "packet path")) ", " (dropped) " packets dropped." }
            (list("Not seen", recording.not_seen.iter().cloned().collect()))
        }
        @for section in &chart::over_time(recording)[..] { (charts(section)) }
        section {
            h2 { "Packet paths" }
            p.muted {
                "Rates include all packets, as counted by devices. Other figures are of followed \
                 packets only. A median is the mean of the intervals' medians; other percentiles \
                 are the largest of any interval."
            }
            @if paths.is_empty() { p { "No followed packet reached its end." } }
            @for (number, (path, seen)) in paths.iter().zip(&seen).enumerate() {
                (one_way(recording, number, path, seen))
            }
            @if recording.other_paths > 0 {
                p { (recording.other_paths) " followed packets took other paths." }
            }
        }
        @if let Some(peer) = &recording.peer { (recording_peer::section(peer)) }
        (recording.cpus.section())
        (cut(&seen))
        (drop_table(&drops, recording.other_drops, seconds))
    };
    let begin = moment(recording.begin_s);
    let title = format!("overlane watch: {begin}");
    let line = format!("{begin} to {} UTC", moment(recording.whole().end_s));
    page(&title, "Packet paths and drops", &line, &body)
}

fn one_way(recording: &Recording, number: usize, path: &RecordedPath, seen: &PathSeen) -> Markup {
    let example = seen.example.as_ref().map_or("no IP".to_owned(), ToString::to_string);
    html! {
        h3 { (example) ": " (seen.ending) }
        p.muted {
            (seen.packets) " followed packets. From first to last: " (us(seen.took.p50_ns))
            " µs p50, " (us(seen.took.p99_ns)) " p99, " (us(seen.took.p999_ns)) " p99.9."
        }
        div.scroll { table {
            thead { tr {
                th { "namespace" } th { "device" } th { "side" } th.n { "packets/s" }
                th.n { "Mbit/s" } th.n { "bytes" } th.n { "GSO" } th.n { "µs p50" }
                th.n { "p99" } th.n { "p99.9" } th { "notes" }
            } }
            tbody { @for hop in &seen.hops { (hop_row(hop)) } }
        } }
        @if number < CHARTED { (cards(&chart::of_way(recording, path))) }
    }
}

fn hop_row(hop: &HopSeen) -> Markup {
    let counted = hop.counted.as_ref();
    let times = &hop.since_before;
    let time = |ns: u64| if times.count > 0 { us(ns) } else { String::new() };
    html! {
        tr {
            td { (hop.namespace) }
            td { (hop.device.as_deref().unwrap_or("-")) }
            td { (hop.side.name()) }
            td.n { (counted.map(|rates| three_digits(rates.packets_per_s)).unwrap_or_default()) }
            td.n { (counted.map(|rates| three_digits(rates.bytes_per_s * 8e-6)).unwrap_or_default()) }
            td.n { (three_digits(hop.bytes)) }
            td.n { @if hop.gso_packets > 1.0 { (three_digits(hop.gso_packets)) } }
            td.n { (time(times.p50_ns)) }
            td.n { (time(times.p99_ns)) }
            td.n { (time(times.p999_ns)) }
            td { (hop.notes().join(", ")) }
        }
    }
}

/// Renders the hops that cut, merged or checksummed packets.
fn cut(paths: &[PathSeen]) -> Markup {
    let hops: Vec<(&PathSeen, &HopSeen)> = paths
        .iter()
        .flat_map(|path| path.hops.iter().map(move |hop| (path, hop)))
        .filter(|(_, hop)| {
            [hop.cut, hop.merged, hop.checksummed].iter().any(|s| *s >= WORTH_TELLING)
        })
        .collect();
    html! {
        section {
            h2 { "Segmentation, merging and checksums by hop" }
            @if hops.is_empty() { p { "None: packets passed unchanged." } }
            @else { div.scroll { table {
                thead { tr {
                    th { "namespace" } th { "device" } th { "side" } th.n { "cut by the CPU" }
                    th.n { "merged" } th.n { "checksummed by the CPU" } th { "packets such as" }
                } }
                tbody { @for (path, hop) in &hops { tr {
                    td { (hop.namespace) }
                    td { (hop.device.as_deref().unwrap_or("-")) }
                    td { (hop.side.name()) }
                    @for share in [hop.cut, hop.merged, hop.checksummed] {
                        td.n { @if share >= WORTH_TELLING { (percent(share)) } }
                    }
                    td { (path.example.as_ref().map_or("no IP".to_owned(), ToString::to_string)) }
                } } }
            } } }
        }
    }
}

fn drop_table(drops: &[&DropSeen], others: u64, seconds: f64) -> Markup {
    html! {
        section {
            h2 { "Drops by place" }
            @if drops.is_empty() { p { "The kernel dropped no packets." } }
            @else { div.scroll { table {
                thead { tr {
                    th { "namespace" } th { "device" } th.n { "packets" } th.n { "per second" }
                    th { "reason" } th { "function" } th { "doctor explain" }
                } }
                tbody { @for drop in drops { tr {
                    td { (drop.namespace) }
                    td { (drop.device.as_deref().unwrap_or("-")) }
                    td.n { (drop.packets) }
                    // An edited recording may cover no time.
                    td.n { (three_digits(drop.packets as f64 / seconds.max(1e-9))) }
                    td { (drop.reason) }
                    td { (drop.function.as_deref().unwrap_or_default()) }
                    td { (drop.check.as_deref().unwrap_or_default()) }
                } } }
            } } }
            @if others > 0 { p { (others) " packets were dropped at other places." } }
            (list("Meaning of the reasons", meanings(drops)))
        }
    }
}

fn meanings(drops: &[&DropSeen]) -> Vec<String> {
    let lines = drops.iter().filter_map(|drop| {
        let meaning = drop.meaning.as_ref()?;
        let function = drop.function.as_ref().map(|function| format!(" in {function}"));
        Some(format!("{}{}: {meaning}", drop.reason, function.unwrap_or_default()))
    });
    // Several places may share a reason.
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines.dedup();
    lines
}

fn us(ns: u64) -> String {
    three_digits(ns as f64 / 1000.0)
}
