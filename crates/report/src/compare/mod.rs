//! Compares two results files cell by cell and finds proven changes.
//!
//! **Compared values.** The machine's condition differs between two runs, but is common to all
//! cells of a block. It cancels in the ratio to the block's own baseline, so these ratios are
//! compared. The baseline itself has no reference. Its absolute values are shown if both files are
//! from one machine, but never judged: each file is a single sample of the machine's condition, and
//! two of them prove nothing.
//!
//! **Proof of a change.** Two conditions must hold:
//! - The bootstrap interval of B ÷ A excludes 1.
//! - The Mann-Whitney test rejects at the level, after Holm's correction for the number
//!   of comparisons ("A simple sequentially rejective multiple test procedure",
//!   Scandinavian Journal of Statistics 6, 1979).
//!
//! A whole comparison then raises a false alarm with probability 1 − level at most, regardless of
//! its number of cells. Comparisons with so few samples that even fully separated samples would
//! prove nothing do not count in that number, and are reported as "not enough data" (R. Tarone, "A
//! modified Bonferroni method for discrete data", Biometrics 46, 1990).
//!
//! **Limits.** A testbed is built once per run. Effects that differ between builds, such as memory
//! placement and hash seeds, remain in the figures. `tests/compare.rs` simulates runs with common
//! and with separate drift.

mod many;
mod page;
mod table;
mod text;

use std::collections::HashMap;

use results::stats::{mann_whitney, median, ratio_of_medians, smallest_p_value};
use results::{Cell, Interval, Machine, Results, Role, Sample, Status, Unit};
use serde::Serialize;

use crate::work::Work;

pub use many::{Other, compare_many_csv, compare_many_markdown, compare_many_text};
pub use page::compare_many_html;
pub use text::compare_text;

const SCHEMA: &str = "overlane.compare/1";

/// Result of comparing two files.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Comparison {
    /// Always `overlane.compare/1`.
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA)))]
    pub schema: &'static str,
    /// Probability of no false alarm in the whole comparison, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1)))]
    pub level: f64,
    /// Whether both files are from the same machine and kernel.
    pub same_machine: bool,
    /// Differences between the machines, and between the plans where they affect the figures.
    pub differences: Vec<String>,
    /// One entry per figure of a cell, in the order of the first file.
    pub figures: Vec<Compared>,
    /// Cells of the first file only, in words.
    pub only_in_a: Vec<String>,
    /// Cells of the second file only, in words.
    pub only_in_b: Vec<String>,
    /// Largest regression allowed, as a share; null if no limit was given.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub fail_on: Option<f64>,
    /// Whether a proven regression exceeds it.
    pub failed: bool,
}

/// A figure of a cell in both files.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Compared {
    /// Name of the cell's mode.
    pub mode: String,
    /// Baseline, A/A or measured.
    pub role: Role,
    /// Name of the cell's offload profile.
    pub offload: String,
    /// All other properties of the cell, in words.
    pub work: String,
    /// Figure of the cell that was compared.
    pub figure: Figure,
    /// Whether medians or their ratios to the baseline were compared.
    pub basis: Basis,
    /// Median in the first file: a ratio to the baseline, or absolute in the cell's unit (CPU: unit
    /// of its service demand, latency: µs).
    pub a: Option<f64>,
    /// Median in the second file.
    pub b: Option<f64>,
    /// Valid samples in the first file.
    pub samples_a: usize,
    /// Valid samples in the second file.
    pub samples_b: usize,
    /// B ÷ A with its bootstrap interval; null if A's median is 0 or either file has fewer than two
    /// samples.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("properties" = schemars::json_schema!({ "samples": { "minimum": 2 } })))
    )]
    pub ratio: Option<Interval>,
    /// Mann-Whitney, two-sided, for this figure alone.
    pub p_value: Option<f64>,
    /// The same after the correction for all comparisons.
    pub p_corrected: Option<f64>,
    /// Whether a larger figure is better.
    pub higher_is_better: bool,
    /// Whether a change is proven, and in which direction.
    pub verdict: Judgement,
    /// Why there is not enough data; null otherwise.
    pub reason: Option<String>,
}

/// A figure of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The cell's value: throughput or rate; latency for cells at a load.
    Value,
    /// CPU time per unit of work.
    ServiceDemand,
    /// 99th percentile of latency.
    LatencyP99,
}

/// Which values of a cell were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Ratios to the baseline of the same block.
    RatioToBaseline,
    /// Medians in the cell's own unit.
    Absolute,
}

/// Judgement of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Verdict"))]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Proven change for the better.
    Better,
    /// Proven change for the worse.
    Worse,
    /// No change is proven. The interval bounds a possible one.
    NoProvenChange,
    /// Too few samples to prove any change.
    NotEnoughData,
}

impl Compared {
    /// Returns how much worse the second file's median is, as a share (0.05: by 5%); negative if it
    /// is better.
    pub fn regression(&self) -> Option<f64> {
        let ratio = self.ratio?.median;
        Some(if self.higher_is_better { 1.0 - ratio } else { ratio - 1.0 })
    }
}

/// Why two files cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// The files use different baselines.
    #[error("/plan/baseline: expected the same in both files, got \"{a}\" and \"{b}\"")]
    OtherBaseline {
        /// Baseline of the first file.
        a: String,
        /// Baseline of the second file.
        b: String,
    },
    /// No cell is in both files.
    #[error(
        "/cells: expected cells of the same mode, offload, workload and size in both files, got none"
    )]
    NothingInCommon,
}

/// Compares `b` with `a`, cell by cell. `fail_on` is the largest regression allowed, as a share.
///
/// # Errors
/// [`CompareError`] if the files have no comparable cells.
pub fn compare(a: &Results, b: &Results, fail_on: Option<f64>) -> Result<Comparison, CompareError> {
    // Ratios to different baselines are not comparable.
    if a.plan.baseline != b.plan.baseline {
        let (a, b) = (a.plan.baseline.clone(), b.plan.baseline.clone());
        return Err(CompareError::OtherBaseline { a, b });
    }
    let machines = machine_differences(a, b);
    let same_machine = machines.is_empty();
    // The stricter of both levels holds for both files.
    let level = a.plan.confidence.level.max(b.plan.confidence.level);
    let same_cpu = a.machine.cpu_of_load == b.machine.cpu_of_load;
    let mut figures = Vec::new();
    let mut only_in_a = Vec::new();
    let (cells_a, cells_b) = (Cells::of(a), Cells::of(b));
    let mut common = false;
    for cell in &a.cells {
        // A cell of one file only has no counterpart: list it in words.
        let Some(other) = cells_b.same(cell) else {
            only_in_a.push(words(cell));
            continue;
        };
        common = true;
        // If neither machine can build the mode, there is no figure.
        let unsupported = |cell: &Cell| cell.status == Status::Unsupported;
        // The cell was measured in neither file.
        if unsupported(cell) && unsupported(other) {
            continue;
        }
        // The baseline's figures are absolute, and not comparable between two machines.
        if cell.role == Role::Baseline && !same_machine {
            continue;
        }
        for figure in [Figure::Value, Figure::ServiceDemand, Figure::LatencyP99] {
            // The CPU time of the whole machine is no reference for that of the load.
            if figure == Figure::ServiceDemand && !same_cpu {
                continue;
            }
            figures.extend(compared((&cells_a, cell), (&cells_b, other), figure, level));
        }
    }
    // Without a common cell, every verdict would be missing and the comparison would look clean.
    if !common {
        return Err(CompareError::NothingInCommon);
    }
    let missing = b.cells.iter().filter(|cell| cells_a.same(cell).is_none());
    let only_in_b = missing.map(words).collect();
    judge(&mut figures, 1.0 - level);
    let failed = fail_on.is_some_and(|limit| {
        let exceeds = |figure: &Compared| figure.regression().is_some_and(|share| share > limit);
        figures.iter().any(|figure| figure.verdict == Judgement::Worse && exceeds(figure))
    });
    let mut differences = [machines, plan_differences(a, b)].concat();
    if !same_cpu {
        let older = if a.machine.cpu_of_load { "second" } else { "first" };
        differences.push(format!(
            "CPU accounting: the {older} file has the time of the whole machine, so CPU is not \
             compared"
        ));
    }
    Ok(Comparison {
        schema: SCHEMA,
        level,
        same_machine,
        differences,
        figures,
        only_in_a,
        only_in_b,
        fail_on,
        failed,
    })
}

fn words(cell: &Cell) -> String {
    let name = crate::panel::name(cell);
    format!("{name}, offload {}: {}", cell.offload, Work::of(cell).title())
}

/// Compares one figure of one cell; `None` if neither file has it.
fn compared(
    (a, in_a): (&Cells<'_>, &Cell),
    (b, in_b): (&Cells<'_>, &Cell),
    figure: Figure,
    level: f64,
) -> Option<Compared> {
    // In a cell at a given load the value itself is a latency; p99 is a separate figure.
    let basis = match in_a.role {
        Role::Baseline => Basis::Absolute,
        Role::Aa | Role::Measured => Basis::RatioToBaseline,
    };
    let (values_a, values_b) = (values(a, in_a, figure, basis), values(b, in_b, figure, basis));
    let failed = in_a.status != Status::Ok || in_b.status != Status::Ok;
    // Neither file has the figure. A failed cell is reported once, as its value.
    if values_a.is_empty() && values_b.is_empty() && !(failed && figure == Figure::Value) {
        return None;
    }
    // Too few values, or a median of 0, have no ratio; `reason` reports it.
    let ratio = ratio_of_medians(&values_a, &values_b, level).ok();
    let p_value = mann_whitney(&values_a, &values_b).ok().map(|test| test.p_value);
    let enough = values_a.len().min(values_b.len()) >= 2;
    let reason = match basis {
        Basis::Absolute => Some(
            "one run each: the machine's condition varies between runs, and the baseline has no \
             reference"
                .to_string(),
        ),
        Basis::RatioToBaseline if failed => Some("failed in one of the files".to_string()),
        Basis::RatioToBaseline if !enough => Some(format!(
            "{} and {} valid samples with a baseline, at least 2 each are required",
            values_a.len(),
            values_b.len()
        )),
        Basis::RatioToBaseline => None,
    };
    Some(Compared {
        mode: in_a.mode.clone(),
        role: in_a.role,
        offload: in_a.offload.to_string(),
        work: Work::of(in_a).title(),
        figure,
        basis,
        a: median(&values_a),
        b: median(&values_b),
        samples_a: values_a.len(),
        samples_b: values_b.len(),
        ratio,
        p_value,
        p_corrected: None,
        higher_is_better: figure == Figure::Value && in_a.unit != Unit::Microseconds,
        verdict: Judgement::NotEnoughData,
        reason,
    })
}

/// A file's cells by identity, for fast look-up.
struct Cells<'a> {
    by_identity: HashMap<Identity<'a>, &'a Cell>,
    /// 99th percentile of each baseline by block, from the block's first valid sample.
    baseline_p99: HashMap<(&'a str, Work<'a>), HashMap<u32, Option<f64>>>,
}

/// Mode, role, offload profile, everything else, unit.
type Identity<'a> = (&'a str, Role, &'a str, Work<'a>, &'a str);

impl<'a> Cells<'a> {
    fn of(results: &'a Results) -> Cells<'a> {
        let mut cells = Cells { by_identity: HashMap::new(), baseline_p99: HashMap::new() };
        for cell in &results.cells {
            // The first of several identical cells counts: the file may have been edited.
            cells.by_identity.entry(identity(cell)).or_insert(cell);
            if cell.role == Role::Baseline {
                let key = (cell.offload.name(), Work::of(cell));
                cells.baseline_p99.entry(key).or_insert_with(|| p99_by_block(cell));
            }
        }
        cells
    }

    fn same(&self, cell: &Cell) -> Option<&'a Cell> {
        self.by_identity.get(&identity(cell)).copied()
    }

    fn baseline_p99(&self, cell: &Cell, block: u32) -> Option<f64> {
        *self.baseline_p99.get(&(cell.offload.name(), Work::of(cell)))?.get(&block)?
    }
}

fn identity(cell: &Cell) -> Identity<'_> {
    (&cell.mode, cell.role, cell.offload.name(), Work::of(cell), cell.unit.name())
}

fn p99(sample: &Sample) -> Option<f64> {
    sample.latency_us.map(|latency| latency.p99)
}

fn p99_by_block(cell: &Cell) -> HashMap<u32, Option<f64>> {
    let mut blocks = HashMap::new();
    for sample in cell.samples.iter().filter(|sample| sample.valid) {
        blocks.entry(sample.block).or_insert_with(|| p99(sample));
    }
    blocks
}

/// Returns a cell's valid figures, one per sample. Leaves out values that are not finite numbers
/// above 0. A rate may be 0 if nothing arrived.
fn values(cells: &Cells<'_>, cell: &Cell, figure: Figure, basis: Basis) -> Vec<f64> {
    let absolute = |sample: &Sample| match figure {
        Figure::Value => Some(sample.value),
        Figure::ServiceDemand => sample.service_demand,
        Figure::LatencyP99 => p99(sample),
    };
    let to_baseline = |sample: &Sample| match figure {
        Figure::Value => sample.ratio,
        Figure::ServiceDemand => sample.service_demand_ratio,
        Figure::LatencyP99 => Some(p99(sample)? / cells.baseline_p99(cell, sample.block)?),
    };
    let valid = cell.samples.iter().filter(|sample| sample.valid);
    let figures: Vec<f64> = match basis {
        Basis::Absolute => valid.filter_map(absolute).collect(),
        Basis::RatioToBaseline => valid.filter_map(to_baseline).collect(),
    };
    // A CPU time or latency of 0 means that nothing was counted.
    let may_be_nothing = figure == Figure::Value;
    let is_figure =
        |value: &f64| value.is_finite() && (*value > 0.0 || may_be_nothing && *value == 0.0);
    figures.into_iter().filter(is_figure).collect()
}

/// Judges all comparisons together: Tarone's count, then Holm's steps.
fn judge(figures: &mut [Compared], error: f64) {
    let known: Vec<f64> =
        figures.iter().map(|figure| smallest_p_value(figure.samples_a, figure.samples_b)).collect();
    let smallest = |i: usize| known[i];
    // Figures with a reason are not judged.
    let mut judged: Vec<usize> =
        (0..figures.len()).filter(|i| figures[*i].reason.is_none()).collect();
    // This selection uses only the numbers of samples, never their values.
    judged.sort_by(|x, y| smallest(*x).total_cmp(&smallest(*y)));
    let within = |k: usize| judged.partition_point(|i| smallest(*i) * k as f64 <= error);
    let provable = (1..=judged.len()).find(|k| within(*k) <= *k).map_or(0, within);
    let all = judged.len();
    for i in judged.split_off(provable) {
        let figure = &mut figures[i];
        figure.reason = Some(format!(
            "{} and {} samples are too few to prove any change among {all} comparisons",
            figure.samples_a, figure.samples_b
        ));
    }
    let p_value = |figures: &[Compared], i: usize| figures[i].p_value.unwrap_or(1.0);
    judged.sort_by(|x, y| p_value(figures, *x).total_cmp(&p_value(figures, *y)));
    let mut corrected = 0.0_f64;
    for (step, i) in judged.iter().enumerate() {
        // Holm: corrected p-values never decrease.
        corrected = corrected.max(p_value(figures, *i) * (provable - step) as f64).min(1.0);
        let figure = &mut figures[*i];
        figure.p_corrected = Some(corrected);
        let rose = match figure.ratio {
            Some(ratio) if ratio.low > 1.0 => Some(true),
            Some(ratio) if ratio.high < 1.0 => Some(false),
            // The interval includes 1: the direction is unknown.
            Some(_) => None,
            // A's median is 0, so there is no ratio, and the rate can only have risen.
            None => (figure.b > Some(0.0)).then_some(true),
        };
        figure.verdict = match rose {
            Some(rose) if corrected <= error && rose == figure.higher_is_better => {
                Judgement::Better
            }
            Some(_) if corrected <= error => Judgement::Worse,
            _ => Judgement::NoProvenChange,
        };
    }
}

fn differing(what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display) -> Option<String> {
    let (a, b) = (a.to_string(), b.to_string());
    (a != b).then(|| crate::style::plain(&format!("{what}: {a} and {b}")))
}

/// Returns the differences between machines: hardware, kernel, and how CPU time is counted.
fn machine_differences(a: &Results, b: &Results) -> Vec<String> {
    let of = |name: &str, a: &Machine, b: &Machine| {
        let none = "none".to_string();
        [
            differing(&format!("{name}CPU"), &a.cpu_model, &b.cpu_model),
            differing(&format!("{name}CPUs"), &a.cpus, &b.cpus),
            differing(&format!("{name}kernel"), &a.kernel, &b.kernel),
            differing(
                &format!("{name}hypervisor"),
                a.hypervisor.as_ref().unwrap_or(&none),
                b.hypervisor.as_ref().unwrap_or(&none),
            ),
            differing(&format!("{name}CPU clock"), &a.cpu_clock, &b.cpu_clock),
        ]
    };
    let mut found: Vec<String> = of("", &a.machine, &b.machine).into_iter().flatten().collect();
    match (&a.peer, &b.peer) {
        (Some(a), Some(b)) => found.extend(of("server's ", a, b).into_iter().flatten()),
        // Both runs were on one machine.
        (None, None) => {}
        (a, b) => {
            let machines = |peer: bool| if peer { "two machines" } else { "one machine" };
            found.extend(differing("measured on", &machines(a.is_some()), &machines(b.is_some())));
        }
    }
    found
}

/// Returns differences of the plans that affect the figures.
fn plan_differences(a: &Results, b: &Results) -> Vec<String> {
    let (p, q) = (&a.plan, &b.plan);
    let cpus = |plan: &results::Plan| {
        format!("{:?} to {:?}", plan.placement.client_cpus, plan.placement.server_cpus)
    };
    let on = |on| if on { "on" } else { "off" };
    let family = |plan: &results::Plan| if plan.ipv6 { "IPv6" } else { "IPv4" };
    [
        differing("placement", &cpus(p), &cpus(q)),
        differing("steering", &p.steering, &q.steering),
        differing("addresses", &family(p), &family(q))
            .map(|families| format!("{families} (headers of IPv6 are 20 bytes longer)")),
        differing("ECN", &on(p.ecn), &on(q.ecn)),
        differing("seconds per sample", &p.duration_s, &q.duration_s),
        differing("privileges", &a.machine.privileges, &b.machine.privileges),
    ]
    .into_iter()
    .flatten()
    .collect()
}
