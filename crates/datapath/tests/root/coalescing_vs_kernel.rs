//! Compares `packet::coalesce` with the kernel's own GRO, byte by byte.
//!
//! Packets are written to a TAP that receives through NAPI, whose GRO holds packets for a while
//! (`gro_flush_timeout`). tc redirects the delivered packets to a second TAP, which accepts GSO
//! packets unsegmented. The output is compared, flow by flow, with that of `packet::coalesce` for
//! the same packets.
//!
//! The comparison excludes intended differences (see `packet::coalesce`): changes of the link
//! header or flow label, equal IPv4 IDs, and packets unfit for GRO, which in the kernel overtake
//! held packets of their flow.

use crate::build;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::process::Command;

use build::{Random, Spec};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use packet::coalesce::{Coalescer, Options};
use packet::frame::{Headers, Network, Transport};
use packet::segment::Segmenter;
use packet::vnet_hdr::{self, Layout, VnetHdr};
use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};
use test_support::{need, require};

/// Number of random packet trains; `COALESCING_CASES` overrides it.
const CASES: usize = 150;

/// Output: frame, GSO type and size, place of the partial checksum.
type Out = (Vec<u8>, u8, u16, u16, u16);

struct Bench {
    input: Tap,
    output: Tap,
}

impl Bench {
    /// Builds it in the calling thread's namespace.
    fn new() -> Bench {
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _ = std::fs::write(path, "1");
        }
        let vnet_header = Some(Layout::V1.size());
        let options = TapOptions { vnet_header, napi: true, ..TapOptions::named("input") };
        let input = Tap::open(&options).expect("TAP with NAPI");
        let options = TapOptions { vnet_header, ..TapOptions::named("output") };
        let output = Tap::open(&options).expect("TAP with offloads");
        output.set_offload(Offload::PLAIN).expect("offloads");
        output.set_nonblocking(true).expect("nonblocking");
        run("ip link set output txqueuelen 20000 up");
        run("ip link set input up");
        run("ethtool -K input rx-udp-gro-forwarding on");
        // sysfs shows the namespace of the process that mounted it.
        run(
            "unshare -m sh -c mount\u{a0}-t\u{a0}sysfs\u{a0}none\u{a0}/sys&&echo\u{a0}20000000>/sys/class/net/input/gro_flush_timeout",
        );
        run("tc qdisc add dev input clsact");
        run("tc filter add dev input ingress protocol all u32 match u32 0 0 \
             action mirred egress redirect dev output");
        Bench { input, output }
    }

    /// The kernel's output for these packets, `segments` in all.
    fn kernel(&self, frames: &[Vec<u8>]) -> Vec<Out> {
        // Built in advance, so that all writes fall into one tick.
        let messages: Vec<Vec<u8>> = frames.iter().map(|f| [&[0; 12][..], f].concat()).collect();
        for message in &messages {
            self.input.write(message).expect("write");
        }
        let (mut out, mut buffer) = (Vec::new(), vec![0; 70_000]);
        let mut bytes = 0;
        loop {
            match self.output.read(&mut buffer) {
                Ok(len) => {
                    let (vnet, frame) =
                        vnet_hdr::split(&buffer[..len], Layout::V1).expect("vnet header");
                    let segments = Segmenter::new(frame, &vnet).expect("of the kernel");
                    bytes += segments.total_len(0);
                    out.push(seen(&vnet, frame));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let missing = bytes < frames.iter().map(Vec::len).sum();
                    let mut fds = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
                    let timeout = PollTimeout::from(if missing { 1000u16 } else { 0 });
                    if poll(&mut fds, timeout).expect("poll") == 0 {
                        return out;
                    }
                }
                Err(error) => panic!("reading the output TAP: {error}"),
            }
        }
    }
}

fn seen(vnet: &VnetHdr, frame: &[u8]) -> Out {
    // A verified checksum (DATA_VALID) is extra information of the kernel.
    let partial = vnet.needs_csum();
    let place = if partial { (vnet.csum_start, vnet.csum_offset) } else { (0, 0) };
    (frame.to_vec(), vnet.gso_type, vnet.gso_size, place.0, place.1)
}

fn ours(frames: &[Vec<u8>]) -> Vec<Out> {
    let mut coalescer = Coalescer::new(Options::default());
    let mut out = Vec::new();
    for frame in frames {
        let mut deliver = |d: packet::coalesce::Delivery<'_>| out.push(seen(&d.vnet, d.frame));
        coalescer.push(frame, &VnetHdr::default(), &mut deliver);
    }
    coalescer.flush(&mut |d| out.push(seen(&d.vnet, d.frame)));
    out
}

/// By address pair and ports.
fn by_flow(all: Vec<Out>) -> BTreeMap<Vec<u8>, Vec<Out>> {
    let mut flows: BTreeMap<Vec<u8>, Vec<Out>> = BTreeMap::new();
    for out in all {
        let headers = Headers::parse(&out.0).expect("well formed");
        let at = headers.transport_offset;
        let protocol = headers.transport.protocol().0;
        let key = [&[protocol], &out.0[at..at + 4]].concat();
        flows.entry(key).or_default().push(out);
    }
    flows
}

/// `\u{a0}` stands for a space in an argument.
fn run(command: &str) {
    let words: Vec<String> =
        command.split_ascii_whitespace().map(|word| word.replace('\u{a0}', " ")).collect();
    let output = Command::new(&words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", words[0]));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {message}");
}

/// A train of packets of some flows, with changes that GRO's rules depend on.
fn train(random: &mut Random) -> Vec<Vec<u8>> {
    let mut flows: Vec<Vec<Vec<u8>>> = (0..1 + random.below(3))
        .map(|flow| {
            let mut spec = Spec::random(random, false);
            spec.seed = 1000 + flow as u64;
            spec.ip_options = 0;
            spec.vlan = None;
            spec.flags &= 0x59;
            spec.payload = spec.payload.min(usize::from(spec.gso_size) * (2 + random.below(12)));
            let (vnet, frame) = spec.build();
            let segmenter = Segmenter::new(&frame, &vnet).expect("well formed");
            let mut buffer = vec![0; segmenter.total_len(0)];
            let written = segmenter.write_all(&[], &mut buffer).expect("large enough");
            written.segments(&buffer).map(<[u8]>::to_vec).collect()
        })
        .collect();
    let mut train = Vec::new();
    while flows.iter().any(|flow| !flow.is_empty()) {
        let flow = random.below(flows.len());
        for _ in 0..1 + random.below(5) {
            if flows[flow].is_empty() {
                break;
            }
            let mut frame = flows[flow].remove(0);
            if random.once_in(6) {
                change(&mut frame, random);
            }
            train.push(frame);
        }
    }
    train
}

/// One change that GRO's rules depend on, with corrected checksums.
fn change(frame: &mut Vec<u8>, random: &mut Random) {
    let headers = Headers::parse(frame).expect("well formed");
    let (network, transport) = (headers.network_offset, headers.transport_offset);
    let v4 = headers.network == Network::Ipv4;
    let tcp = headers.transport == Transport::Tcp;
    let any = random.next() as u8 | 1;
    match random.below(13) {
        0 => frame[network + 1] ^= if v4 { any } else { any << 4 },
        1 => frame[network + if v4 { 8 } else { 7 }] ^= any & 0x3f,
        2 if v4 => frame[network + 6] ^= 0x40,
        3 if v4 => frame[network + 4] ^= any,
        4 if tcp => frame[transport + 4 + random.below(4)] ^= any,
        5 if tcp => frame[transport + 8 + random.below(4)] ^= any,
        6 if tcp => frame[transport + 14] ^= any,
        7 if tcp => frame[transport + 13] ^= [0x40, 0x02, 0x04, 0x08, 0x01][random.below(5)],
        8 if tcp && headers.payload_offset > transport + 24 => frame[transport + 24] ^= any,
        9 | 10 => {
            // Shorter or longer.
            let payload = headers.payload_len();
            let payload = if random.once_in(2) { 1 + random.below(payload) } else { payload + 1 };
            frame.resize(headers.payload_offset + payload, 0);
        }
        11 if tcp => frame.truncate(headers.payload_offset),
        _ => {
            let at = headers.payload_offset;
            frame[at] ^= any;
        }
    }
    repair(frame, &headers);
}

fn repair(frame: &mut [u8], headers: &Headers) {
    let (network, transport, end) = (headers.network_offset, headers.transport_offset, frame.len());
    let put = |frame: &mut [u8], at: usize, value: usize| {
        frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    };
    if headers.transport == Transport::Udp {
        put(frame, transport + 4, end - transport);
    }
    let protocol = headers.transport.protocol().0;
    let length = (end - transport) as u32;
    let pseudo = match headers.network {
        Network::Ipv4 => {
            put(frame, network + 2, end - network);
            put(frame, network + 10, 0);
            let sum = packet::checksum::Sum::of(&frame[network..transport]);
            put(frame, network + 10, sum.checksum().into());
            let address = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into();
            let (source, destination) = (address(network + 12), address(network + 16));
            packet::checksum::pseudo_header_v4(source, destination, protocol, length)
        }
        Network::Ipv6 => {
            put(frame, network + 4, end - network - 40);
            let address = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap().into();
            let (source, destination) = (address(network + 8), address(network + 24));
            packet::checksum::pseudo_header_v6(source, destination, protocol, length)
        }
    };
    put(frame, headers.checksum_at(), 0);
    let sum = pseudo.plus_bytes(&frame[transport..]);
    put(frame, headers.checksum_at(), sum.udp_checksum().into());
}

#[test]
fn random_trains_are_merged_as_the_kernel_merges_them() {
    require!(need::tun());
    let namespace = NetNs::new().expect("network namespace");
    namespace.run(|| trains(&Bench::new())).expect("entering it");
}

fn trains(bench: &Bench) {
    let cases = std::env::var("COALESCING_CASES").ok().and_then(|n| n.parse().ok());
    let cases = cases.unwrap_or(CASES);
    let (mut packets, mut merged, mut again) = (0, 0, 0);
    for case in 0..cases {
        let frames = train(&mut Random(case as u64));
        let ours = by_flow(ours(&frames));
        // The kernel flushes held packets at each tick (4 ms), which can fall anywhere in the
        // train: only a persistent difference counts.
        let mut kernel = by_flow(bench.kernel(&frames));
        for _ in 0..10 {
            if kernel == ours {
                break;
            }
            again += 1;
            kernel = by_flow(bench.kernel(&frames));
        }
        packets += frames.len();
        merged += ours.values().flatten().filter(|out| out.1 != 0).count();
        assert_same(case, &ours, &kernel);
    }
    println!(
        "{cases} trains, {packets} packets, {merged} GSO packets, 0 differences ({again} trains sent again)"
    );
}

fn assert_same(
    case: usize,
    ours: &BTreeMap<Vec<u8>, Vec<Out>>,
    kernel: &BTreeMap<Vec<u8>, Vec<Out>>,
) {
    let show = |outs: &[Out]| {
        let one = |out: &Out| {
            let head = &out.0[14..out.0.len().min(74)];
            format!(
                "  {} bytes, gso {:#x} {}, csum {} {}: {head:02x?}\n",
                out.0.len(),
                out.1,
                out.2,
                out.3,
                out.4
            )
        };
        outs.iter().map(one).collect::<String>()
    };
    for (flow, ours) in ours {
        let kernel = kernel.get(flow).map_or(&[][..], Vec::as_slice);
        if ours != kernel {
            panic!("case {case}, flow {flow:02x?}:\nours\n{}kernel\n{}", show(ours), show(kernel));
        }
    }
}
