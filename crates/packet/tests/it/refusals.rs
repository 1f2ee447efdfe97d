//! Every reason not to merge, each by one changed packet; the order must be kept.

use crate::build;

use build::{Random, Spec, TunnelSpec};
use packet::coalesce::{Coalescer, Delivery, Options, Outcome, Refusal};
use packet::frame::{Headers, Packet, Unsupported};
use packet::segment::Segmenter;
use packet::vnet_hdr::{VnetHdr, flags};
use packet::vxlan;

/// The wire packets of a flow, all of the same size.
fn packets(spec: &Spec) -> Vec<Vec<u8>> {
    let (vnet, frame) = spec.build();
    let segmenter = Segmenter::new(&frame, &vnet).unwrap();
    let mut buffer = vec![0; segmenter.total_len(0)];
    let written = segmenter.write_all(&[], &mut buffer).unwrap();
    written.segments(&buffer).map(<[u8]>::to_vec).collect()
}

const TCP4: Spec = Spec { payload: 4000, gso_size: 1000, ..Spec::PLAIN };
const TCP6: Spec = Spec { v6: true, ..TCP4 };
const UDP4: Spec = Spec { udp: true, ..TCP4 };
const TUNNEL: Spec = Spec {
    tunnel: Some(TunnelSpec { v6: false, checksum: true, id: 1, tos: 0, source_port: 50_000 }),
    ..TCP4
};

/// Computes all checksums again, innermost first.
fn repair(frame: &mut [u8]) {
    let packet = Packet::parse_vxlan(frame).or_else(|_| Packet::parse(frame)).unwrap();
    for headers in [Some(packet.inner), packet.outer].into_iter().flatten() {
        let (network, transport) = (headers.network_offset, headers.transport_offset);
        let at = headers.checksum_at();
        if frame[network] >> 4 == 4 {
            frame[network + 10..network + 12].fill(0);
            let sum = packet::checksum::Sum::of(&frame[network..transport]);
            frame[network + 10..network + 12].copy_from_slice(&sum.checksum().to_be_bytes());
        }
        let absent =
            headers.transport == packet::frame::Transport::Udp && frame[at..at + 2] == [0, 0];
        if absent {
            continue;
        }
        frame[at..at + 2].fill(0);
        let length = (headers.end - transport) as u32;
        let protocol = headers.transport.protocol().0;
        let pseudo = if frame[network] >> 4 == 4 {
            let address = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into();
            packet::checksum::pseudo_header_v4(
                address(network + 12),
                address(network + 16),
                protocol,
                length,
            )
        } else {
            let address = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap().into();
            packet::checksum::pseudo_header_v6(
                address(network + 8),
                address(network + 24),
                protocol,
                length,
            )
        };
        let checksum = pseudo.plus_bytes(&frame[transport..headers.end]).udp_checksum();
        frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

struct Run {
    coalescer: Coalescer,
    out: Vec<(usize, Vec<u8>)>,
}

impl Run {
    fn new(options: Options) -> Run {
        Run { coalescer: Coalescer::new(options), out: Vec::new() }
    }

    fn push(&mut self, frame: &[u8]) -> Outcome {
        self.push_with(frame, &VnetHdr::default())
    }

    fn push_with(&mut self, frame: &[u8], vnet: &VnetHdr) -> Outcome {
        let out = &mut self.out;
        self.coalescer
            .push(frame, vnet, &mut |d: Delivery<'_>| out.push((d.segments, d.frame.to_vec())))
    }

    fn flush(&mut self) {
        let out = &mut self.out;
        self.coalescer.flush(&mut |d: Delivery<'_>| out.push((d.segments, d.frame.to_vec())));
    }
}

fn options() -> Options {
    Options { vxlan_port: Some(vxlan::PORT), ..Options::default() }
}

/// Two packets of a flow are held as one. The third, changed, is refused for `wanted` and delivered
/// after them, and starts a new GSO packet if it can.
#[track_caller]
fn refused(spec: &Spec, wanted: Refusal, fix: bool, change: impl FnOnce(&mut Vec<u8>, &Headers)) {
    let all = packets(spec);
    let mut changed = all[2].clone();
    let headers = match spec.tunnel {
        Some(_) => Packet::parse_vxlan(&changed).unwrap().inner,
        None => Headers::parse(&changed).unwrap(),
    };
    change(&mut changed, &headers);
    if fix {
        repair(&mut changed);
    }
    let mut run = Run::new(options());
    assert_eq!(run.push(&all[0]), Outcome::Held(None));
    assert_eq!(run.push(&all[1]), Outcome::Merged);
    let outcome = run.push(&changed);
    let reason = match outcome {
        Outcome::Held(reason) => reason,
        Outcome::Passed(reason) => Some(reason),
        Outcome::Merged => None,
    };
    assert_eq!(reason, Some(wanted), "{outcome:?}");
    assert_eq!(run.out[0].0, 2, "what was held leaves first");
    run.flush();
    assert_eq!(run.out.len(), 2);
    assert_eq!(run.out[1], (1, changed), "and the packet itself unchanged");
}

#[test]
fn a_flow_without_reasons_merges() {
    for spec in [TCP4, TCP6, UDP4, Spec { v6: true, ..UDP4 }, TUNNEL] {
        let mut run = Run::new(options());
        for (index, packet) in packets(&spec).iter().enumerate() {
            let wanted = if index == 0 { Outcome::Held(None) } else { Outcome::Merged };
            assert_eq!(run.push(packet), wanted, "{spec:?} {index}");
        }
        run.flush();
        assert_eq!(run.out.len(), 1);
        assert_eq!(run.out[0], (4, spec.build().1));
    }
}

#[test]
fn ethernet() {
    refused(&TCP4, Refusal::Link, false, |f, _| f[5] ^= 1);
    refused(&TCP4, Refusal::Link, false, |f, _| f[11] ^= 1);
    refused(&Spec { vlan: Some(5), ..TCP4 }, Refusal::Link, false, |f, _| f[15] ^= 1);
    refused(&TCP4, Refusal::Padding, false, |f, _| f.push(0));
}

#[test]
fn ipv4() {
    refused(&TCP4, Refusal::Tos, true, |f, h| f[h.network_offset + 1] ^= 3);
    refused(&TCP4, Refusal::Ttl, true, |f, h| f[h.network_offset + 8] -= 1);
    refused(&TCP4, Refusal::DontFragment, true, |f, h| f[h.network_offset + 6] ^= 0x40);
    refused(&TCP4, Refusal::Id, true, |f, h| f[h.network_offset + 5] ^= 1);
    refused(&TCP4, Refusal::HeaderChecksum, false, |f, h| f[h.network_offset + 5] ^= 1);
    let fragment = Refusal::Headers(Unsupported::Fragment);
    refused(&TCP4, fragment, false, |f, h| f[h.network_offset + 6] |= 0x20);
    let plain = packets(&Spec { ip_options: 8, ..TCP4 });
    assert_eq!(Run::new(options()).push(&plain[0]), Outcome::Passed(Refusal::Ipv4Options));
}

#[test]
fn equal_ids_merge_only_with_dont_fragment() {
    for (dont_fragment, wanted) in
        [(true, Outcome::Merged), (false, Outcome::Held(Some(Refusal::Id)))]
    {
        let mut all = packets(&Spec { dont_fragment, ..TCP4 });
        let ids = all[0][18..20].to_vec();
        for frame in &mut all {
            frame[18..20].copy_from_slice(&ids);
            repair(frame);
        }
        let mut run = Run::new(options());
        run.push(&all[0]);
        assert_eq!(run.push(&all[1]), wanted);
        assert_eq!(run.push(&all[2]), wanted);
    }
    // Once the IDs increased, they must continue to increase.
    let mut all = packets(&TCP4);
    let ids = all[1][18..20].to_vec();
    all[2][18..20].copy_from_slice(&ids);
    repair(&mut all[2]);
    let mut run = Run::new(options());
    let outcomes: Vec<_> = all[..3].iter().map(|f| run.push(f)).collect();
    assert_eq!(outcomes[1..], [Outcome::Merged, Outcome::Held(Some(Refusal::Id))]);
}

#[test]
fn ipv6() {
    refused(&TCP6, Refusal::Tos, true, |f, h| f[h.network_offset + 1] ^= 0x30);
    refused(&TCP6, Refusal::Ttl, true, |f, h| f[h.network_offset + 7] -= 1);
    refused(&TCP6, Refusal::FlowLabel, true, |f, h| f[h.network_offset + 3] ^= 1);
    let extended = Spec { ip_options: 8, ..TCP6 };
    refused(&extended, Refusal::Extensions, true, |f, h| f[h.network_offset + 44] ^= 1);
    let fragment = |frame: &mut Vec<u8>, h: &Headers| {
        frame[h.network_offset + 6] = 44;
        frame[h.network_offset + 42..h.network_offset + 44].copy_from_slice(&[0, 1]);
    };
    refused(&extended, Refusal::Headers(Unsupported::Fragment), false, fragment);
}

#[test]
fn tcp() {
    let flag = |bit: u8| move |f: &mut Vec<u8>, h: &Headers| f[h.transport_offset + 13] ^= bit;
    refused(&TCP4, Refusal::Control, true, flag(0x02));
    refused(&TCP4, Refusal::Control, true, flag(0x04));
    refused(&TCP4, Refusal::Control, true, flag(0x20));
    refused(&TCP4, Refusal::Cwr, true, flag(0x80));
    refused(&TCP4, Refusal::Flags, true, flag(0x40));
    refused(&TCP4, Refusal::Flags, true, flag(0x10));
    refused(&TCP4, Refusal::Flags, true, |f, h| f[h.transport_offset + 12] ^= 1);
    refused(&TCP4, Refusal::Window, true, |f, h| f[h.transport_offset + 15] ^= 1);
    refused(&TCP4, Refusal::Acknowledgement, true, |f, h| f[h.transport_offset + 8] ^= 1);
    refused(&TCP4, Refusal::Urgent, true, |f, h| f[h.transport_offset + 19] ^= 1);
    refused(&TCP4, Refusal::TcpOptions, true, |f, h| f[h.transport_offset + 25] ^= 1);
    refused(&TCP4, Refusal::Sequence, true, |f, h| f[h.transport_offset + 7] ^= 1);
    refused(&TCP4, Refusal::Checksum, false, |f, h| f[h.payload_offset] ^= 1);
    refused(&TCP4, Refusal::NoPayload, true, |f, h| resize(f, h, h.payload_offset));
    refused(&TCP4, Refusal::Longer, true, |f, h| resize(f, h, h.end + 1));
    let shorter = |f: &mut Vec<u8>, h: &Headers| {
        // The same header with four bytes of options fewer.
        f.drain(h.payload_offset - 4..h.payload_offset);
        f[h.transport_offset + 12] -= 0x10;
        let len = f.len();
        resize(f, h, len);
    };
    refused(&TCP4, Refusal::HeaderLength, true, shorter);
}

/// Truncates or extends a frame, and sets the lengths of its IP and UDP headers.
fn resize(frame: &mut Vec<u8>, headers: &Headers, end: usize) {
    frame.resize(end, 0);
    let at = headers.network_offset;
    let length = if frame[at] >> 4 == 4 { (at + 2, end - at) } else { (at + 4, end - at - 40) };
    frame[length.0..length.0 + 2].copy_from_slice(&(length.1 as u16).to_be_bytes());
    if headers.transport == packet::frame::Transport::Udp {
        let at = headers.transport_offset;
        frame[at + 4..at + 6].copy_from_slice(&((end - at) as u16).to_be_bytes());
    }
}

#[test]
fn udp() {
    refused(&UDP4, Refusal::NoChecksum, false, |f, h| {
        f[h.transport_offset + 6..h.transport_offset + 8].fill(0);
    });
    refused(&UDP4, Refusal::UdpLength, false, |f, h| f[h.transport_offset + 5] -= 1);
    refused(&UDP4, Refusal::Longer, true, |f, h| resize(f, h, h.end + 1));
    refused(&UDP4, Refusal::NoPayload, true, |f, h| resize(f, h, h.payload_offset));
    refused(&UDP4, Refusal::Checksum, false, |f, h| f[h.payload_offset] ^= 1);
    let mut run = Run::new(Options { udp: false, ..options() });
    assert_eq!(run.push(&packets(&UDP4)[0]), Outcome::Passed(Refusal::UdpOff));
}

#[test]
fn tunnels() {
    let outer = |f: &[u8]| Packet::parse_vxlan(f).unwrap().outer.unwrap();
    let at = |change: fn(&mut [u8], &Headers)| {
        move |f: &mut Vec<u8>, _: &Headers| {
            let headers = outer(f);
            change(f, &headers);
        }
    };
    refused(&TUNNEL, Refusal::Tunnel, true, at(|f, o| f[o.transport_offset + 1] ^= 1));
    refused(&TUNNEL, Refusal::Tunnel, true, at(|f, o| f[o.payload_offset + 6] ^= 1));
    refused(&TUNNEL, Refusal::Tunnel, true, at(|f, o| f[o.network_offset + 15] ^= 1));
    refused(
        &TUNNEL,
        Refusal::Tunnel,
        false,
        at(|f, o| f[o.checksum_at()..o.checksum_at() + 2].fill(0)),
    );
    refused(&TUNNEL, Refusal::Tos, true, at(|f, o| f[o.network_offset + 1] ^= 3));
    refused(&TUNNEL, Refusal::Checksum, false, at(|f, o| f[o.checksum_at()] ^= 1));
    refused(&TUNNEL, Refusal::Link, true, |f, h| f[h.link_offset] ^= 1);
    refused(&TUNNEL, Refusal::Sequence, true, |f, h| f[h.transport_offset + 7] ^= 1);
    // A valid outer checksum proves nothing about the inner one.
    refused(&TUNNEL, Refusal::Checksum, false, |f, h| {
        let before = u16::from_be_bytes([f[h.payload_offset], f[h.payload_offset + 1]]);
        f[h.payload_offset] ^= 1;
        let after = u16::from_be_bytes([f[h.payload_offset], f[h.payload_offset + 1]]);
        let place = outer(f).checksum_at();
        let checksum = u16::from_be_bytes([f[place], f[place + 1]]);
        let checksum = packet::checksum::replace_word(checksum, before, after);
        f[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    });
}

#[test]
fn an_end_ends_and_cannot_begin() {
    for flag in [0x01, 0x08] {
        let mut all = packets(&TCP4);
        let at = Headers::parse(&all[1]).unwrap().transport_offset + 13;
        all[1][at] |= flag;
        repair(&mut all[1]);
        let mut run = Run::new(options());
        run.push(&all[0]);
        assert_eq!(run.push(&all[1]), Outcome::Merged);
        assert_eq!(run.out.len(), 1, "delivered at once");
        assert_ne!(run.out[0].1[at] & flag, 0, "with its flag");
        assert_eq!(run.push(&all[1]), Outcome::Passed(Refusal::Ends));
    }
    // A shorter one also ends it.
    let all = packets(&Spec { payload: 1500, ..TCP4 });
    let mut run = Run::new(options());
    run.push(&all[0]);
    assert_eq!(run.push(&all[1]), Outcome::Merged);
    assert_eq!((run.out.len(), run.coalescer.held()), (1, 0));
}

#[test]
fn a_full_gso_packet_leaves() {
    let all = packets(&Spec { payload: 65_000, gso_size: 1000, ..TCP4 });
    let mut run = Run::new(Options { max_size: 10_000, ..options() });
    let outcomes: Vec<_> = all.iter().map(|f| run.push(f)).collect();
    assert_eq!(outcomes[9], Outcome::Held(Some(Refusal::Full)), "9 × 1000 bytes and headers fit");
    let many = packets(&Spec { udp: true, payload: 8000, gso_size: 100, ..Spec::PLAIN });
    let mut run = Run::new(options());
    many.iter().for_each(|f| {
        run.push(f);
    });
    assert_eq!(run.out[0].0, 64, "no more than 64 UDP packets");
}

#[test]
fn the_oldest_leaves_when_there_is_no_room() {
    let mut run = Run::new(Options { flows: 2, ..options() });
    let flows: Vec<_> = (1..=3).map(|seed| packets(&Spec { seed, ..TCP4 })).collect();
    for flow in &flows {
        assert_eq!(run.push(&flow[0]), Outcome::Held(None));
    }
    assert_eq!(run.out, [(1, flows[0][0].clone())]);
    assert_eq!(run.push(&flows[1][1]), Outcome::Merged);
    run.flush();
    assert_eq!(run.out.iter().map(|o| o.0).collect::<Vec<_>>(), [1, 2, 1]);
}

#[test]
fn gso_packets_and_what_the_kernel_vouches_for() {
    let (vnet, frame) = TCP4.build();
    let mut run = Run::new(options());
    assert_eq!(run.push_with(&frame, &vnet), Outcome::Passed(Refusal::Super));
    // Partial and verified checksums are not verified again.
    let mut all = packets(&TCP4);
    for frame in &mut all[..2] {
        let headers = Headers::parse(frame).unwrap();
        Random(3).fill(&mut frame[headers.checksum_at()..][..2]);
    }
    let start = Headers::parse(&all[0]).unwrap().transport_offset as u16;
    let partial = VnetHdr {
        flags: flags::NEEDS_CSUM,
        csum_start: start,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    let verified = VnetHdr { flags: flags::DATA_VALID, ..VnetHdr::default() };
    assert_eq!(run.push_with(&all[0], &partial), Outcome::Held(None));
    assert_eq!(run.push_with(&all[1], &verified), Outcome::Merged);
    assert_eq!(run.push_with(&all[2], &VnetHdr { csum_start: 0, ..partial }), Outcome::Merged);
}

#[test]
fn packets_other_than_tcp_and_udp_pass_and_keep_the_order_of_their_flow() {
    let all = packets(&TCP4);
    let mut run = Run::new(options());
    run.push(&all[0]);
    let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
    assert!(matches!(run.push(&arp), Outcome::Passed(Refusal::Headers(Unsupported::EtherType(_)))));
    assert_eq!(run.out.len(), 1, "ARP alone: it has no flow");
    let mut fragment = all[1].clone();
    fragment[20] |= 0x20;
    run.push(&fragment);
    assert_eq!(run.out.len(), 3, "a fragment: after everything held");
    assert_eq!(run.out[1].1, all[0]);
}
