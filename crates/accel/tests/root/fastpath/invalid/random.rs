//! Random segments of connections on the fast path, compared with the kernel's own path: what
//! arrives, and the states of conntrack's entries afterwards.
//!
//! Many connections are compared at once. In a round each of them sends one segment in both worlds.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use test_support::{need, require};

use super::super::build::Random;
use super::world::{ACK, Connection, FIN, Flaw, PSH, RST, SYN, Segment, Shape, World, state_name};

/// Connections that are compared at once, and the segments of each.
const AT_ONCE: usize = 64;
const ROUNDS: usize = 6;
/// Segments between the same hosts.
const SEGMENTS: usize = 2_000;
/// Time in which the two worlds must become equal: that of a busy machine. A reset takes effect with
/// a short delay.
const SETTLE: Duration = Duration::from_secs(5);
/// Time after which a segment of a listed kind that has not arrived counts as dropped.
const DROPPED: Duration = Duration::from_millis(100);
/// Time that a packet on the slow path may take longer than the last one.
const LATE: Duration = Duration::from_millis(3);

/// Returns a segment in or out of the window, with any flags or flaws, and the tenant that sends it.
fn random(random: &mut Random, world: &World) -> (usize, Segment) {
    const FLAGS: [u8; 12] = [
        ACK,
        ACK,
        ACK | PSH,
        ACK | PSH,
        ACK | 0x20,
        FIN | ACK,
        RST,
        RST | ACK,
        SYN,
        SYN | ACK,
        0,
        FIN | SYN,
    ];
    let off = |random: &mut Random| match random.below(8) {
        0 => random.next() as u32,
        1 => 1 << 30,
        2 => (-(1 << 30)) as u32,
        3 => random.below(1 << 16) as u32,
        4 => (random.below(1 << 16) as u32).wrapping_neg(),
        5 => 1,
        _ => 0,
    };
    let back = random.once_in(2);
    let flags = FLAGS[random.below(FLAGS.len())];
    let segment = world.segment(back, flags, [0, 0, 1, 40, 600][random.below(5)]);
    // Older kernels do not check the sequence number of segments without data.
    let seq = if segment.payload == 0 && flags & (RST | FIN) == 0 { 0 } else { off(random) };
    let flaw = match random.below(16) {
        0 => Flaw::Checksum,
        1 => Flaw::Finished,
        2 => Flaw::Offset([4, 15][random.below(2)]),
        3 => Flaw::Cut(random.below(20)),
        _ => Flaw::None,
    };
    let source = if !back && random.once_in(3) { 2 } else { usize::from(back) };
    let (seq, ack) = (segment.seq.wrapping_add(seq), segment.ack.wrapping_add(off(random)));
    (source, Segment { seq, ack, flaw, ..segment })
}

/// A segment that both worlds have sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    segment: Segment,
    #[expect(dead_code, reason = "printed with a difference")]
    source: usize,
    /// By world: without the fast path, with it.
    number: [u16; 2],
    arrived: [bool; 2],
}

/// A connection in both worlds.
struct Pair {
    connections: [Connection; 2],
    history: Vec<Sent>,
    /// States of the entries in both hosts, by world.
    states: [[&'static str; 2]; 2],
    /// Whether the worlds are no longer comparable, so further segments prove nothing.
    has_ended: bool,
}

impl Pair {
    fn last(&self) -> Option<&Sent> {
        self.history.last()
    }

    /// Returns the kind of the last segment, if the page on the fast path lists it as one that only
    /// the fast path drops. Then the entries differ, too.
    fn listed(&self) -> Option<&'static str> {
        let had = |flag| self.history.iter().any(|sent| sent.segment.flags & flag != 0);
        match self.last()?.segment.flags {
            flags if flags & RST != 0 => Some("RST out of the window"),
            flags if flags & FIN != 0 => Some("FIN out of the window"),
            flags if flags & SYN != 0 && (had(RST) || had(SYN)) => {
                Some("SYN after a reset or a SYN")
            }
            _ if had(FIN) => Some("out of the window after FIN"),
            _ => None,
        }
    }

    /// A SYN with a wrong checksum after its sender's reset ends the entry, as the page lists.
    fn is_ended_by_wrong_sum(&self) -> bool {
        let is_ended = |hosts: (&&str, &&str)| hosts.0 == hosts.1 || hosts == (&"CLOSE", &"none");
        let had_reset = self.history.iter().any(|sent| sent.segment.flags & RST != 0);
        let [kernel, fast] = &self.states;
        had_reset
            && self.last().is_some_and(|sent| {
                let Segment { flags, flaw, .. } = sent.segment;
                flags == SYN && flaw == Flaw::Checksum && sent.arrived == [false; 2]
            })
            && kernel.iter().zip(fast).all(is_ended)
    }

    /// A SYN behind its sender's reset begins a new entry, as the page lists, even if an invalid FIN
    /// came between the two.
    fn is_new_in_spite_of_end(&self) -> bool {
        let is_new = |hosts: (&&str, &&str)| hosts.0 == hosts.1 || hosts == (&"CLOSE", &"SYN_SENT");
        let [kernel, fast] = &self.states;
        let Some((last, before)) = self.history.split_last() else { return false };
        let of_sender = |flag| move |one: &Sent| !one.segment.back && one.segment.flags & flag != 0;
        let reset = before.iter().position(of_sender(RST));
        let end = reset.and_then(|at| before[at..].iter().find(|one| of_sender(FIN)(one)));
        let is_dropped = end.is_some_and(|end| end.arrived == [false; 2]);
        let Segment { back, flags, .. } = last.segment;
        is_dropped && !back && flags == SYN && kernel.iter().zip(fast).all(is_new)
    }

    /// A SYN and the SYN/ACK that acknowledges it do not begin the entry anew, as the page lists, if
    /// another segment came between the two.
    fn is_not_begun_anew(&self) -> bool {
        let is_old =
            |hosts: (&&str, &&str)| hosts.0 == hosts.1 || hosts == (&"SYN_RECV", &"ESTABLISHED");
        let [kernel, fast] = &self.states;
        let Some((last, before)) = self.history.split_last() else { return false };
        let answers = |syn: &Sent| {
            let Segment { back, seq, payload, flags, .. } = syn.segment;
            let end = seq.wrapping_add(payload as u32 + 1);
            !back && flags == SYN && end == last.segment.ack
        };
        last.segment.back
            && last.segment.flags == SYN | ACK
            && before.split_last().is_some_and(|(_, earlier)| earlier.iter().any(answers))
            && kernel.iter().zip(fast).all(is_old)
    }

    /// A reset inside the window closes the entry, as the page lists, if conntrack has last seen a
    /// segment that ended there.
    fn is_closed_early(&self) -> bool {
        let is_closed =
            |hosts: (&&str, &&str)| hosts.0 == hosts.1 || hosts == (&"ESTABLISHED", &"CLOSE");
        let [kernel, fast] = &self.states;
        let is_early = |sent: &Sent| {
            let Segment { back, seq, flags, .. } = sent.segment;
            let same_way = |one: &&Sent| one.segment.back == back;
            let mut ends = self.history.iter().filter(same_way).map(|one| {
                let Segment { seq, payload, flags, .. } = one.segment;
                let of_flags = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
                seq.wrapping_add(payload as u32 + of_flags)
            });
            let is_end = seq == self.connections[0].next[usize::from(back)];
            flags & RST != 0 && sent.arrived == [true; 2] && (is_end || ends.any(|end| end == seq))
        };
        self.last().is_some_and(is_early) && kernel.iter().zip(fast).all(is_closed)
    }

    fn is_equal(&self) -> bool {
        let arrived = self.last().is_none_or(|sent| sent.arrived[0] == sent.arrived[1]);
        arrived && self.states[0] == self.states[1]
    }
}

/// The comparison so far.
#[derive(Default)]
struct Tally {
    sent: usize,
    /// Segments that only the fast path has dropped, by kind.
    stricter: BTreeMap<&'static str, usize>,
    /// Segments of rounds in which a CPU's input queue was full.
    lost: usize,
    differences: Vec<String>,
}

impl Tally {
    /// Judges the last segment of a pair whose worlds differ.
    fn judge(&mut self, pair: &Pair, worlds: &[World; 2], is_lossy: bool) {
        let last = pair.last().expect("a segment");
        if last.arrived == [true, false]
            && let Some(kind) = pair.listed()
        {
            *self.stricter.entry(kind).or_default() += 1;
        } else if pair.is_ended_by_wrong_sum() {
            *self.stricter.entry("SYN with a wrong checksum after a reset").or_default() += 1;
        } else if pair.is_new_in_spite_of_end() {
            *self.stricter.entry("SYN after a reset and an invalid FIN").or_default() += 1;
        } else if pair.is_not_begun_anew() {
            *self.stricter.entry("SYN/ACK that begins anew, not behind the SYN").or_default() += 1;
        } else if pair.is_closed_early() {
            *self.stricter.entry("RST at the end of an earlier segment").or_default() += 1;
        } else if is_lossy {
            self.lost += 1;
        } else {
            let difference = format!(
                "{:?}, IPv6 {}, next {:?}: {:?}; entries without and with the fast path {:?}",
                worlds[0].shape, worlds[0].v6, pair.connections, pair.history, pair.states
            );
            // A long run may be interrupted.
            eprintln!("{difference}");
            self.differences.push(difference);
        }
    }
}

/// Sends one segment for each pair in both worlds, and waits until they are equal.
fn round(pairs: &mut [Pair], worlds: &mut [World; 2], numbers: &mut Random, tally: &mut Tally) {
    let before = worlds.each_ref().map(World::lost_in_queues);
    let mut of_number: [HashMap<u16, usize>; 2] = Default::default();
    for (at, pair) in pairs.iter_mut().enumerate().filter(|(_, pair)| !pair.has_ended) {
        let mut sent = None;
        let seed = numbers.clone();
        for (side, world) in worlds.iter_mut().enumerate() {
            *numbers = seed.clone();
            world.connection = pair.connections[side];
            let (source, segment) = random(numbers, world);
            let number = world.write(source, &segment);
            of_number[side].insert(number, at);
            let sent =
                sent.get_or_insert(Sent { segment, source, number: [0; 2], arrived: [false; 2] });
            sent.number[side] = number;
        }
        pair.history.extend(sent);
        tally.sent += 1;
    }
    settle(pairs, worlds, &of_number);
    let after = worlds.each_ref().map(World::lost_in_queues);
    for pair in pairs.iter_mut().filter(|pair| !pair.has_ended && !pair.is_equal()) {
        tally.judge(pair, worlds, before != after);
        // From here on the two are no longer comparable.
        pair.has_ended = true;
    }
}

/// Receives what arrives, and reads the entries, until the worlds are equal or time is up.
fn settle(pairs: &mut [Pair], worlds: &[World; 2], of_number: &[HashMap<u16, usize>; 2]) {
    let began = Instant::now();
    let mut last = began;
    loop {
        for (side, world) in worlds.iter().enumerate() {
            for number in [0, 1].iter().flat_map(|&tenant| world.arrived(tenant)) {
                // An unknown number is late, from an earlier round, which counted it as missing.
                let Some(at) = of_number[side].get(&number) else { continue };
                pairs[*at].history.last_mut().unwrap().arrived[side] = true;
                last = Instant::now();
            }
        }
        if last.elapsed() < LATE {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        for (side, world) in worlds.iter().enumerate() {
            let open = || pairs.iter().filter(|pair| !pair.has_ended);
            let connections: Vec<_> = open().map(|pair| pair.connections[side]).collect();
            let [first, second] = world.entries_of(&connections);
            let open = pairs.iter_mut().filter(|pair| !pair.has_ended);
            for (pair, of) in open.zip(first.iter().zip(&second)) {
                pair.states[side] = [of.0, of.1].map(|entry| state_name(entry.as_ref()));
            }
        }
        let is_late = began.elapsed() > DROPPED;
        let is_dropped = |pair: &Pair| {
            let of = |sent: &Sent| sent.arrived == [true, false];
            is_late && pair.listed().is_some() && pair.last().is_some_and(of)
        };
        let is_settled = |pair: &Pair| pair.has_ended || pair.is_equal() || is_dropped(pair);
        if pairs.iter().all(is_settled) || began.elapsed() > SETTLE {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn compare_random(count: usize, seed: u64) {
    let mut numbers = Random(seed);
    let mut tally = Tally::default();
    let began = Instant::now();
    while tally.sent < count {
        let (shape, v6) = (Shape::ALL[numbers.below(3)], numbers.once_in(2));
        let mut worlds = [false, true].map(|fast| World::new(shape, v6, fast));
        let until = count.min(tally.sent + SEGMENTS);
        while tally.sent < until {
            let number = AT_ONCE.min((until - tally.sent).div_ceil(2));
            let seeds: Vec<_> = (0..number).map(|_| numbers.next() as u32).collect();
            let [slow, fast] = &mut worlds;
            let (slow, fast) = (slow.connect_all(&seeds), fast.connect_all(&seeds));
            let of_worlds = |(slow, fast)| Pair {
                connections: [slow, fast],
                history: Vec::new(),
                states: Default::default(),
                has_ended: false,
            };
            let mut pairs: Vec<_> = slow.into_iter().zip(fast).map(of_worlds).collect();
            for _ in 0..ROUNDS {
                round(&mut pairs, &mut worlds, &mut numbers, &mut tally);
            }
        }
        eprintln!(
            "{} segments in {} s, {} dropped beside the fast path only, {} lost in full queues, {} \
             differences",
            tally.sent,
            began.elapsed().as_secs(),
            tally.stricter.values().sum::<usize>(),
            tally.lost,
            tally.differences.len()
        );
    }
    eprintln!("dropped beside the fast path only: {:#?}", tally.stricter);
    let differences = tally.differences;
    assert!(differences.is_empty(), "{} of {}: {differences:#?}", differences.len(), tally.sent);
}

/// Compares the fast path with the kernel: it may pass nothing that the kernel would not.
#[test]
fn random_segments_leave_the_same_entries_behind() {
    require!(need::root(), need::tool("nft"), need::tool("iptables-nft"));
    let from_environment = |name: &str, otherwise: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let count = from_environment("OVERLANE_ACCEL_SEGMENTS", 600);
    let seed = from_environment("OVERLANE_ACCEL_SEED", 1);
    compare_random(count, seed as u64);
}

/// The same with many segments, for rare combinations.
#[test]
fn many_random_segments_leave_the_same_entries_behind() {
    require!(need::root(), need::tool("nft"), need::tool("iptables-nft"));
    compare_random(100_000, 2);
}
