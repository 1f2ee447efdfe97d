//! Concurrent tracers, removed namespaces, and killed tracers.

use std::process::Command;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, Program};
use observe::{Filter, Packet, PacketEnding, Places, Tracer};
use test_support::require;
use test_support::standing::{Standing, is_meant, stands};
use testbed::Offload;

use super::seen::{Seen, begins_in, inode, is_arrived, is_from, was_at};
use super::traffic::{Datagrams, port};
use super::{LIMIT, network};

/// Places of a packet, without times.
fn places(packet: &Packet) -> Vec<(&str, &str, Option<&str>)> {
    packet
        .steps
        .iter()
        .map(|step| (step.what.as_str(), step.namespace.as_str(), step.device.as_deref()))
        .collect()
}

fn arrived(packets: &[Packet], port: u16) -> Vec<&Packet> {
    let is = |packet: &&Packet| {
        begins_in(packet, "tenant-a")
            && is_from(packet, "udp", port)
            && is_arrived(packet, "tenant-b")
    };
    packets.iter().filter(is).collect()
}

fn ten_arrive(seen: &mut Seen, port: u16) {
    seen.until(
        "ten journeys",
        || {},
        |packets| match arrived(packets, port).len() {
            10 => Ok(()),
            count => Err(format!("{count} journeys")),
        },
    );
}

#[test]
fn two_at_once_see_the_same() {
    let network = require!(network("vxlan", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let (mut one, mut other) = (Seen::of_port(&network, port), Seen::of_port(&network, port));
    for _ in 0..10 {
        datagrams.send(100);
        assert!(datagrams.receive());
    }
    for seen in [&mut one, &mut other] {
        ten_arrive(seen, port);
    }
    let [of_one, of_other] = [&one, &other]
        .map(|seen| arrived(&seen.packets, port).into_iter().map(places).collect::<Vec<_>>());
    assert_eq!(of_one, of_other);
}

/// The same: the second tracer continues after the first has ended.
#[test]
fn one_goes_on_when_the_other_has_gone() {
    let network = require!(network("vxlan", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let (one, mut other) = (Seen::of_port(&network, port), Seen::of_port(&network, port));
    drop(one);
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    other.until("a journey", act, |packets| match arrived(packets, port).len() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
}

/// The map of this process's tracer that has this name; other tests have maps of the same names.
fn own_map(name: &str) -> MapHandle {
    let files = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
    let ids = texts.filter_map(|text| {
        let id = text.lines().find_map(|line| line.strip_prefix("map_id:"))?;
        id.trim().parse().ok()
    });
    let mut maps = ids.filter_map(|id| MapHandle::from_map_id(id).ok());
    maps.find(|map| map.name() == name).unwrap()
}

/// Reserves an event of every CPU, as programs that are interrupted do.
fn reserve(drafts: &MapHandle, at: u32) {
    // No number of programs that run meanwhile makes it 0.
    let users = 1000_u32.to_ne_bytes();
    let mut values = drafts.lookup_percpu(&at.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    for value in &mut values {
        let end = value.len() - 4;
        value[end - 4..end].copy_from_slice(&users);
    }
    drafts.update_percpu(&at.to_ne_bytes(), &values, MapFlags::ANY).unwrap();
}

#[test]
fn a_program_that_interrupts_another_leaves_its_event_alone() {
    let network = require!(network("vxlan", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let mut seen = Seen::of_port(&network, port);
    let drafts = own_map("drafts");
    reserve(&drafts, 0);
    for _ in 0..10 {
        datagrams.send(100);
        assert!(datagrams.receive());
    }
    ten_arrive(&mut seen, port);
    let users = drafts.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    assert!(users.iter().all(|value| value[value.len() - 8..value.len() - 4] != [0; 4]));
    // No event is left: what cannot be reported is counted.
    reserve(&drafts, 1);
    reserve(&drafts, 2);
    datagrams.send(100);
    assert!(datagrams.receive());
    assert!(seen.lost() > 0);
}

#[test]
fn only_requested_events_are_reported() {
    let network = require!(network("vxlan", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let flows = vec![format!("*:{port}").parse().unwrap()];
    let wanted = Filter { flows, ..Filter::default() };
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    let some = |packets: &[Packet]| match packets.len() {
        0..3 => Err("none".to_owned()),
        _ => Ok(()),
    };
    let of_b = inode(network.host("b").unwrap());
    let mut seen = Seen::filtered(&network, Filter { netns: vec![of_b], ..wanted.clone() });
    seen.until("packets in b", act, some);
    let steps = || seen.packets.iter().flat_map(|packet| &packet.steps);
    assert!(steps().all(|step| step.namespace == "b"), "{}", seen.text());
    assert!(seen.packets.iter().any(|packet| was_at(packet, "b", "vxlan0")));

    let device = Some("vxlan0".to_owned());
    let mut seen = Seen::filtered(&network, Filter { device, ..wanted.clone() });
    seen.until("packets at vxlan0", act, some);
    let steps = || seen.packets.iter().flat_map(|packet| &packet.steps);
    assert!(steps().all(|step| step.device.as_deref() == Some("vxlan0")), "{}", seen.text());

    let mut seen = Seen::filtered(&network, Filter { vni: Some(42), ..wanted.clone() });
    seen.until("packets in the tunnel", act, some);
    // From there on it is followed, also outside the tunnel.
    assert!(seen.packets.iter().all(|packet| packet.steps[0].vni == Some(42)), "{}", seen.text());

    // Nothing is dropped here; without the server, every packet is.
    let mut seen = Seen::filtered(&network, Filter { drops_only: true, ..wanted });
    for _ in 0..20 {
        act();
    }
    seen.rest();
    assert_eq!(seen.packets, [], "{}", seen.text());
    let Datagrams { client, server, .. } = datagrams;
    drop(server);
    let target = network.address.target;
    let act = || drop(client.send_to(b"overlay", target));
    seen.until("drops", act, some);
    let steps = || seen.packets.iter().flat_map(|packet| &packet.steps);
    assert!(steps().all(|step| step.what == "dropped"), "{}", seen.text());
}

#[test]
fn a_sampled_packet_is_reported_with_all_its_steps() {
    let network = require!(network("vxlan", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let mut all = Seen::of_port(&network, port);
    let flows = vec![format!("*:{port}").parse().unwrap()];
    let some = Filter { flows, sample: 10, ..Filter::default() };
    let mut some = Seen::filtered(&network, some);
    let act = || {
        for _ in 0..50 {
            datagrams.send(100);
            assert!(datagrams.receive());
        }
        all.look();
    };
    some.until("a chosen journey", act, |packets| match arrived(packets, port).len() {
        0..5 => Err("few".to_owned()),
        _ => Ok(()),
    });
    all.rest();
    some.rest();
    let whole = places(arrived(&all.packets, port)[0]);
    let chosen = arrived(&some.packets, port);
    let other = chosen.iter().find(|packet| places(packet) != whole);
    assert!(other.is_none(), "{}", other.unwrap().text());
    assert_eq!(chosen.len(), some.packets.len(), "no part of another one: {}", some.text());
    // Half of them would be a hundred times the expected number.
    assert!(chosen.len() * 2 < arrived(&all.packets, port).len());
}

#[test]
fn namespaces_that_vanish_disturb_nobody() {
    let stays = require!(network("vxlan", Offload::Full));
    let goes = require!(network("vxlan", Offload::Full));
    let (port, port_gone) = (port(), port());
    let datagrams = Datagrams::new(&stays, port);
    let gone = Datagrams::new(&goes, port_gone);
    // Packets in flight while their namespace is removed.
    let shape = "qdisc add dev nic0 root tbf rate 8kbit burst 2kb limit 100kb";
    goes.host("a").unwrap().run(Command::new("tc").args(shape.split(' '))).unwrap();
    let mut seen = Seen::of(&stays, &[format!("*:{port}"), format!("*:{port_gone}")]);
    for _ in 0..20 {
        gone.send(1000);
    }
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    let more = |least: usize| {
        move |packets: &[Packet]| match arrived(packets, port).len() {
            count if count >= least => Ok(()),
            count => Err(format!("{count} journeys")),
        }
    };
    seen.until("journeys before", act, more(3));
    let before = arrived(&seen.packets, port).len();
    drop(gone);
    drop(goes);
    seen.until("journeys afterwards", act, more(before + 3));
}

/// The test that a separate process runs until it is killed.
const STANDING: &str = "trace::life::nothing_stays_attached_after_a_kill";

/// In a process of its own.
fn stands_until_killed() {
    let filter = Filter { drops_only: true, ..Filter::default() };
    let places = Places::of_machine().unwrap();
    let tracer = Tracer::start(filter, &places).unwrap();
    let all = Tracer::start(
        Filter {
            flows: vec!["192.0.2.1 -> 192.0.2.2:9/udp".parse().unwrap()],
            ..Filter::default()
        },
        &places,
    )
    .unwrap();
    for _ in stands("") {
        let _ = tracer.poll(Duration::ZERO).unwrap();
        println!("{}", all.poll(Duration::ZERO).unwrap().len());
    }
}

/// Programs that a process holds, directly or by links.
fn programs(pid: u32) -> Vec<u32> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let infos = fds.filter_map(|fd| std::fs::read_to_string(fd.ok()?.path()).ok());
    let id = |info: String| {
        info.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
    };
    let mut programs: Vec<u32> = infos.filter_map(id).collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

#[test]
fn nothing_stays_attached_after_a_kill() {
    if is_meant() {
        return stands_until_killed();
    }
    require!(super::privileged());
    let mut standing = Standing::start(STANDING, &[]).unwrap();
    standing.ask("").unwrap();
    let programs = programs(standing.pid());
    // One program at drops, and all the others.
    assert!(programs.len() >= 10, "{programs:?}");
    standing.kill().unwrap();
    testbed::poll("the end of the programs", LIMIT, || {
        let there = |id: &&u32| Program::fd_from_id(**id).is_ok();
        let left: Vec<_> = programs.iter().filter(there).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?} of {programs:?}")) })
    })
    .unwrap();
}

/// A datagram is reported when it reaches its socket, not after the timeout for packets that are
/// not seen any more. The kernel traces no read of a short one.
#[test]
fn a_datagram_is_reported_once_its_socket_has_it() {
    let network = require!(network("vxlan", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let mut seen = Seen::of_port(&network, port);
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    let is_received = |packet: &Packet| {
        let last = packet.steps.last();
        let is_in_socket =
            last.is_some_and(|step| step.what == "socket" && step.namespace == "tenant-b");
        packet.legs[0].ending == PacketEnding::Received && is_in_socket
    };
    seen.until("a datagram in its socket", act, |packets| match packets.iter().any(is_received) {
        true => Ok(()),
        false => Err(format!("none in {} journeys", packets.len())),
    });
}

/// After any delay, a reading returns a bounded number of events, and the next ones the rest.
#[test]
fn a_reading_takes_a_bounded_part_of_a_flood() {
    let network = require!(network("host", Offload::Full));
    let port = port();
    let datagrams = Datagrams::new(&network, port);
    let flow = format!("*:{port}/udp").parse().unwrap();
    let filter = Filter { flows: vec![flow], ..Filter::default() };
    let tracer = Tracer::start(filter, &Places::of_machine().unwrap()).unwrap();
    // Each of them is seen at two or more places; some may find no space.
    for _ in 0..observe::MOST_AT_ONCE {
        datagrams.send(10);
    }
    let read = || tracer.poll(Duration::ZERO).unwrap().len();
    let sizes: Vec<usize> = std::iter::from_fn(|| Some(read()).filter(|size| *size > 0)).collect();
    assert_eq!(sizes.iter().max(), Some(&observe::MOST_AT_ONCE), "{sizes:?}");
    assert!(sizes.len() > 1, "{sizes:?}");
}

/// A flood beside a stalled tracer of drops loses no event. Drops without room are counted by the
/// kernel's reason, and together with the reported ones they match the kernel's counter.
#[test]
fn no_drop_of_a_flood_is_lost_and_each_is_counted() {
    /// More than the ring can hold: 16 MiB, 208 bytes per event.
    const FLOOD: u64 = 100_000;
    let network = require!(network("host", Offload::Full));
    let port = port();
    let Datagrams { client, server, .. } = Datagrams::new(&network, port);
    drop(server);
    let target = network.address.target;
    let refused = || super::healthy::counted(network.server(), "Udp", "NoPorts");
    let drops = Filter { drops_only: true, ..Filter::default() };
    let flows = vec![format!("*:{port}/udp").parse().unwrap()];
    for filter in [Filter { flows, ..drops.clone() }, drops] {
        let is_of_flow = !filter.flows.is_empty();
        let tracer = Tracer::start(filter, &Places::of_machine().unwrap()).unwrap();
        let before = refused();
        // An ICMP answer makes the next send fail: then it was not sent.
        let mut sent = 0;
        while sent < FLOOD {
            sent += u64::from(client.send_to(b"overlay", target).is_ok());
        }
        testbed::poll("the end of the flood", LIMIT, || match refused() - before {
            count if count >= FLOOD => Ok(Ok(())),
            count => Ok(Err(format!("{count} of {FLOOD}"))),
        })
        .unwrap();
        let counted = refused() - before;
        assert_eq!(tracer.lost().unwrap(), 0);
        let suppressed = tracer.suppressed().unwrap();
        let of_reason = suppressed.iter().filter(|drops| drops.reason == "NO_SOCKET");
        let suppressed: u64 = of_reason.map(|drops| drops.packets).sum();
        let read = || Some(tracer.poll(Duration::ZERO).unwrap()).filter(|read| !read.is_empty());
        let events: Vec<_> = std::iter::from_fn(read).flatten().collect();
        let reported = events.iter().filter(|event| tracer.reason(event.reason) == "NO_SOCKET");
        let sum = reported.count() as u64 + suppressed;
        assert!(suppressed > 0 && !events.is_empty(), "{suppressed} of {counted}");
        // Without a flow filter, drops of other flows are included.
        assert!(sum >= counted && (sum == counted || !is_of_flow), "{sum} of {counted}");
    }
}
