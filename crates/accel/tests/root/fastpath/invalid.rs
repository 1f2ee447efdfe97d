//! Segments that conntrack calls invalid, and ends of connections: the fast path and the kernel's
//! own path treat them in the same way. Tenants are TAP devices, so the test builds every byte of a
//! connection.

mod counters;
mod ended;
mod later;
mod random;
mod world;

use std::time::{Duration, Instant};

use test_support::{need, require};
use testbed::poll;

use super::pair::{LIMIT, sh};
use super::verdicts::STALE_MS;
use world::{ACK, FIN, Flaw, PSH, RST, SYN, Segment, Shape, World};

/// Sends the segments of a case in a world. Returns which of them arrived.
type Act = fn(&mut World) -> Vec<bool>;

/// A blind attacker knows addresses and ports, but not the sequence numbers.
fn blind(world: &World, flags: u8, payload: usize) -> Vec<bool> {
    let far = |at: u32| at.wrapping_mul(0x2345_6789).wrapping_add(1 << 30);
    let stab = |at: u32| {
        let [seq, ack] = world.connection.next.map(|next| next.wrapping_add(far(at)));
        let segment = Segment { seq, ack, ..world.segment(false, flags, payload) };
        world.send_from(2, &segment, Duration::from_millis(60))
    };
    (0..4).map(stab).collect()
}

fn flawed(world: &World, flaw: Flaw) -> Vec<bool> {
    let of = |back| Segment { flaw, ..world.segment(back, ACK | PSH, 60) };
    [of(false), of(true)].iter().map(|segment| world.send(segment)).collect()
}

fn off(world: &World, seq: u32, ack: u32) -> Vec<bool> {
    let of = |back| {
        let segment = world.segment(back, ACK | PSH, 60);
        Segment {
            seq: segment.seq.wrapping_add(seq),
            ack: segment.ack.wrapping_add(ack),
            ..segment
        }
    };
    [of(false), of(true)].iter().map(|segment| world.send(segment)).collect()
}

/// Resets its own connection after new ones are forbidden, and reuses the port.
fn reset_and_reuse(world: &mut World) -> Vec<bool> {
    for host in &world.hosts {
        sh(host, "nft insert rule inet t c ct state new drop");
    }
    std::thread::sleep(Duration::from_millis(u64::from(STALE_MS)));
    let mut arrived = vec![world.send(&world.segment(false, RST | ACK, 0))];
    for turn in 0..6_u32 {
        let seq = world.connection.next[0].wrapping_add(1 << 20).wrapping_add(turn);
        let syn = Segment { seq, ack: 0, ..world.segment(false, SYN, 0) };
        arrived.push(world.send(&syn));
    }
    for host in &world.hosts {
        sh(host, "nft flush chain inet t c; nft add rule inet t c ct state invalid drop");
    }
    arrived
}

/// The entry is deleted, and the server sends first: then the server's is the original direction.
fn made_anew(world: &mut World) -> Vec<bool> {
    if world.shape == Shape::Service {
        // The two directions become two connections: one of them is translated.
        return Vec::new();
    }
    for host in &world.hosts {
        sh(
            host,
            "nft insert rule inet t c tcp sport { 80, 8080 } ct state established ct direction original drop",
        );
    }
    world.becomes_fast();
    for host in &world.hosts {
        sh(host, "conntrack -F");
    }
    world.data(true, 60);
    let mut arrived = Vec::new();
    for _ in 0..5 {
        world.data(false, 60);
        let segment = world.segment(true, ACK | PSH, 60);
        arrived.push(world.send(&segment));
    }
    for host in &world.hosts {
        sh(host, "nft flush chain inet t c; nft add rule inet t c ct state invalid drop");
    }
    arrived
}

/// Both ends have lost their state and connect again with the same ports. Conntrack takes its windows
/// from the SYN and the SYN/ACK.
fn begin_anew(world: &mut World) -> Vec<bool> {
    let eventually = |world: &World, segment: Segment| {
        let until = Instant::now() + LIMIT;
        while !world.send(&segment) {
            if Instant::now() > until {
                return false;
            }
        }
        true
    };
    world.connection.next = world.connection.next.map(|next| next.wrapping_add(1 << 30));
    let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
    let mut arrived = vec![eventually(world, syn)];
    world.advance(false, 1);
    arrived.push(eventually(world, world.segment(true, SYN | ACK, 0)));
    world.advance(true, 1);
    arrived.push(eventually(world, world.segment(false, ACK, 0)));
    for back in [false, true, false, true] {
        arrived.push(eventually(world, world.segment(back, ACK | PSH, 60)));
        world.advance(back, 60);
    }
    // The new windows are in force.
    arrived.extend(off(world, 1 << 30, 0));
    arrived
}

const CASES: &[(&str, Act)] = &[
    ("both ends begin anew", begin_anew),
    ("both ends begin anew under rules that give no verdict", |world| {
        for host in &world.hosts {
            sh(host, "nft insert rule inet t c limit rate over 1000000/second drop");
        }
        std::thread::sleep(Duration::from_millis(u64::from(STALE_MS)));
        let arrived = begin_anew(world);
        for host in &world.hosts {
            sh(host, "nft flush chain inet t c; nft add rule inet t c ct state invalid drop");
        }
        arrived
    }),
    ("an entry made anew in the other direction", made_anew),
    ("its own reset, and the port again", reset_and_reuse),
    ("blind resets", |world| blind(world, RST, 0)),
    ("blind resets with an acknowledgement", |world| blind(world, RST | ACK, 0)),
    ("blind ends", |world| blind(world, FIN | ACK, 0)),
    ("blind data", |world| blind(world, ACK, 80)),
    ("wrong checksums", |world| flawed(world, Flaw::Checksum)),
    ("unverified checksums", |world| flawed(world, Flaw::Finished)),
    ("data offset 4", |world| flawed(world, Flaw::Offset(4))),
    ("data offset 15 in a shorter segment", |world| {
        let short = Segment { flaw: Flaw::Offset(15), ..world.segment(false, ACK, 20) };
        vec![world.send(&short)]
    }),
    ("datagrams of wrong lengths and sums", |world| {
        let of = |back, flaw| Segment { udp: true, flaw, ..world.segment(back, 0, 60) };
        // An answered flow, so that datagrams take the fast path.
        for _ in 0..40 {
            [false, true].iter().for_each(|back| world.must(&of(*back, Flaw::None)));
        }
        let flaws = [Flaw::Length(7), Flaw::Length(69), Flaw::Checksum, Flaw::Cut(6)];
        let sent = flaws.iter().flat_map(|flaw| [of(false, *flaw), of(true, *flaw)]);
        sent.map(|segment| world.send(&segment)).collect()
    }),
    ("a wrong checksum at the end, then a reset inside the window", |world| {
        let end = Segment { flaw: Flaw::Checksum, ..world.segment(false, FIN | ACK, 0) };
        let reset = world.segment(false, RST, 0);
        let reset = Segment { seq: reset.seq.wrapping_add(500), ..reset };
        vec![world.send(&end), world.send(&reset)]
    }),
    ("a wrong checksum of the exact reset", |world| {
        let reset = Segment { flaw: Flaw::Checksum, ..world.segment(false, RST | ACK, 0) };
        vec![world.send(&reset)]
    }),
    ("impossible flags, then the exact reset", |world| {
        let empty = world.segment(true, 0, 40);
        vec![world.send(&empty), world.send(&world.segment(true, RST | ACK, 0))]
    }),
    ("an impossible reset, then the exact one", |world| {
        world.data(true, 60);
        let reset = world.segment(true, RST | ACK, 0);
        let far = Segment { seq: reset.seq.wrapping_add(1 << 30), ..reset };
        vec![world.send(&far), world.send(&reset)]
    }),
    ("a SYN/ACK in the middle, then the exact reset", |world| {
        world.data(true, 60);
        let answer = world.segment(true, SYN | ACK, 0);
        vec![world.send(&answer), world.send(&world.segment(true, RST | ACK, 0))]
    }),
    ("a reset by the server, data, then a SYN", |world| {
        world.data(true, 60);
        let mut arrived = vec![world.send(&world.segment(true, RST, 0))];
        arrived.push(world.send(&world.segment(false, ACK | PSH, 40)));
        let syn = world.segment(false, SYN, 0);
        arrived.push(world.send(&Segment { ack: 0, ..syn }));
        arrived
    }),
    ("a SYN in the middle, an old acknowledgement, then a reset inside the window", |world| {
        let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
        let mut arrived = vec![world.send(&syn)];
        let old = world.segment(false, ACK, 0);
        arrived.push(world.send(&Segment { ack: old.ack.wrapping_sub(1 << 30), ..old }));
        let reset = world.segment(true, RST, 0);
        let reset = Segment { seq: reset.seq.wrapping_add(500), ..reset };
        arrived.push(world.send(&reset));
        arrived
    }),
    ("a SYN in the middle, then the reset that answers it", |world| {
        let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
        let reset = world.segment(true, RST | ACK, 0);
        let reset = Segment { ack: syn.seq.wrapping_add(1), ..reset };
        vec![world.send(&syn), world.send(&reset)]
    }),
    ("a SYN in the middle, then an old reset", |world| {
        let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
        let reset = world.segment(true, RST | ACK, 0);
        let reset = Segment { seq: reset.seq.wrapping_sub(300), ..reset };
        vec![world.send(&syn), world.send(&reset)]
    }),
    ("two resets, the second with data, then an acknowledgement of that data", |world| {
        let mut arrived = vec![world.send(&world.segment(false, RST | ACK, 0))];
        arrived.push(world.send(&world.segment(true, RST, 40)));
        let ack = world.segment(false, ACK, 0);
        arrived.push(world.send(&Segment { ack: ack.ack.wrapping_add(1), ..ack }));
        arrived
    }),
    ("its own reset, then a malformed SYN", |world| {
        let mut arrived = vec![world.send(&world.segment(false, RST, 0))];
        let syn = Segment { flaw: Flaw::Offset(15), ..world.segment(false, SYN, 1) };
        arrived.push(world.send(&Segment { ack: 0, ..syn }));
        arrived
    }),
    ("a SYN, a blind end, then the answer to the SYN", |world| {
        let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
        let mut arrived = vec![world.send(&syn)];
        arrived.extend(&blind(world, FIN | ACK, 0)[..1]);
        let answer = world.segment(true, SYN | ACK, 0);
        let answer = Segment { ack: syn.seq.wrapping_add(1), ..answer };
        // Dropped beside the fast path.
        world.send(&answer);
        arrived
    }),
    ("half a header", |world| flawed(world, Flaw::Cut(14))),
    ("sequence numbers off", |world| off(world, 1 << 30, 0)),
    ("acknowledgements off", |world| off(world, 0, 1 << 30)),
    ("old sequence numbers", |world| off(world, (-(1 << 30)) as u32, 0)),
    ("old acknowledgements", |world| off(world, 0, (-(1 << 30)) as u32)),
    ("a reset inside the window, then data", |world| {
        let reset = world.segment(false, RST, 0);
        let reset = Segment { seq: reset.seq.wrapping_add(500), ..reset };
        vec![world.send(&reset), world.send(&world.segment(true, ACK, 40))]
    }),
    ("a SYN in the middle, data, then a reset inside the window", |world| {
        let syn = world.segment(false, SYN, 0);
        let syn = Segment { seq: syn.seq.wrapping_add(1 << 30), ack: 0, ..syn };
        let mut arrived = vec![world.send(&syn)];
        world.data(false, 40);
        let reset = world.segment(true, RST, 0);
        let reset = Segment { seq: reset.seq.wrapping_add(500), ..reset };
        arrived.push(world.send(&reset));
        arrived
    }),
    ("half an end, then old acknowledgements", |world| {
        world.must(&world.segment(false, FIN | ACK, 0));
        world.advance(false, 1);
        off(world, (-(1 << 30)) as u32, (-(1 << 30)) as u32)
    }),
    ("an orderly end", |world| {
        let mut arrived = vec![world.send(&world.segment(false, FIN | ACK, 0))];
        world.advance(false, 1);
        arrived.push(world.send(&world.segment(true, FIN | ACK, 0)));
        world.advance(true, 1);
        arrived.push(world.send(&world.segment(false, ACK, 0)));
        // And the same ports again.
        let syn = world.segment(false, SYN, 0);
        arrived.push(world.send(&Segment { seq: syn.seq.wrapping_add(99), ack: 0, ..syn }));
        arrived
    }),
    ("the exact reset, and the port again", |world| {
        let mut arrived = vec![world.send(&world.segment(true, RST | ACK, 0))];
        let syn = world.segment(false, SYN, 0);
        arrived.push(world.send(&Segment { seq: syn.seq.wrapping_add(99), ack: 0, ..syn }));
        arrived
    }),
];

/// Cases whose segments conntrack passes without any effect. Beside the fast path it would obey
/// their flags, so they are dropped.
const DROPPED: &[&str] = &["blind ends", "half an end, then old acknowledgements"];

/// Runs every case without the fast path and with it, over IPv4 or IPv6.
fn compare(shape: Shape, v6: bool) {
    require!(need::root(), need::tool("nft"), need::tool("conntrack"), need::tool("iptables-nft"));
    let only = std::env::var("OVERLANE_ACCEL_CASE").ok();
    let mut differences = Vec::new();
    let [mut slow, mut fast] = [false, true].map(|fast| World::new(shape, v6, fast));
    for (number, (name, act)) in CASES.iter().enumerate() {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let [(kernel, expected), (arrived, _)] = [&mut slow, &mut fast].map(|world| {
            world.connect((number as u32).wrapping_mul(0x3000_0001) + 17);
            (act(world), world.states())
        });
        let name = format!("{name}, IPv{}", if v6 { 6 } else { 4 });
        let is_dropped = DROPPED.iter().any(|dropped| name.starts_with(dropped));
        if arrived != kernel && !(is_dropped && arrived.iter().all(|arrived| !arrived)) {
            differences.push(format!("{name}: {arrived:?} arrived, without it {kernel:?}"));
        }
        // Conntrack handles a reset a moment later.
        let same = poll(&name, LIMIT, || {
            let states = fast.states();
            let seen = || format!("entries are {states:?}, without it {expected:?}");
            Ok((states == expected).then_some(()).ok_or_else(seen))
        });
        differences.extend(same.err().map(|error| error.to_string()));
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn routed_segments_are_handled_as_without_the_fast_path() {
    compare(Shape::Routed, false);
}

#[test]
fn routed_ipv6_segments_are_handled_as_without_the_fast_path() {
    compare(Shape::Routed, true);
}

#[test]
fn bridged_segments_are_handled_as_without_the_fast_path() {
    compare(Shape::Bridged, false);
    compare(Shape::Bridged, true);
}

#[test]
fn translated_segments_are_handled_as_without_the_fast_path() {
    compare(Shape::Service, false);
}

#[test]
fn translated_ipv6_segments_are_handled_as_without_the_fast_path() {
    compare(Shape::Service, true);
}
