//! Renders a recording as text.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use crate::recording::{Moment, Recording};
use crate::unit::count;

/// Paths shown. The page has all that are kept.
const PATHS: usize = 8;
/// CPUs shown, busiest first.
const CPUS: usize = 4;
const DROPS: usize = 16;

/// Renders a summary of a recording, with tables for a terminal of `columns`, at least 60. Other lines
/// may be longer.
pub fn recording_text(recording: &Recording, columns: usize) -> String {
    let mut text = head(recording).join("\n") + "\n";
    // The page shows all CPUs.
    for line in recording.cpus.lines().iter().take(CPUS) {
        text.push_str(line);
        text.push('\n');
    }
    let paths = recording.paths();
    // The explanation is needed only with paths below it.
    if !paths.is_empty() {
        text.push_str("times: p50 is the mean of all intervals, p99 and p99.9 the largest\n");
    }
    for path in paths.iter().take(PATHS) {
        text.push('\n');
        text.push_str(&path.seen().text_within(columns));
    }
    let more = paths
        .iter()
        .skip(PATHS)
        .fold(recording.other_paths, |sum, path| sum.saturating_add(path.packets));
    // Writing to a String cannot fail.
    if more > 0 {
        let _ = writeln!(text, "\n{more} packets took paths that are not shown");
    }
    let (drops, seconds) = (recording.drops(), recording.whole().seconds);
    if !drops.is_empty() {
        text.push_str("\ndropped\n");
    }
    drops.iter().take(DROPS).for_each(|drop| text.push_str(&drop.text(seconds)));
    let more = drops
        .iter()
        .skip(DROPS)
        .fold(recording.other_drops, |sum, drop| sum.saturating_add(drop.packets));
    if more > 0 {
        let _ = writeln!(text, "{more} packets were dropped at places that are not shown");
    }
    if let Some(peer) = &recording.peer {
        text.push('\n');
        text.push_str(&peer.text());
    }
    for not_seen in &recording.not_seen {
        let _ = writeln!(text, "not seen: {not_seen}");
    }
    text
}

/// Returns lines on the extent of the recording and its cost.
pub(crate) fn head(recording: &Recording) -> Vec<String> {
    let whole = recording.whole();
    let intervals = usize::try_from(recording.intervals).unwrap_or(usize::MAX);
    vec![
        format!(
            "{} in {:.1} s: {} to {} UTC",
            count(intervals, "interval"),
            whole.seconds,
            moment(recording.begin_s),
            moment(whole.end_s)
        ),
        format!(
            "{} followed ({} packets), {} events, {} lost",
            one_in(&whole),
            whole.followed,
            whole.events,
            whole.lost
        ),
        format!(
            "window open {} of the time; own CPU {:.1}% of one, at most {:.1}%, limit {:.1}%",
            observe::share(whole.looked()),
            whole.cpu(),
            recording.most_cpu,
            recording.budget
        ),
    ]
}

fn one_in(whole: &Moment) -> String {
    match whole.sample {
        (least, most) if least == most => format!("1 packet in {least}"),
        (least, most) => format!("1 packet in {least} to {most}"),
    }
}

/// Formats date and time of day; a number if it is outside the range of dates.
pub(crate) fn moment(time_s: f64) -> String {
    // The year 9999 is the last that RFC 3339 can express.
    match time_s {
        time_s if (0.0..253_402_300_799.0).contains(&time_s) => {
            let time = UNIX_EPOCH + Duration::from_secs(time_s as u64);
            let text = humantime::format_rfc3339_seconds(time).to_string();
            text.trim_end_matches('Z').replace('T', " ")
        }
        time_s => format!("{time_s:e} s after 1970"),
    }
}
