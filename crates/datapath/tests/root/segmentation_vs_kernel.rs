//! Compares `packet::segment` with the kernel's own GSO, byte by byte.
//!
//! A GSO packet is written to a TAP with a vnet header. tc redirects it to a second TAP without
//! offloads, so the kernel has to segment it. The output is compared with that of `packet::segment`
//! for the same GSO packet, including Ethernet headers.

use crate::build;

use std::os::fd::AsFd;
use std::process::Command;

use build::{Random, Spec, TunnelSpec};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use packet::segment::Segmenter;
use packet::vnet_hdr::{Layout, VnetHdr};
use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};
use test_support::{need, require};

/// Number of random GSO packets; `SEGMENTATION_CASES` overrides it.
const CASES: usize = 4000;

/// Two TAPs, `input` redirected to `output`, in a namespace of their own.
struct Bench {
    input: Tap,
    output: Tap,
    tunnels: bool,
}

impl Bench {
    /// Builds it in the calling thread's namespace.
    fn new() -> Bench {
        // Only this test's frames: no router solicitations, no group reports.
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _ = std::fs::write(path, "1");
        }
        let options =
            TapOptions { vnet_header: Some(Layout::Tunnel.size()), ..TapOptions::named("input") };
        let input = Tap::open(&options).expect("TAP with vnet header");
        let offload = input.negotiate_offload(Offload::ALL).expect("offloads");
        let output = Tap::open(&TapOptions::named("output")).expect("TAP without offloads");
        output.set_nonblocking(true).expect("nonblocking");
        run("ip", "link set output txqueuelen 20000 up");
        run("ip", "link set input up");
        run("tc", "qdisc add dev input clsact");
        run(
            "tc",
            "filter add dev input ingress protocol all u32 match u32 0 0 \
             action mirred egress redirect dev output",
        );
        Bench { input, output, tunnels: offload.contains(Offload::UDP_TUNNEL_GSO_CSUM) }
    }

    /// The kernel's segments of a GSO packet: `wanted` of them and any others that follow at once;
    /// `Err` if the kernel refuses the packet.
    fn kernel(&self, vnet: &VnetHdr, frame: &[u8], wanted: usize) -> std::io::Result<Vec<Vec<u8>>> {
        let mut message = vec![0; 24];
        vnet.emit(Layout::Tunnel, &mut message).expect("vnet header");
        message.extend_from_slice(frame);
        self.input.write(&message)?;
        let mut segments = Vec::new();
        let mut buffer = vec![0; 70_000];
        loop {
            match self.output.read(&mut buffer) {
                Ok(len) => segments.push(buffer[..len].to_vec()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // One call in the kernel produces all of them; wait longer only while some are
                    // missing.
                    let timeout = if segments.len() < wanted { 1000u16 } else { 0 };
                    let mut fds = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
                    if poll(&mut fds, PollTimeout::from(timeout)).expect("poll") == 0 {
                        return Ok(segments);
                    }
                }
                Err(error) => panic!("reading the output TAP: {error}"),
            }
        }
    }

    fn compare(&self, name: &str, vnet: &VnetHdr, frame: &[u8]) -> usize {
        let ours = Segmenter::new(frame, vnet).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut buffer = vec![0; ours.total_len(0)];
        let written = ours.write_all(&[], &mut buffer).expect("large enough");
        let ours: Vec<&[u8]> = written.segments(&buffer).collect();
        let kernel = self
            .kernel(vnet, frame, ours.len())
            .unwrap_or_else(|e| panic!("{name}: the kernel refuses it: {e}"));
        assert_eq!(ours.len(), kernel.len(), "{name}: number of segments");
        for (index, (ours, kernel)) in ours.iter().zip(&kernel).enumerate() {
            if *ours != kernel.as_slice() {
                let at = ours.iter().zip(kernel).position(|(a, b)| a != b);
                let at = at.unwrap_or(ours.len().min(kernel.len()));
                let window =
                    |b: &[u8]| format!("{:02x?}", &b[at.min(b.len())..(at + 16).min(b.len())]);
                panic!(
                    "{name}: segment {index} of {} ({} bytes, the kernel's {}) differs from byte \
                     {at}: {} instead of {}",
                    kernel.len().max(1),
                    ours.len(),
                    kernel.len(),
                    window(ours),
                    window(kernel),
                );
            }
        }
        ours.len()
    }
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {message}");
}

/// Runs `test` in a fresh namespace, or prints the reason why not.
fn with_bench(test: impl FnOnce(&Bench) + Send) {
    require!(need::tun());
    let namespace = NetNs::new().expect("network namespace");
    namespace.run(|| test(&Bench::new())).expect("entering it");
}

#[test]
fn random_gso_packets_are_cut_as_the_kernel_cuts_them() {
    with_bench(|bench| {
        let cases = std::env::var("SEGMENTATION_CASES").ok().and_then(|n| n.parse().ok());
        let cases = cases.unwrap_or(CASES);
        let mut random = Random(0x0e71a4e);
        let (mut segments, mut tunnels) = (0, 0);
        for case in 0..cases {
            let spec = Spec::random(&mut random, bench.tunnels);
            tunnels += usize::from(spec.tunnel.is_some());
            let (vnet, frame) = spec.build();
            segments += bench.compare(&format!("case {case}, {spec:?}"), &vnet, &frame);
        }
        if !bench.tunnels {
            eprintln!("left out: tunnels, this kernel has no TUN_F_UDP_TUNNEL_GSO (Linux 6.17)");
        }
        println!("{cases} GSO packets ({tunnels} in VXLAN), {segments} segments, 0 differences");
    });
}

#[test]
fn each_kind_at_its_edges() {
    with_bench(|bench| {
        let mut count = 0;
        for (v6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut tunnels = vec![None];
            if bench.tunnels {
                for (v6, checksum) in [(false, false), (false, true), (true, false), (true, true)] {
                    let (id, tos, source_port) = (0xfffe, 0xb9, 50_000);
                    tunnels.push(Some(TunnelSpec { v6, checksum, id, tos, source_port }));
                }
            }
            for tunnel in tunnels {
                for (payload, gso_size) in [
                    (2897, 1448),
                    (2896, 1448),
                    (1449, 1448),
                    (65_000, 1400),
                    (12_700, 100),
                    (65_285, 60_000),
                ] {
                    let flags = 0xd9; // CWR, ECE, ACK, PSH, FIN
                    let spec = Spec { v6, udp, payload, gso_size, flags, tunnel, ..Spec::PLAIN };
                    let (vnet, frame) = spec.build();
                    count += bench.compare(&format!("{spec:?}"), &vnet, &frame);
                }
            }
        }
        println!("{count} segments, 0 differences");
    });
}

#[test]
fn with_a_vlan_tag() {
    with_bench(|bench| {
        for (v6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            let vlan = Some(0x123);
            let spec = Spec { v6, udp, vlan, ..Spec::PLAIN };
            let (vnet, frame) = spec.build();
            bench.compare(&format!("{spec:?}"), &vnet, &frame);
            if bench.tunnels {
                let tunnel =
                    Some(TunnelSpec { v6, checksum: true, id: 1, tos: 0, source_port: 50_000 });
                let spec = Spec { v6, udp, vlan, tunnel, ..Spec::PLAIN };
                let (vnet, frame) = spec.build();
                bench.compare(&format!("{spec:?}"), &vnet, &frame);
            }
        }
    });
}

#[test]
fn packets_too_small_to_segment_get_only_their_checksum() {
    with_bench(|bench| {
        for (v6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            // If a TCP packet with options is longer than gso_size by less than their length, the
            // kernel drops it (it first counts them as payload, later not), and `packet` passes it.
            for payload in [1, 1447, 1448] {
                let tcp_options = 0;
                let spec = Spec { v6, udp, payload, flags: 0x99, tcp_options, ..Spec::PLAIN };
                let (mut vnet, frame) = spec.build();
                bench.compare(&format!("{spec:?}"), &vnet, &frame);
                (vnet.gso_type, vnet.gso_size) = (0, 0);
                bench.compare(&format!("{spec:?}, no GSO packet"), &vnet, &frame);
            }
        }
    });
}

#[test]
fn a_wrong_partial_checksum_stays_wrong() {
    with_bench(|bench| {
        for (v6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            let spec = Spec { v6, udp, ..Spec::PLAIN };
            let (vnet, mut frame) = spec.build();
            frame[usize::from(vnet.csum_start + vnet.csum_offset)] ^= 0x5a;
            bench.compare(&format!("{spec:?}"), &vnet, &frame);
        }
    });
}

#[test]
fn tcp_without_needs_csum_is_summed_anew() {
    with_bench(|bench| {
        for v6 in [false, true] {
            let (mut vnet, frame) = Spec { v6, ..Spec::PLAIN }.build();
            (vnet.flags, vnet.csum_start, vnet.csum_offset) = (0, 0, 0);
            bench.compare(&format!("IPv6 {v6}"), &vnet, &frame);
        }
    });
}

#[test]
fn settings_that_the_kernel_refuses_are_refused() {
    with_bench(|bench| {
        let tcp = Spec::PLAIN.build();
        let udp = Spec { udp: true, ..Spec::PLAIN }.build();
        let many = Spec { udp: true, payload: 12_900, gso_size: 100, ..Spec::PLAIN }.build();
        type Case<'a> = (&'a str, &'a (VnetHdr, Vec<u8>), fn(&mut VnetHdr));
        let cases: [Case<'_>; 9] = [
            ("segments of nothing", &tcp, |v| v.gso_size = 0),
            ("an unknown type", &tcp, |v| v.gso_type = 7),
            ("UDP without NEEDS_CSUM", &udp, |v| v.flags = 0),
            ("UDP with ECN", &udp, |v| v.gso_type |= 0x80),
            ("another checksum offset in TCP", &tcp, |v| v.csum_offset = 6),
            ("another checksum offset in UDP", &udp, |v| v.csum_offset = 16),
            ("129 UDP segments", &many, |_| ()),
            ("a checksum behind the end", &tcp, |v| v.csum_start = 60_000),
            ("TCP over IPv6 in IPv4", &tcp, |v| v.gso_type = 4),
        ];
        for (name, (vnet, frame), change) in cases {
            let mut vnet = *vnet;
            change(&mut vnet);
            let ours = Segmenter::new(frame, &vnet).map(|s| s.count());
            assert!(ours.is_err(), "{name}: cut into {ours:?}");
            let kernel = bench.kernel(&vnet, frame, 0).map(|segments| segments.len());
            assert!(matches!(kernel, Err(_) | Ok(0)), "{name}: the kernel makes {kernel:?}");
        }
    });
}
