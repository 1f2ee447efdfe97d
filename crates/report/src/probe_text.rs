//! The result of `probe` for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use probe::judge::Verdict;
use probe::report::{
    BadPath, ClassResult, Direction, End, LARGEST_TESTED, PathMtu, Report, Search, Setting,
};

use crate::style::{Style, plain};

/// Classes of a fault that are listed; `--json` lists all.
const CLASSES_SHOWN: usize = 6;
/// Candidates of a fault that are listed.
const CANDIDATES_SHOWN: usize = 4;

/// Repair of a setting that causes damage, which the verb has recorded for `doctor`.
const FIX: &str = "  fix: overlane doctor fix OV090";

/// Renders the result of a probe.
pub fn probe_text(report: &Report, style: Style) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let (here, there) = (&report.here, &report.there);
    let _ = writeln!(
        out,
        "{} (MTU {}) to {} at {} (MTU {})",
        plain(&here.device),
        here.mtu,
        report.peer,
        plain(&there.device),
        there.mtu
    );
    for mtu in &report.mtu {
        let _ = writeln!(out, "path MTU {}: {}", mtu.way.text(), mtu_words(mtu));
    }
    for way in Direction::BOTH {
        let results: Vec<_> = report.classes.iter().filter(|one| one.way == way).collect();
        if !results.is_empty() {
            let _ = writeln!(out, "{}: {}", way.text(), counts(&results));
        }
    }
    for bad in &report.bad {
        push_bad(&mut out, report, bad, style);
    }
    push_table(&mut out, report, style);
    for rare in &report.rare {
        let _ = writeln!(
            out,
            "{}: {} packets {}: {} lost, {} damaged; at most 1 in {:.0} damaged (95%)",
            rare.way.text(),
            rare.sent,
            plain(&rare.name),
            rare.lost,
            rare.damaged,
            1.0 / rare.at_most
        );
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {}", plain(note));
    }
    let megabytes = report.bytes as f64 / 1e6;
    let _ = writeln!(
        out,
        "{}; {megabytes:.1} MB sent in {:.1} s",
        if report.has_findings() { "findings" } else { "no offload of this path damages packets" },
        report.seconds
    );
    out
}

fn mtu_words(mtu: &PathMtu) -> String {
    let Some(path) = mtu.path else { return "unknown: no probe arrived".to_owned() };
    let mut words = match path >= mtu.device.min(LARGEST_TESTED) {
        true if path >= mtu.device => format!("{path}"),
        true => format!("{path} or more: larger packets are not tested"),
        false => format!("{path}, below the device's {}", mtu.device),
    };
    if let Some((bytes, from)) = mtu.reported {
        let _ = write!(words, "; {from} reports {bytes} by ICMP");
    }
    if mtu.black_hole {
        words.push_str("; BLACK HOLE: larger packets vanish without ICMP");
    }
    if let Some((hops, router)) = mtu.narrows_after {
        let _ = write!(words, "; decreases after {router}, hop {hops}");
    }
    if let Some(inner) = mtu.inner {
        let _ = write!(words, "; inside VXLAN {}", inner.path);
        if inner.black_hole {
            words.push_str("; BLACK HOLE: larger packets of the tunnel vanish without ICMP");
        }
    }
    words
}

fn counts(results: &[&ClassResult]) -> String {
    let mut by_word: BTreeMap<&str, usize> = BTreeMap::new();
    for result in results {
        *by_word.entry(result.verdict.word()).or_default() += 1;
    }
    let of = |(word, count): (&&str, &usize)| format!("{count} {word}");
    let words: Vec<String> = by_word.iter().map(of).collect();
    format!("{} classes: {}", results.len(), words.join(", "))
}

fn push_bad(out: &mut String, report: &Report, bad: &BadPath, style: Style) {
    let head = format!("{} {}: {}", bad.verdict.to_uppercase(), bad.way.text(), bad.detail);
    let _ = writeln!(out, "\n{}", style.bold(&plain(&head)));
    for name in bad.classes.iter().take(CLASSES_SHOWN) {
        let _ = writeln!(out, "  {}", plain(name));
    }
    if bad.classes.len() > CLASSES_SHOWN {
        let _ = writeln!(out, "  … and {} more classes", bad.classes.len() - CLASSES_SHOWN);
    }
    match &bad.search {
        Search::Guilty(setting) => {
            let _ = writeln!(out, "  cause: {}", plain(&setting.to_string()));
            push_fix(out, std::slice::from_ref(setting));
            return;
        }
        Search::Together(settings) => {
            let all: Vec<String> = settings.iter().map(ToString::to_string).collect();
            let _ = writeln!(out, "  cause, only together: {}", plain(&all.join(", ")));
            push_fix(out, settings);
            return;
        }
        Search::None => {
            let hops = if report.hops.is_empty() { "" } else { " or hop" };
            let _ = match report.peer_locked {
                Some(_) => {
                    writeln!(out, "  cause: no setting of this end{hops}; the peer or the path")
                }
                None => {
                    writeln!(out, "  cause: no setting of either end{hops}; the rest of the path")
                }
            };
        }
        Search::NotDone(reason) => {
            let _ = writeln!(out, "  setting not searched: {}", plain(reason));
        }
    }
    for candidate in bad.candidates.iter().take(CANDIDATES_SHOWN) {
        let setting = candidate.setting().to_string();
        let _ = writeln!(out, "  candidate: {} (fit {:.2})", plain(&setting), candidate.fit);
        if let Some(reports) = &candidate.reported {
            let _ = writeln!(out, "    reported: {}", plain(reports));
        }
    }
    if let Some(reason) = &report.peer_locked
        && bad.candidates.iter().any(|one| one.end == End::Peer)
    {
        let device = plain(&report.there.device);
        let _ = writeln!(out, "  settings of the peer were not switched: {}", plain(reason));
        let _ = writeln!(
            out,
            "    at the peer: overlane measure serve --allow-settings {device} …, then overlane \
             probe --yes here"
        );
        let _ = writeln!(out, "    or at the peer: overlane probe --yes to this machine");
    }
}

/// Appends the repair of settings that are the cause.
fn push_fix(out: &mut String, settings: &[Setting]) {
    if settings.iter().all(|one| one.end == End::Here) {
        let _ = writeln!(out, "{FIX}");
        return;
    }
    // The verb records only settings of this machine for doctor.
    for one in settings {
        let place = match (&one.netns, one.end) {
            (Some(netns), _) => format!("in namespace {}", plain(netns)),
            (None, End::Peer) => "at the peer".to_owned(),
            (None, End::Here | End::Hop) => "here".to_owned(),
        };
        let (device, feature) = (plain(&one.device), plain(&one.feature));
        let _ = writeln!(out, "  fix, {place}: ethtool -K {device} {feature} off");
    }
}

/// Appends classes that are neither intact nor part of a fault.
fn push_table(out: &mut String, report: &Report, style: Style) {
    let mut reasons: BTreeMap<(Direction, String), usize> = BTreeMap::new();
    for result in &report.classes {
        let text = match &result.verdict {
            Verdict::Untestable { reason } => format!("not testable: {reason}"),
            Verdict::Filtered | Verdict::RefusedHere => {
                format!("{}: {}", result.name, result.verdict.word())
            }
            _ => continue,
        };
        *reasons.entry((result.way, text)).or_default() += 1;
    }
    for ((way, text), count) in reasons {
        let line = format!("{} {count}: {}", way.text(), plain(&text));
        let _ = writeln!(out, "{}", style.dim(&line));
    }
    for used in &report.in_use {
        let word = |known: Option<bool>, yes, no| match known {
            Some(known) => {
                if known {
                    yes
                } else {
                    no
                }
            }
            None => "at an unknown place",
        };
        let handed = word(used.handed_whole, "cut by the device", "cut by the kernel");
        let merged = word(used.merged, "as GSO packets", "one by one");
        let _ = writeln!(
            out,
            "{}: {} segments {handed}, arriving {merged}",
            used.way.text(),
            plain(&used.traffic)
        );
    }
}
