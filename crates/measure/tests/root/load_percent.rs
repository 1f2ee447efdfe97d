//! Loads in percent of a path's own maximum, in a run between two private hosts, as root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use load::Workload;
use load::ask::{Ask, Task};
use measure::observer::{CellRef, Observer};
use measure::plan::{Plan, PlannedCell};
use measure::run::Ended;
use measure::sampler::Machine;
use pair::Pair;
use planned::{subject, subject_at};
use results::{Offered, Role, Status};
use test_support::{need, require};

use crate::pair;
use crate::planned;

/// Counts calibrations; can stop the run at the first one.
struct Calibrations<'a> {
    seen: usize,
    stop: Option<&'a AtomicBool>,
}

impl Observer for Calibrations<'_> {
    fn calibrating(&mut self, _: CellRef<'_>) {
        self.seen += 1;
        if let Some(stop) = self.stop {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// The baseline and its A/A cell at each load.
fn plan(workload: Workload, loads: &[f64]) -> Plan {
    let mut cells = Vec::new();
    for &percent in loads {
        let baseline = cells.len();
        for role in [Role::Baseline, Role::Aa] {
            let ask = Ask { load_percent: Some(percent), ..Ask::new(Task::Steady(workload)) };
            cells.push(PlannedCell { subject: 0, role, ask, setting: None, baseline });
        }
    }
    planned::plan(cells, 3, Duration::from_millis(60))
}

#[test]
fn a_load_is_a_share_of_the_paths_own_maximum() {
    require!(need::networks());
    let pair = Pair::new();
    let machine = Machine::open(false).unwrap();
    for workload in [Workload::TcpRr, Workload::UdpRr] {
        let stop = AtomicBool::new(false);
        let mut observer = Calibrations { seen: 0, stop: None };
        let plan = plan(workload, &[0.0, 5.0, 20.0]);
        let subjects = [subject(&pair)];
        let outcome = measure::run::run(&plan, &subjects, &machine, &mut observer, &stop).unwrap();
        assert_eq!(observer.seen, 1, "one maximum for all of them");
        let offered: Vec<Offered> = outcome.cells.iter().map(|c| c.offered.unwrap()).collect();
        let percents: Vec<f64> = offered.iter().filter_map(|o| o.percent).collect();
        assert_eq!(percents, [0.0, 0.0, 5.0, 5.0, 20.0, 20.0]);
        assert_eq!((offered[0].per_s, offered[1].per_s), (0.0, 0.0));
        assert!(offered[2].per_s > 0.0 && offered[2] == offered[3]);
        assert!((offered[4].per_s / offered[2].per_s - 4.0).abs() < 1e-9);
        for (cell, offered) in outcome.cells.iter().zip(&offered) {
            assert_eq!(cell.unit.name(), "us");
            for sample in cell.samples.iter().filter(|sample| sample.valid) {
                assert_eq!(sample.value, sample.latency_us.unwrap().p50);
                assert_eq!(
                    sample.pace.map(|pace| pace.intended_per_s),
                    match offered.per_s {
                        0.0 => None,
                        per_s => Some(per_s),
                    }
                );
                assert!(!sample.histogram.is_empty());
            }
            // Above it, a busy machine may not keep a schedule.
            if offered.per_s == 0.0 {
                assert_eq!(cell.status, Status::Ok, "{:?}", cell.reason);
                assert_eq!(cell.ratio.is_some(), cell.role == Role::Aa);
            }
        }
    }
}

#[test]
fn a_run_stopped_while_calibrating_says_so() {
    require!(need::networks());
    let pair = Pair::new();
    let machine = Machine::open(false).unwrap();
    let stop = AtomicBool::new(false);
    let mut observer = Calibrations { seen: 0, stop: Some(&stop) };
    let plan = plan(Workload::TcpRr, &[50.0]);
    let subjects = [subject(&pair)];
    let outcome = measure::run::run(&plan, &subjects, &machine, &mut observer, &stop).unwrap();
    assert_eq!((outcome.ended, outcome.blocks_done), (Ended::Interrupted, 0));
    for cell in &outcome.cells {
        assert_eq!(cell.offered, Some(Offered { percent: Some(50.0), per_s: 0.0 }));
        assert_eq!(cell.status, Status::Failed);
    }
}

/// Without a server, the cell fails with the reason, and the run continues.
#[test]
fn a_path_without_a_maximum_fails_alone() {
    require!(need::networks());
    let pair = Pair::new();
    let machine = Machine::open(false).unwrap();
    let stop = AtomicBool::new(false);
    let mut observer = Calibrations { seen: 0, stop: None };
    let plan = Plan { setup_limit: Duration::from_millis(300), ..plan(Workload::UdpRr, &[50.0]) };
    let subjects = [subject_at(&pair, "198.51.100.1:7000".parse().unwrap())];
    let outcome = measure::run::run(&plan, &subjects, &machine, &mut observer, &stop).unwrap();
    assert_eq!(outcome.ended, Ended::Blocks);
    for cell in &outcome.cells {
        let reason = cell.reason.clone().unwrap();
        assert!(reason.contains("the maximum is unknown"), "{reason}");
        assert!(reason.contains("198.51.100.1:7000 is unreachable"), "{reason}");
    }
}
