//! Connections after the end of accel: conntrack compares their segments with its windows again.

use std::os::fd::{AsFd, AsRawFd};

use accel::{Accel, Caretaker, Options, Wanted};
use netstate::connection::{Connections, Entry};
use nix::sys::signal::{Signal, kill as kill_process};
use nix::unistd::Pid;
use sys::netns::NetNs;
use test_support::standing::{Standing, is_meant, stands};
use test_support::{need, require};
use testbed::poll;

use super::super::pair::{LIMIT, sh};
use super::world::{ACK, FIN, RST, Shape, World, entries};
use super::{Act, blind, off, reset_and_reuse};

/// After the end, conntrack must refuse the segments that the guard refuses while accel runs.
fn compare_after_end(shape: Shape) {
    require!(need::root(), need::tool("nft"));
    const ACTS: &[(&str, Act)] = &[
        ("blind resets", |world| blind(world, RST, 0)),
        ("blind ends", |world| blind(world, FIN | ACK, 0)),
        ("sequence numbers off", |world| off(world, 1 << 30, 0)),
        ("its own reset, and the port again", reset_and_reuse),
    ];
    let seeds: Vec<u32> =
        (0..ACTS.len()).map(|number| (number as u32).wrapping_mul(0x3000_0001) + 17).collect();
    for v6 in [false, true] {
        // One connection for each act: starting accel takes most of the time.
        let [expected, seen] = [false, true].map(|is_fast| {
            let mut world = World::new(shape, v6, is_fast);
            let mut connections = world.connect_all(&seeds);
            if is_fast {
                // A successor takes the connections to the fast path again.
                world.accels = None;
                world.accelerate();
                world.become_fast(&mut connections);
                world.accels = None;
            }
            let mut seen = Vec::new();
            for ((name, act), connection) in ACTS.iter().zip(connections) {
                world.connection = connection;
                for _ in 0..3 {
                    world.data(false, 100);
                    world.data(true, 50);
                }
                seen.push((name, act(&mut world), world.states()));
            }
            seen
        });
        assert_eq!(seen, expected, "IPv{}", if v6 { 6 } else { 4 });
    }
}

#[test]
fn routed_segments_are_compared_with_windows_after_the_end() {
    compare_after_end(Shape::Routed);
}

#[test]
fn bridged_segments_are_compared_with_windows_after_the_end() {
    compare_after_end(Shape::Bridged);
}

/// Names the namespace for the process that is to be killed.
const NETNS: &str = "OVERLANE_ACCEL_TEST_NETNS";
const STANDING: &str =
    "fastpath::invalid::ended::entries_of_a_killed_process_are_replaced_without_a_next_start";

/// In a process of its own.
fn stands_until_killed() {
    let netns = NetNs::open(std::env::var(NETNS).unwrap().as_ref()).unwrap();
    let caretaker = Caretaker::start(&netns, || Ok(())).unwrap();
    caretaker.arm().unwrap();
    let options = Options { caretaker: Some(caretaker.watch().unwrap()), ..Options::default() };
    let accel = Accel::with(&netns, Wanted::All, options).unwrap();
    for request in stands("") {
        if request == "kill the caretaker" {
            kill_process(Pid::from_raw(caretaker.pid().cast_signed()), Signal::SIGKILL).unwrap();
            println!("killed");
        } else {
            println!("{}", accel.status().flows.is_some_and(|flows| flows.unguarded));
        }
    }
}

/// A process for each host, which runs the fast path until it is killed.
fn processes(world: &World) -> [Standing; 2] {
    world.hosts.each_ref().map(|host| {
        let fd = host.netns().as_fd().as_raw_fd();
        let path = format!("/proc/{}/fd/{fd}", std::process::id());
        Standing::start(STANDING, &[(NETNS, &path)]).unwrap()
    })
}

/// Sends until the entries of the connection are marked in both hosts.
fn is_marked(world: &mut World) {
    poll("marked entries", LIMIT, || {
        let mut all = [world.connection];
        for back in [false, true] {
            world.burst(&mut all, back, 100);
        }
        [world.connection] = all;
        let seen = entries(world);
        let is_marked = seen.iter().all(|entry| entry.is_marked);
        Ok(is_marked.then_some(()).ok_or_else(|| format!("{seen:#?}")))
    })
    .unwrap();
}

fn is_renewed(world: &World) {
    poll("the entries to be renewed", LIMIT, || {
        let seen = entries(world);
        let is_renewed = |entry: &Entry| !entry.is_marked && entry.liberal == [false; 2];
        Ok(seen.iter().all(is_renewed).then_some(()).ok_or_else(|| format!("{seen:#?}")))
    })
    .unwrap();
}

fn kill(shape: Shape, v6: bool) {
    require!(need::root(), need::tools(&["nft", "iptables-nft"]));
    let mut world = World::new(shape, v6, false);
    let processes = processes(&world);
    world.connect(17);
    is_marked(&mut world);
    for mut process in processes {
        process.kill().unwrap();
    }
    is_renewed(&world);
    for back in [false, true, false] {
        world.data(back, 100);
    }
    assert_eq!(off(&world, 1 << 30, 0), [false, false]);
    assert_eq!(blind(&world, RST, 0), [false; 4]);
    // Conntrack passes those from before the window, without any effect.
    blind(&world, FIN | ACK, 0);
    assert_eq!(world.states(), ["ESTABLISHED"; 2]);
}

#[test]
fn entries_of_a_killed_process_are_replaced_without_a_next_start() {
    if is_meant() {
        return stands_until_killed();
    }
    kill(Shape::Routed, false);
}

#[test]
fn entries_of_a_killed_process_are_replaced_in_every_shape() {
    for (shape, v6) in [
        (Shape::Routed, true),
        (Shape::Bridged, false),
        (Shape::Bridged, true),
        (Shape::Service, false),
        (Shape::Service, true),
    ] {
        kill(shape, v6);
    }
}

/// Nobody would replace the entries if the process was killed, too.
#[test]
fn without_its_caretaker_it_leaves_connections_to_conntrack() {
    require!(need::root(), need::tool("nft"));
    let mut world = World::new(Shape::Routed, false, false);
    let mut processes = processes(&world);
    world.connect(17);
    is_marked(&mut world);
    for process in &mut processes {
        assert_eq!(process.ask("kill the caretaker").unwrap(), "killed");
    }
    is_renewed(&world);
    for process in &mut processes {
        poll("the status report", LIMIT, || {
            let said = process.ask("is it unguarded").unwrap();
            Ok(if said == "true" { Ok(()) } else { Err(said) })
        })
        .unwrap();
    }
    // Neither this connection nor a new one gets to the fast path again.
    for seed in [None, Some(18)] {
        if let Some(seed) = seed {
            world.connect(seed);
        }
        let mut all = [world.connection];
        for back in [false, true].repeat(5) {
            world.burst(&mut all, back, 100);
        }
        [world.connection] = all;
        is_renewed(&world);
    }
    for mut process in processes {
        process.kill().unwrap();
    }
    assert_eq!(off(&world, 1 << 30, 0), [false, false]);
}

#[test]
fn connections_of_a_killed_process_are_left_to_conntrack() {
    require!(need::root(), need::tool("nft"), need::tool("conntrack"));
    let mut world = World::new(Shape::Routed, false, false);
    world.connect(17);
    // As the killed process has left it.
    for (host, entry) in world.hosts.iter().zip(entries(&world)) {
        let make_liberal = || Connections::open().unwrap().make_liberal(&entry.original);
        host.netns().run(make_liberal).unwrap().unwrap();
    }
    assert_eq!(off(&world, 1 << 30, 0), [true, true]);
    world.accelerate();
    is_renewed(&world);
    world.becomes_fast();
    world.accels = None;
    // Conntrack itself makes an entry liberal that it begins amid a connection.
    world.hosts.iter().for_each(|host| sh(host, "conntrack -F"));
    world.data(false, 100);
    world.data(true, 50);
    let before = entries(&world);
    assert!(before.iter().all(|entry| entry.liberal == [true; 2]), "{before:#?}");
    let before_port = world.connection;
    world.accelerate();
    world.connect(18);
    world.connection = before_port;
    assert_eq!(entries(&world), before);
}

#[test]
fn translated_segments_are_compared_with_windows_after_the_end() {
    compare_after_end(Shape::Service);
}
