//! Sends outer headers of every kind that a wire can deliver: both paths must give the tenant the
//! same packets. The wire is a TAP device of this process.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use accel::{Accel, Wanted};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use packet::checksum::Sum;
use sys::tap::{Tap, TapOptions};
use test_support::{need, require};
use testbed::{Host, mac, poll};

use super::pair::{BRIDGE, DEVICE, LIMIT, PORT, sh};
use super::underlay::Underlay;

const NIC: &str = "nic0";
/// MAC addresses of the other host and of the tenant behind it.
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const TENANT_THERE: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Offset of the case's number, behind the inner headers.
const NUMBER: usize = 14 + 20 + 8;

/// A host whose NIC is a TAP device of this process, and its tenant.
struct Bench {
    underlay: Underlay,
    tap: Tap,
    host: Host,
    tenant: Host,
    accel: Accel,
    received: OwnedFd,
}

impl Bench {
    fn new(underlay: Underlay) -> Bench {
        let host = Host::with_ipv6("b").unwrap();
        let tenant = Host::new("tenant-b").unwrap();
        let open = || Tap::open(&TapOptions::named(NIC)).unwrap();
        let tap = host.netns().run(open).unwrap();
        tap.set_nonblocking(true).unwrap();
        host.connect(PORT, &tenant, "eth0", underlay.mtu()).unwrap();
        let [there, here] = underlay.addresses();
        let length = if here.is_ipv4() { 24 } else { 64 };
        let show = |mac: [u8; 6]| packet::ethernet::MacAddr(mac).to_string();
        sh(
            &host,
            &format!(
                "ip link set {NIC} up
                 ip addr add {here}/{length} dev {NIC} {}
                 ip neigh add {there} lladdr {} dev {NIC}
                 ip link add {DEVICE} type vxlan id 42 local {here} remote {there} dev {NIC} \
                    dstport 4789 {}
                 ip link set {DEVICE} mtu {} up",
                if here.is_ipv4() { "" } else { "nodad" },
                show(THERE),
                underlay.options(false),
                underlay.mtu()
            ),
        );
        host.bridge(BRIDGE, underlay.mtu(), &[DEVICE, PORT]).unwrap();
        sh(
            &host,
            &format!(
                "bridge fdb add {0} dev {DEVICE} dst {there} self permanent
                 bridge fdb add {0} dev {DEVICE} master static
                 bridge fdb add {1} dev {PORT} master static",
                show(TENANT_THERE),
                mac("tenant-b", "eth0")
            ),
        );
        let received = tenant.netns().run(frames).unwrap();
        let accel = Accel::start(host.netns(), Wanted::All).unwrap();
        Bench { underlay, tap, host, tenant, accel, received }
    }

    /// A frame of the other host, as its kernel sends it without outer checksums.
    fn frame(&self, number: u16, inner_tos: u8) -> Vec<u8> {
        let mut inner = vec![0; NUMBER];
        inner[..6].copy_from_slice(&mac("tenant-b", "eth0").0);
        inner[6..12].copy_from_slice(&TENANT_THERE);
        inner[12..14].copy_from_slice(&[8, 0]);
        inner[14..16].copy_from_slice(&[0x45, inner_tos]);
        inner[16..18].copy_from_slice(&100u16.to_be_bytes());
        inner[22..24].copy_from_slice(&[64, 17]);
        inner[26..34].copy_from_slice(&[10, 1, 0, 11, 10, 1, 0, 12]);
        inner[34..40].copy_from_slice(&[21, 27, 21, 28, 0, 80]);
        inner.extend(number.to_be_bytes());
        inner.resize(14 + 100, 7);
        let sum = Sum::of(&inner[14..34]).checksum();
        inner[24..26].copy_from_slice(&sum.to_be_bytes());

        let length = (inner.len() + 16) as u16;
        let mut frame = mac_of(&self.host).to_vec();
        frame.extend(THERE);
        match self.underlay.addresses() {
            [IpAddr::V4(there), IpAddr::V4(here)] => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((length + 20).to_be_bytes());
                frame.extend([0, 1, 0, 0, 64, 17, 0, 0]);
                frame.extend(there.octets());
                frame.extend(here.octets());
            }
            [IpAddr::V6(there), IpAddr::V6(here)] => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([17, 64]);
                frame.extend(there.octets());
                frame.extend(here.octets());
            }
            _ => unreachable!("one family"),
        }
        frame.extend(40_000u16.to_be_bytes());
        frame.extend(4789u16.to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend([0, 0, 8, 0, 0, 0, 0, 0, 42, 0]);
        frame.extend(inner);
        self.summed(frame)
    }

    /// Sets the right checksum of an outer IPv4 header.
    fn summed(&self, mut frame: Vec<u8>) -> Vec<u8> {
        if self.underlay == Underlay::V4 {
            frame[24..26].fill(0);
            let sum = Sum::of(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }

    /// Sets type of service or traffic class.
    fn mark(&self, mut frame: Vec<u8>, tos: u8) -> Vec<u8> {
        match self.underlay {
            Underlay::V4 => frame[15] = tos,
            Underlay::V6 => {
                frame[14] = 0x60 | tos >> 4;
                frame[15] = tos << 4 | frame[15] & 15;
            }
        }
        self.summed(frame)
    }

    /// Every kind of outer header, each with its number.
    fn cases(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        // RFC 6040: every outer mark with every inner mark.
        for inner in 0..4 {
            for outer in 0..4 {
                let frame = self.frame(all.len() as u16, 0xa0 | inner);
                all.push(self.mark(frame, 0x48 | outer));
            }
        }
        let udp = self.underlay.udp();
        let vxlan = udp + 8;
        let mut change = |how: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = self.frame(all.len() as u16, 0);
            how(&mut frame);
            all.push(self.summed(frame));
        };
        // Lengths, and bytes behind the frame.
        let lengths: &[usize] = if self.underlay == Underlay::V4 { &[16] } else { &[18] };
        for at in lengths.iter().copied().chain([udp + 4]) {
            for by in [255, 1] {
                change(&|frame| frame[at + 1] = frame[at + 1].wrapping_add(by));
            }
            change(&|frame| frame[at..at + 2].fill(0));
        }
        change(&|frame| frame.extend([0; 9]));
        change(&|frame| frame.truncate(frame.len() - 9));
        for length in [udp + 16, udp + 16 + 14, udp + 16 + 13, udp + 8, udp + 3] {
            change(&|frame| frame.truncate(length));
        }
        // Addresses, ports, the VXLAN header.
        for at in [udp - 1, udp - (udp - 14) / 2 + 1, 0, 5, 6, udp + 1, udp + 3] {
            change(&|frame| frame[at] ^= 1);
        }
        for at in [vxlan, vxlan + 1, vxlan + 3, vxlan + 6, vxlan + 7] {
            for bit in [1, 4, 8, 0x80] {
                change(&|frame| frame[at] ^= bit);
            }
        }
        // A wrong and unverified checksum.
        change(&|frame| frame[udp + 6..udp + 8].copy_from_slice(&[1, 2]));
        // Fields that a router changes on the way, and fields that it must not change.
        match self.underlay {
            Underlay::V4 => {
                for (at, value) in [(22, 1), (22, 0), (20, 0x40), (20, 0x20), (21, 1), (14, 0x46)] {
                    change(&|frame| frame[at] = value);
                }
            }
            Underlay::V6 => {
                for (at, value) in [(21, 1), (21, 0), (15, 9), (17, 5), (14, 0x40), (20, 0)] {
                    change(&|frame| frame[at] = value);
                }
                // Hop-by-hop options, and a fragment header of a whole packet.
                for next in [0, 60, 44] {
                    change(&|frame| {
                        frame[20] = next;
                        frame[19] += 8;
                        frame
                            .splice(54..54, [17, 0, if next == 44 { 0 } else { 1 }, 4, 0, 0, 0, 0]);
                        if next == 44 {
                            frame[57] = 0;
                        }
                    });
                }
            }
        }
        all
    }

    /// Sends frames, and returns those that reach the tenant.
    fn send(&self, cases: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in cases {
            // A TAP refuses frames that are shorter than an Ethernet header.
            let _ = self.tap.write(frame);
        }
        self.collect()
    }

    fn collect(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 4096];
        let mut all: Vec<Vec<u8>> = std::iter::from_fn(|| {
            let length = recv(self.received.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok()?;
            Some(buffer[..length].to_vec())
        })
        .filter(|frame| frame.get(6..12) == Some(&TENANT_THERE))
        .collect();
        all.sort();
        all
    }

    /// Sends until the counter of this word increases.
    fn until(&self, word: &str) {
        poll(word, LIMIT, || {
            let before = self.accel.status().packets(word);
            self.tap.write(&self.frame(u16::MAX, 0)).unwrap();
            let now = self.accel.status();
            let seen = now.packets(word) > before;
            Ok(seen.then_some(()).ok_or_else(|| format!("{now:#?}")))
        })
        .unwrap();
        self.collect();
    }
}

fn mac_of(host: &Host) -> [u8; 6] {
    let links = host.netlink().overlay().unwrap().links;
    links.into_values().find(|link| link.name == NIC).and_then(|link| link.mac).unwrap().0
}

/// Every frame of the calling thread's namespace, until none comes for a while.
fn frames() -> OwnedFd {
    let socket =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll)
            .unwrap();
    let quiet = Duration::from_millis(100);
    let quiet = TimeVal::milliseconds(quiet.as_millis() as i64);
    setsockopt(&socket, sockopt::ReceiveTimeout, &quiet).unwrap();
    socket
}

#[test]
fn outer_headers_of_every_kind_are_handled_alike_on_both_paths() {
    require!(need::root());
    for underlay in Underlay::BOTH {
        let bench = Bench::new(underlay);
        let cases = bench.cases();
        bench.until("decap_hit");
        let before = bench.accel.status();
        let fast = bench.send(&cases);
        let after = bench.accel.status();
        bench.accel.pause(true);
        bench.until("decap_stale");
        let slow = bench.send(&cases);
        let number = |frame: &Vec<u8>| u16::from_be_bytes([frame[NUMBER], frame[NUMBER + 1]]);
        let numbers = |frames: &[Vec<u8>]| frames.iter().map(number).collect::<Vec<_>>();
        assert_eq!(numbers(&fast), numbers(&slow), "{underlay:?}: {after:#?}");
        assert_eq!(fast, slow, "{underlay:?}");
        let taken = after.packets("decap_hit") - before.packets("decap_hit");
        let (arrived, all) = (fast.len(), cases.len());
        println!("{underlay:?}: {all} frames, {arrived} arrived, {taken} by the fast path");
        // On a starved machine the heartbeat may have expired.
        let stale = after.packets("decap_stale") > before.packets("decap_stale");
        assert!(stale || taken >= 10, "{underlay:?}: {taken} of {arrived}: {after:#?}");
        assert!(arrived < all - 20, "{underlay:?}: {arrived} of {all}");
        drop(bench.tenant);
    }
}

#[test]
fn a_frame_is_that_of_the_device_it_came_for_not_of_its_vni() {
    require!(need::root());
    const OTHER: &str = "vxlan1";
    const OTHER_PORT: u16 = 4790;
    for underlay in Underlay::BOTH {
        let bench = Bench::new(underlay);
        let [there, here] = underlay.addresses();
        // A second accelerated device in the same bridge with the same VNI and its own UDP port.
        sh(
            &bench.host,
            &format!(
                "ip link add {OTHER} type vxlan id 42 local {here} dev {NIC} \
                    dstport {OTHER_PORT} {}
                 ip link set {OTHER} mtu {} master {BRIDGE} up
                 bridge fdb add 02:00:00:00:00:03 dev {OTHER} dst {there} self permanent
                 bridge fdb add 02:00:00:00:00:03 dev {OTHER} master static",
                underlay.options(false),
                underlay.mtu()
            ),
        );
        poll("both devices served", LIMIT, || {
            let status = bench.accel.status();
            let served = |name| status.devices.iter().any(|d| d.device == name && d.entries == 1);
            let both = [DEVICE, OTHER].into_iter().all(served) && status.accelerates(OTHER);
            Ok(both.then_some(()).ok_or_else(|| format!("{status:#?}")))
        })
        .unwrap();
        bench.until("decap_hit");
        // The bridge knows the tenant behind the first device. A frame through the second device
        // makes it learn a move.
        let mut frame = bench.frame(0, 0);
        let port = underlay.udp() + 2;
        frame[port..port + 2].copy_from_slice(&OTHER_PORT.to_be_bytes());
        let links = bench.host.netlink().overlay().unwrap().links;
        let index = |name| *links.iter().find(|(_, link)| link.name == name).unwrap().0;
        let known = (index(BRIDGE), packet::ethernet::MacAddr(TENANT_THERE));
        let before = bench.accel.status();
        poll("the address behind the other device", LIMIT, || {
            bench.tap.write(&frame).unwrap();
            let at = bench.host.netlink().overlay().unwrap().bridge_fdb[&known].port;
            let now = bench.accel.status();
            let taken = now.packets("decap_hit") - before.packets("decap_hit");
            assert_eq!(taken, 0, "{underlay:?}: {now:#?}");
            Ok((at == index(OTHER)).then_some(()).ok_or_else(|| format!("{now:#?}")))
        })
        .unwrap();
    }
}
