//! The page and its charts as text: complete, escaped, and never a panic.

use crate::example;

use proptest::prelude::*;
use report::{html, svg};
use results::*;

/// Every plan that has published figures.
const PLANS: [&str; 7] = [
    "qperf-sweep",
    "netperf-offload",
    "cni-sweep",
    "docker-modes",
    "udp-tuning",
    "tap-bridge",
    "accel",
];

#[test]
fn page_loads_nothing_and_runs_nothing() {
    for results in [example::results(), example::deep()] {
        let page = html(&results);
        for forbidden in ["<script", "javascript:", "src=", "@import", "url(", "style=\"", " on"] {
            if forbidden == " on" {
                assert!(!page.contains(" onload=") && !page.contains(" onclick="));
            } else {
                assert!(!page.contains(forbidden), "{forbidden}");
            }
        }
        let links =
            page.matches("http").count() - page.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(links, page.matches("http-equiv").count() + page.matches("HTTP").count());
        assert!(page.contains("default-src 'none'"));
    }
}

#[test]
fn page_shows_everything_in_order() {
    let results = example::deep();
    let page = html(&results);
    let heads = [
        "In short",
        "Ratio to the baseline",
        "Message sizes",
        "Latency percentiles",
        "CPU time by kind",
        "Time line",
        "NDR and PDR",
        "Response time against transactions",
        "Latency under load",
        "Engines side by side",
        "Paths, hop by hop",
        "Comparison with published figures",
        "Faults",
        "Every sample",
        "Machine and plan",
    ];
    let mut at = 0;
    for head in heads {
        let found = page[at..].find(&format!("<h2>{head}</h2>"));
        at += found.unwrap_or_else(|| panic!("no {head} after the one before"));
    }
    let samples: usize = results.cells.iter().map(|cell| cell.samples.len()).sum();
    assert_eq!(page.matches("<summary>block ").count(), samples, "a fold for every sample");
    for shown in ["netdev_budget=1000", "ovs-vxlan", "iperf 3.12", "another machine", "Server"] {
        assert!(page.contains(shown), "{shown}");
    }
}

#[test]
fn plans_with_published_figures_show_them_with_their_source() {
    for (plan, source) in PLANS.into_iter().zip([
        "Xeon E5-2430",
        "Emulex OneConnect",
        "2018",
        "two OS releases",
        "Cisco UCS C220M3",
        "freebsd-net, 2009",
        "NSDI 2025",
    ]) {
        for name in [plan.to_string(), format!("/home/someone/{plan}.toml")] {
            let mut results = example::deep();
            results.plan.name = Some(name);
            let page = html(&results);
            assert!(page.contains("another machine") && page.contains(source), "{plan}");
            assert!(page.contains("published"), "{plan}");
        }
    }
    let mut results = example::deep();
    results.plan.name = None;
    assert!(!html(&results).contains("another machine"));
}

#[test]
fn charts_are_files_with_names_of_their_own() {
    let files = svg(&example::deep());
    assert!(files.len() > 30, "{}", files.len());
    let mut names: Vec<String> = files.iter().map(|file| file.file_name()).collect();
    for (file, name) in files.iter().zip(&names) {
        assert!(name.ends_with(".svg") && name.len() < 120, "{name}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)), "{name}");
        assert!(file.svg.starts_with("<svg xmlns=") && file.svg.contains("<title>"), "{name}");
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), files.len());
}

/// Whether every `<` starts an element of this crate, and every element is closed.
#[track_caller]
fn is_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').expect("an element that ends") + at;
        let element = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = element.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{svg}");
        } else if !element.ends_with('/') {
            let name = element.split(' ').next().unwrap();
            let known = ["svg", "title", "style", "text", "rect", "path"];
            assert!(known.contains(&name), "{name}");
            open.push(name.to_string());
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn nothing_in_a_file_becomes_markup() {
    let mut results = example::deep();
    let evil = "\"'><script>alert(1)</script>&<!--]]>\x1b\u{0}".to_string();
    results.machine.cpu_model = evil.clone();
    results.plan.baseline = evil.clone();
    results.plan.name = Some(evil.clone());
    results.started = evil.clone();
    results.overlane = evil.clone();
    results.warnings.push(evil.clone());
    for fault in &mut results.faults {
        fault.mode.push_str(&evil);
        fault.fault.push_str(&evil);
        fault.title = evil.clone();
        for trial in &mut fault.trials {
            trial.reason = trial.reason.as_ref().map(|_| evil.clone());
        }
    }
    for mode in &mut results.modes {
        mode.path = evil.clone();
        mode.notes.push(evil.clone());
    }
    for cell in &mut results.cells {
        cell.mode.push_str(&evil);
        cell.setting = cell.setting.as_ref().map(|setting| format!("{setting}{evil}"));
        for hop in &mut cell.hops {
            hop.device = evil.clone();
        }
        for sample in &mut cell.samples {
            sample.invalid_reason = Some(evil.clone());
        }
    }
    for entry in &mut results.timeline.as_mut().unwrap().interrupts {
        entry.name.push_str(&evil);
    }
    let page = html(&results);
    assert!(!page.contains("<script") && !page.contains("<!--"));
    assert!(page.contains("&lt;script&gt;"));
    assert!(!page.contains(['\x1b', '\0']));
    svg(&results).iter().for_each(|file| is_well_formed(&file.svg));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    /// Any figure that a file may contain is drawn or left out, without a panic.
    #[test]
    fn arbitrary_figures_are_drawn(
        figures in prop::collection::vec(prop::num::f64::POSITIVE | prop::num::f64::ZERO, 8),
        word in "\\PC{0,40}",
    ) {
        let mut results = example::deep();
        for (i, cell) in results.cells.iter_mut().enumerate() {
            let figure = |k: usize| figures[(i + k) % figures.len()];
            cell.median = Some(figure(0));
            cell.ratio = Some(Interval {
                median: figure(1), low: figure(2), high: figure(3), confidence: 0.95, samples: 8,
            });
            cell.message_bytes = figure(5) as u32;
            cell.flows = figure(4) as u32;
            for sample in &mut cell.samples {
                sample.value = figure(6);
                sample.seconds = figure(7);
                sample.cpu.system = figure(1);
            }
            for hop in &mut cell.hops {
                hop.mean_skb_bytes = figure(7);
                hop.drops = u64::MAX;
            }
            for bin in &mut cell.histogram {
                bin.us = figure(2);
                bin.count = figure(3) as u64;
            }
            for goal in cell.drop_point.iter_mut().flat_map(|point| &mut point.goals) {
                goal.per_s = figure(1);
            }
            cell.offered = cell.offered.map(|_| Offered { percent: None, per_s: figure(i) });
            if i % 3 == 0 {
                cell.mode = word.clone();
            }
        }
        for cost in
            results.faults.iter_mut().flat_map(|fault| &mut fault.trials).filter_map(|t| t.cost.as_mut())
        {
            *cost = FaultCost { sent: u64::MAX, twice: u64::MAX, outage_s: figures[3], ..*cost };
        }
        let timeline = results.timeline.as_mut().unwrap();
        timeline.step_s = figures[0];
        timeline.cpus[0].user[0] = figures[1];
        timeline.cpus[1].steal.clear();
        timeline.marks[0].cell = usize::MAX;
        let page = html(&results);
        if let Some(at) = page.find("NaN").filter(|_| !word.contains("NaN")) {
            let near: String = page[..at].chars().rev().take(200).collect();
            panic!("{}NaN", near.chars().rev().collect::<String>());
        }
        svg(&results).iter().for_each(|file| is_well_formed(&file.svg));
    }
}
