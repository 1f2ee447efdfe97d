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
    let _ = writeln!(
        out,
        "{} checks of {}, {:.1} s apart: {}, {}, {}",
        diagnosis.checks,
        number(diagnosis.namespaces, "namespace"),
        diagnosis.interval_s,
        number(count(Severity::Error), "error"),
        number(count(Severity::Warn), "warning"),
        number(count(Severity::Info), "remark"),
    );
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
    let head = hop_line("path", "kind", "mtu", "queues", "offloads");
    let _ = writeln!(out, "{}", style.bold(head.trim_end()));
    for path in paths.iter().take(PATHS_SHOWN) {
        for (depth, hop) in path.hops.iter().enumerate() {
            let branch = if depth == 0 { String::new() } else { " ".repeat(depth) + "└ " };
            let name = format!("{branch}{} {}", plain(&hop.namespace), plain(&hop.device));
            out.push_str(drawn(hop, &name).trim_end());
            out.push('\n');
        }
    }
    if paths.len() > PATHS_SHOWN {
        let more = format!("… and {} more (--json lists all)", paths.len() - PATHS_SHOWN);
        let _ = writeln!(out, "{}", style.dim(&more));
    }
    out.push('\n');
}

fn drawn(hop: &Hop, name: &str) -> String {
    let mtu = hop.mtu.map(|mtu| mtu.to_string()).unwrap_or_default();
    let queues = hop.queues.map(|(rx, tx)| format!("{rx}/{tx}")).unwrap_or_default();
    let offloads: Vec<_> = hop.offloads.iter().map(|offload| offload.name()).collect();
    hop_line(name, &plain(&hop.kind), &mtu, &queues, &offloads.join(" "))
}

/// 30 + 1 + 14 + 1 + 5 + 1 + 7 + 1 + 20 (`tso gso gro tnl csum`) = 80 columns.
fn hop_line(name: &str, kind: &str, mtu: &str, queues: &str, offloads: &str) -> String {
    let (name, kind) = (short(name, 30), short(kind, 14));
    format!("{name:<30} {kind:<14} {mtu:>5} {queues:>7} {offloads}")
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
    let _ = writeln!(out, "{}", style.bold(&title));
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
        push_command(out, "fix", &fix.command);
        push_part(out, "risk", &plain(&fix.risk), style);
        push_command(out, "undo", &fix.undo);
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
fn push_command(out: &mut String, name: &str, command: &str) {
    let mut line = format!("  {name:<6}");
    let mut empty = true;
    for word in plain(command).split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > 78 {
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

/// Returns every check, one per line.
pub fn checks_text(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let _ =
            writeln!(out, "{} {:<7} {}", check.code, severity_word(check.severity), check.title);
    }
    out
}

/// Returns title and explanation of a check, wrapped to the style's columns.
pub fn check_text(check: &Check, style: Style) -> String {
    let title = format!("{} {}: {}", check.code, severity_word(check.severity), check.title);
    let mut out = style.bold(&title) + "\n\n";
    for line in wrap("", check.explanation, style.columns()) {
        out.push_str(&line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use doctor::{Cost, Evidence, Fix};

    use super::*;

    #[test]
    fn nothing_is_wider_than_80_columns() {
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
        let text = diagnosis_text(&diagnosis, Style { colour: false, width: 80 });
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{} {line}", line.chars().count());
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.contains("<1% of packets (estimated)"), "{text}");
        assert!(text.contains("… and 2 more"), "{text}");
        assert!(text.contains("1 error, 0 warnings, 0 remarks"), "{text}");
    }
}
