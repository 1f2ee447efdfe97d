//! Forces datagram drops at each place in the kernel, in private namespaces, as root: the
//! attributed number and place equal the actual ones.

use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use load::Workload;
use load::ask::{Ask, Task};
use measure::observer::Observer;
use measure::plan::{Plan, PlannedCell};
use measure::sampler::loss::{self, Evidence};
use measure::sampler::{Drops, Machine, Namespace};
use pair::Pair;
use planned::{plan, subject};
use results::{Loss, Role, Sample};
use sys::tap::TapOptions;
use test_support::{need, require};
use testbed::{Host, NIC, Wire};

use crate::pair;
use crate::planned;

/// Whether the kernel reports where it drops; the error names a missing privilege or kernel
/// feature.
fn drops_have_reasons() -> Result<(), String> {
    need::networks()?;
    let Err(reason) = Drops::open() else { return Ok(()) };
    let present = sys::userns::in_initial_user_namespace()
        && std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(!present, "no reasons of drops: {reason}");
    Err(reason.to_string())
}

/// An observer that ignores everything.
struct Nobody;

impl Observer for Nobody {}

fn sample(pair: &Pair, ask: Ask) -> Sample {
    let cell = PlannedCell { subject: 0, role: Role::Baseline, ask, setting: None, baseline: 0 };
    let whole = plan(vec![cell], 1, Duration::from_millis(500));
    let plan = Plan { warmup: Duration::ZERO, ..whole };
    let machine = Machine::open(false).unwrap();
    let stop = AtomicBool::new(false);
    let subjects = [subject(pair)];
    let outcome = measure::run::run(&plan, &subjects, &machine, &mut Nobody, &stop).unwrap();
    outcome.cells[0].samples[0].clone()
}

/// The loss of an unpaced stream of 64-byte datagrams.
fn stream_loss(pair: &Pair) -> Loss {
    let sample = sample(pair, Ask::new(Task::Steady(Workload::UdpStream)));
    assert_eq!(sample.invalid_reason, None);
    sample.loss.unwrap()
}

/// Asserts that the sum is right, and that `place` explains nearly the whole loss.
fn assert_at(loss: &Loss, place: &str) {
    let lost = loss.sent - loss.received;
    assert!(lost > 0, "nothing was lost: {loss:?}");
    assert_eq!(loss.places.values().sum::<u64>() + loss.unattributed, lost, "{loss:?}");
    let there = loss.places.get(place).copied().unwrap_or(0);
    assert!(there as f64 >= 0.95 * lost as f64, "{place}: {loss:?}");
}

#[test]
fn a_queueing_discipline_that_is_full() {
    require!(drops_have_reasons());
    let pair = Pair::new();
    let tbf = ["qdisc", "add", "dev", NIC, "root", "tbf", "rate", "8mbit", "burst", "4kb"];
    pair.a.run(Command::new("tc").args(tbf).args(["limit", "20kb"])).unwrap();
    assert_at(&stream_loss(&pair), &format!("a {NIC} qdisc"));
}

/// The rate of a token bucket is the NDR of the path behind it, on a machine under any load.
#[test]
fn the_drop_point_of_a_path_of_known_rate() {
    require!(drops_have_reasons());
    let pair = Pair::new();
    // 20 000 frames of 106 bytes (64, UDP, IP and Ethernet headers) a second.
    let tbf = ["qdisc", "add", "dev", NIC, "root", "tbf", "rate", "16960kbit", "burst", "2kb"];
    pair.a.run(Command::new("tc").args(tbf).args(["limit", "4kb"])).unwrap();
    // Beside other programs, the sender may get no CPU time in a trial's 100 ms.
    let samples = (0..5).map(|_| sample(&pair, Ask::new(Task::DropPoint)));
    let mut samples =
        samples.skip_while(|sample| sample.loss.as_ref().is_some_and(|l| l.sent == 0));
    let sample = samples.next().expect("in none of five samples a datagram was sent");
    assert!(sample.path_proved, "{sample:?}");
    let point = sample.drop_point.expect("a search");
    assert_eq!(point.goals.iter().map(|goal| goal.loss).collect::<Vec<_>>(), [0.0, 0.001, 0.005]);
    // A queue of 6 kB lets one trial of 100 ms pass at 3% more.
    for goal in &point.goals {
        assert!(goal.kept < 21_000.0 && goal.per_s <= goal.kept, "{point:?}");
        assert!(goal.missed.is_none_or(|missed| missed > goal.kept), "{point:?}");
    }
    if sample.valid {
        assert_eq!(sample.value, point.goals[1].per_s);
        assert!(sample.value > 0.0);
    } else {
        eprintln!("not narrowed on a busy machine: {:?} {point:?}", sample.invalid_reason);
    }
    assert_at(&sample.loss.unwrap(), &format!("a {NIC} qdisc"));
}

#[test]
fn a_small_socket_buffer() {
    require!(drops_have_reasons());
    let ask =
        Ask { socket_buffer_bytes: Some(4096), ..Ask::new(Task::Steady(Workload::UdpStream)) };
    let sample = sample(&Pair::new(), ask);
    assert_eq!(sample.invalid_reason, None);
    let loss = sample.loss.unwrap();
    assert_at(&loss, "b socket buffer");
    assert_eq!(sample.udp_errors["UdpRcvbufErrors"], loss.places["b socket buffer"]);
}

#[test]
fn a_rule_of_netfilter() {
    require!(drops_have_reasons());
    let pair = Pair::new();
    pair.b
        .nft(
            "table ip t { chain c { type filter hook input priority 0; \
             udp length < 100 numgen inc mod 4 == 0 drop; }; }",
        )
        .unwrap();
    assert_at(&stream_loss(&pair), "b netfilter");
}

#[test]
fn a_full_ring_of_a_device_that_nobody_reads() {
    require!(drops_have_reasons());
    require!(need::tun());
    let host = Host::new("a").unwrap();
    let tap =
        host.netns().run(|| sys::tap::Tap::open(&TapOptions::named("tap0"))).unwrap().unwrap();
    host.address("tap0", Ipv4Addr::new(10, 1, 0, 1), 24).unwrap();
    let neighbour = ["neigh", "add", "10.1.0.2", "lladdr", "02:00:00:00:00:02", "dev", "tap0"];
    host.run(Command::new("ip").args(neighbour)).unwrap();
    host.run(Command::new("ip").args(["link", "set", "tap0", "txqueuelen", "100"])).unwrap();
    let drops = Drops::open().unwrap();
    drops.watch(host.netns().inode()).unwrap();
    let before = drops.read().unwrap();
    let sender = host.netns().run(|| UdpSocket::bind(("10.1.0.1", 0)).unwrap()).unwrap();
    for _ in 0..300 {
        sender.send_to(&[0; 64], ("10.1.0.2", 9)).unwrap();
    }
    let seen = drops.difference(&before, &drops.read().unwrap());
    let evidence = Evidence {
        sent: 300,
        received: 100,
        datagrams_per_skb: 1.0,
        datagrams_per_receive: 1.0,
        namespaces: &[],
        softnet_dropped: 0,
        devices: &[],
        programs: &[],
        drops: &seen.into_iter().map(|drop| ("a".to_owned(), drop)).collect::<Vec<_>>(),
    };
    let loss = loss::attribute(&evidence);
    assert_eq!(loss.places, [("a tap0 ring".to_owned(), 200)].into(), "{loss:?}");
    drop(tap);
}

/// The table belongs to the machine and cannot be reduced from here, so it is filled with assured
/// connections, which the kernel does not evict.
#[test]
fn a_full_table_of_connections() {
    require!(drops_have_reasons());
    let most = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max");
    let most: u32 =
        require!(most.map_err(|e| format!("no connection tracking: {e}"))).trim().parse().unwrap();
    require!(need::tools(&["conntrack", "nft"]));
    require!(need::that(
        most <= 300_000,
        &format!("the table of connections is too large to be filled: {most}")
    ));
    let pair = Pair::new();
    let rules =
        "table ip t { chain c { type filter hook input priority 0; ct state new counter; }; }";
    pair.b.nft(rules).unwrap();
    let mut entries = tempfile::NamedTempFile::new().unwrap();
    for entry in 0..most {
        let (host, port) = (entry / 60_000, 1024 + entry % 60_000);
        writeln!(
            entries,
            "-A -p udp -s 10.9.{host}.1 -d 10.9.{host}.2 --sport {port} --dport 9 \
             -t 600 -u SEEN_REPLY,ASSURED"
        )
        .unwrap();
    }
    entries.flush().unwrap();
    pair.b.run(Command::new("conntrack").arg("-R").arg(entries.path())).unwrap();
    let drops = Drops::open().unwrap();
    drops.watch(pair.b.netns().inode()).unwrap();
    let namespace = Namespace::open_in(pair.b.netns(), "b").unwrap();
    let before = (namespace.snapshot().unwrap(), drops.read().unwrap());
    let sent = 200;
    for _ in 0..sent {
        // One connection per datagram.
        let sender = pair.a.netns().run(|| UdpSocket::bind((Wire::A, 0)).unwrap()).unwrap();
        sender.send_to(&[0; 64], (Wire::B, 9)).unwrap();
    }
    let loss = testbed::poll("drops", Duration::from_secs(10), || {
        let seen = drops.difference(&before.1, &drops.read().unwrap());
        let sample = namespace.difference(&before.0, &namespace.snapshot().unwrap());
        let drops: Vec<_> = seen.into_iter().map(|drop| ("b".to_owned(), drop)).collect();
        let loss = loss::attribute(&Evidence {
            sent,
            received: 0,
            datagrams_per_skb: 1.0,
            datagrams_per_receive: 1.0,
            namespaces: &[sample],
            softnet_dropped: 0,
            devices: &[],
            programs: &[],
            drops: &drops,
        });
        Ok(if loss.unattributed == 0 { Ok(loss) } else { Err(format!("{loss:?}")) })
    })
    .unwrap();
    assert_at(&loss, "b conntrack");
}

#[test]
fn a_port_that_nobody_has() {
    require!(drops_have_reasons());
    // The destination does not exist: the reason names a place without a counter.
    let pair = Pair::new();
    let drops = Drops::open().unwrap();
    drops.watch(pair.b.netns().inode()).unwrap();
    let before = drops.read().unwrap();
    let sender = pair.a.netns().run(|| UdpSocket::bind((Wire::A, 0)).unwrap()).unwrap();
    let sent = 50;
    for _ in 0..sent {
        sender.send_to(&[0; 64], (Wire::B, 9)).unwrap();
    }
    let seen = testbed::poll("drops", Duration::from_secs(10), || {
        let seen = drops.difference(&before, &drops.read().unwrap());
        let packets: u64 =
            seen.iter().filter(|drop| drop.reason == "NO_SOCKET").map(|drop| drop.packets).sum();
        Ok(if packets >= sent { Ok(seen) } else { Err(format!("{seen:?}")) })
    })
    .unwrap();
    let drop = seen.iter().find(|drop| drop.reason == "NO_SOCKET").unwrap();
    assert_eq!((drop.packets, drop.device.as_str()), (sent, NIC));
    assert!(drop.function.as_deref().is_none_or(|f| f.contains("udp")), "{drop:?}");
    // Drops of other namespaces do not count: a's answers (ICMP) are dropped in none of the
    // requested places.
    assert!(seen.iter().all(|drop| drop.netns == pair.b.netns().inode()), "{seen:?}");
}
