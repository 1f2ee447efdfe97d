//! Charts of a recording of `watch` over time.

use observe::per_second;

use super::lines::{Axis, Lines, Point, Series, draw};
use super::scale::Kind;
use super::{Chart, Section};
use crate::recording::{Figures, Hop, RecordedPath, Recording, Series as Moments};
use crate::unit::count;

/// Most lines of a chart: more could not be distinguished.
const LINES: usize = 8;

/// Returns the unit of the time axis, and its seconds.
fn unit(recording: &Recording) -> (&'static str, f64) {
    match recording.whole().end_s - recording.begin_s {
        length if length > 2.0 * 86_400.0 => ("days", 86_400.0),
        length if length > 2.0 * 3600.0 => ("hours", 3600.0),
        length if length > 120.0 => ("minutes", 60.0),
        _ => ("seconds", 1.0),
    }
}

/// Returns a line of the moments that have figures.
fn line<T>(
    recording: &Recording,
    name: String,
    style: usize,
    series: &Moments<T>,
    figure: impl Fn(&T) -> Option<f64>,
) -> Series {
    let unit = unit(recording).1;
    let point = |(at, figures): (&usize, &T)| {
        let moment = recording.moments.get(at)?;
        // The middle of the moment, without gaps between its intervals.
        let x = (moment.end_s - 0.5 * moment.seconds - recording.begin_s) / unit;
        Some(Point { x, y: figure(figures)?, ..Point::default() })
    };
    Series { name, style, points: series.iter().filter_map(point).collect() }
}

fn chart(
    recording: &Recording,
    slug: &'static str,
    title: &str,
    caption: &str,
    (words, kind): (&str, Kind),
    series: Vec<Series>,
) -> Option<Chart> {
    // A line without points would only take room in the legend.
    let series: Vec<Series> = series.into_iter().filter(|line| !line.points.is_empty()).collect();
    let axis = |words: &str, kind| Axis { words: words.into(), kind, ticks: Vec::new() };
    let markers = recording.moments.len() < 20;
    let x = axis(&format!("{} since the beginning", unit(recording).0), Kind::Linear);
    let lines = Lines { x, y: axis(words, kind), mark: None, markers, series };
    Chart::new(slug, title.to_owned(), caption, draw(&lines))
}

/// Returns charts of drops by reason, and of the recording's own cost.
pub(crate) fn over_time(recording: &Recording) -> Vec<Section> {
    let seconds = |at: &usize| recording.moments.get(at).map(|moment| moment.seconds);
    let mut reasons: Vec<_> = recording.reasons.iter().collect();
    let all = |series: &Moments<u64>| series.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
    reasons.sort_by_key(|(_, series)| std::cmp::Reverse(all(series)));
    let more = reasons.len().saturating_sub(LINES);
    let series = reasons.iter().take(LINES).enumerate().map(|(style, (reason, dropped))| {
        // A moment without drops counts as zero, not as unknown.
        let rates: Moments<f64> = recording
            .moments
            .keys()
            .filter_map(|at| {
                let dropped = dropped.get(at).copied().unwrap_or(0) as f64;
                Some((*at, dropped / seconds(at)?.max(f64::MIN_POSITIVE)))
            })
            .collect();
        line(recording, (*reason).clone(), style, &rates, |rate| Some(*rate))
    });
    let caption = match more {
        0 => "All packets that the kernel dropped.".to_owned(),
        more => format!("All packets that the kernel dropped; {more} rarer reasons are left out."),
    };
    let axis = ("packets per second", Kind::Linear);
    let title = "Dropped packets by reason";
    let drops = chart(recording, "drops", title, &caption, axis, series.collect());
    let of_cost = |name: &str, style, figure: fn(&crate::recording::Moment) -> f64| {
        line(recording, name.to_owned(), style, &recording.moments, move |moment| {
            Some(figure(moment))
        })
    };
    let budget = recording.budget;
    let limit = line(recording, "limit".to_owned(), 1, &recording.moments, |_| Some(budget));
    let cpu = chart(
        recording,
        "own-cpu",
        "CPU time of the program",
        "Above the limit, fewer packets are followed, for less of the time.",
        ("percent of one CPU", Kind::Linear),
        vec![of_cost("overlane watch", 0, |moment| moment.cpu()), limit],
    );
    let followed = chart(
        recording,
        "followed",
        "Sampling rate",
        "N of following 1 packet in N, at the end of an interval; the largest in each moment.",
        ("one in", Kind::Log),
        vec![of_cost("one in", 0, |moment| f64::from(moment.sample.1))],
    );
    let looked = chart(
        recording,
        "looked",
        "Share of time in which packets were selected",
        "Outside this time no packet was selected to be followed.",
        ("percent", Kind::Linear),
        vec![of_cost("window open", 0, |moment| 100.0 * moment.looked())],
    );
    let events = chart(
        recording,
        "events",
        "Events from the kernel",
        "Lost events found no room in the buffer.",
        ("events per second", Kind::Linear),
        vec![
            of_cost("received", 0, |moment| per_second(moment.events, moment.seconds)),
            of_cost("lost", 1, |moment| per_second(moment.lost, moment.seconds)),
        ],
    );
    let section = |title, words, charts: Vec<Option<Chart>>| Section {
        title,
        words,
        charts: charts.into_iter().flatten().collect(),
    };
    let all = vec![
        section("Dropped packets over time", "", vec![drops]),
        section("Cost of the recording", "", vec![cpu, looked, followed, events]),
    ];
    all.into_iter().filter(|section| !section.charts.is_empty()).collect()
}

/// Returns charts of rates and times of a path's hops.
pub(crate) fn of_way(recording: &Recording, path: &RecordedPath) -> Vec<Chart> {
    let lines = |from: usize, figure: &dyn Fn(&Figures) -> Option<f64>| -> Vec<Series> {
        let shown = path.hops.iter().skip(from).take(LINES).enumerate();
        let of =
            |(style, hop): (usize, &Hop)| line(recording, hop.name(), style, &hop.figures, figure);
        shown.map(of).collect()
    };
    let left_out = |from: usize| match path.hops.len().saturating_sub(from + LINES) {
        0 => String::new(),
        more => format!(" {} appear only in the table.", count(more, "further hop")),
    };
    // A log axis has no place for 0.
    let us = |ns: u64| (ns as f64 / 1000.0).max(0.001);
    let times = |of: fn(&observe::Latency) -> u64| {
        move |figures: &Figures| figures.since_before.latency().map(|times| us(of(&times)))
    };
    let log = ("µs", Kind::Log);
    let packets = chart(
        recording,
        "packets",
        "Packets per second",
        &format!("As counted by the device, all packets.{}", left_out(0)),
        ("packets per second", Kind::Linear),
        lines(0, &|figures| figures.counted().map(|rates| rates.packets_per_s)),
    );
    // The first hop has no previous hop.
    let median = chart(
        recording,
        "median",
        "Time from the previous hop, median",
        &format!("Followed packets only.{}", left_out(1)),
        log,
        lines(1, &times(|times| times.p50_ns)),
    );
    let tail = chart(
        recording,
        "p99",
        "Time from the previous hop, p99",
        &format!("The largest of any interval in each moment.{}", left_out(1)),
        log,
        lines(1, &times(|times| times.p99_ns)),
    );
    let end = chart(
        recording,
        "p999",
        "Time from the previous hop, p99.9",
        &format!("The largest of any interval in each moment.{}", left_out(1)),
        log,
        lines(1, &times(|times| times.p999_ns)),
    );
    [packets, median, tail, end].into_iter().flatten().collect()
}
