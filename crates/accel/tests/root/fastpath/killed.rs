//! Kills a process during datagrams in both directions: none of them is lost.

use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use accel::{Accel, Wanted};
use nix::sys::socket::{setsockopt, sockopt};
use sys::netns::NetNs;
use test_support::standing::{Standing, is_meant, stands};
use test_support::{full_backlogs, need, require};
use testbed::{Host, Offload, poll};

use super::pair::{LIMIT, Pair, TENANT_A, TENANT_B};
use super::sandboxed::pairs;
use super::underlay::Underlay;

/// Names the namespace for the process that is to be killed.
const NETNS: &str = "OVERLANE_ACCEL_TEST_NETNS";
/// The test that a separate process runs until it is killed.
const STANDING: &str = "fastpath::killed::a_kill_loses_no_packet";

/// In a process of its own.
fn stands_until_killed() {
    let path = std::env::var(NETNS).unwrap();
    let netns = NetNs::open(path.as_ref()).unwrap();
    let accel = Accel::start(&netns, Wanted::All).unwrap();
    // Prints counters on each request, until it is killed.
    for _ in stands("") {
        let status = accel.status();
        println!("{} {}", status.packets("encap_hit"), status.packets("decap_hit"));
    }
}

#[test]
fn a_kill_loses_no_packet() {
    if is_meant() {
        return stands_until_killed();
    }
    require!(need::root());
    for underlay in Underlay::BOTH {
        kill(&Pair::over(underlay, Offload::Full, false), 1);
    }
}

#[test]
fn a_kill_loses_no_packet_and_what_it_left_is_removed_by_the_next() {
    sandboxed(Underlay::V4, 2);
}

#[test]
fn many_kills_lose_no_packet() {
    require!(need::root());
    for underlay in Underlay::BOTH {
        kill(&Pair::over(underlay, Offload::Full, false), 5);
        sandboxed(underlay, 5);
    }
}

fn sandboxed(underlay: Underlay, rounds: usize) {
    require!(need::root());
    let pair = Pair::sandboxed_over(underlay, Offload::Full, false);
    kill(&pair, rounds);
    let accel = Accel::start(pair.b.netns(), Wanted::All).unwrap();
    assert_eq!(pairs(&pair.b).len(), 1);
    drop(accel);
    assert_eq!(pairs(&pair.b), Vec::<String>::new());
}

/// Packets that it has sent and received over the fast path.
fn hits(standing: &mut Standing) -> [u64; 2] {
    let line = standing.ask("").unwrap();
    let mut words = line.split(' ').map(|word| word.parse().unwrap());
    [words.next().unwrap(), words.next().unwrap()]
}

/// Kills a process that accelerates the second host.
fn kill(pair: &Pair, rounds: usize) {
    // The programs of a killed process are detached one after the other.
    for round in 0..rounds {
        let fd = pair.b.netns().as_fd().as_raw_fd();
        let path = format!("/proc/{}/fd/{fd}", std::process::id());
        let mut standing = Standing::start(STANDING, &[(NETNS, &path)]).unwrap();
        poll("the fast path of b", LIMIT, || {
            let before = hits(&mut standing);
            pair.ping(&[]);
            let now = hits(&mut standing);
            let both = now[0] > before[0] && now[1] > before[1];
            Ok(both.then_some(()).ok_or_else(|| format!("{now:?}")))
        })
        .unwrap();
        let socket = |host: &Host| host.netns().run(|| UdpSocket::bind("0.0.0.0:5405").unwrap());
        let (one, other) = (socket(&pair.tenant_a).unwrap(), socket(&pair.tenant_b).unwrap());
        one.connect((TENANT_B, 5405)).unwrap();
        other.connect((TENANT_A, 5405)).unwrap();
        for socket in [&one, &other] {
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            setsockopt(socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        }
        const SENT: u32 = 20_000;
        // Packets of one direction that may be in flight. Far fewer than `netdev_max_backlog`
        // (1,000), so that receivers without CPU time lose no packet.
        const WINDOW: u32 = 200;
        let arrived = [AtomicU32::new(0), AtomicU32::new(0)];
        let send = |socket: &UdpSocket, arrived: &AtomicU32| {
            for number in 0..SENT {
                let begun = Instant::now();
                while number >= arrived.load(Ordering::Relaxed) + WINDOW {
                    // More than a window is lost; the receivers report it.
                    if begun.elapsed() > LIMIT {
                        return;
                    }
                    std::thread::sleep(Duration::from_micros(20));
                }
                socket.send(&number.to_ne_bytes()).unwrap();
            }
        };
        let receive = |socket: &UdpSocket, arrived: &AtomicU32| {
            let mut buffer = [0; 4];
            while arrived.load(Ordering::Relaxed) < SENT && socket.recv(&mut buffer).is_ok() {
                arrived.fetch_add(1, Ordering::Relaxed);
            }
            arrived.load(Ordering::Relaxed)
        };
        let full = full_backlogs();
        let received = std::thread::scope(|scope| {
            let received = [(&one, &arrived[0]), (&other, &arrived[1])];
            let received = received.map(|(socket, arrived)| {
                let receive = &receive;
                scope.spawn(move || receive(socket, arrived))
            });
            scope.spawn(|| send(&one, &arrived[1]));
            scope.spawn(|| send(&other, &arrived[0]));
            poll("datagrams by the fast path", LIMIT, || {
                let before = hits(&mut standing);
                std::thread::sleep(Duration::from_millis(10));
                let now = hits(&mut standing);
                let both = now[0] > before[0] + 10 && now[1] > before[1] + 10;
                Ok(both.then_some(()).ok_or_else(|| format!("{now:?}")))
            })
            .unwrap();
            standing.kill().unwrap();
            received.map(|thread| thread.join().unwrap())
        });
        // Floods of other namespaces may fill CPU backlogs, which all namespaces share.
        let full = full_backlogs() - full;
        for received in received {
            assert!(
                received + full >= SENT,
                "round {round}: {received} of {SENT}, {full} elsewhere"
            );
        }
        // The pair is left without programs, unused.
        assert_eq!(pairs(&pair.b).len(), usize::from(pair.sandboxes.is_some()));
        pair.ping(&[]);
    }
}
