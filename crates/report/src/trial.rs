//! Result of `try`, as text and as a value.

use std::fmt::Write;

use results::verdict::{Carried, Judged, Verdict};
use results::{Cell, Interval, Results, Role, Status};
use serde::Serialize;

use crate::machine::machine_line;
use crate::remark::warnings;
use crate::style::{Style, plain, wrap};
use crate::unit::{cpu_ratio, of_interval, range, with_unit};
use crate::work::{Work, round};

/// A setting that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Tried {
    /// Setting with its namespace and device, or the command.
    pub object: String,
    /// Value as found; for a command, its inverse.
    pub from: String,
    /// Value or command that was tried.
    pub to: String,
    /// Command that makes the change.
    pub command: String,
    /// Command that undoes it.
    pub undo: String,
}

/// Result of `try`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Trial {
    /// Version of this form: 1.
    #[cfg_attr(feature = "schema", schemars(extend("const" = 1)))]
    pub format: u32,
    /// Changes that were tried, each with its inverse.
    #[cfg_attr(feature = "schema", schemars(extend("minItems" = 1)))]
    pub changes: Vec<Tried>,
    /// Address of the other end.
    pub against: String,
    /// Verdict on all workloads together.
    pub verdict: Verdict,
    /// Whether the change was kept.
    pub kept: bool,
    /// Entries in the journal (`overlane undo ID`) of a change that was kept.
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 1))))]
    pub entries: Vec<u64>,
    /// Why it was kept or undone.
    pub reason: String,
    /// How often the other end answered; only if it answers just with, or just without, the change.
    pub reached: Option<Carried>,
    /// Judgement of each workload's cell.
    pub judged: Vec<Judged>,
    /// Samples; null if nothing could be measured.
    pub results: Option<Results>,
}

/// Renders a trial, `style.width` columns wide: each workload as found and changed, the proof, and
/// whether the change was kept.
pub fn trial_text(trial: &Trial, style: Style) -> String {
    let mut out = String::new();
    let push = |out: &mut String, first: &str, text: &str| {
        for line in wrap(first, &plain(text), style.columns()) {
            out.push_str(&line);
            out.push('\n');
        }
    };
    for change in &trial.changes {
        push(&mut out, "change   ", &change.command);
        push(&mut out, "inverse  ", &change.undo);
    }
    push(&mut out, "against  ", &trial.against);
    if let Some(results) = &trial.results {
        out.push('\n');
        push_table(&mut out, trial, results, style);
        for line in wrap("", &machine_line(results), style.columns()) {
            let _ = writeln!(out, "{}", style.dim(&line));
        }
        let legend = "ratio: to as found in the same block, median over blocks; ≈ not \
            statistically different; ? interval wider than a factor of 10. CPU: time of the load \
            on all CPUs of both ends per unit of work, as ratio; – unknown.";
        for line in wrap("", legend, style.columns()) {
            let _ = writeln!(out, "{}", style.dim(&line));
        }
        for warning in warnings(results) {
            push(&mut out, "warning  ", &warning);
        }
    }
    out.push('\n');
    if let Some(reached) = &trial.reached {
        push(&mut out, "", &format!("The other end answers: {}.", carried_words(reached)));
    }
    let headline = if trial.kept { "Kept: " } else { "Undone: " };
    push(&mut out, "", &format!("{headline}{}.", trial.reason));
    if !trial.entries.is_empty() {
        let ids: Vec<String> =
            trial.entries.iter().map(|id| format!("overlane undo {id}")).collect();
        push(&mut out, "  ", &ids.join("; "));
    }
    out
}

fn push_table(out: &mut String, trial: &Trial, results: &Results, style: Style) {
    let level = results.cells.iter().find_map(|cell| cell.ratio).map(|ratio| ratio.confidence);
    let interval =
        level.map_or("interval".to_owned(), |level| format!("{}% interval", round(100.0 * level)));
    let head = line(["", "", "ratio", &interval, "CPU"]);
    let _ = writeln!(out, "{}", style.bold(&head));
    for judged in &trial.judged {
        let changed = &results.cells[judged.cell];
        for line in wrap("", &Work::of(changed).described(true, false), style.columns()) {
            let _ = writeln!(out, "{line}");
        }
        let found = results.cells.iter().filter(|cell| {
            cell.setting.is_none()
                && Work { setting: changed.setting.as_deref(), ..Work::of(cell) }
                    == Work::of(changed)
        });
        for cell in found.chain([changed]) {
            let name = if cell.role == Role::Baseline { "as found" } else { "changed" };
            let _ = writeln!(out, "{}", row(name, cell));
        }
        if let Some(carried) = &judged.carried {
            for line in wrap("  ", &format!("carried: {}", carried_words(carried)), style.columns())
            {
                let _ = writeln!(out, "{line}");
            }
        }
    }
}

/// 2 + 15 + 2 + 20 + 2 + 7 + 2 + 15 + 2 + 6 = 73 columns.
fn line([name, figure, ratio, interval, cpu]: [&str; 5]) -> String {
    format!("  {name:<15}  {figure:>20}  {ratio:>7}  {interval:>15}  {cpu:>6}")
        .trim_end()
        .to_owned()
}

fn row(name: &str, cell: &Cell) -> String {
    let figure = match (cell.status, cell.median) {
        (Status::Ok, Some(median)) => with_unit(median, cell.unit),
        _ => "failed".to_owned(),
    };
    // The state as found is the reference.
    if cell.role == Role::Baseline {
        return line([name, &figure, "1", "", &cpu_ratio(cell)]);
    }
    let mark = |ratio: &Interval| if ratio.low <= 1.0 && 1.0 <= ratio.high { "≈ " } else { "" };
    let of = cell.ratio.map(|r| format!("{}{}", mark(&r), of_interval(&r))).unwrap_or_default();
    let interval = cell.ratio.as_ref().map(range);
    let cpu = cpu_ratio(cell);
    line([name, &figure, &of, &interval.unwrap_or_default(), &cpu])
}

/// `4 of 4 times with the change, 0 of 8 without (p = 0.004)`.
pub fn carried_words(carried: &Carried) -> String {
    let Carried { as_found: (found, found_carried), changed: (tried, tried_carried), p_value } =
        *carried;
    format!(
        "{tried_carried} of {tried} times with the change, {found_carried} of {found} without \
         (p = {p_value:.3})"
    )
}

/// Describes the proof for a workload, for a sentence.
pub fn judged_words(results: &Results, judged: &Judged) -> String {
    let cell = &results.cells[judged.cell];
    let work = cell.workload.to_string();
    let interval = |ratio: Interval| {
        format!(
            "{} times ({} to {} at {}% confidence)",
            crate::unit::ratio(ratio.median),
            crate::unit::ratio(ratio.low),
            crate::unit::ratio(ratio.high),
            round(100.0 * ratio.confidence)
        )
    };
    // The proof is the CPU time, not the throughput.
    if let Some(cpu) = judged.cpu {
        return format!("{work} is proven to cost less CPU time, {}", interval(cpu));
    }
    match (judged.verdict, cell.ratio, &judged.carried) {
        (Verdict::Unmeasured, ..) => {
            let why = cell.reason.as_deref().unwrap_or("no block has samples of both sides");
            format!("{work} could not be compared: {}", plain(why))
        }
        (Verdict::Better, Some(ratio), _) => {
            format!("{work} is proven better, {}", interval(ratio))
        }
        (Verdict::Worse, Some(ratio), _) => format!("{work} is proven worse, {}", interval(ratio)),
        (Verdict::Better, None, Some(carried)) => {
            format!("{work} works with it only, {}", carried_words(carried))
        }
        (Verdict::Worse, None, Some(carried)) => {
            format!("{work} works without it only, {}", carried_words(carried))
        }
        // State the bounds: narrow ones show that the change has no effect worth having.
        (Verdict::Undecided, Some(ratio), _) => {
            format!("{work} is not statistically different, {}", interval(ratio))
        }
        _ => format!("{work} is not statistically different"),
    }
}
