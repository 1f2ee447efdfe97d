//! Renders a diagnosis as text: paths, findings, and unexamined objects.

use std::fmt::Write;

use doctor::path::{Hop, Path};
use doctor::{Check, Confidence, Diagnosis, Finding, Severity};

use crate::style::{Style, plain, wrap};

/// Most paths shown. A host with a thousand tenants has a thousand.
const PATHS_SHOWN: usize = 12;
/// Most lines on unexamined objects.
const SKIPPED_SHOWN: usize = 8;

/// Renders the diagnosis, at most `style.width` columns wide.
pub fn diagnosis_text(diagnosis: &Diagnosis, style: Style) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    push_paths(&mut out, &diagnosis.paths, style);
    for finding in &diagnosis.findings {
        push_finding(&mut out, finding, style);
    }
    push_skipped(&mut out, diagnosis, style);
    let count =
        |severity| diagnosis.findings.iter().filter(|finding| finding.severity == severity).count();
    let summary = format!(
        "{} checks of {}, {:.1} s apart: {}, {}, {}",
        diagnosis.checks,
        number(diagnosis.namespaces, "namespace"),
        diagnosis.interval_s,
        number(count(Severity::Error), "error"),
        number(count(Severity::Warn), "warning"),
        number(count(Severity::Info), "remark"),
    );
    for line in wrap("", &summary, style.columns()) {
        let _ = writeln!(out, "{line}");
    }
    out
}

fn number(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Appends paths, tenant first, one hop per line.
fn push_paths(out: &mut String, paths: &[Path], style: Style) {
    // A host without tenants has no paths.
    if paths.is_empty() {
        return;
    }
    let shown = || paths.iter().take(PATHS_SHOWN).flat_map(|path| path.hops.iter().enumerate());
    let columns = HopColumns::of(style.columns(), shown);
    let head = columns.line("path", "kind", "mtu", "queues", "offloads");
    let _ = writeln!(out, "{}", style.bold(head.trim_end()));
    for (depth, hop) in shown() {
        out.push_str(columns.drawn(depth, hop).trim_end());
        out.push('\n');
    }
    if paths.len() > PATHS_SHOWN {
        let more = format!("… and {} more (--json lists all)", paths.len() - PATHS_SHOWN);
        let _ = writeln!(out, "{}", style.dim(&more));
    }
    out.push('\n');
}

/// Name of a hop in the table, at its position in the path.
fn branch(depth: usize, hop: &Hop) -> String {
    let branch = if depth == 0 { String::new() } else { " ".repeat(depth) + "└ " };
    format!("{branch}{} {}", plain(&hop.namespace), plain(&hop.device))
}

/// Widths of the table of hops, in columns. MTU and offloads (`tso gso gro tnl csum`) take 5 and 20.
struct HopColumns {
    name: usize,
    kind: usize,
    /// `None`: left out, because the terminal is narrow.
    queues: Option<usize>,
}

impl HopColumns {
    const MTU: usize = 5;
    const OFFLOADS: usize = 20;

    fn of<'a, I: Iterator<Item = (usize, &'a Hop)>>(
        columns: usize,
        hops: impl Fn() -> I,
    ) -> HopColumns {
        let (name, kind, queues) = (30, 14, 7);
        let room = columns.saturating_sub(Self::MTU + Self::OFFLOADS + 3);
        if room > name + kind + queues {
            return HopColumns { name, kind, queues: Some(queues) };
        }
        let longest = |text: &dyn Fn(usize, &Hop) -> String| {
            hops().map(|(depth, hop)| text(depth, hop).chars().count()).max().unwrap_or(0)
        };
        let kind = longest(&|_, hop| plain(&hop.kind)).clamp(4, kind);
        let room = room - kind;
        let name = longest(&branch).min(name);
        match room.checked_sub(queues + 1) {
            Some(beside) if beside >= name => {
                HopColumns { name: beside.min(30), kind, queues: Some(queues) }
            }
            // Names matter more than queues.
            _ => HopColumns { name: room.min(30), kind, queues: None },
        }
    }

    fn drawn(&self, depth: usize, hop: &Hop) -> String {
        let mtu = hop.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
        let queues = hop.queues.map(|(rx, tx)| format!("{rx}/{tx}")).unwrap_or_default();
        let offloads: Vec<_> = hop.offloads.iter().map(|offload| offload.name()).collect();
        self.line(&branch(depth, hop), &plain(&hop.kind), &mtu, &queues, &offloads.join(" "))
    }

    fn line(&self, name: &str, kind: &str, mtu: &str, queues: &str, offloads: &str) -> String {
        let (mtus, wide) = (Self::MTU, self.queues.map_or(0, |width| width + 1));
        let queues = self.queues.map_or("", |_| queues);
        let (name, kind) = (short(name, self.name), short(kind, self.kind));
        let (names, kinds) = (self.name, self.kind);
        format!("{name:<names$} {kind:<kinds$} {mtu:>mtus$}{queues:>wide$} {offloads}")
    }
}

/// Shortens a text to `most` columns. Its beginning shows the position in the path and its end the
/// device, so the middle is removed.
fn short(text: &str, most: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= most {
        return text.to_owned();
    }
    let tail = most / 2;
    let head: String = characters[..most - tail - 1].iter().collect();
    let end: String = characters[characters.len() - tail..].iter().collect();
    format!("{head}…{end}")
}

fn push_finding(out: &mut String, finding: &Finding, style: Style) {
    let word = severity_word(finding.severity);
    let title = format!("{} {word}: {}", finding.code, plain(&finding.title));
    for line in wrap("", &title, style.columns()) {
        let _ = writeln!(out, "{}", style.bold(&line));
    }
    let place = format!("{} {}", plain(&finding.namespace), plain(&finding.object));
    push_part(out, "where", &place, style);
    for evidence in &finding.evidence {
        let text = format!("{} ({})", plain(&evidence.what), plain(&evidence.source));
        push_part(out, "read", &text, style);
    }
    let basis = if finding.cost.measured { "measured" } else { "estimated" };
    let confidence = match finding.confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    };
    let percent = finding.cost.share * 100.0;
    // Rounding to 0% would hide a small cost.
    let share =
        if percent > 0.0 && percent < 1.0 { "<1".to_owned() } else { format!("{percent:.0}") };
    let cost =
        format!("{share}% of {} ({basis}); confidence {confidence}", plain(&finding.cost.what));
    push_part(out, "cost", &cost, style);
    if let Some(fix) = &finding.fix {
        push_command(out, "fix", &fix.command, style);
        push_part(out, "risk", &plain(&fix.risk), style);
        push_command(out, "undo", &fix.undo, style);
    }
    out.push('\n');
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "remark",
        Severity::Warn => "warning",
        Severity::Error => "error",
    }
}

fn push_part(out: &mut String, name: &str, text: &str, style: Style) {
    for line in wrap(&format!("  {name:<6}"), text, style.columns()) {
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// Appends a command, broken at blanks with a backslash, so that it can be copied.
fn push_command(out: &mut String, name: &str, command: &str, style: Style) {
    // Room for the backslash.
    let most = style.columns() - 2;
    let mut line = format!("  {name:<6}");
    let mut empty = true;
    for word in plain(command).split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > most {
            out.push_str(&line);
            out.push_str(" \\\n");
            line = " ".repeat(10);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(&line);
    out.push('\n');
}

fn push_skipped(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    let mut lines: Vec<String> = Vec::new();
    for left_out in &diagnosis.left_out {
        lines.push(format!("{}: {}", plain(&left_out.object), plain(&left_out.reason)));
    }
    // One reason often blocks many checks on the same object.
    let mut by_reason: std::collections::BTreeMap<(&str, &str), Vec<&str>> =
        std::collections::BTreeMap::new();
    for skipped in &diagnosis.skipped {
        let key = (skipped.object.as_str(), skipped.reason.as_str());
        by_reason.entry(key).or_default().push(&skipped.code);
    }
    for ((object, reason), codes) in by_reason {
        lines.push(format!("{} on {}: {}", codes.join(" "), plain(object), plain(reason)));
    }
    // Everything was examined.
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "{}", style.bold("Not examined"));
    let more = lines.len().saturating_sub(SKIPPED_SHOWN);
    for line in lines.into_iter().take(SKIPPED_SHOWN) {
        for line in wrap("  - ", &line, style.columns()) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    if more > 0 {
        let _ = writeln!(out, "  - and {more} more (--json lists all)");
    }
    out.push('\n');
}

/// Returns every check, one per line. A terminal narrower than a title wraps it.
pub fn checks_text(checks: &[Check], style: Style) -> String {
    let mut out = String::new();
    for check in checks {
        let first = format!("{} {:<7} ", check.code, severity_word(check.severity));
        for line in wrap(&first, check.title, style.columns()) {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}

/// Returns title and explanation of a check, wrapped to the style's columns.
pub fn check_text(check: &Check, style: Style) -> String {
    let title = format!("{} {}: {}", check.code, severity_word(check.severity), check.title);
    let mut out = String::new();
    for line in wrap("", &title, style.columns()) {
        let _ = writeln!(out, "{}", style.bold(&line));
    }
    out.push('\n');
    for text in [check.explanation.to_owned(), record_text(check.code)] {
        for line in wrap("", &text, style.columns()) {
            out.push_str(&line);
            out.push('\n');
        }
        out.push('\n');
    }
    out.pop();
    out
}

/// How often a check was right on faults from public reports.
fn record_text(code: &str) -> String {
    let Some(record) = doctor::record::of(code) else {
        return "No fault from a public report has been rebuilt for this check.".to_owned();
    };
    let times = |count: u32| match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        more => format!("{more} times"),
    };
    format!(
        "On faults from public reports, rebuilt and read from one host and from all, it named the \
         cause {}, and warned beside another cause {}. On the same hosts without a fault it warned \
         {}. The checks were developed with these faults: on others they are right less often.",
        times(record.right),
        times(record.beside),
        times(record.healthy)
    )
}

#[cfg(test)]
mod tests {
    use doctor::{Cost, Evidence, Fix};

    use super::*;

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        let hop = Hop {
            namespace: "a-namespace-with-a-very-long-name".to_owned(),
            device: "veth0123456789a".to_owned(),
            kind: "vxlan 16777215".to_owned(),
            mtu: Some(65535),
            queues: Some((128, 128)),
            offloads: {
                use doctor::path::HopOffload::{Csum, Gro, Gso, Tnl, Tso};
                vec![Tso, Gso, Gro, Tnl, Csum]
            },
        };
        let finding = Finding {
            code: "OV013".to_owned(),
            title: "The overlay MTU does not fit the underlay".to_owned(),
            severity: Severity::Error,
            namespace: "a".to_owned(),
            object: "vxlan0\u{1b}[31m".to_owned(),
            evidence: vec![Evidence { what: "word ".repeat(40), source: "IFLA_MTU".to_owned() }],
            cost: Cost::estimated(0.004, "packets"),
            confidence: Confidence::High,
            fix: Some(Fix {
                changes: Vec::new(),
                command:
                    "nsenter --net=/proc/12345/ns/net ip link set dev vxlan0 mtu 1450 and so on"
                        .to_owned(),
                risk: "none".to_owned(),
                undo: "ip link set".to_owned(),
            }),
        };
        let diagnosis = Diagnosis {
            format: doctor::diagnosis::FORMAT,
            taken_s: 0,
            interval_s: 1.0,
            namespaces: 1,
            checks: 50,
            paths: vec![Path { hops: vec![hop; 8] }; 14],
            findings: vec![finding],
            skipped: Vec::new(),
            left_out: Vec::new(),
        };
        let text = |width| {
            let text = diagnosis_text(&diagnosis, Style { colour: false, width });
            // A command has words that cannot be broken.
            for line in text.lines().filter(|line| !line.contains("/proc/12345")) {
                assert!(line.chars().count() <= width, "{} {line}", line.chars().count());
            }
            text
        };
        let narrow = text(60);
        assert!(
            narrow.contains("23456789a vxlan 16777215 65535 ") && !narrow.contains("128/128"),
            "{narrow}"
        );
        assert!(text(70).contains("65535"));
        let wide = text(120);
        assert_eq!(wide.lines().next(), text(80).lines().next());
        let text = text(80);
        assert!(text.contains("128/128"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.contains("<1% of packets (estimated)"), "{text}");
        assert!(text.contains("… and 2 more"), "{text}");
        assert!(text.contains("1 error, 0 warnings, 0 remarks"), "{text}");
    }
}
