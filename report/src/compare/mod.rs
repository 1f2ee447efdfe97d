//! Two results files, cell by cell: what changed for certain.
//!
//! **What is compared.** Runs at two times differ by what the machine did at
//! those times. That is common to all cells of a block, so it cancels in the
//! ratio to the block's own baseline: cells are compared by these ratios. The
//! baseline itself has nothing to be divided by. Its absolute values are shown,
//! where both files are of one machine, but never judged: each file is one draw
//! of the machine's condition, and one against one proves nothing.
//!
//! **What proves a change.** Both the bootstrap interval of B ÷ A must leave 1
//! out and the Mann-Whitney test must reject at the level, after Holm's
//! correction for the number of comparisons ("A simple sequentially rejective
//! multiple test procedure", Scandinavian Journal of Statistics 6, 1979), so that
//! a whole comparison, however many cells it has, raises a false alarm with
//! probability 1 − level at most. Comparisons whose samples are so few that not
//! even samples wholly apart could be proved are left out of that count and are
//! answered by "not enough data" (R. Tarone, "A modified Bonferroni method for
//! discrete data", Biometrics 46, 1990).
//!
//! **What it cannot see.** A testbed is built once a run; what differs from one
//! building to the next (placement in memory, hash seeds) is in the figures, as
//! it is in those of every other tool. `tests/compare.rs` simulates runs that
//! drift together and apart.

mod text;

use measure::results::{Cell, Interval, Machine, Results, Role, Sample, Status};
use measure::stats::{mann_whitney, median, ratio_of_medians, smallest_p_value};
use serde::Serialize;

use crate::work::Work;

pub use text::compare_text;

/// What two files say of each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Always `overlane.compare/1`.
    pub schema: &'static str,
    /// Probability of no false alarm in the whole comparison, 0..1.
    pub level: f64,
    /// Whether both files are of the same machine and kernel.
    pub same_machine: bool,
    /// What differs between the machines, and between the plans where it bears on
    /// the figures.
    pub differences: Vec<String>,
    /// One entry a figure of a cell, in the order of the first file.
    pub figures: Vec<Compared>,
    /// Cells of one file only, in words.
    pub only_in_a: Vec<String>,
    /// Likewise.
    pub only_in_b: Vec<String>,
    /// Largest regression allowed, as a share; null where none was named.
    pub fail_on: Option<f64>,
    /// Whether a proven regression exceeds it.
    pub failed: bool,
}

/// A figure of a cell in both files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Mode.
    pub mode: String,
    /// Baseline, A/A or measured.
    pub role: Role,
    /// Offload profile.
    pub offload: String,
    /// Everything else that the cell is, in words.
    pub work: String,
    /// The figure.
    pub figure: Figure,
    /// What was compared.
    pub basis: Basis,
    /// Median in the first file: a ratio to the baseline, or absolute in the
    /// cell's unit (CPU: that of its service demand, latency: µs).
    pub a: Option<f64>,
    /// Median in the second file.
    pub b: Option<f64>,
    /// Valid samples in the first file.
    pub samples_a: usize,
    /// Valid samples in the second file.
    pub samples_b: usize,
    /// B ÷ A with its bootstrap interval.
    pub ratio: Option<Interval>,
    /// Mann-Whitney, two-sided, for this figure alone.
    pub p_value: Option<f64>,
    /// The same after the correction for all comparisons.
    pub p_corrected: Option<f64>,
    /// Whether more of the figure is better.
    pub higher_is_better: bool,
    /// What is known.
    pub verdict: Verdict,
    /// Why there is not enough data, where there is not.
    pub reason: Option<String>,
}

/// A figure of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// The cell's value: throughput or rate; latency for cells at a load.
    Value,
    /// CPU time per unit of work.
    ServiceDemand,
    /// 99th percentile of latency.
    LatencyP99,
}

/// What was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Ratios to the baseline of the same block.
    RatioToBaseline,
    /// The values themselves.
    Absolute,
}

/// What is known of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Changed for certain, for the better.
    Better,
    /// Changed for certain, for the worse.
    Worse,
    /// No change is proven; the interval says how large one may still be.
    NoProvenChange,
    /// Too little to prove anything, whatever it says.
    NotEnoughData,
}

impl Compared {
    /// How much worse the second file is, as a share (0.05: by 5%); negative
    /// where it is better. Of the median, not of the interval's end.
    pub fn regression(&self) -> Option<f64> {
        let ratio = self.ratio?.median;
        Some(if self.higher_is_better { 1.0 - ratio } else { ratio - 1.0 })
    }
}

/// Why two files cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// Ratios to different modes.
    #[error("/plan/baseline: expected the same in both files, got \"{a}\" and \"{b}\"")]
    OtherBaseline {
        /// Of the first file.
        a: String,
        /// Of the second file.
        b: String,
    },
    /// Nothing in common.
    #[error(
        "/cells: expected cells of the same mode, offload, workload and size in both files, got none"
    )]
    NothingInCommon,
}

/// Compares `b` with `a`, cell by cell; `fail_on` is the largest regression
/// allowed, as a share.
///
/// # Errors
/// [`CompareError`] where no cell of one can be set against a cell of the other.
pub fn compare(a: &Results, b: &Results, fail_on: Option<f64>) -> Result<Comparison, CompareError> {
    if a.plan.baseline != b.plan.baseline {
        let (a, b) = (a.plan.baseline.clone(), b.plan.baseline.clone());
        return Err(CompareError::OtherBaseline { a, b });
    }
    let machines = machine_differences(a, b);
    let same_machine = machines.is_empty();
    let level = a.plan.confidence.level.max(b.plan.confidence.level);
    let mut figures = Vec::new();
    let mut only_in_a = Vec::new();
    let is_same = |x: &Cell, y: &Cell| {
        (&x.mode, x.role, &x.offload) == (&y.mode, y.role, &y.offload)
            && Work::of(x) == Work::of(y)
            && x.unit == y.unit
    };
    let mut common = false;
    for cell in &a.cells {
        let Some(other) = b.cells.iter().find(|other| is_same(cell, other)) else {
            only_in_a.push(words(cell));
            continue;
        };
        common = true;
        // What neither machine can build is no figure of either.
        let unsupported = |cell: &Cell| cell.status == Status::Unsupported;
        if unsupported(cell) && unsupported(other) {
            continue;
        }
        if cell.role == Role::Baseline && !same_machine {
            continue;
        }
        for figure in [Figure::Value, Figure::ServiceDemand, Figure::LatencyP99] {
            figures.extend(compared(a, cell, b, other, figure, level));
        }
    }
    if !common {
        return Err(CompareError::NothingInCommon);
    }
    let missing = b.cells.iter().filter(|cell| !a.cells.iter().any(|other| is_same(cell, other)));
    let only_in_b = missing.map(words).collect();
    judge(&mut figures, 1.0 - level);
    let failed = fail_on.is_some_and(|limit| {
        let exceeds = |figure: &Compared| figure.regression().is_some_and(|share| share > limit);
        figures.iter().any(|figure| figure.verdict == Verdict::Worse && exceeds(figure))
    });
    let differences = [machines, plan_differences(a, b)].concat();
    Ok(Comparison {
        schema: "overlane.compare/1",
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
    format!("{name}, offload {}: {}", crate::style::plain(&cell.offload), Work::of(cell).title())
}

/// One figure of one cell; `None` where neither file has it.
fn compared(
    a: &Results,
    in_a: &Cell,
    b: &Results,
    in_b: &Cell,
    figure: Figure,
    level: f64,
) -> Option<Compared> {
    // In a cell at a load, the value is a latency already; p99 is another.
    let basis = match in_a.role {
        Role::Baseline => Basis::Absolute,
        Role::Aa | Role::Measured => Basis::RatioToBaseline,
    };
    let (values_a, values_b) = (values(a, in_a, figure, basis), values(b, in_b, figure, basis));
    let failed = in_a.status != Status::Ok || in_b.status != Status::Ok;
    if values_a.is_empty() && values_b.is_empty() && !(failed && figure == Figure::Value) {
        return None;
    }
    let ratio = ratio_of_medians(&values_a, &values_b, level).ok();
    let p_value = mann_whitney(&values_a, &values_b).ok().map(|test| test.p_value);
    let judged = basis == Basis::RatioToBaseline && ratio.is_some() && p_value.is_some();
    let reason = match basis {
        Basis::Absolute => Some(
            "one run each: the machine's condition differs from run to run, and the baseline has \
             nothing to be compared with"
                .to_string(),
        ),
        Basis::RatioToBaseline if failed => Some("failed in one of the files".to_string()),
        Basis::RatioToBaseline if !judged => Some(format!(
            "{} and {} valid samples with a baseline, at least 2 in each are needed",
            values_a.len(),
            values_b.len()
        )),
        Basis::RatioToBaseline => None,
    };
    Some(Compared {
        mode: in_a.mode.clone(),
        role: in_a.role,
        offload: in_a.offload.clone(),
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
        higher_is_better: figure == Figure::Value && in_a.unit != "us",
        verdict: Verdict::NotEnoughData,
        reason,
    })
}

/// A cell's valid figures, one a sample; none that is not a finite number above 0.
fn values(results: &Results, cell: &Cell, figure: Figure, basis: Basis) -> Vec<f64> {
    let absolute = |sample: &Sample| match figure {
        Figure::Value => Some(sample.value),
        Figure::ServiceDemand => sample.service_demand,
        Figure::LatencyP99 => sample.latency_us.map(|latency| latency.p99),
    };
    let baseline = results.cells.iter().find(|other| {
        other.role == Role::Baseline
            && other.offload == cell.offload
            && Work::of(other) == Work::of(cell)
    });
    let to_baseline = |sample: &Sample| match figure {
        Figure::Value => sample.ratio,
        Figure::ServiceDemand => sample.service_demand_ratio,
        Figure::LatencyP99 => {
            let mut same = baseline?.samples.iter().filter(|s| s.valid && s.block == sample.block);
            Some(absolute(sample)? / absolute(same.next()?)?)
        }
    };
    let valid = cell.samples.iter().filter(|sample| sample.valid);
    let figures: Vec<f64> = match basis {
        Basis::Absolute => valid.filter_map(absolute).collect(),
        Basis::RatioToBaseline => valid.filter_map(to_baseline).collect(),
    };
    figures.into_iter().filter(|figure| figure.is_finite() && *figure > 0.0).collect()
}

/// Verdicts, for all comparisons together: Tarone's count, then Holm's steps.
fn judge(figures: &mut [Compared], error: f64) {
    let smallest = |figure: &Compared| smallest_p_value(figure.samples_a, figure.samples_b);
    let mut judged: Vec<usize> =
        (0..figures.len()).filter(|i| figures[*i].reason.is_none()).collect();
    // Decided by the counts of samples alone, never by what they say.
    judged.sort_by(|x, y| smallest(&figures[*x]).total_cmp(&smallest(&figures[*y])));
    let within = |k: usize| judged.partition_point(|i| smallest(&figures[*i]) * k as f64 <= error);
    let provable = (1..=judged.len()).find(|k| within(*k) <= *k).map_or(0, within);
    let all = judged.len();
    for i in judged.split_off(provable) {
        let figure = &mut figures[i];
        figure.reason = Some(format!(
            "{} and {} samples could not prove any change among {all} comparisons",
            figure.samples_a, figure.samples_b
        ));
    }
    let p_value = |figures: &[Compared], i: usize| figures[i].p_value.unwrap_or(1.0);
    judged.sort_by(|x, y| p_value(figures, *x).total_cmp(&p_value(figures, *y)));
    let mut corrected = 0.0_f64;
    for (step, i) in judged.iter().enumerate() {
        corrected = corrected.max(p_value(figures, *i) * (provable - step) as f64).min(1.0);
        let figure = &mut figures[*i];
        figure.p_corrected = Some(corrected);
        figure.verdict = match figure.ratio {
            Some(ratio) if corrected <= error && (ratio.low > 1.0 || ratio.high < 1.0) => {
                let rose = ratio.low > 1.0;
                if rose == figure.higher_is_better { Verdict::Better } else { Verdict::Worse }
            }
            _ => Verdict::NoProvenChange,
        };
    }
}

fn differing(what: &str, a: &dyn std::fmt::Display, b: &dyn std::fmt::Display) -> Option<String> {
    let (a, b) = (a.to_string(), b.to_string());
    (a != b).then(|| crate::style::plain(&format!("{what}: {a} and {b}")))
}

/// What makes two machines two: hardware, kernel, and how CPU time is counted.
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
        (None, None) => {}
        (a, b) => {
            let machines = |peer: bool| if peer { "two machines" } else { "one machine" };
            found.extend(differing("measured on", &machines(a.is_some()), &machines(b.is_some())));
        }
    }
    found
}

/// Differences of the plans that bear on the figures.
fn plan_differences(a: &Results, b: &Results) -> Vec<String> {
    let (p, q) = (&a.plan, &b.plan);
    let cpus = |plan: &measure::results::Plan| {
        format!("{:?} to {:?}", plan.placement.client_cpus, plan.placement.server_cpus)
    };
    [
        differing("placement", &cpus(p), &cpus(q)),
        differing("steering", &p.steering, &q.steering),
        differing("seconds a sample", &p.duration_s, &q.duration_s),
        differing("privileges", &a.machine.privileges, &b.machine.privileges),
    ]
    .into_iter()
    .flatten()
    .collect()
}
