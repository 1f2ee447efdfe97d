//! The probe of a path before it is measured.

use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use load::Workload;
use load::ask::{Ask, Task};
use measure::observer::Observer;
use measure::path_probe::{Access, Extent, RATE, probe, report};
use measure::path_under_test::PathUnderTest;
use measure::plan::PlannedCell;
use measure::sampler::Machine;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use probe::class::Family;
use results::{Role, Status};
use test_support::{need, require};
use testbed::{Host, NIC};

use crate::pair::Pair;
use crate::planned::{plan, subject};

/// Changes the first bytes of the payload of datagrams that a host sends to the probe's port.
const DAMAGE: &str = "table netdev damage { chain c { type filter hook egress device nic0 \
                      priority 0; udp dport 5211 @th,64,16 set 0xdead; }; }";

struct Silent;

impl Observer for Silent {}

#[test]
fn a_sound_path_is_tested_in_both_directions() {
    require!(need::root());
    let pair = Pair::new();
    let probed = probe(&subject(&pair), &AtomicBool::new(false));
    assert_eq!((probed.damage.len(), probed.untested.len()), (0, 0), "{probed:?}");
    assert!(probed.classes > 20, "{probed:?}");
}

#[test]
fn damage_is_found_with_its_direction() {
    require!(need::root(), need::tool("nft"));
    for out in [true, false] {
        let pair = Pair::new();
        if out { &pair.a } else { &pair.b }.nft(DAMAGE).unwrap();
        let probed = probe(&subject(&pair), &AtomicBool::new(false));
        let way = if out { "packets to the server corrupted" } else { "packets from the server" };
        assert!(probed.damage.iter().all(|damage| damage.starts_with(way)), "{probed:?}");
        assert!(probed.damage.iter().any(|damage| damage.contains("UDP/IPv4")), "{probed:?}");
    }
}

#[test]
fn a_path_that_cannot_be_probed_says_why() {
    require!(need::root());
    let pair = Pair::new();
    let nobody = "198.51.100.1:7000".parse().unwrap();
    let path = crate::planned::subject_at(&pair, nobody);
    let probed = probe(&path, &AtomicBool::new(false));
    assert_eq!((probed.classes, probed.damage.len()), (0, 0));
    assert!(probed.untested[0].contains("198.51.100.1"), "{probed:?}");
}

#[test]
fn a_damaged_path_has_the_reason_instead_of_figures() {
    require!(need::networks());
    let pair = Pair::new();
    let subjects = [
        subject(&pair),
        PathUnderTest { damage: Some("checksum wrong".to_owned()), ..subject(&pair) },
    ];
    let ask = Ask::new(Task::Steady(Workload::TcpRr));
    let at_a_load = Ask { load_percent: Some(50.0), ..ask };
    let cell = |subject, role, ask| PlannedCell { subject, role, ask, setting: None, baseline: 0 };
    let cells = vec![
        cell(0, Role::Baseline, ask),
        cell(1, Role::Measured, ask),
        cell(1, Role::Measured, at_a_load),
    ];
    let machine = Machine::open(false).unwrap();
    let plan = plan(cells, 2, Duration::from_millis(60));
    let outcome =
        measure::run::run(&plan, &subjects, &machine, &mut Silent, &AtomicBool::new(false))
            .unwrap();
    let [sound, damaged @ ..] = &outcome.cells[..] else { panic!("{:?}", outcome.cells) };
    assert_eq!(sound.samples.len(), 2);
    for cell in damaged {
        assert_eq!((cell.status, cell.samples.len()), (Status::Failed, 0));
        let reason = cell.reason.as_deref().unwrap();
        assert!(reason.contains("not measured") && reason.contains("checksum wrong"), "{reason}");
    }
}

/// Raises the limits of BIG TCP on a host's NIC. The `ip` of Debian 12 cannot.
fn allow_big_tcp(host: &Host) {
    /// `IFLA_GSO_MAX_SIZE`, `IFLA_GRO_MAX_SIZE`, `IFLA_GSO_IPV4_MAX_SIZE` and
    /// `IFLA_GRO_IPV4_MAX_SIZE` (linux/if_link.h).
    const LIMITS: [u16; 4] = [41, 58, 63, 64];
    let index = host.netlink().link(NIC).unwrap().index;
    // struct nlmsghdr: length, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, sequence, port.
    let mut message =
        [&64_u32.to_ne_bytes()[..], &16_u16.to_ne_bytes(), &5_u16.to_ne_bytes()].concat();
    message.extend([0; 8]);
    // struct ifinfomsg: family, type, index, flags, change.
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    for limit in LIMITS {
        message.extend([&8_u16.to_ne_bytes()[..], &limit.to_ne_bytes()].concat());
        message.extend(150_000_u32.to_ne_bytes());
    }
    let answer = host.netns().run(|| {
        let protocol = SockProtocol::NetlinkRoute;
        let socket =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
                .unwrap();
        let kernel = NetlinkAddr::new(0, 0);
        sendto(socket.as_raw_fd(), &message, &kernel, MsgFlags::empty()).unwrap();
        let mut answer = [0; 256];
        recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        answer
    });
    // struct nlmsgerr: the error is 0 if the message was applied.
    assert_eq!(answer.unwrap()[16..20], [0; 4]);
}

#[test]
fn packets_above_64_kib_are_tested_where_big_tcp_is_on() {
    require!(need::root());
    let pair = Pair::new();
    let path = subject(&pair);
    let quick =
        || report(&path, Access::open, Extent::Quick, RATE, &AtomicBool::new(false)).unwrap();
    let big = |report: &probe::report::Report| {
        let big = report.classes.iter().filter(|one| one.class.needs_big_tcp());
        big.cloned().collect::<Vec<_>>()
    };
    let off = quick();
    assert!(!off.has_findings(), "{:?}", off.bad);
    for one in big(&off) {
        let setting = match one.class.family {
            Family::V4 => "gso_ipv4_max_size of nic0",
            Family::V6 => "gso_max_size of nic0",
        };
        assert!(one.verdict.detail().contains(setting), "{one:?}");
    }
    for host in [&pair.a, &pair.b] {
        allow_big_tcp(host);
    }
    let on = quick();
    assert!(!on.has_findings(), "{:?}", on.bad);
    // Both IP versions, in both directions.
    assert_eq!(big(&on).len(), 4);
    for one in big(&on) {
        assert_eq!(one.verdict.word(), "intact", "{one:?}");
        // The kernel cuts it nowhere.
        assert_eq!((one.arrived.frames, one.arrived.merged), (1, 1), "{one:?}");
        assert!(one.arrived.largest > 65_536, "{one:?}");
    }
}
