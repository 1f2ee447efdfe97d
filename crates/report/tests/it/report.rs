//! Properties of every report, for any results.

use crate::example;

use proptest::prelude::*;
use report::{Style, csv, csv_samples, markdown, summary, text};
use results::*;

const PLAIN: Style = Style { colour: false, width: 80 };

/// A run with many problems: three offload profiles, two MTUs, two sizes, and two blocks.
fn troubled() -> Results {
    let mut results = example::results();
    results.complete = false;
    results.ended_by = "interrupted".parse().unwrap();
    results.plan.blocks_done = 2;
    results.plan.offload.insert(1, "no-tunnel".parse().unwrap());
    results.plan.mtu.push(9000);
    results.plan.sizes = vec![64, 65536];
    for cell in &mut results.cells {
        cell.samples.truncate(2);
        cell.ratio =
            cell.ratio.map(|ratio| Interval { low: 0.0, high: 1e300, samples: 2, ..ratio });
    }
    let mut more: Vec<Cell> = results
        .cells
        .iter()
        .map(|cell| Cell { mtu: 9000, message_bytes: 64, ..cell.clone() })
        .chain(
            results
                .cells
                .iter()
                .map(|cell| Cell { offload: "no-tunnel".parse().unwrap(), ..cell.clone() }),
        )
        .collect();
    results.cells.append(&mut more);
    for cell in results.cells.iter_mut().filter(|cell| cell.mode == "nat-proxy") {
        cell.status = Status::Failed;
        cell.reason = Some(
            "path not proved: docker-proxy on host b moved 0 of 1048576 bytes, the traffic was \
             seen at b:eth0 and tenant-b:eth0 only"
                .to_string(),
        );
        cell.median = None;
        cell.ratio = None;
        cell.service_demand = None;
        cell.latency_us = None;
        cell.loss = None;
        cell.hops.clear();
    }
    results.cells[1].ratio =
        Some(Interval { median: 0.9, low: 0.88, high: 0.93, confidence: 0.95, samples: 2 });
    results
}

fn empty() -> Results {
    let mut results = example::results();
    results.cells.clear();
    results
}

fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, code)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = code.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    plain
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for results in [example::results(), example::deep(), troubled(), empty()] {
        for width in [60, 64, 72, 80, 100, 132, 200] {
            let text = text(&results, Style { colour: false, width });
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width} columns:\n{line}");
                assert_eq!(line, line.trim_end(), "spaces at the end");
            }
        }
    }
}

#[test]
fn a_wider_terminal_gets_longer_bars() {
    let bar = |width| {
        let text = text(&example::results(), Style { colour: false, width });
        text.lines().map(|line| line.matches('█').count()).max().unwrap()
    };
    assert!(bar(72) < bar(80) && bar(80) < bar(100), "{} {} {}", bar(72), bar(80), bar(100));
}

#[test]
fn colour_comes_only_when_asked_for_and_changes_nothing_else() {
    for results in [example::results(), troubled(), empty()] {
        let plain = text(&results, PLAIN);
        assert!(!plain.contains('\x1b'));
        let coloured = text(&results, Style { colour: true, ..PLAIN });
        assert!(coloured.contains("\x1b["));
        let bare = without_colours(&coloured);
        let bare: Vec<&str> = bare.lines().map(str::trim_end).collect();
        assert_eq!(bare, plain.lines().collect::<Vec<_>>());
    }
}

#[test]
fn every_table_has_the_machine_below_it() {
    for results in [example::results(), troubled(), empty()] {
        let below = text(&results, PLAIN).matches("Linux 6.18.0").count();
        let heads = text(&results, PLAIN).lines().filter(|line| line.starts_with('─')).count();
        assert_eq!(below, heads.max(1));
        let markdown = markdown(&results);
        let heads = markdown.matches("| --- |").count();
        assert_eq!(markdown.matches("Linux 6.18.0").count(), heads.max(1));
    }
}

#[test]
fn cells_that_differ_are_never_in_one_table() {
    let results = example::deep();
    let text = text(&results, PLAIN);
    // A table has one row per mode; a second row would be another cell.
    for table in text.split("95% interval  ").skip(1) {
        let rows =
            table.lines().skip(1).take_while(|line| !line.contains("Intel") && !line.contains(','));
        let rows = rows.filter(|line| line.starts_with("  vxlan")).count();
        assert_eq!(rows, 1, "{table}");
    }
    assert_eq!(text.matches("95% interval  ").count(), results.cells.len() / 5);
    for shown in [
        "4 flows",
        "8 outstanding",
        "at 50% load",
        "socket buffer 32 KiB",
        "by iperf3",
        "p99.99",
        "sysctl:net.core.netdev_budget=1000",
        "NDR",
        "PDR 0.5%",
        "late p99",
        "÷ first",
    ] {
        assert!(text.contains(shown), "{shown}");
    }
}

#[test]
fn missing_figures_are_listed_with_a_reason() {
    for report in [text(&troubled(), PLAIN), markdown(&troubled())] {
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(report.contains("vlan: the kernel has no 8021q (remedy: "), "{report}");
        assert!(report.contains("failed: path not proved: docker-proxy on host b"), "{report}");
        assert_eq!(report.matches("path not proved").count(), 1, "once for all its cells");
        assert!(report.contains("nat-proxy in tcp_stream of 64 KiB at MTU 1500"), "{report}");
        assert!(report.contains("and 15 more: failed"), "{report}");
        assert!(
            report.contains("did not finish (interrupted): these figures contain 2 of 8 blocks"),
            "{report}"
        );
        assert!(report.contains("Noise floor: host differs from itself"), "{report}");
        assert!(report.contains("ignore differences below 12%"), "{report}");
    }
    assert!(text(&empty(), PLAIN).starts_with("No cell was measured.\n"));
}

#[test]
fn failed_and_missing_trials_are_reported() {
    let mut results = example::deep();
    results.complete = false;
    results.ended_by = "interrupted".parse().unwrap();
    for report in [text(&results, PLAIN), markdown(&results)] {
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "these figures contain 8 of 8 blocks, and 5 of 12 trials of faults.",
            "vxlan, offload full, MTU 1500, fault mac-moves, 1 of 3 trials: failed: zebra's entry \
             of c was not ready",
            "fault daemon-killed, 1 of 1 trial: failed: ss: No such file",
        ] {
            assert!(report.contains(text), "{text}: {report}");
        }
        assert!(!report.contains("fault link-down,"), "{report}");
    }
}

#[test]
fn nothing_in_a_file_drives_the_terminal() {
    let mut results = Results { faults: example::deep().faults, ..troubled() };
    for fault in &mut results.faults {
        fault.mode.push('\x1b');
        fault.fault.push('\x1b');
        for trial in &mut fault.trials {
            trial.reason = trial.reason.as_ref().map(|reason| format!("{reason}\x1b"));
        }
    }
    let evil = "x\x1b[2J\x07\u{9b}1m\r\ny".to_string();
    results.machine.cpu_model = evil.clone();
    results.machine.kernel = evil.clone();
    results.plan.baseline = evil.clone();
    results.started = evil.clone();
    results.warnings.push(evil.clone());
    results.modes[0].mode = evil.clone();
    results.modes[1].reason = Some(evil.clone());
    results.modes[1].status = Status::Failed;
    for cell in &mut results.cells {
        cell.mode = evil.clone();
        cell.reason = cell.reason.as_ref().map(|_| evil.clone());
        cell.trend = Some(evil.clone());
        for hop in &mut cell.hops {
            hop.device = evil.clone();
        }
    }
    for report in [text(&results, PLAIN), markdown(&results)] {
        assert!(!report.chars().any(|c| c.is_control() && c != '\n'), "{report:?}");
    }
}

/// Fields whose values are names of a list.
const LISTED: [&str; 15] = [
    "status",
    "role",
    "offload",
    "workload",
    "workloads",
    "engine",
    "engines",
    "unit",
    "direction",
    "kind",
    "cpu_clock",
    "privileges",
    "policy",
    "steering",
    "ended_by",
];

/// Replaces every free text of a file by hostile text.
fn evil(value: &mut serde_json::Value, words: &str) {
    match value {
        serde_json::Value::String(text) => *text = words.to_owned(),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|v| evil(v, words)),
        serde_json::Value::Object(fields) => {
            for (name, value) in &mut *fields {
                // Names from lists, which have no other value.
                if !LISTED.contains(&name.as_str()) {
                    evil(value, words);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn nothing_that_changes_a_line_reaches_any_report() {
    const WORDS: &str =
        "=a\x1b[35mb\x07\u{9b}35m\u{7f}\r\n\t|`<b>\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}";
    let faults = Results { faults: example::deep().faults, ..empty() };
    for results in [troubled(), empty(), example::results(), faults] {
        let mut value = serde_json::to_value(&results).unwrap();
        evil(&mut value, WORDS);
        let mut results: Results = serde_json::from_value(value).unwrap();
        for cell in &mut results.cells {
            for sample in &mut cell.samples {
                sample.udp_errors.insert(WORDS.to_owned(), 1);
                sample.tool_figures.insert(WORDS.to_owned(), 1.0);
            }
            if let Some(loss) = &mut cell.loss {
                loss.places.insert(WORDS.to_owned(), 1);
            }
        }
        for device in results.testbeds.iter_mut().flat_map(|one| &mut one.devices) {
            device.features.insert(WORDS.to_owned(), true);
        }
        let colour = text(&results, Style { colour: true, width: 100 });
        assert!(!colour.contains("\x1b[35m"), "{colour:?}");
        let mut all = vec![text(&results, PLAIN), markdown(&results), report::html(&results)];
        all.extend(summary(&results));
        all.extend(report::svg(&results).into_iter().map(|chart| chart.svg));
        let mut other = results.clone();
        other.machine.cpus += 1;
        if let Ok(comparison) = report::compare(&results, &other, None) {
            all.push(report::compare_text(&comparison, PLAIN));
        }
        for report in all {
            let left = report.chars().find(|c| foreign::is_harmful(*c) && *c != '\n');
            assert_eq!(left, None, "{}", around(&report));
        }
        let table = csv(&results);
        for row in parse(&table) {
            for field in row {
                assert!(!field.chars().any(foreign::is_harmful), "{field:?}");
                let formula = field.starts_with(['=', '+', '@']);
                assert!(!formula || field.parse::<f64>().is_ok(), "{field:?}");
            }
        }
        // Each row of a table has as many cells as its head.
        let table = markdown(&results);
        let mut wanted = None;
        for line in table.lines() {
            let cells = line.replace("\\|", "").matches('|').count();
            match (line.starts_with("| "), wanted) {
                (false, _) => wanted = None,
                (true, None) => wanted = Some(cells),
                (true, Some(wanted)) => assert_eq!(cells, wanted, "{line}"),
            }
        }
    }
}

/// The first harmful character and the text around it.
fn around(report: &str) -> String {
    let place = report.char_indices().find(|(_, c)| foreign::is_harmful(*c) && *c != '\n');
    let Some((at, _)) = place else { return String::new() };
    let start = report[..at].char_indices().rev().nth(60).map_or(0, |(i, _)| i);
    report[start..].chars().take(120).collect::<String>().escape_debug().to_string()
}

/// Parses CSV by RFC 4180: rows of fields.
fn parse(csv: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (vec![], vec![], String::new(), false);
    let mut chars = csv.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(!quoted && row.is_empty() && field.is_empty(), "cut short");
    rows
}

#[test]
fn csv_of_samples_has_a_row_per_sample() {
    let results = example::results();
    let rows = parse(&csv_samples(&results));
    let samples: usize = results.cells.iter().map(|cell| cell.samples.len()).sum();
    assert_eq!(rows.len(), 1 + samples);
    let column = |name: &str| rows[0].iter().position(|head| head == name).unwrap();
    let void = rows.iter().filter(|row| row[column("valid")] == "false").count();
    let expected = results.cells.iter().flat_map(|cell| &cell.samples).filter(|s| !s.valid).count();
    assert!(expected > 0);
    assert_eq!(void, expected);
    let (first, cell) = (&rows[1], &results.cells[0]);
    assert_eq!(first[column("mode")], cell.mode);
    assert_eq!(first[column("value")], cell.samples[0].value.to_string());
    assert_eq!(first[column("cpu_idle_s")], cell.samples[0].cpu.idle.to_string());
    assert_eq!(first[column("complete")], results.complete.to_string());
}

#[test]
fn csv_has_a_row_per_cell_and_per_mode_without_one() {
    let mut results = troubled();
    results.cells[0].reason = Some("a \"quoted\", long\r\nreason".to_string());
    let rows = parse(&csv(&results));
    assert_eq!(rows.len(), 1 + results.cells.len() + 2, "header, cells, vlan and ipvlan");
    let column = |name: &str| rows[0].iter().position(|head| head == name).unwrap();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    assert_eq!(rows[1][column("reason")], "a \"quoted\", long\\r\\nreason");
    let cell = &results.cells[2];
    assert_eq!(rows[3][column("median")].parse::<f64>().unwrap(), cell.median.unwrap());
    assert_eq!(rows[3][column("ratio_high")].parse::<f64>().unwrap(), cell.ratio.unwrap().high);
    assert_eq!(rows[3][column("complete")], "false");
    let last = rows.last().unwrap();
    assert_eq!((last[0].as_str(), last[column("status")].as_str()), ("ipvlan", "unsupported"));
}

#[test]
fn marks_of_ecn_have_a_column_and_cleared_codepoints_a_warning() {
    let plain = example::results();
    let mut marked = plain.clone();
    let counts = results::EcnCounts { arrived: 1000, ce: 250, not_ect: Some(10) };
    for cell in &mut marked.cells {
        if cell.mode != "vxlan" || cell.workload.name() != "udp_stream" {
            continue;
        }
        cell.samples.iter_mut().for_each(|sample| sample.ecn = Some(counts));
    }
    let warning = "ECN: datagrams arrived without their codepoint: 1.0% in vxlan";
    let style = Style { colour: false, width: 160 };
    for (report, column) in
        [(report::text(&marked, style), "  CE  "), (report::markdown(&marked), "packets with CE")]
    {
        assert!(report.contains("25%"), "{report}");
        assert!(report.contains(column), "{report}");
        assert!(report.contains(warning), "{report}");
    }
    assert!(report::html(&marked).contains("ECN: 250 of 1000 packets with CE, 10 without"));
    assert!(report::openmetrics(&marked).contains("overlane_result_ecn_ce_ratio{"));
    let rows = parse(&report::csv(&marked));
    let last = rows[0].len() - 3;
    assert_eq!(rows[0][last..], ["ecn_arrived", "ecn_ce", "ecn_not_ect"]);
    let samples = marked.cells.iter().find(|cell| cell.samples.iter().any(|s| s.ecn.is_some()));
    let samples = samples.unwrap().samples.iter().filter(|sample| sample.valid).count();
    let [arrived, ce, cleared] = [1000, 250, 10].map(|count| (count * samples).to_string());
    assert!(rows.iter().any(|row| row[last..] == [arrived.clone(), ce.clone(), cleared.clone()]));
    let rows = parse(&report::csv_samples(&marked));
    assert!(rows.iter().any(|row| row[row.len() - 3..] == ["1000", "250", "10"]));
    for report in [report::text(&plain, style), report::markdown(&plain)] {
        assert!(!report.contains("CE"), "{report}");
    }
}

#[test]
fn markdown_tables_have_as_many_cells_in_every_row() {
    let mut results = troubled();
    results.cells[3].mode = "a|b*c".to_string();
    let markdown = markdown(&results);
    assert!(markdown.contains("a\\|b\\*c"));
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    let lines: Vec<&str> = markdown.lines().collect();
    for table in lines.split(|line| !line.starts_with('|')).filter(|table| !table.is_empty()) {
        assert!(table.len() > 2);
        assert!(table.iter().all(|line| cells(line) == cells(table[0])), "{table:#?}");
    }
}

#[test]
fn summary_is_honest_when_nothing_is_proven() {
    let mut results = example::results();
    results.plan.offload = vec!["full".parse().unwrap()];
    results.cells.retain(|cell| {
        ["host", "macvlan"].contains(&cell.mode.as_str()) && cell.offload.name() == "full"
    });
    for cell in &mut results.cells {
        if let Some(ratio) = &mut cell.ratio {
            *ratio = Interval { median: 0.98, low: 0.9, high: 1.05, ..*ratio };
        }
        cell.hops.clear();
    }
    let [costs, cut, advice] = summary(&results);
    assert!(costs.starts_with("No mode is proven slower than host"), "{costs}");
    assert!(costs.contains("±8.2%"), "{costs}");
    assert!(cut.contains("is unknown"), "{cut}");
    assert!(advice.contains("nothing measured here is proven to help"), "{advice}");
    assert!(advice.contains("--offload full,none"), "{advice}");
    let [costs, ..] = summary(&empty());
    assert_eq!(costs, "Nothing was measured besides host, so no cost is known.");
}

#[test]
fn summary_takes_what_is_lost_for_certain() {
    let mut results = example::results();
    // A lower median, with an interval so wide that it may be no loss.
    let wide = results.cells.iter_mut().find(|cell| cell.mode == "macvlan").unwrap();
    wide.ratio =
        Some(Interval { median: 0.01, low: 0.001, high: 1.2, confidence: 0.95, samples: 8 });
    let [costs, ..] = summary(&results);
    assert!(costs.starts_with("ovs-vxlan costs most: tcp_stream with offload full"), "{costs}");
}

#[test]
fn summary_names_the_hop_where_gso_packets_are_cut() {
    let mut results = example::results();
    results.cells.retain(|cell| {
        cell.mode == "vxlan"
            && cell.workload.name() == "tcp_stream"
            && cell.offload.name() == "full"
    });
    let [_, uncut, _] = summary(&results);
    assert_eq!(uncut, "With offload full GSO packets are uncut in vxlan.");
    let forward = |hop: &&mut HopRecord| hop.direction.name() == "forward";
    for hop in results.cells[0].hops.iter_mut().filter(forward).skip(3) {
        hop.mean_skb_bytes = 1450.0;
    }
    let [_, cut, _] = summary(&results);
    assert_eq!(
        cut,
        "With offload full GSO packets are cut at b:eth0 in vxlan (from 50.0 KiB to 1450 B)."
    );
    // Not far enough above the MTU: a mean of 1.3 MTU does not prove GSO packets.
    for hop in results.cells[0].hops.iter_mut().filter(forward).take(3) {
        hop.mean_skb_bytes = 2000.0;
    }
    assert!(summary(&results)[1].contains("uncut in vxlan"));
    for hop in results.cells[0].hops.iter_mut().filter(forward) {
        hop.mean_skb_bytes = 1448.0;
    }
    let larger = Cell { message_bytes: 131_072, ..results.cells[0].clone() };
    results.cells.push(larger);
    assert!(summary(&results)[1].contains("never built in vxlan"));
}

#[test]
fn advice_rests_on_pairs_of_the_same_block() {
    let mut results = example::results();
    results.plan.offload = vec!["full".parse().unwrap()];
    results.cells.retain(|cell| {
        ["host", "nat", "nat-proxy"].contains(&cell.mode.as_str())
            && (cell.offload.name() == "full" && cell.workload.name() == "tcp_rr")
    });
    let [.., advice] = summary(&results);
    assert!(advice.starts_with("To try: publish ports by NAT instead of docker-proxy"), "{advice}");
    assert!(advice.contains("times as fast"), "{advice}");
    // The same values in other blocks: nothing to compare.
    for cell in results.cells.iter_mut().filter(|cell| cell.mode == "nat") {
        for sample in &mut cell.samples {
            sample.block += 100;
        }
    }
    let [.., advice] = summary(&results);
    assert!(advice.contains("nothing measured here is proven to help"), "{advice}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any figure that a file may contain is shown or left out, without a panic.
    #[test]
    fn arbitrary_figures_are_shown(
        figures in prop::collection::vec(prop::num::f64::POSITIVE | prop::num::f64::ZERO, 8),
        word in "\\PC{0,12}",
        dropped in prop::collection::vec(any::<bool>(), 84),
        width in 0..300_usize,
    ) {
        let mut results = example::results();
        let mut dropped = dropped.into_iter();
        results.cells.retain(|_| dropped.next() != Some(true));
        for (i, cell) in results.cells.iter_mut().enumerate() {
            let figure = |k: usize| figures[(i + k) % figures.len()];
            cell.median = Some(figure(0));
            cell.ratio = Some(Interval {
                median: figure(1), low: figure(2), high: figure(3), confidence: 0.95, samples: 8,
            });
            cell.mtu = figure(4) as u32;
            cell.message_bytes = figure(5) as u32;
            for sample in &mut cell.samples {
                sample.value = figure(6);
            }
            for hop in &mut cell.hops {
                hop.mean_skb_bytes = figure(7);
                hop.drops = u64::MAX;
            }
            if i % 3 == 0 {
                cell.mode = word.clone();
            }
        }
        let _ = text(&results, Style { colour: width % 2 == 0, width });
        let _ = markdown(&results);
        let _ = csv(&results);
    }
}

/// Ratios to another mode equal those of a run with this baseline.
#[test]
fn another_baseline_is_chosen_for_a_report() {
    let run = example::results();
    let based = report::rebased(run.clone(), "vxlan").unwrap();
    assert_eq!(based.plan.baseline, "vxlan");
    let find = |results: &Results, mode: &str, workload: &str, offload: &str| {
        let is = |cell: &&Cell| {
            (cell.mode.as_str(), cell.workload.name(), cell.offload.name())
                == (mode, workload, offload)
        };
        results.cells.iter().find(is).unwrap().clone()
    };
    for workload in ["tcp_stream", "tcp_rr"] {
        let of = |results: &Results, mode: &str| find(results, mode, workload, "full");
        let reference = of(&based, "vxlan");
        assert_eq!((reference.role, reference.ratio), (Role::Baseline, None));
        assert!(reference.samples.iter().all(|sample| sample.ratio.is_none()));
        let host = of(&based, "host");
        assert_eq!(host.role, Role::Measured);
        // The ratios are inverse in each block.
        let vxlan = of(&run, "vxlan");
        for (host, vxlan) in host.samples.iter().zip(&vxlan.samples) {
            let (ratio, inverse) = (host.ratio.unwrap(), 1.0 / vxlan.ratio.unwrap());
            assert!((ratio / inverse - 1.0).abs() < 1e-9, "{ratio} {inverse}");
        }
        let (there, back) = (vxlan.ratio.unwrap(), host.ratio.unwrap());
        assert!((there.median * back.median - 1.0).abs() < 0.02, "{there:?} {back:?}");
        assert!(back.low > 1.0);
    }
    assert!(based.cells.iter().all(|cell| cell.role != Role::Aa));
    assert!(based.warnings.iter().any(|warning| warning.contains("noise floor is unknown")));
    assert!(text(&based, PLAIN).contains("ratio: to vxlan of the same block"));
    // The run's own baseline changes nothing, and a mode without figures is refused.
    assert_eq!(report::rebased(run.clone(), &run.plan.baseline).unwrap(), run);
    let error = report::rebased(run, "nosuch").unwrap_err().to_string();
    assert!(error.contains("\"nosuch\" was not measured; measured: bridge, "), "{error}");
}

/// Growth is a ratio within blocks, and bulk traffic has its rates.
#[test]
fn latency_beside_bulk_traffic_is_compared_with_latency_alone() {
    let run = example::deep();
    let page = report::html(&run);
    for shown in [text(&run, PLAIN), markdown(&run), page.clone()] {
        assert!(shown.contains("latency in µs alone and beside bulk traffic"), "{shown}");
    }
    let all = text(&run, PLAIN);
    let table = all.split("alone and beside bulk traffic").nth(1).unwrap();
    let row = |name: &str| {
        let line = table.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // Alone: the name and four percentiles. The samples of the example are 8 and 31 times slower.
    assert_eq!(row("alone").len(), 5, "{table}");
    let growth = |name: &str| row(name)[5].parse::<f64>().unwrap();
    assert!((growth("tcp_stream") - 8.0).abs() < 0.5, "{table}");
    assert!((growth("both") - 31.0).abs() < 1.0, "{table}");
    // The second part of the table has the rates.
    let rates = table.split("→").nth(2).unwrap();
    assert!(
        rates.lines().any(|line| line.split_whitespace().eq(["both", "6.20", "5.90"])),
        "{table}"
    );
    assert!(page.contains("beside bulk traffic</b>"), "a chart");
    // A run without such cells has neither.
    assert!(!text(&example::results(), PLAIN).contains("bulk traffic"));
}

#[test]
fn flows_and_message_sizes_are_in_one_chart() {
    let joint = |results: &Results| {
        let charts = report::svg(results).into_iter();
        charts.filter(|chart| chart.file_name().contains("sizes-flows")).collect::<Vec<_>>()
    };
    let mut results = example::results();
    let first = results.cells[0].clone();
    let same = |cell: &&Cell| (cell.workload, cell.offload) == (first.workload, first.offload);
    let cells: Vec<Cell> = results.cells.iter().filter(same).cloned().collect();
    results.cells.clear();
    for (flows, bytes) in [(1, 64), (1, 1400), (8, 64)] {
        let sized = cells.iter().cloned().map(|cell| Cell { flows, message_bytes: bytes, ..cell });
        results.cells.extend(sized);
    }
    let charts = joint(&results);
    assert_eq!(charts.len(), 1, "{charts:?}");
    for series in ["host, 1 flow<", "host, 8 flows<"] {
        assert!(charts[0].svg.contains(series), "{}", charts[0].svg);
    }
    // One number of flows has its own charts only.
    results.cells.retain(|cell| cell.flows == 1);
    assert!(joint(&results).is_empty());
}
