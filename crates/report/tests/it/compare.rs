//! Comparisons of made-up runs: how often changes are found with and without a real change.

use crate::example;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use report::{
    Basis, CompareError, Judgement, Other, Style, compare, compare_many_csv, compare_many_markdown,
    compare_many_text, compare_text,
};
use results::*;

/// Noise of a busy virtual machine.
struct Machine(Pcg64);

impl Machine {
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() as f64 + 0.5) / u64::MAX as f64
    }

    /// Normal, mean 0, standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// A run of `cells` modes and `blocks` blocks. The machine's speed drifts by 4% from block to block
/// and starts within a factor of two. Every sample adds 3% of noise, skewed to the slow side like
/// preemption. The `slower`-th mode costs `cost` more.
fn run(machine: &mut Machine, cells: usize, blocks: u32, slower: usize, cost: f64) -> Results {
    let full = example::results();
    let template =
        full.cells.iter().find(|c| c.workload.name() == "udp_stream" && c.role == Role::Aa);
    let template = Cell { latency_us: None, ..template.unwrap().clone() };
    let sample = Sample {
        latency_us: None,
        service_demand: None,
        service_demand_reason: None,
        flow_shares: None,
        tcp: None,
        arrivals: None,
        beside_rates: None,
        service_demand_ratio: None,
        ..template.samples[0].clone()
    };
    let mut speed = 1.0 + machine.uniform();
    let mut made: Vec<Cell> = (0..=cells)
        .map(|i| Cell {
            mode: if i == 0 { "host".to_string() } else { format!("mode-{i}") },
            role: if i == 0 { Role::Baseline } else { Role::Measured },
            samples: Vec::new(),
            ..template.clone()
        })
        .collect();
    for block in 0..blocks {
        speed *= 1.0 + 0.04 * machine.normal();
        let mut values: Vec<f64> = (0..=cells)
            .map(|_| 2e5 * speed * (1.0 + 0.02 * machine.normal() + 0.015 * machine.uniform().ln()))
            .collect();
        values[slower] /= 1.0 + cost;
        for (cell, value) in made.iter_mut().zip(&values) {
            let ratio = Some(value / values[0]);
            cell.samples.push(Sample {
                block,
                value: *value,
                ratio,
                valid: true,
                ..sample.clone()
            });
        }
    }
    Results { cells: made, ..full }
}

fn verdicts(a: &Results, b: &Results) -> Vec<Judgement> {
    let compared = compare(a, b, None).unwrap().figures;
    let ratios = compared.iter().filter(|figure| figure.basis == Basis::RatioToBaseline);
    ratios.map(|figure| figure.verdict).filter(|v| *v != Judgement::NotEnoughData).collect()
}

#[test]
fn drift_between_runs_raises_no_alarm_and_added_cost_is_found() {
    for (cells, blocks) in [(1, 9), (1, 20), (8, 20)] {
        let mut machine = Machine(Pcg64::seed_from_u64(7 + blocks as u64));
        let (mut alarms, mut found, tries) = (0, 0, 300);
        for _ in 0..tries {
            let a = run(&mut machine, cells, blocks, 1, 0.0);
            let same = verdicts(&a, &run(&mut machine, cells, blocks, 1, 0.0));
            alarms += u32::from(same.iter().any(|v| *v != Judgement::NoProvenChange));
            let worse = verdicts(&a, &run(&mut machine, cells, blocks, 1, 0.1));
            found += u32::from(worse.first() == Some(&Judgement::Worse));
        }
        // All ratios of a block share one noisy baseline, so the alarms of a comparison are
        // correlated; 5% of comparisons is 15, with a standard deviation of 4.
        assert!(alarms <= 27, "{cells} cells, {blocks} blocks: {alarms} of {tries} false alarms");
        assert!(found >= tries * 9 / 10, "{cells} cells, {blocks} blocks: {found} of {tries}");
    }
}

#[test]
fn absolute_values_would_have_raised_them() {
    // The same runs without ratios, by Mann-Whitney on values, raise alarms.
    let mut machine = Machine(Pcg64::seed_from_u64(5));
    let alarms = (0..100)
        .filter(|_| {
            let [a, b] = [(); 2].map(|()| run(&mut machine, 1, 20, 1, 0.0));
            let values =
                |r: &Results| r.cells[1].samples.iter().map(|s| s.value).collect::<Vec<_>>();
            results::stats::mann_whitney(&values(&a), &values(&b)).unwrap().p_value < 0.05
        })
        .count();
    assert!(alarms > 50, "{alarms} of 100");
}

#[test]
fn too_few_samples_are_their_own_answer() {
    let mut machine = Machine(Pcg64::seed_from_u64(1));
    let (a, b) = (run(&mut machine, 2, 3, 1, 0.0), run(&mut machine, 2, 3, 1, 5.0));
    let compared = compare(&a, &b, Some(0.05)).unwrap();
    assert!(compared.figures.iter().all(|figure| figure.verdict == Judgement::NotEnoughData));
    assert!(!compared.failed);
    let text = compare_text(&compared, Style { colour: false, width: 80 });
    assert!(text.contains("too few to prove any change"), "{text}");
    // The baseline is shown, never judged.
    let (a, b) = (run(&mut machine, 2, 30, 0, 0.0), run(&mut machine, 2, 30, 0, 5.0));
    let baseline = &compare(&a, &b, None).unwrap().figures[0];
    assert_eq!((baseline.basis, baseline.verdict), (Basis::Absolute, Judgement::NotEnoughData));
    assert!(baseline.ratio.unwrap().median < 0.5);
}

#[test]
fn a_cell_with_few_samples_does_not_silence_the_others() {
    let mut machine = Machine(Pcg64::seed_from_u64(4));
    let mut a = run(&mut machine, 3, 12, 1, 0.0);
    let b = run(&mut machine, 3, 12, 1, 0.3);
    for cell in &mut a.cells[2..] {
        cell.samples.truncate(2);
    }
    let compared = compare(&a, &b, Some(0.05)).unwrap();
    let verdicts: Vec<Judgement> = compared.figures.iter().skip(1).map(|f| f.verdict).collect();
    assert_eq!(verdicts, [Judgement::Worse, Judgement::NotEnoughData, Judgement::NotEnoughData]);
    assert!(compared.failed);
    assert!(!compare(&a, &b, Some(0.5)).unwrap().failed, "a smaller one is allowed");
    assert!(!compare(&b, &a, Some(0.05)).unwrap().failed, "faster is no regression");
}

#[test]
fn no_line_of_a_comparison_is_wider_than_the_terminal() {
    let mut machine = Machine(Pcg64::seed_from_u64(4));
    let mut runs = [0.0, 0.4, 0.0, 0.1, 0.2].map(|cost| run(&mut machine, 2, 20, 1, cost));
    for cell in runs.iter_mut().flat_map(|run| &mut run.cells[1..]) {
        cell.mode = "tapbridge-vhost-user".to_owned();
    }
    let [a, later @ ..] = &runs;
    let others = later.iter().map(|b| compare(a, b, None).unwrap()).enumerate();
    let others: Vec<Other> =
        others.map(|(at, comparison)| Other { name: format!("{at}.json"), comparison }).collect();
    for width in [60, 64, 72, 80, 100] {
        let style = Style { colour: false, width };
        let two = compare_text(&others[0].comparison, style);
        for text in [&two, &compare_many_text("a.json", &others, style)] {
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width} columns:\n{line}\n{text}");
            }
        }
        assert_eq!(two.lines().filter(|line| line.ends_with(" worse")).count(), 2, "{two}");
    }
}

#[test]
fn several_files_have_a_column_each() {
    let mut machine = Machine(Pcg64::seed_from_u64(4));
    let a = run(&mut machine, 2, 20, 1, 0.0);
    let others: Vec<Other> = [("same.json", 0.0), ("slower|.json", 0.4)]
        .into_iter()
        .map(|(name, cost)| {
            let b = run(&mut machine, 2, 20, 1, cost);
            Other { name: name.to_owned(), comparison: compare(&a, &b, None).unwrap() }
        })
        .collect();
    let text = compare_many_text("a.json", &others, Style { colour: false, width: 80 });
    assert!(!text.contains("Not in "), "{text}");
    let mut b = run(&mut machine, 2, 20, 1, 0.0);
    b.cells.last_mut().unwrap().mode = "other".to_owned();
    let lacking = Other { name: "b.json".to_owned(), comparison: compare(&a, &b, None).unwrap() };
    let lacking = compare_many_text("a.json", &[lacking], Style { colour: false, width: 200 });
    assert!(lacking.contains("Not in A: other, "), "{lacking}");
    assert!(lacking.contains("Not in B: "), "{lacking}");
    let head = text.lines().find(|line| line.starts_with("mode")).unwrap();
    assert!(head.contains("B ÷ A") && head.contains("C ÷ A"), "{text}");
    let worse: Vec<&str> = text.lines().filter(|line| line.ends_with(" worse")).collect();
    assert_eq!(worse.len(), 1, "{text}");
    assert!(worse[0].contains("≈ "), "the second file is the same: {text}");
    assert!(text.contains("C: slower|.json"), "{text}");
    let markdown = compare_many_markdown("a.json", &others);
    assert!(markdown.contains("- C: slower\\|.json\n"), "{markdown}");
    assert!(markdown.lines().any(|line| line.ends_with(" worse |")), "{markdown}");
    let csv = compare_many_csv(&others);
    let figures: usize = others.iter().map(|other| other.comparison.figures.len()).sum();
    assert_eq!(csv.lines().count(), 1 + figures);
    assert_eq!(csv.lines().filter(|line| line.ends_with(",worse")).count(), 1, "{csv}");
}

#[test]
fn several_files_are_one_page_with_one_chart() {
    let mut machine = Machine(Pcg64::seed_from_u64(11));
    let a = run(&mut machine, 3, 20, 1, 0.0);
    let others = [("b.json", 0.0), ("<c>.json", 0.3)].map(|(name, cost)| {
        let b = run(&mut machine, 3, 20, 1, cost);
        report::Other { name: name.to_string(), comparison: compare(&a, &b, None).unwrap() }
    });
    let page = report::compare_many_html("a.json", &others);
    assert_eq!(page.matches("<svg").count(), 1);
    assert!(page.contains("Compared with a.json") && page.contains("B: b.json"), "{page}");
    // Names of files are text.
    assert!(page.contains("C: &lt;c&gt;.json") && !page.contains("<c>"), "{page}");
    assert!(page.contains("mode-1") && page.contains("worse"), "{page}");
    // Neither scripts nor external resources.
    assert!(page.contains("default-src 'none'") && !page.contains("<script"));
}

#[test]
fn a_path_that_stopped_carrying_traffic_is_a_regression() {
    let mut machine = Machine(Pcg64::seed_from_u64(3));
    let carries = run(&mut machine, 1, 12, 1, 0.0);
    let nothing_in_every = |nth: u32, mut run: Results| {
        for sample in run.cells[1].samples.iter_mut().filter(|s| s.block.is_multiple_of(nth)) {
            (sample.value, sample.ratio) = (0.0, Some(0.0));
        }
        run
    };
    let nothing = nothing_in_every(1, run(&mut machine, 1, 12, 1, 0.0));
    let figure = |a: &Results, b: &Results, allowed: f64| {
        let compared = compare(a, b, Some(allowed)).unwrap();
        (compared.figures[1].clone(), compared.failed)
    };
    let (lost, failed) = figure(&carries, &nothing, 0.99);
    assert_eq!((lost.verdict, failed, lost.regression()), (Judgement::Worse, true, Some(1.0)));
    assert_eq!((lost.b, lost.samples_b), (Some(0.0), 12));
    let (found, failed) = figure(&nothing, &carries, 0.0);
    assert_eq!((found.verdict, failed, found.ratio), (Judgement::Better, false, None));
    let (still, _) = figure(&nothing, &nothing, 0.0);
    assert_eq!((still.verdict, still.reason), (Judgement::NoProvenChange, None));
    let seldom = nothing_in_every(2, run(&mut machine, 1, 30, 1, 0.0));
    let (seldom, _) = figure(&run(&mut machine, 1, 30, 1, 0.0), &seldom, 0.0);
    assert_eq!(seldom.samples_b, 30);
    assert!(seldom.ratio.unwrap().low == 0.0 && seldom.p_value.unwrap() < 0.05, "{seldom:?}");
    let mut text = compare(&nothing, &carries, None).unwrap();
    text.figures.remove(0);
    assert!(compare_text(&text, Style { colour: false, width: 80 }).contains("better"));
}

#[test]
fn lower_is_better_where_the_unit_is_time() {
    let mut machine = Machine(Pcg64::seed_from_u64(9));
    let [mut a, mut b] = [(0, 0.0), (1, 0.3)].map(|(_, cost)| run(&mut machine, 1, 15, 1, cost));
    for cell in a.cells.iter_mut().chain(&mut b.cells) {
        cell.unit = "us".parse().unwrap();
    }
    // A lower latency is better.
    assert_eq!(compare(&a, &b, Some(0.0)).unwrap().figures[1].verdict, Judgement::Better);
    let back = compare(&b, &a, Some(0.25)).unwrap();
    assert_eq!(back.figures[1].verdict, Judgement::Worse);
    assert!(back.failed && !compare(&b, &a, Some(0.4)).unwrap().failed);
}

#[test]
fn other_machines_compare_by_ratios_only_and_say_so() {
    let mut machine = Machine(Pcg64::seed_from_u64(2));
    let (a, mut b) = (run(&mut machine, 1, 12, 1, 0.0), run(&mut machine, 1, 12, 1, 0.4));
    b.machine.cpus = 64;
    b.machine.kernel = "7.0.0\x1b[2J".to_string();
    let compared = compare(&a, &b, None).unwrap();
    assert!(!compared.same_machine);
    assert!(compared.figures.iter().all(|figure| figure.basis == Basis::RatioToBaseline));
    assert_eq!(compared.figures[0].verdict, Judgement::Worse);
    let text = compare_text(&compared, Style { colour: false, width: 80 });
    assert!(text.contains("different machines") && text.contains("CPUs: 2 and 64"), "{text}");
    assert!(!text.contains('\x1b'));
}

/// The comparison is made, and says why the figures differ.
#[test]
fn results_over_ipv6_compare_with_ipv4_and_a_warning() {
    let v4 = example::results();
    let mut v6 = v4.clone();
    v6.plan.ipv6 = true;
    v6.plan.ecn = true;
    let plain = Style { colour: false, width: 80 };
    for (a, b, families) in [(&v4, &v6, "IPv4 and IPv6"), (&v6, &v4, "IPv6 and IPv4")] {
        let comparison = compare(a, b, None).unwrap();
        assert!(!comparison.figures.is_empty());
        let text = compare_text(&comparison, plain);
        let warning = format!("addresses: {families} (headers of IPv6 are 20 bytes longer)");
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(&warning), "{text}");
        assert!(said.contains("ECN: o"), "{text}");
    }
    let same = compare(&v6, &v6, None).unwrap();
    assert!(!compare_text(&same, plain).contains("addresses"));
}

#[test]
fn cells_match_by_their_whole_identity() {
    let a = example::deep();
    let mut b = example::deep();
    let same = compare(&a, &b, Some(0.0)).unwrap();
    assert!(same.figures.iter().all(|f| f.ratio.is_none_or(|r| r.median == 1.0)), "against itself");
    assert!(same.only_in_a.is_empty() && same.only_in_b.is_empty() && !same.failed);
    b.cells[0].flows = 99;
    let other = compare(&a, &b, None).unwrap();
    assert_eq!((other.only_in_a.len(), other.only_in_b.len()), (1, 1));
    assert!(other.only_in_b[0].contains("99 flows"), "{:?}", other.only_in_b);
    b.cells.retain(|cell| cell.flows == 99);
    assert_eq!(compare(&a, &b, None), Err(CompareError::NothingInCommon));
    b.plan.baseline = "bridge".to_string();
    let error = compare(&a, &b, None).unwrap_err().to_string();
    assert!(error.contains("/plan/baseline") && error.contains("\"bridge\""), "{error}");
}
