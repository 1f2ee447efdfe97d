//! Files with more cells and samples than any real run, as anyone could make them.

use crate::example;

use report::{Style, compare, compare_text, csv, html, markdown, text};
use results::*;

const PLAIN: Style = Style { colour: false, width: 80 };

/// The maximum number of cells, each with its own mode, setting or size, or all of one.
fn many(alike: bool) -> Results {
    let mut results = example::results();
    let template = results.cells.iter().find(|cell| cell.role == Role::Measured).unwrap();
    let mut template = template.clone();
    template.samples.truncate(2);
    template.message_bytes = 64;
    let baseline = Cell { role: Role::Baseline, mode: "host".to_owned(), ..template.clone() };
    results.cells = (1..MOST_CELLS as u32)
        .map(|i| Cell {
            mode: format!("mode-{i}"),
            setting: Some(format!("sysctl:a={i}")),
            message_bytes: if alike { 64 } else { i },
            ..template.clone()
        })
        .chain([baseline])
        .collect();
    results.plan.confidence.half_width = Some(0.05);
    results.plan.confidence.interim_analyses = vec![4];
    results.plan.max_blocks = 10_000;
    results
}

/// Linear steps take seconds; a step that visits each other cell per cell would take minutes. The
/// test asserts only that it ends.
#[test]
fn the_most_cells_are_reported_and_compared() {
    for alike in [false, true] {
        let results = many(alike);
        results.check().unwrap();
        assert!(text(&results, PLAIN).lines().count() > MOST_CELLS);
        assert!(markdown(&results).lines().count() > MOST_CELLS);
        assert_eq!(csv(&results).lines().count(), 1 + MOST_CELLS + results.modes.len() - 1);
        assert!(html(&results).len() > MOST_CELLS);
        let comparison = compare(&results, &results, None).unwrap();
        assert!(comparison.only_in_a.is_empty() && comparison.only_in_b.is_empty());
        assert!(compare_text(&comparison, PLAIN).lines().count() > MOST_CELLS);
    }
}

/// 20,000 samples in a cell once took over a minute, for pairs of samples and of blocks.
#[test]
fn many_samples_of_a_cell_are_compared() {
    let mut results = example::results();
    for cell in &mut results.cells {
        let template = cell.samples[0].clone();
        let sample = |block: u32| Sample {
            block,
            ratio: Some(1.0 + f64::from(block % 997) / 1e5),
            histogram: Vec::new(),
            hops: Vec::new(),
            ..template.clone()
        };
        cell.samples = (0..20_000).map(sample).collect();
    }
    assert!(results.cells.iter().any(|cell| cell.latency_us.is_some()));
    let comparison = compare(&results, &results, None).unwrap();
    assert!(comparison.figures.iter().any(|figure| figure.samples_a == 20_000));
    assert!(!comparison.failed);
}
