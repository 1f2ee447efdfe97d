//! Measures the cost of a byte and of a packet: `cargo bench -p overlane-packet`.
//!
//! Prints the median of 15 rounds of about 20 ms each, the slowest and fastest
//! round in brackets, on one core; and how often memory was allocated per packet.
//! Compare figures of one run only.

#[path = "../tests/it/build/mod.rs"]
mod build;

use std::hint::black_box;
use std::time::{Duration, Instant};

use build::{Random, Spec, TunnelSpec};
use packet::checksum::Sum;
use packet::coalesce::{Coalescer, Options};
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, SOURCE_PORTS, Tunnel};
use packet::ethernet::MacAddr;
use packet::segment::{Policy, Segmenter, TransportChecksum};
use packet::vnet_hdr::{VnetHdr, flags};
use packet::vxlan::{self, Vni};
use packet::{decap, flow};
use test_support::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(20);

/// Seconds per call: median, fastest and slowest round; and allocations per call.
struct Cost {
    median: f64,
    fastest: f64,
    slowest: f64,
    allocations: f64,
}

fn measure(mut call: impl FnMut()) -> Cost {
    let mut calls = 1u64;
    // Warms up, and finds the number of calls in a round.
    loop {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        if start.elapsed() >= ROUND {
            break;
        }
        calls *= 2;
    }
    let mut rounds = Vec::with_capacity(ROUNDS);
    let before = Counting::all();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        rounds.push(start.elapsed().as_secs_f64() / calls as f64);
    }
    let allocations = Counting::all() - before;
    rounds.sort_by(f64::total_cmp);
    Cost {
        median: rounds[ROUNDS / 2],
        fastest: rounds[0],
        slowest: rounds[ROUNDS - 1],
        allocations: allocations as f64 / (calls * ROUNDS as u64) as f64,
    }
}

fn rate(name: &str, unit: &str, amount: f64, packets: f64, call: impl FnMut()) {
    let cost = measure(call);
    println!(
        "{name:<46} {:>8.1} {unit} ({:.1} to {:.1}), {:.1} ns/packet, {} allocations/packet",
        amount / cost.median,
        amount / cost.slowest,
        amount / cost.fastest,
        cost.median * 1e9 / packets,
        cost.allocations / packets,
    );
}

fn main() {
    checksums();
    segmentation();
    coalescing();
    tunnels();
}

/// Checksum and memcpy in turn, so that both run beside the same load.
fn checksums() {
    let mut random = Random(1);
    for length in [64, 1448, 65_000, 64 << 20] {
        let mut from = vec![0; length];
        random.fill(&mut from);
        let mut to = vec![0; length];
        let calls = (20_000_000 / length).max(1);
        let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..2 * ROUNDS {
            let start = Instant::now();
            for _ in 0..calls {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            let copied = start.elapsed().as_secs_f64();
            let start = Instant::now();
            for _ in 0..calls {
                black_box(Sum::of(black_box(&from)));
            }
            let summed = start.elapsed().as_secs_f64();
            let gigabytes = (length * calls) as f64 / 1e9;
            rates[0].push(gigabytes / copied);
            rates[1].push(gigabytes / summed);
            ratios.push(copied / summed);
        }
        for values in rates.iter_mut().chain([&mut ratios]) {
            values.sort_by(f64::total_cmp);
        }
        let median = |values: &[f64]| values[values.len() / 2];
        println!(
            "checksum of {length} bytes: {:.1} GB/s (best {:.1}), memcpy {:.1} GB/s (best {:.1}), \
             ratio {:.2} ({:.2} to {:.2})",
            median(&rates[1]),
            rates[1][rates[1].len() - 1],
            median(&rates[0]),
            rates[0][rates[0].len() - 1],
            median(&ratios),
            ratios[0],
            ratios[ratios.len() - 1],
        );
    }
}

fn segmentation() {
    let tunnel = TunnelSpec { v6: false, checksum: false, id: 1, tos: 0, source_port: 50_000 };
    let summed = TunnelSpec { checksum: true, ..tunnel };
    let tcp = Spec { payload: 44 * 1448, ..Spec::PLAIN };
    let specs = [
        ("TCP over IPv4", tcp.clone()),
        ("TCP over IPv6", Spec { v6: true, gso_size: 1428, ..tcp.clone() }),
        ("UDP over IPv4", Spec { udp: true, gso_size: 1472, ..tcp.clone() }),
        ("TCP over IPv4 in VXLAN", Spec { gso_size: 1398, tunnel: Some(tunnel), ..tcp.clone() }),
        ("the same, outer checksum", Spec { gso_size: 1398, tunnel: Some(summed), ..tcp.clone() }),
    ];
    let mut buffer = vec![0; 80_000];
    for (name, spec) in specs {
        let (vnet, frame) = spec.build();
        let packets = spec.payload.div_ceil(spec.gso_size.into()) as f64;
        let gigabits = spec.payload as f64 * 8e-9;
        rate(&format!("segment {name}"), "Gb/s", gigabits, packets, || {
            let segmenter = Segmenter::new(black_box(&frame), &vnet).expect("well formed");
            black_box(segmenter.write_all(&[], &mut buffer).expect("large enough"));
        });
    }
    let (vnet, frame) = tcp.build();
    let policy = Policy { checksum: TransportChecksum::Partial, ..Policy::default() };
    rate("segment TCP, checksums left partial", "Gb/s", tcp.payload as f64 * 8e-9, 44.0, || {
        let segmenter =
            Segmenter::with_policy(black_box(&frame), &vnet, policy).expect("well formed");
        black_box(segmenter.write_all(&[], &mut buffer).expect("large enough"));
    });
}

fn coalescing() {
    let tunnel = TunnelSpec { v6: false, checksum: false, id: 1, tos: 0, source_port: 50_000 };
    let tcp = Spec { payload: 44 * 1448, ..Spec::PLAIN };
    let specs = [
        ("TCP over IPv4", tcp.clone()),
        ("TCP over IPv6", Spec { v6: true, gso_size: 1428, ..tcp.clone() }),
        ("UDP over IPv4", Spec { udp: true, gso_size: 1472, ..tcp.clone() }),
        ("TCP over IPv4 in VXLAN", Spec { gso_size: 1398, tunnel: Some(tunnel), ..tcp.clone() }),
    ];
    let verified = VnetHdr { flags: flags::DATA_VALID, ..VnetHdr::default() };
    let mut buffer = vec![0; 80_000];
    for (name, spec) in specs {
        let (vnet, frame) = spec.build();
        let segmenter = Segmenter::new(&frame, &vnet).expect("well formed");
        let written = segmenter.write_all(&[], &mut buffer).expect("large enough");
        let segments: Vec<&[u8]> = written.segments(&buffer).collect();
        let vxlan_port = spec.tunnel.map(|_| vxlan::PORT);
        let gigabits = spec.payload as f64 * 8e-9;
        for (how, header) in [("", VnetHdr::default()), (", verified before", verified)] {
            let mut coalescer = Coalescer::new(Options { vxlan_port, ..Options::default() });
            rate(&format!("coalesce {name}{how}"), "Gb/s", gigabits, segments.len() as f64, || {
                let mut gso_packets = 0;
                let mut deliver = |d: packet::coalesce::Delivery<'_>| {
                    black_box(d.frame);
                    gso_packets += 1;
                };
                for segment in &segments {
                    coalescer.push(black_box(segment), &header, &mut deliver);
                }
                coalescer.flush(&mut deliver);
                assert!(gso_packets <= 2, "{gso_packets}");
            });
        }
    }
}

fn tunnels() {
    // 64 bytes on the wire, and the same with a partial checksum as from a TAP.
    let spec = Spec { udp: true, payload: 64 - 14 - 20 - 8, ..Spec::PLAIN };
    let (partial, frame) = spec.build();
    let partial = VnetHdr { gso_type: 0, gso_size: 0, ..partial };
    let v4 = Addresses::V4 { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() };
    let v6 = Addresses::V6 { source: 1u128.into(), destination: 2u128.into() };
    let mut whole = vec![0; 200];
    for (name, addresses, checksum, vnet) in [
        ("IPv4, no checksum", v4, OuterChecksum::Zero, VnetHdr::default()),
        ("IPv4, checksum", v4, OuterChecksum::Full, VnetHdr::default()),
        ("IPv4, checksum, inner one partial", v4, OuterChecksum::Full, partial),
        ("IPv6, no checksum", v6, OuterChecksum::Zero, VnetHdr::default()),
        ("IPv6, checksum", v6, OuterChecksum::Full, VnetHdr::default()),
    ] {
        let encap = Encap::new(&Tunnel {
            link: (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])),
            addresses,
            vni: Vni::MAX,
            port: vxlan::PORT,
            source_ports: SOURCE_PORTS,
            ttl: 64,
            dscp: Dscp::Inherit,
            ecn: Default::default(),
            dont_fragment: true,
            flow_label: 0,
            checksum,
        });
        let mut id = 0u16;
        let len = encap.header_len() + frame.len();
        rate(&format!("encap 64 bytes, {name}"), "Mpps", 1e-6, 1.0, || {
            let frame = black_box(&frame);
            id = id.wrapping_add(1);
            let outer = encap.headers(frame, &vnet, flow::hash(frame, 7), id).expect("small");
            let (front, back) = whole[..len].split_at_mut(outer.bytes().len());
            front.copy_from_slice(outer.bytes());
            back.copy_from_slice(frame);
            black_box(&mut whole);
        });
        let outer = encap.headers(&frame, &vnet, 1, 1).expect("small");
        let whole = [outer.bytes(), &frame].concat();
        rate(&format!("decap 64 bytes, {name}"), "Mpps", 1e-6, 1.0, || {
            black_box(decap::frame(black_box(&whole), &outer.vnet, vxlan::PORT).expect("ours"));
        });
    }
    rate("flow hash of a 64-byte packet", "Mpps", 1e-6, 1.0, || {
        black_box(flow::hash(black_box(&frame), 7));
    });
}
