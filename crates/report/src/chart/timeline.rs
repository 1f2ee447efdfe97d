//! Charts of each CPU over the run: time by kind as stacked areas, interrupt rates as lines, and
//! the measured samples below.

use results::{InterruptTimeline, Results, Task, Timeline};

use super::Chart;
use super::label::{beside, rows};
use super::lines::{Axis, Lines, Point, Series, draw as draw_lines};
use super::scale::{Kind, Scale};
use super::svg::{Anchor, FONT, LINE, Svg, WIDTH};
use crate::style::plain;

/// Kinds of time in the order of the stack.
const KINDS: [&str; 5] = ["user", "system", "irq", "softirq", "steal"];
/// Most steps drawn: more would be closer than a pixel.
const STEPS: usize = 300;
/// Most interrupts drawn per CPU, the most frequent ones.
const INTERRUPTS: usize = 6;
/// Most CPUs drawn, the busiest with system time and interrupts.
const CPUS: usize = 16;
/// Height of the field, pixels.
const FIELD: f64 = 120.0;

/// Returns two charts per CPU.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let Some(timeline) = &results.timeline else { return Vec::new() };
    // An edited file may hold any number.
    let step = if timeline.step_s.is_finite() { timeline.step_s.max(0.0) } else { 0.0 };
    let busy = |cpu: &results::CpuTimeline| -> f64 {
        cpu.softirq.iter().chain(&cpu.irq).chain(&cpu.system).sum()
    };
    let mut shown: Vec<_> = timeline.cpus.iter().collect();
    if shown.len() > CPUS {
        // Keep the busiest CPUs, which show the bottleneck.
        shown.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        shown.truncate(CPUS);
        shown.sort_by_key(|cpu| cpu.cpu);
    }
    let mut charts = Vec::new();
    for cpu in shown {
        let kinds = [&cpu.user, &cpu.system, &cpu.irq, &cpu.softirq, &cpu.steal];
        let shares = kinds.map(|values| thinned(values));
        let title = format!("CPU {}: share of its time", cpu.cpu);
        let drawn = areas(results, timeline, &shares, step, cpu.user.len());
        let caption = "Stacked in the order of the legend; below, a stripe for each sample.";
        charts.extend(Chart::new("timeline", title, caption, drawn));
        charts.extend(interrupts(timeline, cpu.cpu, step));
    }
    charts
}

/// Averages values to at most [`STEPS`] means.
fn thinned(values: &[f64]) -> Vec<f64> {
    let every = values.len().div_ceil(STEPS).max(1);
    values.chunks(every).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect()
}

fn areas(
    results: &Results,
    timeline: &Timeline,
    shares: &[Vec<f64>; 5],
    step: f64,
    steps: usize,
) -> Option<(String, f64)> {
    let columns = shares[0].len();
    // A run shorter than a step has no column.
    if columns == 0 || step <= 0.0 {
        return None;
    }
    let mut svg = Svg::default();
    let (left, right) = (40.0, WIDTH - 8.0);
    let (top, bottom) = (8.0, 8.0 + FIELD);
    let end = step * steps as f64;
    let x = Scale::new(Kind::Linear, 0.0, end, left, right);
    let y = Scale::new(Kind::Linear, 0.0, 1.0, bottom, top);
    for share in [0.0, 0.5, 1.0] {
        svg.line("grid", (left, y.place(share)), (right, y.place(share)));
        let label = format!("{:.0}%", 100.0 * share);
        svg.text("t", (left - 4.0, y.place(share) + 4.0), Anchor::End, &label);
    }
    let mut below = vec![0.0; columns];
    let at = |i: usize| x.place(end * i as f64 / columns as f64);
    for (style, values) in shares.iter().enumerate() {
        let above: Vec<f64> = below
            .iter()
            .enumerate()
            .map(|(i, base)| base + values.get(i).copied().unwrap_or(0.0).max(0.0))
            .collect();
        let edge = |values: &[f64]| -> Vec<(f64, f64)> {
            let steps = values.iter().enumerate();
            steps.flat_map(|(i, v)| [(at(i), y.place(*v)), (at(i + 1), y.place(*v))]).collect()
        };
        let mut outline = edge(&above);
        outline.extend(edge(&below).into_iter().rev());
        svg.polygon(&format!("k f{style}"), &outline);
        below = above;
    }
    stripe(&mut svg, results, timeline, &x, bottom + 3.0);
    let labels: Vec<(f64, String)> =
        x.ticks(6).into_iter().map(|(second, label)| (x.place(second), label)).collect();
    for i in beside(&labels) {
        let (at, label) = &labels[i];
        svg.text("t", (at.min(WIDTH - 14.0), bottom + LINE + 8.0), Anchor::Middle, label);
    }
    svg.text(
        "t muted",
        (0.5 * (left + right), bottom + 2.0 * LINE + 8.0),
        Anchor::Middle,
        "seconds",
    );
    let height = bottom + 2.0 * LINE + 14.0;
    let names = KINDS.map(String::from);
    let (places, taken) = rows(&names, 22.0, WIDTH - 4.0);
    for (style, (name, (dx, dy))) in names.iter().zip(places).enumerate() {
        let middle = height + dy + 0.5 * LINE;
        svg.rect(&format!("k f{style}"), (dx + 2.0, middle - 5.0), (14.0, 10.0), "");
        svg.text("t", (dx + 20.0, middle + 4.0), Anchor::Start, name);
    }
    Some(svg.finish(height + taken + FONT * 0.4))
}

/// Draws the measured samples: one piece per sample, with a tooltip and the workload's shade.
fn stripe(svg: &mut Svg, results: &Results, timeline: &Timeline, x: &Scale, top: f64) {
    let mut workloads: Vec<Task> = Vec::new();
    let every = timeline.marks.len().div_ceil(2 * STEPS).max(1);
    let marks: Vec<_> = timeline.marks.iter().step_by(every).collect();
    for (i, mark) in marks.iter().enumerate() {
        // An edited file may name a cell that does not exist.
        let Some(cell) = results.cells.get(mark.cell) else { continue };
        let style = workloads.iter().position(|name| *name == cell.workload).unwrap_or_else(|| {
            workloads.push(cell.workload);
            workloads.len() - 1
        });
        let from = x.place(mark.at_s);
        let to = marks.get(i + 1).map_or(x.place(f64::MAX), |next| x.place(next.at_s));
        let title = format!("{}: {}", cell.workload, crate::panel::name(cell));
        svg.rect(
            &format!("k f{}", 7 - style % 8),
            (from, top),
            ((to - from - 0.3).max(0.2), 5.0),
            &title,
        );
    }
}

fn interrupts(timeline: &Timeline, cpu: usize, step: f64) -> Option<Chart> {
    let total = |entry: &InterruptTimeline| entry.per_s.iter().sum::<f64>();
    let mut here: Vec<&InterruptTimeline> =
        timeline.interrupts.iter().filter(|entry| entry.cpu == cpu && total(entry) > 0.0).collect();
    // Keep the most frequent interrupts.
    here.sort_by(|a, b| total(b).total_cmp(&total(a)).then(a.name.cmp(&b.name)));
    let left_out = here.len().saturating_sub(INTERRUPTS);
    here.truncate(INTERRUPTS);
    let series = here
        .iter()
        .enumerate()
        .map(|(style, entry)| {
            let values = thinned(&entry.per_s);
            let length = step * entry.per_s.len() as f64 / values.len().max(1) as f64;
            let points = values.iter().enumerate().map(|(i, y)| Point {
                x: length * (i as f64 + 0.5),
                y: *y,
                ..Point::default()
            });
            Series { name: plain(&entry.name), style, points: points.collect() }
        })
        .collect();
    let axis = |words: &str| Axis { words: words.into(), kind: Kind::Linear, ticks: Vec::new() };
    let lines =
        Lines { x: axis("seconds"), y: axis("per second"), mark: None, markers: false, series };
    let caption = match left_out {
        0 => "By queue or kind.".to_string(),
        more => format!("By queue or kind; {more} less frequent ones are left out."),
    };
    let title = format!("CPU {cpu}: interrupts and softirqs");
    Chart::new("interrupts", title, &caption, draw_lines(&lines))
}
