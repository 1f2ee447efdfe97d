//! Each published kind of corruption, caused by a simulated network card: verdict, direction and
//! setting.

use std::net::IpAddr;

use probe::class::{Checksum, Class, Extra, Family, Transport};
use probe::end::Access;
use probe::judge::Verdict;
use probe::message::RATE;
use probe::report::{Direction, InnerMtu, Search};
use probe::run::{Extent, Options};
use settings::journal::Journal;
use test_support::{need, require};

use crate::bed::{Bed, Fault, Mangled, hop};
use crate::cases::{CASES, summary};
use crate::translated;

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
        // With a rare fault, single steps of a search prove nothing.
        let searched = (case.fault != Fault::Rare).then_some(journal.path());
        let report = bed.probe(&case.options(), searched);
        case.check(&report).unwrap_or_else(|wrong| panic!("{wrong}"));
        // Every setting that was switched has been restored.
        let entries = Journal::open(journal.path()).unwrap().entries().unwrap();
        assert!(entries.is_empty(), "{}: {entries:?}", case.name);
    }
}

/// Loss by chance, a slow wire, and packets that come twice or in another order are no offload's
/// doing, in either direction.
#[test]
fn faults_of_the_wire_are_not_blamed_on_offloads() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    let slow = Fault::Slow(125_000, 6_000);
    for fault in [Fault::Loss(30), Fault::Twice, Fault::Swapped, slow] {
        bed.mangle(Mangled { fault, out: true, back: true });
        let rate = if fault == slow { RATE } else { quick().rate };
        let report = bed.probe(&Options { rate, ..quick() }, None);
        assert!(report.bad.is_empty(), "{fault:?}: {}", summary(&report));
        assert!(report.mtu.iter().all(|mtu| !mtu.has_black_hole()), "{fault:?}: {:?}", report.mtu);
    }
}

/// The largest packets in a tunnel are measured, and are those that the path's MTU allows.
#[test]
fn the_path_mtu_inside_vxlan_is_measured() {
    require!(need::root(), need::device("vxlan"));
    for (ipv6, headers) in [(false, 50), (true, 70)] {
        let bed = Bed::new(ipv6);
        for (fault, path) in [(Fault::None, 1500), (Fault::BlackHole(1400), 1400)] {
            bed.mangle(Mangled { fault, out: true, back: true });
            for mtu in bed.probe(&quick(), None).mtu {
                let inner = mtu.inner.unwrap();
                assert_eq!((mtu.path, inner.path), (Some(path), path - headers), "{mtu:?}");
                assert!(!inner.black_hole, "{mtu:?}");
            }
        }
    }
}

#[test]
fn larger_tunnel_packets_that_vanish_are_a_black_hole() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    bed.mangle(Mangled { fault: Fault::TunnelHole(1400), out: true, back: false });
    let report = bed.probe(&quick(), None);
    let [out, back] = &report.mtu[..] else { panic!("{:?}", report.mtu) };
    assert_eq!(out.path, Some(1500));
    assert_eq!(out.inner, Some(InnerMtu { path: 1350, black_hole: true }));
    assert_eq!(back.inner, Some(InnerMtu { path: 1450, black_hole: false }));
    assert!(report.has_findings());
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
    // The device of the bed accepts whole GSO packets.
    for used in &report.in_use {
        assert_eq!(used.handed_whole, Some(true), "{used:?}");
    }
}

#[test]
fn a_tunnel_in_a_tunnel_is_tested_as_far_as_this_kernel_can_make_it() {
    require!(need::root(), need::device("vxlan"));
    for ipv6 in [false, true] {
        let bed = Bed::new(ipv6);
        let report = bed.probe(&quick(), None);
        assert!(!report.has_findings(), "{}", summary(&report));
        let nested = report.classes.iter().filter(|one| {
            let own_family = (one.class.family == Family::V4) != ipv6;
            own_family && one.class.tunnel.is_some_and(|tunnel| tunnel.nested)
        });
        let mut made = 0;
        for one in nested {
            let is_vxlan = one.name.contains("VXLAN in VXLAN");
            // Single packets are made here. The server makes no devices, as this kernel no Geneve.
            let by_device = one.class.is_offloaded();
            match &one.verdict {
                Verdict::Intact => made += 1,
                Verdict::Untestable { .. } if by_device && one.way == Direction::Back => {}
                Verdict::Untestable { .. } if by_device && !is_vxlan => {}
                verdict => panic!("{}, {:?}: {verdict:?}", one.name, one.way),
            }
        }
        // Over IPv4: two kinds in both directions, and three classes by devices.
        assert!(ipv6 || made >= 2 * 2 + 3, "{made}");
    }
}

#[test]
fn damage_inside_a_tunnel_in_a_tunnel_is_found() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    bed.mangle(Mangled { fault: Fault::NestedPayload, out: true, back: false });
    let report = bed.probe(&quick(), None);
    assert!(!report.bad.is_empty(), "no finding");
    for bad in &report.bad {
        assert_eq!((bad.way, bad.verdict.as_str()), (Direction::Out, "corrupted"));
        assert!(bad.classes.iter().all(|name| name.contains(" in VXLAN/")), "{:?}", bad.classes);
    }
}

#[test]
fn outer_checksums_that_address_translation_breaks_are_found() {
    require!(need::root(), need::device("vxlan"), need::tool("nft"));
    let bed = translated::Translated::new().unwrap();
    let journal = tempfile::tempdir().unwrap();
    translated::check(&bed.probe(journal.path())).unwrap_or_else(|wrong| panic!("{wrong}"));
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

/// Sockets of an end.
type Opens = fn() -> Access;

const OPEN: Opens = Access::open;
const LIMITED: Opens = || Access::datagrams("asked by the test");

#[test]
fn a_path_narrows_after_the_last_router_that_large_packets_reach() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    for access in [[OPEN; 2], [LIMITED; 2]] {
        bed.mangle(Mangled { fault: Fault::HoleAfter(2, 1400), out: true, back: false });
        let report = bed.probe_with(access, &quick(), None);
        let [out, back] = &report.mtu[..] else { panic!("{}", summary(&report)) };
        let narrows = Some((2, IpAddr::from(hop(2))));
        assert_eq!((out.path, out.black_hole, out.narrows_after), (Some(1400), true, narrows));
        assert_eq!((back.path, back.black_hole), (Some(1500), false));
        // If ICMP arrives, it is not a black hole.
        bed.mangle(Mangled { fault: Fault::Narrow(1400), out: true, back: false });
        let report = bed.probe_with(access, &quick(), None);
        let out = &report.mtu[0];
        assert_eq!((out.path, out.black_hole), (Some(1400), false), "{out:?}");
        assert_eq!(out.reported.map(|(mtu, _)| mtu), Some(1400), "{out:?}");
    }
}

#[test]
fn without_packet_sockets_fewer_classes_are_tested_and_each_other_says_why() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    for access in [[LIMITED; 2], [LIMITED, OPEN], [OPEN, LIMITED]] {
        bed.mangle(Mangled { fault: Fault::None, out: false, back: false });
        let report = bed.probe_with(access, &quick(), None);
        assert!(!report.has_findings(), "{}", summary(&report));
        assert!(report.notes.iter().any(|note| note.contains("asked by the test")));
        let intact = |is: fn(&Class) -> bool| {
            let mut results = report.classes.iter().filter(|one| is(&one.class));
            results.any(|one| one.verdict == Verdict::Intact)
        };
        assert!(intact(|class| class.transport == Transport::Udp && class.segment > 0));
        assert!(intact(|class| class.checksum == Checksum::Zero));
        assert!(intact(|class| class.extra == Extra::Plain && class.payload == 64));
        let bare = report.classes.iter().filter(|one| one.class.tunnel.is_none());
        let tcp = |class: &Class| class.transport == Transport::Tcp && !class.needs_big_tcp();
        for one in bare.filter(|one| tcp(&one.class)) {
            let Verdict::Untestable { reason } = &one.verdict else { panic!("{one:?}") };
            assert!(reason.contains("packet sockets"), "{reason}");
        }
        // Damage with a valid checksum, and damage that the receiver's kernel drops.
        bed.mangle(Mangled { fault: Fault::UsoTail, out: true, back: false });
        let report = bed.probe_with(access, &quick(), None);
        let words: Vec<&str> = report.bad.iter().map(|bad| bad.verdict.as_str()).collect();
        assert_eq!(words, ["corrupted"], "{}", summary(&report));
        bed.mangle(Mangled { fault: Fault::UsoLength, out: true, back: false });
        let report = bed.probe_with(access, &quick(), None);
        let [bad] = &report.bad[..] else { panic!("{}", summary(&report)) };
        assert_eq!(bad.candidates[0].feature, "tx-udp-segmentation", "{}", summary(&report));
    }
}
