//! Conntrack's counters (`nf_conntrack_acct`) and rules on them.

use std::process::Command;
use std::time::Duration;

use accel::{Accel, Accounting, Options, Status, Wanted};
use test_support::{left_out, need, require};
use testbed::poll;

use super::super::pair::{LIMIT, sh, since};
use super::super::verdicts::STALE_MS;
use super::world::{ACK, PSH, Segment, Shape, World};

/// Packets in each direction, more than a connection sends before it takes the fast path.
const ROUNDS: usize = 120;

fn count(world: &World, on: bool) {
    for host in &world.hosts {
        host.sysctl("net/netfilter/nf_conntrack_acct", if on { "1" } else { "0" }).unwrap();
    }
}

/// Sends segments both ways, for longer than a verdict takes.
fn exchange(world: &mut World, rounds: usize) {
    for _ in 0..rounds {
        world.data(false, 60);
        world.data(true, 60);
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Packets of the connection that conntrack has counted in each host: original and reply direction.
/// `None`: the entry has no counters.
fn counted(world: &World) -> [Option<Vec<u64>>; 2] {
    let family = if world.v6 { "ipv6" } else { "ipv4" };
    let port = world.connection.port.to_string();
    world.hosts.each_ref().map(|host| {
        let mut list = Command::new("conntrack");
        list.args(["-L", "-f", family, "-p", "tcp", "--orig-port-src", &port]);
        let listed = host.run(&mut list).unwrap();
        let packets: Vec<u64> = listed
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("packets="))
            .map(|number| number.parse().unwrap())
            .collect();
        (!packets.is_empty()).then_some(packets)
    })
}

/// Sends segments in one direction under a rule. Returns which arrive.
fn under(world: &World, rule: &str) -> Vec<bool> {
    let nft = format!(
        "nft 'table inet x {{ chain c {{ type filter hook forward priority 1; {rule}; }}; }}'"
    );
    sh(&world.hosts[0], &nft);
    std::thread::sleep(Duration::from_millis(u64::from(STALE_MS) + 50));
    let segment = |at: u32| {
        let segment = world.segment(false, ACK | PSH, 60);
        Segment { seq: segment.seq.wrapping_add(60 * at), ..segment }
    };
    let arrived = (0..6).map(|at| world.send(&segment(at))).collect();
    sh(&world.hosts[0], "nft delete table inet x");
    arrived
}

/// The kernel has counted all packets of the connection when the rule comes.
#[test]
fn rules_on_counters_that_come_later_see_every_packet() {
    require!(need::root(), need::tools(&["nft", "conntrack", "iptables-nft"]));
    let shapes = [
        (Shape::Routed, false),
        (Shape::Routed, true),
        (Shape::Bridged, false),
        (Shape::Service, false),
    ];
    for (shape, v6) in shapes {
        let seen = [false, true].map(|is_fast| {
            let mut world = World::new(shape, v6, false);
            count(&world, true);
            if is_fast {
                world.accelerate();
            }
            world.open(7);
            exchange(&mut world, ROUNDS);
            for counted in counted(&world) {
                let counted = counted.expect("counters");
                assert!(counted.iter().all(|packets| *packets >= ROUNDS as u64), "{counted:?}");
            }
            under(&world, &format!("ct packets > {ROUNDS} drop"))
        });
        assert_eq!(seen[1], seen[0], "{shape:?}, IPv6 {v6}");
        assert!(!seen[0].contains(&true), "the rule drops");
    }
}

fn statuses(world: &World) -> [Status; 2] {
    world.accels.as_ref().unwrap().each_ref().map(Accel::status)
}

/// Codes of the refused VXLAN devices in both hosts.
fn codes(world: &World) -> Vec<String> {
    let statuses = statuses(world);
    let devices = statuses.iter().flat_map(|status| &status.devices);
    devices.filter_map(|device| Some(device.refused.as_ref()?.code.clone())).collect()
}

fn await_codes(world: &World, expected: &[&str]) {
    poll("the refusals", LIMIT, || {
        let codes = codes(world);
        Ok(if codes == expected { Ok(()) } else { Err(format!("{codes:?}")) })
    })
    .unwrap();
}

/// Packets on the fast path or on the partial bypass since a status.
fn fast(world: &World, before: &[Status; 2]) -> u64 {
    let accels = world.accels.as_ref().unwrap();
    let all = ["encap_hit", "encap_half", "decap_hit", "decap_half"];
    let since = |(accel, before)| all.iter().map(|name| since(accel, before, name)).sum::<u64>();
    accels.iter().zip(before).map(since).sum()
}

#[test]
fn counters_that_are_switched_on_and_off_are_followed() {
    require!(need::root(), need::tools(&["nft", "conntrack", "iptables-nft"]));
    for shape in [Shape::Routed, Shape::Bridged] {
        let mut world = World::new(shape, false, true);
        world.connect(5);
        let uncounted = world.connection;
        count(&world, true);
        // Its packets are counted from the first on, also before accel sees the change.
        world.open(9);
        let is_counted = world.connection;
        exchange(&mut world, ROUNDS);
        let enough = |world: &World, least: usize| {
            for counted in counted(world) {
                let counted = counted.expect("counters");
                assert!(counted.iter().all(|packets| *packets >= least as u64), "{counted:?}");
            }
        };
        enough(&world, ROUNDS);
        await_codes(&world, &["AX223", "AX223"]);
        let before = statuses(&world);
        exchange(&mut world, 20);
        enough(&world, ROUNDS + 20);
        world.connection = uncounted;
        exchange(&mut world, 20);
        assert_eq!(fast(&world, &before), 0, "{:#?}", statuses(&world));
        assert_eq!(counted(&world), [None, None], "the kernel does not count it either");
        count(&world, false);
        await_codes(&world, &[]);
        world.becomes_fast();
        // The kernel goes on counting.
        world.connection = is_counted;
        world.connection.next =
            is_counted.next.map(|next| next.wrapping_add(60 * (ROUNDS as u32 + 20)));
        exchange(&mut world, ROUNDS);
        enough(&world, 2 * ROUNDS + 20);
        let reasons = statuses(&world).map(|status| status.flows.unwrap().reasons);
        for reasons in reasons {
            let known = "conntrack counts its packets (nf_conntrack_acct)";
            assert!(reasons.contains_key(known), "{reasons:#?}");
        }
    }
}

#[test]
fn counters_may_be_ignored() {
    require!(need::root(), need::tools(&["nft", "conntrack", "iptables-nft"]));
    let mut world = World::new(Shape::Routed, false, false);
    count(&world, true);
    world.accelerate_with(|| Options { accounting: Accounting::Never, ..Options::default() });
    world.connect(3);
    assert_eq!(codes(&world), [""; 0]);
}

/// Without rules that ask conntrack, it counts nothing.
#[test]
fn counters_that_count_nothing_are_no_reason() {
    require!(need::root(), need::tools(&["nft", "conntrack", "iptables-nft"]));
    let mut world = World::new(Shape::Routed, false, false);
    let hooks = world.hosts[0].netns().run(netstate::netfilter::hooks).unwrap().unwrap();
    count(&world, true);
    for host in &world.hosts {
        sh(
            host,
            "nft flush ruleset; nft 'table inet t { chain c { type filter hook forward priority -5; tcp dport 81 drop; }; }'",
        );
    }
    world.accelerate();
    if hooks.is_none() {
        // It may track connections.
        await_codes(&world, &["AX223", "AX223"]);
        return left_out(&"the kernel cannot list the functions at netfilter's hooks");
    }
    // The kernel ends tracking a moment after the last rule that asks for it.
    await_codes(&world, &[]);
    let check = || {
        let netns = world.hosts[0].netns();
        accel::check::check(netns, &Wanted::All, Duration::ZERO, &|| true).unwrap()
    };
    assert_eq!(check().devices[0].why, None);
    for host in &world.hosts {
        sh(host, "nft add rule inet t c ct state invalid drop");
    }
    await_codes(&world, &["AX223", "AX223"]);
    assert_eq!(check().devices[0].why.as_ref().unwrap().code, "AX223");
}
