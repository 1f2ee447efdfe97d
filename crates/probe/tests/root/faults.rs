//! Each published kind of corruption, made by a network card of our own: verdict, direction and
//! setting.

use probe::judge::Verdict;
use probe::report::{Direction, Search};
use probe::run::{Extent, Options};
use settings::journal::Journal;
use test_support::{need, require};

use crate::bed::{Bed, Fault, Mangled};
use crate::cases::{CASES, summary};

fn quick() -> Options {
    Options { extent: Extent::Quick, rate: 20_000_000, ..Options::default() }
}

#[test]
fn each_fault_has_its_verdict_direction_and_setting() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    for case in CASES {
        let journal = tempfile::tempdir().unwrap();
        bed.mangle(case.mangled());
        // With a rare fault, single steps of a search say nothing.
        let searched = (case.fault != Fault::Rare).then_some(journal.path());
        let report = bed.probe(&case.options(), searched);
        case.check(&report).unwrap_or_else(|wrong| panic!("{wrong}"));
        // Every setting that was switched has been restored.
        let entries = Journal::open(journal.path()).unwrap().entries().unwrap();
        assert!(entries.is_empty(), "{}: {entries:?}", case.name);
    }
}

#[test]
fn a_healthy_path_over_ipv6_carries_tunnels_and_shows_the_use_of_offloads() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(true);
    let report = bed.probe(&quick(), None);
    assert!(!report.has_findings(), "{}", summary(&report));
    let in_tunnel = report.classes.iter().filter(|one| {
        one.way == Direction::Out && one.class.segment > 0 && one.name.contains("VXLAN/IPv6")
    });
    let verdicts: Vec<&Verdict> = in_tunnel.map(|one| &one.verdict).collect();
    assert_eq!(verdicts, [&Verdict::Intact; 4]);
    // The device of the bed takes GSO packets whole.
    for used in &report.in_use {
        assert!(used.handed_whole, "{used:?}");
    }
}

#[test]
fn a_fault_at_the_peer_is_not_searched_here() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    bed.mangle(Mangled { fault: Fault::Tso4, out: false, back: true });
    let journal = tempfile::tempdir().unwrap();
    let report = bed.probe(&quick(), Some(journal.path()));
    let [bad] = &report.bad[..] else { panic!("{}", summary(&report)) };
    assert!(!matches!(bad.search, Search::Guilty { .. }), "{}", summary(&report));
}
