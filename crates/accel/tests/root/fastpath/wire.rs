//! Both paths send the same bytes on the wire.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use accel::{Accel, Wanted};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use test_support::{need, require};
use testbed::{NIC, Offload};

use super::pair::{LIMIT, Pair, TENANT_B};
use super::underlay::Underlay;

/// Offsets of IPv4 identification and header checksum in the header. The kernel varies the
/// identification, and thus the checksum.
const VARIED: [usize; 4] = [4, 5, 10, 11];
/// Inner datagrams' destination port.
const PORT: u16 = 5402;

fn word(frame: &[u8], at: usize) -> u16 {
    frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// VXLAN frames with a datagram of this test that arrive in host `b` while `send` runs, until
/// `expected` have arrived.
fn capture(pair: &Pair, underlay: Underlay, expected: usize, send: impl Fn()) -> Vec<Vec<u8>> {
    let open = || {
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll)
            .unwrap()
    };
    let tap = pair.b.netns().run(open).unwrap();
    setsockopt(&tap, sockopt::ReceiveTimeout, &TimeVal::milliseconds(50)).unwrap();
    send();
    let mut frames = Vec::new();
    let end = Instant::now() + LIMIT;
    let mut buffer = vec![0; 70_000];
    while frames.len() < expected && Instant::now() < end {
        let Ok(length) = recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()) else { continue };
        let frame = &buffer[..length];
        let Some(inner) = underlay.inner(frame) else { continue };
        let ip = inner + 14;
        let inner_port = match word(frame, inner + 12) {
            0x0800 => ip + 20 + 2,
            0x86dd => ip + 40 + 2,
            _ => continue,
        };
        if word(frame, inner_port) == PORT {
            let mut frame = frame.to_vec();
            for header in [14, ip] {
                if frame[header] >> 4 == 4 {
                    VARIED.iter().for_each(|at| frame[header + at] = 0);
                }
            }
            frames.push(frame);
        }
    }
    frames
}

/// Sends a few datagrams of every kind, always the same ones.
fn send(pair: &Pair, to: IpAddr) {
    let from: IpAddr = if to.is_ipv4() { "0.0.0.0".parse() } else { "::".parse() }.unwrap();
    let socket = pair.tenant_a.netns().run(|| UdpSocket::bind((from, 5403)).unwrap()).unwrap();
    let target = SocketAddr::new(to, PORT);
    let payload: Vec<u8> = (0..8000u32).map(|at| (at / 251 + at) as u8).collect();
    for size in [0, 1, 64, 1379] {
        socket.send_to(&payload[..size], target).unwrap();
    }
    // DSCP, and ECN that the outer header copies.
    if to.is_ipv4() {
        for tos in [0xb8u8, 0xb9, 0xba, 0xbb] {
            setsockopt(&socket, sockopt::Ipv4Tos, &i32::from(tos)).unwrap();
            socket.send_to(&payload[..100], target).unwrap();
        }
        setsockopt(&socket, sockopt::Ipv4Tos, &0).unwrap();
    }
    sys::udp::set_segment_bytes(&socket, 1000).unwrap();
    socket.send_to(&payload[..7500], target).unwrap();
}

#[test]
fn captures_of_both_paths_are_the_same() {
    captures_are_the_same(|underlay, udp_csum| Pair::over(underlay, Offload::None, udp_csum));
}

#[test]
fn captures_of_both_paths_are_the_same_behind_a_router() {
    captures_are_the_same(|underlay, udp_csum| {
        Pair::routed_over(underlay, Offload::None, udp_csum, true)
    });
}

#[test]
fn captures_of_both_paths_are_the_same_behind_a_router_without_a_bridge() {
    captures_are_the_same(|underlay, udp_csum| {
        Pair::routed_over(underlay, Offload::None, udp_csum, false)
    });
}

#[test]
fn captures_of_both_paths_are_the_same_across_namespaces() {
    captures_are_the_same(|underlay, udp_csum| {
        Pair::sandboxed_over(underlay, Offload::None, udp_csum)
    });
}

fn captures_are_the_same(pair: fn(Underlay, bool) -> Pair) {
    require!(need::root());
    for underlay in Underlay::BOTH {
        for udp_csum in [false, true] {
            captures_of(&pair(underlay, udp_csum), underlay, udp_csum, |accel| {
                accel.status().packets("encap_hit")
            });
        }
    }
}

/// Asserts that captures of the fast path and of the kernel are equal; `taken` counts packets that
/// the fast path has sent.
pub fn captures_of(pair: &Pair, underlay: Underlay, udp_csum: bool, taken: impl Fn(&Accel) -> u64) {
    // Every checksum on the wire is finished.
    pair.a.set_features(NIC, &[("tx-checksum-ip-generic", false)]).unwrap();
    // In the sender only: the receiver leaves finished outer checksums to the slow path, as they
    // are unverified.
    let accel = Accel::start(pair.a.netns(), Wanted::All).unwrap();
    pair.ping6();
    for (to, expected) in [(IpAddr::from(TENANT_B), 16), ("fd00::12".parse().unwrap(), 12)] {
        let enough = if udp_csum { expected - 8 } else { expected - 7 } as u64;
        // Meanwhile the mirror may be rewritten, or late on a busy machine.
        let fast = testbed::poll("a capture of the fast path", LIMIT, || {
            // The first packet of each entry may take the slow path.
            send(pair, to);
            let before = taken(&accel);
            let fast = capture(pair, underlay, expected, || send(pair, to));
            let taken = taken(&accel) - before;
            let seen =
                || format!("to {to} over {underlay:?}: {taken} taken: {:#?}", accel.status());
            Ok(if taken + 4 >= enough { Ok(fast) } else { Err(seen()) })
        })
        .unwrap();
        accel.pause(true);
        testbed::poll("the slow path", LIMIT, || {
            let before = taken(&accel);
            pair.ping(&[]);
            let hits = taken(&accel) - before;
            Ok(if hits == 0 { Ok(()) } else { Err(format!("{hits} hits")) })
        })
        .unwrap();
        let slow = capture(pair, underlay, expected, || send(pair, to));
        accel.pause(false);
        assert_eq!((fast.len(), slow.len()), (expected, expected), "to {to}");
        for (number, (fast, slow)) in fast.iter().zip(&slow).enumerate() {
            assert_eq!(fast, slow, "frame {number} to {to} over {underlay:?}, checksum {udp_csum}");
        }
    }
}
