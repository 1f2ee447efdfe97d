//! Routes of the underlay: the fast path sends no packet that the kernel would drop or send over
//! another route. Tests use datagrams and connections, whose checksums are partial. Pings may take
//! other paths.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use accel::{Accel, Wanted};
use test_support::{bound, need, require};
use testbed::{Host, NIC, Offload, mac, poll};

use super::pair::{LIMIT, Pair, TENANT_B, sh};
use super::refusals::refused;
use super::underlay::Underlay;

const DATAGRAMS: u32 = 8;
/// The second wire between the hosts.
const OTHER: &str = "nic1";
/// Time limit of an answer.
const ANSWER: Duration = Duration::from_millis(500);

/// The second tenant's answers to eight datagrams and one connection.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Answered {
    datagrams: u32,
    connected: bool,
}

pub const ALL: Answered = Answered { datagrams: DATAGRAMS, connected: true };
pub const NONE: Answered = Answered { datagrams: 0, connected: false };

pub fn ask(pair: &Pair) -> Answered {
    let to: IpAddr = TENANT_B.into();
    let there = pair.tenant_b.netns();
    let echo = there.run(|| bound(|| UdpSocket::bind((to, 5402)))).unwrap();
    let listener = there.run(|| bound(|| TcpListener::bind((to, 5403)))).unwrap();
    echo.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !done.load(Ordering::Acquire) {
                if let Ok((length, from)) = echo.recv_from(&mut buffer) {
                    let _ = echo.send_to(&buffer[..length], from);
                }
            }
        });
        let here = pair.tenant_a.netns();
        let socket = here.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        for number in 0..DATAGRAMS {
            let _ = socket.send_to(&number.to_be_bytes(), (to, 5402));
        }
        let server = SocketAddr::new(to, 5403);
        let connect = move || TcpStream::connect_timeout(&server, ANSWER).is_ok();
        // Beside the datagrams: where nothing answers, both take the whole time.
        let connecting = scope.spawn(move || here.run(connect).unwrap());
        let (mut datagrams, mut buffer, from) = (0, [0; 64], Instant::now());
        while datagrams < DATAGRAMS && from.elapsed() < ANSWER {
            datagrams += u32::from(socket.recv(&mut buffer).is_ok());
        }
        let connected = connecting.join().unwrap();
        drop(listener);
        done.store(true, Ordering::Release);
        Answered { datagrams, connected }
    })
}

fn start(pair: &Pair) -> Accel {
    Accel::start(pair.a.netns(), Wanted::All).unwrap()
}

/// Compares the sender's kernel with the fast path, with the route added before and after its
/// start.
fn all_obey(pair: &Pair, route: &str, expected: Answered, reason: &str) {
    pair.ping(&[]);
    sh(&pair.a, &format!("ip route add {route}"));
    assert_eq!(ask(pair), expected, "{route}: the kernel");
    let accel = start(pair);
    refused(&accel, reason, route);
    assert_eq!(ask(pair), expected, "{route}, there first: the fast path");
    sh(&pair.a, &format!("ip route del {route}"));
    pair.settle_sender(&accel);
    assert_eq!(ask(pair), ALL, "{route}, gone: the fast path");
    sh(&pair.a, &format!("ip route add {route}"));
    refused(&accel, reason, route);
    assert_eq!(ask(pair), expected, "{route}, later: the fast path");
    sh(&pair.a, &format!("ip route del {route}"));
}

#[test]
fn the_fast_path_does_not_send_packets_that_a_route_forbids() {
    require!(need::root());
    for (underlay, remote) in [(Underlay::V4, "10.0.0.2/32"), (Underlay::V6, "fd07::2/128")] {
        let pair = Pair::over(underlay, Offload::Full, false);
        for kind in ["blackhole", "unreachable", "prohibit"] {
            let reason = "unicast IPv";
            all_obey(&pair, &format!("{kind} {remote}"), NONE, reason);
        }
    }
}

/// A second wire; the first host's neighbour on it is the second host.
fn second_wire(pair: &Pair) {
    let netlink = pair.a.netlink();
    let (here, there) = (mac("a", OTHER), mac("b", OTHER));
    netlink.add_veth(OTHER, here, OTHER, there, pair.b.netns(), 1500).unwrap();
    for host in [&pair.a, &pair.b] {
        sh(
            host,
            "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.nic0.rp_filter=0 \
                net.ipv4.conf.nic1.rp_filter=0
             ip link set nic1 up",
        );
    }
    sh(&pair.a, &format!("ip neigh add 10.0.0.2 lladdr {there} dev {OTHER}"));
}

fn sent(host: &Host) -> [u64; 2] {
    [NIC, OTHER].map(|nic| host.netlink().link(nic).unwrap().counters.tx_packets)
}

/// Whether datagrams leave over the second wire and none over the first one. They may arrive on
/// either.
#[track_caller]
fn leave_by_other(pair: &Pair, what: &str) -> Result<(), String> {
    let before = sent(&pair.a);
    assert_eq!(ask(pair), ALL, "{what}");
    let [nic, other] = [0, 1].map(|nic| sent(&pair.a)[nic] - before[nic]);
    if nic < u64::from(DATAGRAMS) && other >= u64::from(DATAGRAMS) {
        return Ok(());
    }
    Err(format!("{what}: {nic} packets left by {NIC}, {other} by {OTHER}"))
}

#[test]
fn packets_leave_by_the_nic_that_a_route_says() {
    require!(need::root());
    let route = "10.0.0.2/32 dev nic1";
    let pair = Pair::new(Offload::Full, false);
    second_wire(&pair);
    pair.ping(&[]);
    sh(&pair.a, &format!("ip route add {route}"));
    leave_by_other(&pair, "the kernel").unwrap();
    let accel = start(&pair);
    leave_by_other(&pair, "the fast path, the route there first").unwrap();
    pair.settle_sender(&accel);
    leave_by_other(&pair, "the fast path, settled").unwrap();
    sh(&pair.a, &format!("ip route del {route}"));
    pair.settle_sender(&accel);
    sh(&pair.a, &format!("ip route add {route}"));
    // The agent handles the notification when it gets CPU time.
    let later = "the fast path, the route later";
    poll(later, LIMIT, || Ok(leave_by_other(&pair, later))).unwrap();
    poll("the fast path by the other NIC", LIMIT, || {
        pair.ping(&[]);
        let hooked = accel.status();
        Ok(if hooked.refusals().next().is_none() { Ok(()) } else { Err(format!("{hooked:?}")) })
    })
    .unwrap();
    leave_by_other(&pair, "the fast path, the route later, settled").unwrap();
}
