//! Tables for a terminal.

use comfy_table::{
    Attribute, Cell as TableCell, CellAlignment, Color, ContentArrangement, Table, presets,
};
use results::{Cell, CpuClock, Results, Role, Status};

use crate::beside::across;
use crate::detail::{Detail, details};
use crate::ecn::congestion;
use crate::engines::engines;
use crate::fault::faults;
use crate::machine::machine_line;
use crate::panel::{Group, Panel, is_undecided, name, noise_floor, panels};
use crate::remark::{missing, notes, warnings};
use crate::retransmits::retransmits;
use crate::skb;
use crate::style::{Style, plain, wrap};
use crate::summary::summary;
use crate::unit::{
    bytes, cpu_ratio, of_interval, percent, plus_minus, range, reordered, three_digits,
};
use crate::work::worth;

/// Widest and narrowest bar, columns. If there is less room, the bar is left out.
const WIDEST_BAR: usize = 40;
const NARROWEST_BAR: usize = 6;
/// Ratio at the right end of a bar.
const FULL_BAR: f64 = 1.25;
/// Spaces between columns.
const GAP: usize = 2;

/// Renders a run, `style.width` columns wide: a table per workload, message size and MTU with the
/// machine below it, then unmeasured modes, warnings, and the [`summary`].
pub fn text(results: &Results, style: Style) -> String {
    let mut out = String::new();
    let panels = panels(results);
    for panel in &panels {
        push_panel(&mut out, results, panel, style);
    }
    // A run may have measured faults only.
    if panels.is_empty() {
        out.push_str("No cell was measured.\n");
        push_wrapped(&mut out, "", &machine_line(results), style, true);
        out.push('\n');
    } else {
        for detail in across(results) {
            push_detail(&mut out, &detail, style, true);
            out.push('\n');
        }
        for line in legend(results) {
            push_wrapped(&mut out, "", &line, style, true);
        }
        out.push('\n');
    }
    for detail in faults(results) {
        push_detail(&mut out, &detail, style, true);
        out.push('\n');
    }
    push_list(&mut out, "Not measured", style, not_measured(results));
    push_list(&mut out, "Engines", style, engines(results));
    push_list(&mut out, "Notes", style, notes(results));
    push_list(&mut out, "Warnings", style, warnings(results));
    push_list(&mut out, "In short", style, summary(results));
    // Remove the empty line after the last list.
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Returns a sentence for each mode, cell and trial that was asked for and has no figure.
pub fn not_measured(results: &Results) -> Vec<String> {
    let sentences = missing(results).into_iter().map(|missing| {
        let status = match missing.status {
            Status::Unsupported => "",
            _ => "failed: ",
        };
        let remedy =
            missing.remedy.map(|remedy| format!(" (remedy: {remedy})")).unwrap_or_default();
        format!("{}: {status}{}{remedy}", missing.what, missing.reason)
    });
    sentences.collect()
}

fn push_panel(out: &mut String, results: &Results, panel: &Panel<'_>, style: Style) {
    let title = panel.title();
    let quantity = panel.quantity();
    let fits = title.chars().count() + GAP + quantity.len() <= style.columns();
    let gap = if fits { style.columns() - title.chars().count() - quantity.len() } else { GAP };
    if fits {
        out.push_str(&style.bold(&title));
        out.push_str(&" ".repeat(gap));
        out.push_str(&style.dim(quantity));
        out.push('\n');
    } else {
        for line in wrap("", &title, style.columns()) {
            out.push_str(&style.bold(&line));
            out.push('\n');
        }
    }
    for line in table(panel, style).lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for detail in details(panel) {
        push_detail(out, &detail, style, false);
    }
    push_wrapped(out, "", &machine_line(results), style, true);
    out.push('\n');
}

fn push_detail(out: &mut String, detail: &Detail, style: Style, headline: bool) {
    let title = wrap("", &detail.title, style.columns());
    for line in title {
        out.push_str(&if headline { style.bold(&line) } else { line });
        out.push('\n');
    }
    for columns in parts(detail, style.columns()) {
        push_part(out, detail, &columns);
    }
}

/// Returns the columns after the first, in parts that fit side by side with the first one.
fn parts(detail: &Detail, width: usize) -> Vec<Vec<usize>> {
    let rows = || detail.groups.iter().flat_map(|(_, rows)| rows);
    let widest = |at: usize| {
        let fields = rows().filter_map(|row| row.get(at)).chain([&detail.heads[at]]);
        GAP + fields.map(|field| field.chars().count()).max().unwrap_or(0)
    };
    let of_group = |group: &str| detail.grouped_by.len() + 1 + group.chars().count();
    let groups = detail.groups.iter().map(|(group, _)| of_group(group));
    // Names are indented.
    let first = groups.max().unwrap_or(0).max(widest(0));
    let (mut parts, mut taken) = (vec![Vec::new()], first);
    for at in 1..detail.heads.len() {
        let part_is_empty = parts.last().is_none_or(Vec::is_empty);
        if !part_is_empty && taken + widest(at) > width {
            parts.push(Vec::new());
            taken = first;
        }
        taken += widest(at);
        if let Some(part) = parts.last_mut() {
            part.push(at);
        }
    }
    parts
}

fn push_part(out: &mut String, detail: &Detail, columns: &[usize]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(comfy_table::LineStyle::none().fill('┄')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.force_no_tty();
    let with_first = || std::iter::once(0).chain(columns.iter().copied());
    table.set_header(with_first().map(|at| &detail.heads[at]));
    for (group, rows) in &detail.groups {
        table.add_row([format!("{} {group}", detail.grouped_by)]);
        for row in rows {
            let field = |at: usize| row.get(at).cloned().unwrap_or_default();
            table.add_row(with_first().map(|at| match at {
                0 => format!("  {}", field(0)),
                at => field(at),
            }));
        }
    }
    let last = columns.len();
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if i == last { 0 } else { GAP as u16 }));
        column.set_cell_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    for line in table.to_string().lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// A column of a panel besides mode and bar.
struct Column {
    head: String,
    value: fn(&Panel<'_>, &Cell) -> String,
}

fn columns(panel: &Panel<'_>) -> Vec<Column> {
    let column = |head: &str, value| Column { head: head.to_string(), value };
    let mut columns = vec![
        column(panel.scale().label, |panel, cell| panel.figure(cell)),
        column("ratio", |_, cell| match (cell.role, cell.ratio) {
            (Role::Baseline, _) => "1".to_string(),
            (_, Some(interval)) => {
                let mark = if is_undecided(cell) { "≈ " } else { "" };
                match of_interval(&interval) {
                    // The interval is no figure, so it is not different from 1, either.
                    figure if figure == "?" => figure,
                    figure => format!("{mark}{figure}"),
                }
            }
            (_, None) => String::new(),
        }),
        column(&format!("{}interval", panel.confidence()), |_, cell| {
            let interval = cell.ratio.filter(|_| cell.role != Role::Baseline);
            interval.as_ref().map(range).unwrap_or_default()
        }),
    ];
    if panel.has_cpu() {
        columns.push(column("CPU", |_, cell| cpu_ratio(cell)));
    }
    if panel.cells().any(|cell| cell.latency_us.is_some()) {
        columns.push(column("p50 µs", |_, cell| {
            cell.latency_us.map_or(String::new(), |latency| three_digits(latency.p50))
        }));
        columns.push(column("p99 µs", |_, cell| {
            cell.latency_us.map_or(String::new(), |latency| three_digits(latency.p99))
        }));
    }
    if panel.cells().any(|cell| retransmits(cell).is_some()) {
        columns
            .push(column("retr", |_, cell| retransmits(cell).map_or(String::new(), three_digits)));
    }
    if panel.cells().any(|cell| congestion(cell).is_some()) {
        columns.push(column("CE", |_, cell| congestion(cell).map_or(String::new(), percent)));
    }
    if panel.cells().any(|cell| cell.arrivals.is_some()) {
        columns.push(column("jitter", |_, cell| {
            cell.arrivals.map_or(String::new(), |arrivals| three_digits(arrivals.jitter_us))
        }));
        columns.push(column("reord", |_, cell| {
            cell.arrivals.map_or(String::new(), |arrivals| percent(reordered(&arrivals)))
        }));
    }
    if panel.cells().any(|cell| cell.loss.is_some()) {
        columns.push(column("loss", |_, cell| {
            cell.loss.as_ref().map_or(String::new(), |loss| percent(loss.fraction))
        }));
    }
    if panel.cells().any(|cell| skb::fate(cell).is_some()) {
        columns.push(column("skb", |_, cell| skb::smallest(cell).map_or(String::new(), bytes)));
    }
    columns
}

/// Columns before the bar. The remaining ones follow it.
const BEFORE_BAR: usize = 3;

/// Columns that a narrow terminal leaves out, in this order: the tables below have most of them.
const LEFT_OUT: [&str; 9] =
    ["retr", "skb", "p99 µs", "p50 µs", "loss", "CPU", "reord", "jitter", "CE"];

fn table(panel: &Panel<'_>, style: Style) -> String {
    let mut columns = columns(panel);
    let width = |head: &str, cells: &mut dyn Iterator<Item = String>| {
        cells.map(|text| text.chars().count()).chain([head.chars().count()]).max().unwrap_or(0)
    };
    let head = "mode";
    let offload = |group: &Group<'_>| format!("offload {}", plain(group.offload));
    let names = panel.cells().map(|cell| format!("  {}", name(cell)));
    let first = width(head, &mut names.chain(panel.groups.iter().map(offload)));
    let of = |column: &Column| {
        GAP + width(&column.head, &mut panel.cells().map(|cell| (column.value)(panel, cell)))
    };
    let mut taken = first + columns.iter().map(of).sum::<usize>();
    for name in LEFT_OUT {
        // There is room for the rest.
        if taken <= style.columns() {
            break;
        }
        if let Some(at) = columns.iter().position(|column| column.head == name) {
            taken -= of(&columns.remove(at));
        }
    }
    let bar = style.columns().saturating_sub(taken + GAP).min(WIDEST_BAR);
    // A very short bar shows nothing.
    let bar = if bar < NARROWEST_BAR { 0 } else { bar };

    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(comfy_table::LineStyle::none().fill('─')));
    table.set_content_arrangement(ContentArrangement::Disabled);
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let mut header = vec![TableCell::new(head)];
    header.extend(columns.iter().map(|column| TableCell::new(&column.head)));
    if bar > 0 {
        header.insert(1 + BEFORE_BAR, TableCell::new(scale_of_bar(bar)));
    }
    table.set_header(header);
    for group in &panel.groups {
        let offload = TableCell::new(offload(group));
        table.add_row([if style.colour {
            offload.add_attribute(Attribute::Bold)
        } else {
            offload
        }]);
        for cell in &group.cells {
            let mut row = vec![TableCell::new(format!("  {}", name(cell)))];
            row.extend(columns.iter().map(|column| {
                let text = TableCell::new((column.value)(panel, cell));
                match colour(cell).filter(|_| style.colour && column.head == "ratio") {
                    Some(colour) => text.fg(colour),
                    None => text,
                }
            }));
            if bar > 0 {
                row.insert(1 + BEFORE_BAR, TableCell::new(bar_of(cell, bar)));
            }
            table.add_row(row);
        }
    }
    let last = columns.len() + usize::from(bar > 0);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if i == last { 0 } else { GAP as u16 }));
        let is_text = i == 0 || bar > 0 && i == 1 + BEFORE_BAR;
        column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.to_string()
}

/// Returns red for a certain loss of a quarter or more, yellow for any certain loss, green for a
/// certain gain.
fn colour(cell: &Cell) -> Option<Color> {
    let ratio = worth(cell).filter(|_| cell.role == Role::Measured)?;
    match ratio.high {
        high if high < 0.75 => Some(Color::Red),
        high if high < 1.0 => Some(Color::Yellow),
        _ if ratio.low > 1.0 => Some(Color::Green),
        _ => None,
    }
}

/// Returns the head of the bar column: `0` at the left end, `1` at the baseline.
fn scale_of_bar(width: usize) -> String {
    let one = column_of(1.0, width);
    let mut scale: Vec<char> = vec![' '; width];
    scale[0] = '0';
    scale[one] = '1';
    scale.into_iter().collect::<String>().trim_end().to_string()
}

/// Returns the column of a bar for `ratio`.
fn column_of(ratio: f64, width: usize) -> usize {
    ((ratio / FULL_BAR * width as f64) as usize).min(width - 1)
}

/// Draws a bar: solid up to the lower end of the interval, shaded up to its upper end, a line at
/// the baseline if not covered, an arrow if the interval exceeds the bar.
fn bar_of(cell: &Cell, width: usize) -> String {
    match (cell.role, cell.ratio) {
        (Role::Baseline, _) if width < "baseline".len() => "base".to_owned(),
        (Role::Baseline, _) => "baseline".to_owned(),
        (Role::Aa, Some(ratio)) => {
            let floor = plus_minus(noise_floor(&ratio));
            // Use the longest text that fits.
            let texts = [format!("noise floor {floor}"), format!("noise {floor}"), floor];
            texts.into_iter().find(|text| text.chars().count() <= width).unwrap_or_default()
        }
        (_, None) => String::new(),
        (_, Some(interval)) => {
            let (low, high) = (column_of(interval.low, width), column_of(interval.high, width));
            let one = column_of(1.0, width);
            (0..width)
                .map(|i| match i {
                    // The interval exceeds the bar's scale.
                    i if i == width - 1 && interval.high > FULL_BAR => '▶',
                    i if i < low => '█',
                    i if i <= high => '░',
                    i if i == one => '│',
                    _ => ' ',
                })
                .collect::<String>()
                .trim_end()
                .to_string()
        }
    }
}

fn legend(results: &Results) -> [String; 2] {
    let baseline = plain(&results.plan.baseline);
    let clock =
        if results.machine.cpu_clock == CpuClock::Tick { ", counted by timer ticks" } else { "" };
    let marks = match results.cells.iter().any(|cell| congestion(cell).is_some()) {
        true => " CE: share of the packets that arrived with a congestion mark (ECN).",
        false => "",
    };
    [
        format!(
            "ratio: to {baseline} of the same block and offload, median over blocks; ≈ not \
             statistically different from {baseline}; ? interval wider than a factor of 10; bar: █ up to the interval, ░ the interval. \
             (A/A): {baseline} measured again, the noise floor."
        ),
        format!(
            "CPU: time of the load on all CPUs per unit of work, as ratio to {baseline}{clock}; – \
             unknown. retr: TCP segments retransmitted in a sample, median. jitter: µs \
             (RFC 3550). reord: datagrams that arrived late. skb: smallest mean size on the path; at most the MTU if GSO packets are cut.{marks}"
        ),
    ]
}

fn push_list(out: &mut String, title: &str, style: Style, items: impl IntoIterator<Item = String>) {
    let mut items = items.into_iter().peekable();
    // No heading without entries.
    if items.peek().is_none() {
        return;
    }
    out.push_str(&style.bold(title));
    out.push('\n');
    for item in items {
        push_wrapped(out, "  - ", &item, style, false);
    }
    out.push('\n');
}

fn push_wrapped(out: &mut String, first: &str, text: &str, style: Style, dim: bool) {
    for line in wrap(first, &plain(text), style.columns()) {
        out.push_str(&if dim { style.dim(&line) } else { line });
        out.push('\n');
    }
}
