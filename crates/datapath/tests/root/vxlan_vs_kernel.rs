//! Exchanges encapsulated GSO packets unsegmented with the kernel's VXLAN device.
//!
//! The device's underlay is a TAP with the 24-byte vnet header. Packets that the kernel sends
//! arrive there unsegmented, and `packet::decap` decapsulates them. Packets from `packet::encap`
//! are written there unsegmented, and a socket behind the device receives their datagrams.

use crate::build;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use build::{Random, Spec};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use packet::decap;
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, SOURCE_PORTS, Tunnel};
use packet::ethernet::MacAddr;
use packet::frame::Headers;
use packet::segment::Segmenter;
use packet::vnet_hdr::{self, GsoKind, GsoTunnel, Layout, VnetHdr};
use packet::vxlan::{self, Vni};
use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};
use test_support::{need, require, skip};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const KERNELS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SEGMENT: usize = 1000;

/// One combination of underlay and checksum policy.
#[derive(Debug, Clone, Copy)]
struct Case {
    v6: bool,
    checksum: bool,
}

fn run(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", words[0]));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {message}");
}

/// The TAP and, on top of it, the kernel's VXLAN device, in the calling thread's
/// namespace. `None` if this kernel has no tunnel offload.
fn underlay(case: Case) -> Option<Tap> {
    let vnet_header = Some(Layout::Tunnel.size());
    let tap = Tap::open(&TapOptions { vnet_header, ..TapOptions::named("under") }).expect("TAP");
    if !tap
        .negotiate_offload(Offload::ALL)
        .expect("offloads")
        .contains(Offload::UDP_TUNNEL_GSO_CSUM)
    {
        return None;
    }
    tap.set_nonblocking(true).expect("nonblocking");
    run(&format!("ip link set under address {KERNELS} up"));
    run("ip addr add 10.0.0.1/24 dev under");
    run("ip addr add fd00::1/64 dev under nodad");
    run(&format!("ip neigh add 10.0.0.2 lladdr {OURS} dev under"));
    run(&format!("ip neigh add fd00::2 lladdr {OURS} dev under"));
    let (ends, sum) = match (case.v6, case.checksum) {
        (false, true) => ("local 10.0.0.1 remote 10.0.0.2", "udpcsum"),
        (false, false) => ("local 10.0.0.1 remote 10.0.0.2", "noudpcsum"),
        (true, true) => ("local fd00::1 remote fd00::2", "noudp6zerocsumtx"),
        (true, false) => ("local fd00::1 remote fd00::2", "udp6zerocsumtx udp6zerocsumrx"),
    };
    run(&format!("ip link add vx address {KERNELS} type vxlan id 100 {ends} dstport 4789 {sum}"));
    run("ip link set vx mtu 1430 up");
    // The tenant's side; the addresses are those of the packets that tests build.
    run("ip addr add 10.9.0.1/24 dev vx");
    run(&format!("ip neigh add 10.9.0.2 lladdr {OURS} dev vx"));
    Some(tap)
}

/// Reads frames until one is a GSO packet in our tunnel.
fn read_gso_packet(tap: &Tap) -> (VnetHdr, Vec<u8>) {
    let mut buffer = vec![0; 70_000];
    loop {
        match tap.read(&mut buffer) {
            Ok(len) => {
                let (vnet, frame) =
                    vnet_hdr::split(&buffer[..len], Layout::Tunnel).expect("header");
                // Neighbour discovery and multicast reports also arrive.
                if vnet.gso_type != 0 {
                    return (vnet, frame.to_vec());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(tap.as_fd(), PollFlags::POLLIN)];
                let ready = poll(&mut fds, PollTimeout::from(3000u16)).expect("poll");
                assert!(ready > 0, "no GSO packet came out of the kernel");
            }
            Err(error) => panic!("reading the TAP: {error}"),
        }
    }
}

fn from_the_kernel(case: Case, tap: &Tap) {
    let socket = UdpSocket::bind("10.9.0.1:0").expect("socket");
    setsockopt(&socket, UdpGsoSegment, &(SEGMENT as i32)).expect("UDP_SEGMENT");
    let mut payload = vec![0; 5 * SEGMENT + 17];
    Random(7).fill(&mut payload);
    socket.send_to(&payload, "10.9.0.2:9").expect("send");

    let (vnet, frame) = read_gso_packet(tap);
    let gso = vnet.gso().expect("known").expect("GSO packet");
    assert_eq!((gso.kind, usize::from(gso.size)), (GsoKind::Udp, SEGMENT), "{case:?}");
    assert_eq!(gso.tunnel, Some(GsoTunnel { ipv6: case.v6, checksum: case.checksum }));

    let out = decap::frame(&frame, &vnet, vxlan::PORT).expect("ours");
    assert_eq!((out.vni.get(), out.reserved_bits_are_zero), (100, true));
    let headers = Headers::parse(out.frame).expect("UDP");
    assert_eq!(&out.frame[headers.payload_offset..], payload);

    // Segmentation before and after decapsulation gives the same packets.
    let cut = |frame: &[u8], vnet: &VnetHdr| -> Vec<Vec<u8>> {
        let segmenter = Segmenter::new(frame, vnet).expect("well formed");
        let mut buffer = vec![0; segmenter.total_len(0)];
        let written = segmenter.write_all(&[], &mut buffer).expect("large enough");
        written.segments(&buffer).map(<[u8]>::to_vec).collect()
    };
    let inner = cut(out.frame, &out.vnet);
    assert_eq!(inner.len(), 6);
    let outer = cut(&frame, &vnet);
    assert_eq!(outer.len(), 6);
    for (outer, inner) in outer.iter().zip(&inner) {
        // Verified as from an untrusted sender: the outer checksum too, if there is one.
        let out = decap::frame(outer, &VnetHdr::default(), vxlan::PORT).expect("whole");
        assert_eq!(out.frame, inner);
    }
}

fn to_the_kernel(case: Case, tap: &Tap) {
    let socket = UdpSocket::bind("10.9.0.1:5201").expect("socket");
    socket.set_read_timeout(Some(Duration::from_secs(3))).expect("timeout");
    let addresses = if case.v6 {
        let (source, destination) = ("fd00::2".parse(), "fd00::1".parse());
        Addresses::V6 { source: source.expect("v6"), destination: destination.expect("v6") }
    } else {
        Addresses::V4 { source: [10, 0, 0, 2].into(), destination: [10, 0, 0, 1].into() }
    };
    let encap = Encap::new(&Tunnel {
        link: (KERNELS, OURS),
        addresses,
        vni: Vni::new(100).expect("small"),
        port: vxlan::PORT,
        source_ports: SOURCE_PORTS,
        ttl: 64,
        dscp: Dscp::Fixed(0),
        ecn: Default::default(),
        dont_fragment: true,
        flow_label: 0,
        checksum: if case.checksum { OuterChecksum::Full } else { OuterChecksum::Zero },
    });
    let spec =
        Spec { udp: true, payload: 5 * SEGMENT + 17, gso_size: SEGMENT as u16, ..Spec::PLAIN };
    let (vnet, mut frame) = spec.build();
    // The packet's hardware and IP addresses become those of this network.
    frame[..6].copy_from_slice(&KERNELS.0);
    frame[6..12].copy_from_slice(&OURS.0);
    for (at, new) in [(26, [10, 9, 0, 2]), (30, [10, 9, 0, 1])] {
        let old: [u8; 4] = frame[at..at + 4].try_into().expect("four");
        frame[at..at + 4].copy_from_slice(&new);
        let field = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let header = packet::checksum::replace(field(&frame, 24), &old, &new);
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        let partial = packet::checksum::replace_partial(field(&frame, 40), &old, &new);
        frame[40..42].copy_from_slice(&partial.to_be_bytes());
    }
    let payload = frame[42..].to_vec();
    let outer = encap.headers(&frame, &vnet, 12345, 1).expect("fits");
    let mut message = vec![0; Layout::Tunnel.size()];
    outer.vnet.emit(Layout::Tunnel, &mut message).expect("header");
    message.extend_from_slice(outer.bytes());
    message.extend_from_slice(&frame);
    tap.write(&message).unwrap_or_else(|e| panic!("{case:?}: the kernel refuses: {e}"));

    let mut buffer = [0; 2000];
    for wanted in payload.chunks(SEGMENT) {
        let len = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        assert_eq!(&buffer[..len], wanted, "{case:?}");
    }
}

fn each_case(test: fn(Case, &Tap)) {
    require!(need::tun());
    for (v6, checksum) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = Case { v6, checksum };
        let namespace = NetNs::new().expect("network namespace");
        let done = namespace.run(|| underlay(case).map(|tap| test(case, &tap)));
        if done.expect("entering it").is_none() {
            skip!("this kernel has no TUN_F_UDP_TUNNEL_GSO (Linux 6.17)");
        }
    }
}

#[test]
fn gso_packets_from_the_kernel_are_taken_out_whole() {
    each_case(from_the_kernel);
}

#[test]
fn gso_packets_for_the_kernel_are_put_in_whole() {
    each_case(to_the_kernel);
}
