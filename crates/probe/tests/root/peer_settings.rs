//! Settings of the serving machine: switched for a client's search if its administrator allows it,
//! and restored in every case.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use probe::answering::{Answerer, Answering, ServerSettings};
use probe::end::Access;
use probe::message::{Answer, Ask, Open, VERSION};
use probe::report::{Direction, End, Search};
use probe::run::{Extent, Options};
use probe::switcher::{MOST_OFF, Outcome, Switcher, serve_for};
use settings::journal::Journal;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use test_support::{need, require};

use crate::bed::{Bed, DEVICE, Fault, Mangled};
use crate::cases::{CASES, Wanted, summary};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));
/// A feature that the bed's device has on.
const FEATURE: &str = "tx-tcp-segmentation";

fn options() -> Options {
    Options { extent: Extent::Quick, rate: 20_000_000, ..Options::default() }
}

/// Starts the process that switches settings, here a thread.
fn process(netns: &NetNs, journal: &Path, most_off: Duration) -> (UnixStream, JoinHandle<Outcome>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (netns, journal) = (netns.try_clone().unwrap(), journal.to_owned());
    let thread = std::thread::spawn(move || {
        netns.enter_for_good().unwrap();
        serve_for(&theirs, &journal, &[DEVICE.to_owned()], Ok(()), most_off)
    });
    (ours, thread)
}

fn switcher(
    netns: &NetNs,
    journal: &Path,
    most_off: Duration,
) -> (Arc<Switcher>, JoinHandle<Outcome>) {
    let (socket, thread) = process(netns, journal, most_off);
    (Arc::new(Switcher::connect(socket, vec![DEVICE.to_owned()]).unwrap()), thread)
}

fn is_on(netns: &NetNs) -> bool {
    let features = netns.run(|| Ethtool::open().unwrap().features(DEVICE).unwrap()).unwrap();
    features[FEATURE].active
}

fn is_empty(journal: &Path) -> bool {
    Journal::open(journal).unwrap().entries().unwrap().is_empty()
}

fn open() -> Ask {
    Ask::Open(Open {
        version: VERSION,
        session: 7,
        own_port: 5211,
        source_base: 25_000,
        vni: 0xe0_0000,
        other: None,
    })
}

fn off(features: &[&str]) -> Ask {
    Ask::SwitchOff(features.iter().map(|one| (*one).to_owned()).collect())
}

#[test]
fn a_fault_of_the_peers_device_is_found_at_the_peer() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    let [_, server] = bed.namespaces();
    let [here, there] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let searched = |one: &&crate::cases::Case| matches!(one.wanted, Wanted::Bad(..));
    for case in CASES.iter().filter(searched) {
        for (way, mangled) in [
            (Direction::Out, Mangled { fault: case.fault, out: true, back: false }),
            (Direction::Back, Mangled { fault: case.fault, out: false, back: true }),
        ] {
            // The server makes no tunnels.
            if way == Direction::Back && case.fault == Fault::InnerChecksum {
                continue;
            }
            bed.mangle(mangled);
            let (settings, process) = switcher(server, there.path(), MOST_OFF);
            let access = [Access::open as fn() -> Access; 2];
            let report =
                bed.probe_allowed(access, &options(), Some(here.path()), Some(settings.clone()));
            assert_eq!(report.peer_locked, None);
            let case = crate::cases::Case { way, ..*case };
            case.check(&report).unwrap_or_else(|wrong| panic!("{way:?} {wrong}"));
            drop(settings);
            assert_eq!(process.join().unwrap(), Ok(()));
            assert!(is_on(server) && is_empty(here.path()) && is_empty(there.path()));
        }
    }
}

#[test]
fn without_permission_the_peers_settings_are_ranked_and_not_switched() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    bed.mangle(Mangled { fault: Fault::Tso4, out: false, back: true });
    let journal = tempfile::tempdir().unwrap();
    let report = bed.probe(&options(), Some(journal.path()));
    let reason = report.peer_locked.as_deref().unwrap();
    assert!(reason.contains("administrator has not allowed"), "{reason}");
    let [bad] = &report.bad[..] else { panic!("{}", summary(&report)) };
    let first = &bad.candidates[0];
    assert_eq!((first.end, first.feature.as_str()), (End::Peer, FEATURE));
    assert!(!matches!(bad.search, Search::Guilty(_) | Search::Together(_)), "{:?}", bad.search);
}

#[test]
fn if_the_peer_cannot_switch_its_settings_the_others_are_searched() {
    require!(need::root(), need::device("vxlan"));
    let bed = Bed::new(false);
    let [_, server] = bed.namespaces();
    bed.mangle(Mangled { fault: Fault::UsoTail, out: true, back: false });
    // One journal for both ends: the client's trial has it while the peer would need it.
    let journal = tempfile::tempdir().unwrap();
    let (settings, process) = switcher(server, journal.path(), MOST_OFF);
    let access = [Access::open as fn() -> Access; 2];
    let report =
        bed.probe_allowed(access, &options(), Some(journal.path()), Some(settings.clone()));
    let [bad] = &report.bad[..] else { panic!("{}", summary(&report)) };
    let Search::Guilty(found) = &bad.search else { panic!("{}", summary(&report)) };
    assert_eq!((found.end, found.feature.as_str()), (End::Here, "tx-udp-segmentation"));
    let reason = report.peer_locked.unwrap();
    assert!(reason.contains(journal.path().to_str().unwrap()), "{reason}");
    assert!(report.notes.iter().any(|note| note.contains(&reason)), "{:?}", report.notes);
    drop(settings);
    assert_eq!(process.join().unwrap(), Ok(()));
    assert!(is_on(server) && is_empty(journal.path()));
}

#[test]
fn a_client_switches_nothing_but_candidates_of_the_allowed_device_in_a_probe() {
    require!(need::root());
    let bed = Bed::new(false);
    let [_, server] = bed.namespaces();
    let journal = tempfile::tempdir().unwrap();
    let (allowed, process) = switcher(server, journal.path(), MOST_OFF);
    let refusal = |answerer: &Answerer, asks: &[Ask]| {
        let mut session = Answering::new(answerer, CLIENT, SERVER);
        let (last, before) = asks.split_last().unwrap();
        for ask in before {
            session.answer(ask.clone()).unwrap();
        }
        let refused = session.answer(last.clone()).unwrap_err();
        assert!(is_on(server), "{refused}");
        refused
    };
    server
        .run(|| {
            let none = Answerer::open();
            let some = Answerer::open().allowing(allowed.clone());
            for (answerer, asks, word) in [
                (&none, &[open(), off(&[FEATURE])][..], "has not allowed"),
                (&some, &[off(&[FEATURE])], "no probe is open"),
                (&some, &[open(), off(&[])], "0 features"),
                (&some, &[open(), off(&[FEATURE, FEATURE])], "named twice"),
                (&some, &[open(), off(&[FEATURE, "rx-vlan-filter"])], "does not switch it"),
                (&some, &[open(), off(&["\u{1b}[2J"])], "does not switch it"),
            ] {
                let refused = refusal(answerer, asks);
                assert!(refused.contains(word), "{refused}");
            }
            // The device of the path is another than the allowed one.
            let other = Other;
            let other = Answerer::open().allowing(Arc::new(other));
            let refused = refusal(&other, &[open(), off(&[FEATURE])]);
            assert!(refused.contains("not of eth0"), "{refused}");
        })
        .unwrap();
    drop(allowed);
    assert_eq!(process.join().unwrap(), Ok(()));
    assert!(is_empty(journal.path()));
}

/// Settings of another device.
#[derive(Debug)]
struct Other;

impl ServerSettings for Other {
    fn may_switch(&self, device: &str) -> Outcome {
        Err(format!("its administrator allows to switch settings of eth1, not of {device}"))
    }
    fn switch_off(&self, _: &str, _: &[String]) -> Outcome {
        panic!("not allowed");
    }
    fn restore(&self) -> Outcome {
        Ok(())
    }
}

#[test]
fn settings_are_restored_when_the_session_the_server_or_the_time_ends() {
    require!(need::root());
    let bed = Bed::new(false);
    let [_, server] = bed.namespaces();
    let journal = tempfile::tempdir().unwrap();
    let (settings, process) = switcher(server, journal.path(), MOST_OFF);
    server
        .run(|| {
            let answerer = Answerer::open().allowing(settings.clone());
            // The session ends, a new probe begins in it, or it is asked to.
            for last in [None, Some(open()), Some(Ask::Restore)] {
                let mut session = Answering::new(&answerer, CLIENT, SERVER);
                session.answer(open()).unwrap();
                assert_eq!(session.answer(off(&[FEATURE])), Ok(Answer::SwitchedOff));
                assert!(session.is_switched() && !is_on(server));
                if let Some(last) = last {
                    session.answer(last).unwrap();
                    assert!(!session.is_switched() && is_on(server));
                }
                drop(session);
                assert!(is_on(server) && is_empty(journal.path()));
            }
        })
        .unwrap();
    // The server ends.
    settings.switch_off(DEVICE, &[FEATURE.to_owned()]).unwrap();
    assert!(!is_on(server));
    drop(settings);
    assert_eq!(process.join().unwrap(), Ok(()));
    assert!(is_on(server) && is_empty(journal.path()));
    // No order comes.
    let (settings, process) = switcher(server, journal.path(), Duration::ZERO);
    settings.switch_off(DEVICE, &[FEATURE.to_owned()]).unwrap();
    let limit = Duration::from_secs(60);
    let seen = || Ok(if is_on(server) { Ok(()) } else { Err("off".to_owned()) });
    testbed::poll("the feature to be on", limit, seen).unwrap();
    let late = settings.restore().unwrap_err();
    assert!(late.contains("restored after 0 s"), "{late}");
    // The next search is not disturbed.
    settings.restore().unwrap();
    drop(settings);
    assert_eq!(process.join().unwrap(), Ok(()));
    assert!(is_empty(journal.path()));
}

#[test]
fn the_process_with_the_right_to_change_settings_does_not_trust_the_server() {
    require!(need::root());
    let bed = Bed::new(false);
    let [_, server] = bed.namespaces();
    let journal = tempfile::tempdir().unwrap();
    let settings = |orders: &str| {
        let (mut socket, process) = process(server, journal.path(), MOST_OFF);
        let length = (orders.len() as u32).to_ne_bytes();
        socket.write_all(&[&length, orders.as_bytes()].concat()).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = String::new();
        let _ = std::io::Read::read_to_string(&mut socket, &mut answers);
        assert_eq!(process.join().unwrap(), Ok(()), "{orders}");
        assert!(is_on(server) && is_empty(journal.path()), "{orders}");
        answers
    };
    for (order, word) in [
        (r#"{"off":{"device":"lo","features":["tx-tcp-segmentation"]}}"#, "not of lo"),
        (r#"{"off":{"device":"eth0","features":["rx-vlan-filter"]}}"#, "does not switch it"),
        (r#"{"off":{"device":"eth0","features":[]}}"#, "0 features"),
        // It switches and restores, because the server has gone.
        (r#"{"off":{"device":"eth0","features":["tx-tcp-segmentation"]}}"#, "{\"Ok\":null}"),
        (r#"{"command":"true"}"#, ""),
        ("not JSON", ""),
    ] {
        let answers = settings(order);
        assert!(answers.contains(word), "{order}: {answers}");
    }
}
