//! Changes of a host while a connection and a flow of datagrams are on the fast path, and before
//! they begin: the same packets arrive as without the fast path.

mod changes;

use std::time::{Duration, Instant};

use accel::Accel;
use test_support::{left_out, need, require};
use testbed::poll;

use super::super::pair::{LIMIT, since};
use super::super::verdicts::STALE_MS;
use super::world::{ACK, PSH, SYN, Segment, Shape, World};
use changes::Change;

/// Packets of a volley, in each direction.
const VOLLEY: usize = 12;
/// Time without a packet after which no more are expected.
const QUIET: Duration = Duration::from_millis(150);
/// Volleys of a connection that begins under a change.
const VOLLEYS: usize = 4;

/// Time for which packets are sent under steady changes.
const STEADY: Duration = Duration::from_secs(3);

/// Packets that arrived: segments of the client and the server, datagrams of both.
type Arrived = [usize; 4];

/// Sends packets of one kind in one direction. Returns how many arrive.
fn send(world: &mut World, back: bool, udp: bool) -> usize {
    let (source, to) = if back { (1, 0) } else { (0, 1) };
    world.arrived(to);
    let first = world.connection;
    let mut sent = Vec::new();
    for _ in 0..VOLLEY {
        let flags = if udp { 0 } else { ACK | PSH };
        let segment = Segment { udp, ..world.segment(back, flags, 60) };
        let (bytes, number) = world.frame(source, &segment);
        // Fails if the device is down.
        let _ = world.taps[source].write(&bytes);
        sent.push(number);
        if !udp {
            world.advance(back, 60);
        }
    }
    let (mut last, mut arrived) = (Instant::now(), vec![false; VOLLEY]);
    while last.elapsed() < QUIET && arrived.contains(&false) {
        let numbers = world.arrived(to);
        for (at, number) in sent.iter().enumerate() {
            if numbers.contains(number) {
                (arrived[at], last) = (true, Instant::now());
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // The other side acknowledges what has arrived.
    world.connection = first;
    let seen = arrived.iter().rposition(|arrived| *arrived).map_or(0, |at| at + 1);
    if !udp {
        world.advance(back, 60 * seen);
    }
    arrived.iter().filter(|arrived| **arrived).count()
}

fn volley(world: &mut World) -> Arrived {
    [(false, false), (true, false), (false, true), (true, true)]
        .map(|(back, udp)| send(world, back, udp))
}

/// Sends one segment. Returns whether it arrives.
fn arrives(world: &World, segment: &Segment) -> bool {
    let (source, to) = world.sides(segment);
    let (bytes, number) = world.frame(source, segment);
    // Fails if the device is down.
    let _ = world.taps[source].write(&bytes);
    let sent = Instant::now();
    while sent.elapsed() < QUIET {
        if world.arrived(to).contains(&number) {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

/// Datagrams of the connection's ports take the fast path, if there is one.
fn datagrams_become_fast(world: &mut World) {
    if world.accels.is_none() {
        (0..4).for_each(|_| _ = (send(world, false, true), send(world, true, true)));
        return;
    }
    poll("datagrams on the fast path", LIMIT, || {
        let accels = world.accels.as_ref().unwrap();
        let before = accels.each_ref().map(Accel::status);
        for _ in 0..4 {
            send(world, false, true);
            send(world, true, true);
        }
        let accels = world.accels.as_ref().unwrap();
        let are_fast = accels.iter().zip(&before).all(|(accel, before)| {
            since(accel, before, "encap_hit") > 40 && since(accel, before, "decap_hit") > 40
        });
        Ok(are_fast
            .then_some(())
            .ok_or_else(|| format!("{:#?}", accels.each_ref().map(Accel::status))))
    })
    .unwrap();
}

/// Packets that arrived in a world, and the states of the entries.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    arrived: Vec<Arrived>,
    states: [&'static str; 2],
}

fn settle() {
    std::thread::sleep(Duration::from_millis(u64::from(STALE_MS) + 50));
}

/// Sends the packets of a change in a world.
type Act = fn(&mut World, &Change, u32) -> Seen;

/// The flows are on the fast path when the change comes.
fn after(world: &mut World, change: &Change, seed: u32) -> Seen {
    world.connect(seed);
    datagrams_become_fast(world);
    change.make(world);
    settle();
    std::thread::sleep(change.wait);
    let mut arrived = Vec::new();
    let until = Instant::now() + STEADY;
    while change.is_steady && Instant::now() < until {
        volley(world);
        std::thread::sleep(QUIET);
    }
    arrived.push(volley(world));
    std::thread::sleep(change.silence);
    arrived.push(volley(world));
    let states = world.states();
    change.unmake(world);
    settle();
    std::thread::sleep(change.wait);
    arrived.push(volley(world));
    Seen { arrived, states }
}

/// The flows begin after the change.
fn before(world: &mut World, change: &Change, seed: u32) -> Seen {
    change.make(world);
    settle();
    std::thread::sleep(change.wait);
    world.begin(seed);
    let mut arrived = vec![];
    let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
    if arrives(world, &syn) {
        world.advance(false, 1);
        if arrives(world, &world.segment(true, SYN | ACK, 0)) {
            world.advance(true, 1);
            arrives(world, &world.segment(false, ACK, 0));
        }
    }
    arrived.extend((0..VOLLEYS).map(|_| volley(world)));
    let states = world.states();
    change.unmake(world);
    settle();
    std::thread::sleep(change.wait);
    Seen { arrived, states }
}

/// Makes each change after the flows have begun and before, in two worlds.
fn compare(shape: Shape, v6: bool, changes: &[Change]) {
    require!(need::root(), need::tools(&["nft", "conntrack", "iptables-nft", "tc"]));
    let only = std::env::var("OVERLANE_ACCEL_CASE").ok();
    let mut differences = Vec::new();
    let [mut slow, mut fast] = [false, true].map(|fast| World::new(shape, v6, fast));
    let wanted = |change: &&Change| {
        change.is_for(shape, v6) && only.as_ref().is_none_or(|only| change.name.contains(only))
    };
    for (number, change) in changes.iter().filter(wanted).enumerate() {
        // Tools and kernels differ. In both worlds: a rule may switch on a sysctl.
        if ![&slow, &fast].map(|world| change.is_possible(world)).iter().all(|is| *is) {
            left_out(&format!("{}: a tool or the kernel refuses it", change.name));
            continue;
        }
        let seed = (number as u32).wrapping_mul(0x3000_0001) + 17;
        for (when, act) in [("after", after as Act), ("before", before)] {
            let expected = act(&mut slow, change, seed);
            let seen = act(&mut fast, change, seed);
            if seen != expected {
                let name = change.name;
                differences.push(format!("{name}, {when}: {seen:?}, without it {expected:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

macro_rules! lists {
    ($($list:ident),*) => {$(
        mod $list {
            use super::super::world::Shape;

            #[test]
            fn routed_flows_see_changes_as_without_the_fast_path() {
                super::compare(Shape::Routed, false, super::changes::$list::CHANGES);
            }

            #[test]
            fn routed_flows_over_ipv6_see_changes_as_without_the_fast_path() {
                super::compare(Shape::Routed, true, super::changes::$list::CHANGES);
            }

            #[test]
            fn bridged_flows_see_changes_as_without_the_fast_path() {
                super::compare(Shape::Bridged, false, super::changes::$list::CHANGES);
            }
        }
    )*};
}

lists!(conntrack, expressions, matches, machine);
