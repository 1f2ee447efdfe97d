//! Coalescing: packets of one flow into a GSO packet, as the kernel's GRO does.
//!
//! Sources: `tcp_gro_receive` (`net/ipv4/tcp_offload.c`), `udp_gro_receive_segment`
//! (`net/ipv4/udp_offload.c`), `inet_gro_receive` (`net/ipv4/af_inet.c`),
//! `ipv6_gro_receive` (`net/ipv6/ip6_offload.c`), `inet_gro_flush`
//! (`include/net/gro.h`), `vxlan_gro_receive` (`drivers/net/vxlan/vxlan_core.c`).
//!
//! What comes out can be cut again into exactly what came in
//! ([`crate::segment`]). Packets of one flow come out in the order they went in;
//! flows among each other may not. Two rules differ from the kernel's:
//! - A flow is addresses, ports and protocol alone. A change of hardware addresses, VLAN
//!   or flow label ends the GSO packet; for the kernel it starts another flow. Packets
//!   of one flow therefore never overtake each other.
//! - Equal IPv4 IDs are merged with DF set only, as before Linux 6.18. The vnet header
//!   cannot say that the IDs were equal.
//!
//! Limits: memory is allocated once, 64 KiB and a little per flow held; packets
//! that are GSO packets already pass as they are.

mod held;
mod refusal;
mod rules;

pub use refusal::Refusal;

use crate::flow::FlowKey;
use crate::frame::{Headers, Packet, Transport, Unsupported};
use crate::vnet_hdr::VnetHdr;
use held::Held;

/// Limits of a coalescer, and the kinds of traffic that it merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Flows held at the same time; at least one. When one more comes, the
    /// oldest GSO packet is delivered. The kernel holds 8 in each of 8 buckets.
    pub flows: usize,
    /// Largest GSO packet in bytes, counted as the kernel's `gro_max_size`
    /// counts: its IP packet is smaller than that. At most 65,536.
    pub max_size: usize,
    /// Whether UDP is merged, which the kernel does only for sockets and devices
    /// that ask for it.
    pub udp: bool,
    /// Whether packets to this port are looked into for VXLAN and merged with
    /// their tunnel headers on.
    pub vxlan_port: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options { flows: 8, max_size: 65_536, udp: true, vxlan_port: None }
    }
}

/// A packet or GSO packet that comes out.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// The frame's vnet header. A GSO packet's has its type, segment size and partial
    /// checksum; a single packet's is the one it came with.
    pub vnet: VnetHdr,
    /// The frame from its Ethernet header on.
    pub frame: &'a [u8],
    /// Number of packets in it.
    pub segments: usize,
    /// Whether all its IPv4 IDs were the same (inner, if it is in a tunnel).
    pub fixed_ids: bool,
    /// Whether all IPv4 IDs of its tunnel headers were the same.
    pub fixed_outer_ids: bool,
}

impl<'a> Delivery<'a> {
    /// A packet as it came.
    const fn single(vnet: VnetHdr, frame: &'a [u8]) -> Delivery<'a> {
        Delivery { vnet, frame, segments: 1, fixed_ids: false, fixed_outer_ids: false }
    }
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Appended to a held GSO packet of its flow.
    Merged,
    /// Held as the first of a GSO packet. With a reason: something of its flow was held,
    /// could not take this packet, and has been delivered. Without: nothing was held.
    Held(Option<Refusal>),
    /// Delivered as it came, after what was held of its flow.
    Passed(Refusal),
}

/// Holds GSO packets while they grow.
#[derive(Debug)]
pub struct Coalescer {
    options: Options,
    /// `len` of them are in use, oldest first.
    slots: Vec<Held>,
    len: usize,
}

impl Coalescer {
    /// Allocates all the memory that will be used.
    pub fn new(options: Options) -> Coalescer {
        let flows = options.flows.max(1);
        let max_size = options.max_size.min(65_536);
        let options = Options { flows, max_size, ..options };
        Coalescer { options, slots: (0..flows).map(|_| Held::new()).collect(), len: 0 }
    }

    /// Number of packets and GSO packets held.
    pub fn held(&self) -> usize {
        self.len
    }

    /// Takes a packet that came with that vnet header. What has to leave because
    /// of it, itself included, is delivered before this returns.
    pub fn push(
        &mut self,
        frame: &[u8],
        vnet: &VnetHdr,
        deliver: &mut impl FnMut(Delivery<'_>),
    ) -> Outcome {
        let packet = match self.parse(frame) {
            Ok(packet) => packet,
            Err(unsupported) => {
                // Fragments and what hides behind extension headers may belong to
                // any flow held; everything else belongs to none.
                if matches!(unsupported, Unsupported::Fragment | Unsupported::Extension) {
                    self.flush(deliver);
                }
                return pass(frame, vnet, Refusal::Headers(unsupported), deliver);
            }
        };
        let key = FlowKey::of(frame, &packet.inner);
        let position = self.slots[..self.len].iter().position(|held| held.is_flow(&key));
        let candidate = rules::candidate(frame, vnet, &packet, &self.options);

        let mut reason = None;
        if let Some(position) = position {
            let merged = match &candidate {
                Ok(candidate) => self.slots[position].append(frame, candidate, &self.options),
                Err(refusal) => Err(*refusal),
            };
            match merged {
                Ok(complete) => {
                    if complete {
                        self.deliver(position, deliver);
                    }
                    return Outcome::Merged;
                }
                Err(refusal) => {
                    reason = Some(refusal);
                    self.deliver(position, deliver);
                }
            }
        }
        match candidate {
            Err(refusal) => pass(frame, vnet, refusal, deliver),
            // It could be the last of a GSO packet, but not the first.
            Ok(candidate) if candidate.ends => {
                pass(frame, vnet, reason.unwrap_or(Refusal::Ends), deliver)
            }
            Ok(candidate) => {
                // The oldest has been delayed the longest; the kernel does the same
                // (`gro_flush_oldest`).
                if self.len == self.slots.len() {
                    self.deliver(0, deliver);
                }
                self.slots[self.len].start(key, frame, vnet, &candidate);
                self.len += 1;
                Outcome::Held(reason)
            }
        }
    }

    /// Delivers all that is held, oldest first.
    pub fn flush(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        for held in &mut self.slots[..self.len] {
            deliver(held.finish());
        }
        self.len = 0;
    }

    fn deliver(&mut self, position: usize, deliver: &mut impl FnMut(Delivery<'_>)) {
        deliver(self.slots[position].finish());
        // The slot goes behind those in use; the order of these stays.
        self.slots[position..self.len].rotate_left(1);
        self.len -= 1;
    }

    fn parse(&self, frame: &[u8]) -> Result<Packet, Unsupported> {
        let headers = Headers::parse(frame)?;
        if let (Transport::Udp, Some(port)) = (headers.transport, self.options.vxlan_port)
            && crate::get16(frame, headers.transport_offset + 2) == port
        {
            // What is no TCP or UDP inside is not merged as UDP outside either:
            // it would overtake the flows inside.
            return Packet::parse_inside(frame, headers);
        }
        Ok(Packet { outer: None, inner: headers })
    }
}

fn pass(
    frame: &[u8],
    vnet: &VnetHdr,
    refusal: Refusal,
    deliver: &mut impl FnMut(Delivery<'_>),
) -> Outcome {
    deliver(Delivery::single(*vnet, frame));
    Outcome::Passed(refusal)
}
