//! Generates frames to send: valid, unusual and malformed ones.

use packet::checksum::Sum;
use packet::ethernet::MacAddr;
use packet::vnet_hdr::{Layout, VnetHdr, gso_type};

use super::super::build::{Random, Spec};
use super::{CLIENT, MAC_A, VNET};

/// A frame as the tenant's device receives it, with its vnet header.
#[derive(Clone, Debug)]
pub struct Case {
    vnet: VnetHdr,
    pub frame: Vec<u8>,
}

impl Case {
    /// A case to an address of the other tenant, or of its router.
    pub fn random(random: &mut Random, to: MacAddr) -> Case {
        let mut spec = Spec::random(random, false);
        let one = random.once_in(2);
        if one {
            spec.payload =
                [0, 1, 18, 64, random.below(1500), 1380 + random.below(80)][random.below(6)];
            spec.gso_size = 1;
        }
        let (mut vnet, mut frame) = spec.build();
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&MAC_A);
        if !spec.udp && !random.once_in(3) {
            let at = usize::from(vnet.csum_start);
            frame[at..at + 2].copy_from_slice(&CLIENT.port().to_be_bytes());
        }
        if one {
            vnet = VnetHdr { gso_type: gso_type::NONE, gso_size: 0, ..vnet };
            if random.once_in(2) {
                let (start, offset) = (vnet.csum_start, vnet.csum_offset);
                packet::checksum::complete_partial(&mut frame, start.into(), offset.into())
                    .unwrap();
                vnet = VnetHdr::default();
            }
        }
        // Unusual or malformed: random bytes in the headers, including addresses.
        if random.once_in(3) {
            for _ in 0..1 + random.below(3) {
                let at = random.below(frame.len().min(80));
                // Only the first bytes of an address, so that it is never the other tenant's.
                frame[if at < 12 { at / 6 * 6 } else { at }] = random.next() as u8 & 0xfe;
            }
        }
        // A changed header must reach the router, too.
        if random.once_in(2) && frame.len() >= 34 && frame[12..15] == [8, 0, 0x45] {
            frame[24..26].fill(0);
            let sum = Sum::of(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if random.once_in(12) {
            frame.truncate(14 + random.below(frame.len() - 13));
        }
        if random.once_in(12) {
            frame.resize((frame.len() + random.below(40)).min(65_535), 0);
        }
        if random.once_in(20) {
            frame[..6]
                .copy_from_slice(&[[0xff; 6], [0x33, 0x33, 0, 0, 0, 9], MAC_A][random.below(3)]);
        }
        Case { vnet, frame }
    }

    /// A TCP GSO packet over IPv4 whose frame has this length.
    pub fn big(random: &mut Random, to: MacAddr, length: usize) -> Case {
        const HEADERS: usize = 14 + 20 + 20 + 12;
        let sequence = random.next() as u32;
        let spec = Spec { payload: 2600, gso_size: 1300, sequence, ..Spec::PLAIN };
        let (vnet, mut frame) = spec.build();
        assert_eq!(frame.len(), HEADERS + spec.payload);
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&MAC_A);
        // Length field and checksum of IPv4 (include/linux/ip.h, iph_set_totlen).
        let total = u16::try_from(length - 14).unwrap_or(0);
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[24..26].fill(0);
        let sum = Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        // The sum of the pseudo header has the whole length.
        let more = (length - frame.len()) as u32;
        let field = u16::from_be_bytes([frame[50], frame[51]]);
        let sum = u32::from(field) + (more & 0xffff) + (more >> 16);
        let folded = (sum & 0xffff) + (sum >> 16);
        frame[50..52].copy_from_slice(&(folded as u16).to_be_bytes());
        let rest = frame.len();
        frame.resize(length, 0);
        random.fill(&mut frame[rest..]);
        Case { vnet, frame }
    }

    /// The client's part of the TCP handshake.
    pub fn handshake(to: MacAddr, flags: u8, sequence: u32, acknowledgement: u32) -> Case {
        let spec = Spec {
            payload: 0,
            gso_size: 1,
            tcp_options: 0,
            flags,
            sequence,
            acknowledgement,
            ..Spec::PLAIN
        };
        let (vnet, mut frame) = spec.build();
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&MAC_A);
        frame[34..36].copy_from_slice(&CLIENT.port().to_be_bytes());
        Case { vnet: VnetHdr { gso_type: gso_type::NONE, gso_size: 0, ..vnet }, frame }
    }

    /// A packet that both hosts forward on the fast path, unless a refresh is due.
    pub fn probe(to: MacAddr) -> Case {
        let spec = Spec { udp: true, payload: 64, gso_size: 1, ..Spec::PLAIN };
        let (vnet, mut frame) = spec.build();
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&MAC_A);
        Case { vnet: VnetHdr { gso_type: gso_type::NONE, gso_size: 0, ..vnet }, frame }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; VNET];
        self.vnet.emit(Layout::Basic, &mut bytes).unwrap();
        bytes.extend_from_slice(&self.frame);
        bytes
    }
}
