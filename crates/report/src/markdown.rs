//! Markdown (GitHub's tables).

use results::{Arrivals, Cell, Results, Role, Status};

use crate::beside::across;
use crate::detail::{Detail, details};
use crate::ecn::congestion;
use crate::engines::engines;
use crate::fault::faults;
use crate::machine::machine_line;
use crate::panel::{Panel, name, noise_floor, panels};
use crate::remark::{missing, notes, warnings};
use crate::retransmits::retransmits;
use crate::skb;
use crate::style::plain;
use crate::summary::summary;
use crate::unit::{
    bytes, cpu_ratio, of_interval, percent, plus_minus, range, reordered, three_digits,
};

/// Renders the contents of [`crate::text()`] as GitHub Markdown: a table per workload, message size
/// and MTU, with the machine below it, then the lists.
pub fn markdown(results: &Results) -> String {
    let mut out = String::new();
    for panel in panels(results) {
        push_panel(&mut out, results, &panel);
    }
    for detail in across(results).into_iter().chain(faults(results)) {
        push_detail(&mut out, &detail);
    }
    if results.cells.is_empty() {
        out.push_str(&format!(
            "No cell was measured.\n\n*{}*\n\n",
            escaped(&machine_line(results))
        ));
    }
    let missing = missing(results).into_iter().map(|missing| {
        let status = if missing.status == Status::Unsupported { "" } else { "failed: " };
        let remedy =
            missing.remedy.map(|remedy| format!(" (remedy: {remedy})")).unwrap_or_default();
        format!("{}: {status}{}{remedy}", missing.what, missing.reason)
    });
    push_list(&mut out, "Not measured", missing);
    push_list(&mut out, "Engines", engines(results));
    push_list(&mut out, "Notes", notes(results));
    push_list(&mut out, "Warnings", warnings(results));
    push_list(&mut out, "In short", summary(results));
    out.truncate(out.trim_end().len());
    out.push('\n');
    // A second barrier: nothing is left to escape, unless a field was forgotten.
    foreign::lines(&out, false).into_owned()
}

fn push_panel(out: &mut String, results: &Results, panel: &Panel<'_>) {
    let baseline = escaped(&plain(&results.plan.baseline));
    let has_demand = panel.has_cpu();
    let has_latency = panel.cells().any(|cell| cell.latency_us.is_some());
    let has_retransmits = panel.cells().any(|cell| retransmits(cell).is_some());
    let has_ecn = panel.cells().any(|cell| congestion(cell).is_some());
    let has_arrivals = panel.cells().any(|cell| cell.arrivals.is_some());
    let has_loss = panel.cells().any(|cell| cell.loss.is_some());
    let has_skb = panel.cells().any(|cell| skb::fate(cell).is_some());
    let mut heads = vec![
        "offload".to_string(),
        "mode".to_string(),
        format!("{}, {}", panel.scale().label, panel.quantity()),
        format!("ratio to {baseline}"),
        format!("{}interval", panel.confidence()),
    ];
    for (shown, head) in [
        (has_demand, "CPU time per unit, ratio"),
        (has_latency, "p50 µs"),
        (has_latency, "p99 µs"),
        (has_retransmits, "retransmits"),
        (has_ecn, "packets with CE"),
        (has_arrivals, "jitter µs"),
        (has_arrivals, "reordered"),
        (has_loss, "loss"),
        (has_skb, "smallest mean skb"),
    ] {
        if shown {
            heads.push(head.to_string());
        }
    }
    out.push_str(&format!("### {}\n\n", escaped(&panel.title())));
    push_row(out, &heads);
    let rule: Vec<String> =
        (0..heads.len()).map(|i| if i < 2 { "---" } else { "---:" }.to_string()).collect();
    push_row(out, &rule);
    for cell in panel.cells() {
        let mut row = vec![escaped(&cell.offload.to_string()), label(cell)];
        row.push(panel.figure(cell));
        let interval = cell.ratio.filter(|_| cell.role != Role::Baseline);
        row.push(match cell.role {
            Role::Baseline => "1".to_string(),
            _ => interval.as_ref().map(of_interval).unwrap_or_default(),
        });
        row.push(interval.as_ref().map(range).unwrap_or_default());
        if has_demand {
            row.push(cpu_ratio(cell));
        }
        if has_latency {
            row.push(cell.latency_us.map_or(String::new(), |latency| three_digits(latency.p50)));
            row.push(cell.latency_us.map_or(String::new(), |latency| three_digits(latency.p99)));
        }
        if has_retransmits {
            row.push(retransmits(cell).map_or(String::new(), three_digits));
        }
        if has_ecn {
            row.push(congestion(cell).map_or(String::new(), percent));
        }
        if has_arrivals {
            let jitter = |arrivals: Arrivals| three_digits(arrivals.jitter_us);
            row.push(cell.arrivals.map(jitter).unwrap_or_default());
            row.push(cell.arrivals.map(|a| percent(reordered(&a))).unwrap_or_default());
        }
        if has_loss {
            let loss = cell.loss.as_ref();
            row.push(loss.map_or(String::new(), |loss| percent(loss.fraction)));
        }
        if has_skb {
            row.push(skb::smallest(cell).map_or(String::new(), bytes));
        }
        push_row(out, &row);
    }
    out.push_str(&format!("\n*{}*\n\n", escaped(&machine_line(results))));
    for detail in details(panel) {
        push_detail(out, &detail);
    }
}

fn push_detail(out: &mut String, detail: &Detail) {
    out.push_str(&format!("**{}**\n\n", escaped(&detail.title)));
    let heads = [&[detail.grouped_by.to_string()], &detail.heads[..]].concat();
    push_row(out, &heads);
    let rule = (0..heads.len()).map(|i| if i < 2 { "---" } else { "---:" }.to_string());
    push_row(out, &rule.collect::<Vec<_>>());
    for (group, rows) in &detail.groups {
        for row in rows {
            let fields: Vec<String> =
                [group].into_iter().chain(row).map(|field| escaped(field)).collect();
            push_row(out, &fields);
        }
    }
    out.push('\n');
}

fn label(cell: &Cell) -> String {
    let name = escaped(&name(cell));
    match (cell.role, &cell.ratio) {
        (Role::Aa, Some(floor)) => {
            format!("{name}, noise floor {}", plus_minus(noise_floor(floor)))
        }
        _ => name,
    }
}

fn push_row(out: &mut String, cells: &[String]) {
    out.push_str(&format!("| {} |\n", cells.join(" | ")));
}

fn push_list(out: &mut String, title: &str, items: impl IntoIterator<Item = String>) {
    let mut items = items.into_iter().peekable();
    // No heading without entries.
    if items.peek().is_none() {
        return;
    }
    out.push_str(&format!("**{title}**\n\n"));
    for item in items {
        out.push_str(&format!("- {}\n", escaped(&item)));
    }
    out.push('\n');
}

/// Escapes characters with a meaning in Markdown or its tables. GitHub ignores `_` inside words, so
/// `tcp_stream` stays readable.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in foreign::plain(text).chars() {
        if matches!(c, '|' | '*' | '`' | '<' | '[' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
