//! Flips policy rules at random under load. A forbidden packet must not arrive later than the bound
//! after the call that set the rule has returned, and allowed packets must arrive.
//!
//! Two beds of 16 by 16 pods get the same packets and the same flips at the same times. One has the
//! fast path in both hosts, the other uses the slow path for comparison. `OVERLANE_POLICY_SECONDS`
//! sets the duration (6 s; `bench/run policy` takes ten minutes), `OVERLANE_POLICY_SEED` repeats
//! the choices of a run.

mod bed;
mod judge;
mod rules;
mod traffic;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bed::{Bed, Joined, KEYS, Key, PODS, Protocol};
use judge::{Flip, Flips, Verdict};
use rules::Style;
use test_support::{need, require};
use traffic::Traffic;

/// Two descriptors for each socket of two beds.
const DESCRIPTORS: u64 = 8192;
/// Length of one round of packets before it is judged.
const ROUND: Duration = Duration::from_secs(2);
/// Keys whose rules change in a round: few, so that each changes often.
const FLIPPED: usize = 48;
/// Number of these keys that carry half of the packets: their flows persist, and take the fast path
/// between two changes.
const BUSY: usize = 12;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// Repeatable random choices (xorshift64*).
pub struct Choices(u64);

impl Choices {
    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % most
    }

    fn key(&mut self) -> Key {
        Key::numbered(self.below(KEYS))
    }
}

#[test]
fn rules_decide_which_packets_arrive() {
    rules_hold(Joined::Routed);
}

#[test]
fn rules_decide_which_packets_cross_a_bridge() {
    rules_hold(Joined::Bridged);
}

fn rules_hold(joined: Joined) {
    require!(need::root(), need::tools(&["nft", "iptables-nft-restore", "ip", "bridge"]));
    require!(need::descriptors(DESCRIPTORS));
    let seconds = variable("OVERLANE_POLICY_SECONDS").unwrap_or(6);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = variable("OVERLANE_POLICY_SEED").unwrap_or(now.as_nanos() as u64) | 1;
    println!("OVERLANE_POLICY_SEED={seed}");
    let mut choices = Choices(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let beds = [Bed::new(joined, true), Bed::new(joined, false)];
    let mut traffic = [Traffic::new(&beds[0]), Traffic::new(&beds[1])];
    for (bed, traffic) in beds.iter().zip(&mut traffic) {
        traffic.warm_up(bed);
    }
    let mut all = [Verdict::default(), Verdict::default()];
    let mut problems = Vec::new();
    // At least one round of each style, and more on a busy machine until they mean something.
    let mut rounds = 0;
    let enough = |all: &[Verdict; 2]| all.iter().all(Verdict::is_of_use);
    while rounds < Style::ALL.len() || Instant::now() < end || !enough(&all) {
        let style = Style::ALL[rounds % Style::ALL.len()];
        rounds += 1;
        for bed in &beds {
            style.install(bed);
        }
        let flips = round(&beds, &mut traffic, style, &mut choices);
        for (at, traffic) in traffic.iter_mut().enumerate() {
            let verdict = judge::judge(style, &flips[at], traffic.take());
            let name = if at == 0 { "fast" } else { "slow" };
            let found = verdict.late.iter().chain(&verdict.lost);
            problems.extend(found.map(|problem| format!("{name}: {style:?}: {problem}")));
            all[at].add(verdict);
        }
        for bed in &beds {
            style.remove(bed);
        }
        traffic.iter_mut().for_each(Traffic::streams_catch_up);
        assert!(problems.is_empty(), "seed {seed}: {}", problems.join("\n"));
    }
    for (name, verdict) in ["fast", "slow"].iter().zip(&all) {
        println!("{name}: {verdict}");
    }
    let (fast, whole) = beds[0].carried();
    assert!(fast > 0, "no packet of {whole} took the fast path: nothing was tested");
    println!(
        "{fast} of {whole} packets at the hosts' programs took the fast path ({:.1}%)",
        fast as f64 / whole.max(1) as f64 * 100.0
    );
}

/// Tests the test: a packet that passes a rule reported as in force is late, one that a rule
/// reported as removed drops is lost.
#[test]
fn rules_that_come_late_are_noticed() {
    require!(need::root(), need::tools(&["nft", "ip", "bridge"]));
    require!(need::descriptors(DESCRIPTORS));
    let (bed, style) = (Bed::new(Joined::Routed, true), Style::NftSet);
    let mut traffic = Traffic::new(&bed);
    traffic.warm_up(&bed);
    style.install(&bed);
    let key = Key { from: 0, to: PODS, protocol: Protocol::Udp };
    for late in [false, true] {
        let mut flips = Flips::default();
        for deny in [true, false] {
            let start = Instant::now();
            let change = || style.set(&bed, key.host(), &[key], deny);
            if !late {
                change();
            }
            flips.add(key, Flip { start, end: Instant::now(), deny });
            std::thread::sleep(2 * judge::BOUND);
            traffic.send(&bed, key, false);
            // The rule of before decides while this one is late.
            let expected = usize::from(deny == late);
            assert_eq!(traffic.wait_for(expected), expected, "late: {late}, denied: {deny}");
            if late {
                change();
            }
        }
        let verdict = judge::judge(style, &flips, traffic.take());
        let noticed = (verdict.late.len(), verdict.lost.len());
        let expected = usize::from(late);
        assert_eq!(noticed, (expected, expected), "{:?} {:?}", verdict.late, verdict.lost);
    }
}

/// Sends packets in both beds while rules change.
fn round(
    beds: &[Bed; 2],
    traffic: &mut [Traffic; 2],
    style: Style,
    choices: &mut Choices,
) -> [Flips; 2] {
    let flipped: Vec<Key> = (0..FLIPPED).map(|_| choices.key()).collect();
    let mut for_flips = Choices(choices.0 ^ 0x5bd1_e995);
    let stop = AtomicBool::new(false);
    let [one, other] = traffic;
    let (mut receive_one, mut receive_other) = (one.receiver(), other.receiver());
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || receive_one.run(stop));
        scope.spawn(move || receive_other.run(stop));
        let keys = &flipped;
        let sending = AtomicBool::new(true);
        let flips = std::thread::scope(|scope| {
            let sending = &sending;
            let flipper = scope.spawn(move || {
                let mut flips = [Flips::default(), Flips::default()];
                while sending.load(Ordering::Relaxed) {
                    style.flip(beds, keys, &mut for_flips, &mut flips);
                    // Each change voids verdicts: pause now and then, so that new ones are given.
                    let quiet = if for_flips.below(12) == 0 { 600 } else { 0 };
                    let pause = quiet + 5 + for_flips.below(40) as u64;
                    std::thread::sleep(Duration::from_millis(pause));
                }
                flips
            });
            let begun = Instant::now();
            while begun.elapsed() < ROUND {
                let key = match choices.below(4) {
                    0 | 1 => keys[choices.below(BUSY)],
                    2 => keys[choices.below(keys.len())],
                    _ => choices.key(),
                };
                let fresh = choices.below(8) == 0;
                for (bed, traffic) in beds.iter().zip([&mut *one, &mut *other]) {
                    traffic.send(bed, key, fresh);
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            sending.store(false, Ordering::Relaxed);
            flipper.join().unwrap()
        });
        // Packets in flight arrive and are read.
        std::thread::sleep(judge::UNDER_WAY + judge::UNDER_WAY);
        one.look_at_connections();
        other.look_at_connections();
        stop.store(true, Ordering::Relaxed);
        flips
    })
}
