//! Merges packets of one flow into a GSO packet, as the kernel's GRO does.
//!
//! Sources: `tcp_gro_receive` (`net/ipv4/tcp_offload.c`), `udp_gro_receive_segment`
//! (`net/ipv4/udp_offload.c`), `inet_gro_receive` (`net/ipv4/af_inet.c`),
//! `ipv6_gro_receive` (`net/ipv6/ip6_offload.c`), `inet_gro_flush`
//! (`include/net/gro.h`), `vxlan_gro_receive` (`drivers/net/vxlan/vxlan_core.c`).
//!
//! The output can be segmented again into exactly the input ([`crate::segment`]). Packets of one
//! flow keep their order; packets of different flows may be reordered. Two rules differ from the
//! kernel's:
//!
//! - A flow consists of addresses, ports and protocol only. A change of hardware addresses, VLAN or
//!   flow label ends the GSO packet; in the kernel it starts another flow. So packets of one flow
//!   never overtake each other.
//! - Equal IPv4 IDs are merged only with DF set, as before Linux 6.18. The vnet header cannot
//!   express that the IDs were equal.
//!
//! Limits: memory is allocated once, 64 KiB and a little per held flow. Packets that are GSO
//! packets already pass unchanged.

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
    /// Maximum number of flows held; at least one. If there is another one, the oldest GSO packet
    /// is delivered. The kernel holds 8 in each of 8 buckets.
    pub flows: usize,
    /// Limit on the size of a GSO packet in bytes, as the kernel's `gro_max_size`: its IP packet
    /// must be smaller. At most 65,536.
    pub max_size: usize,
    /// Whether UDP is merged. The kernel only does so for sockets and devices that ask for it.
    pub udp: bool,
    /// If set, packets to this port are parsed as VXLAN and merged including their tunnel headers.
    pub vxlan_port: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options { flows: 8, max_size: 65_536, udp: true, vxlan_port: None }
    }
}

/// A packet or GSO packet that is delivered.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// The frame's vnet header. For a GSO packet, it has its type, segment size and partial
    /// checksum. For a single packet, it is the one received with it.
    pub vnet: VnetHdr,
    /// The frame, starting with its Ethernet header.
    pub frame: &'a [u8],
    /// Number of packets in the frame.
    pub segments: usize,
    /// Whether all IPv4 IDs were the same (the inner ones, if it is in a tunnel).
    pub fixed_ids: bool,
    /// Whether all IPv4 IDs of the outer headers were the same.
    pub fixed_outer_ids: bool,
}

impl<'a> Delivery<'a> {
    /// A packet that is delivered unchanged.
    const fn single(vnet: VnetHdr, frame: &'a [u8]) -> Delivery<'a> {
        Delivery { vnet, frame, segments: 1, fixed_ids: false, fixed_outer_ids: false }
    }
}

/// Result for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Appended to the held GSO packet of its flow.
    Merged,
    /// Held as the first packet of a GSO packet. With a reason: another GSO packet of its flow was
    /// held, could not take this packet, and was delivered. Without: none was held.
    Held(Option<Refusal>),
    /// Delivered unchanged, after the held packets of its flow.
    Passed(Refusal),
}

/// Holds GSO packets while they are assembled.
#[derive(Debug)]
pub struct Coalescer {
    options: Options,
    /// The first `len` slots are in use, oldest first.
    slots: Vec<Held>,
    len: usize,
}

impl Coalescer {
    /// Allocates all memory.
    pub fn new(options: Options) -> Coalescer {
        let flows = options.flows.max(1);
        let max_size = options.max_size.min(65_536);
        let options = Options { flows, max_size, ..options };
        Coalescer { options, slots: (0..flows).map(|_| Held::new()).collect(), len: 0 }
    }

    /// Returns the number of packets and GSO packets held.
    pub fn held(&self) -> usize {
        self.len
    }

    /// Takes a packet with its vnet header. Everything that has to be delivered because of it,
    /// including the packet itself, is delivered before this returns.
    pub fn push(
        &mut self,
        frame: &[u8],
        vnet: &VnetHdr,
        deliver: &mut impl FnMut(Delivery<'_>),
    ) -> Outcome {
        let packet = match self.parse(frame) {
            Ok(packet) => packet,
            Err(unsupported) => {
                // Fragments, and packets whose extension headers hide the transport, may belong to
                // any held flow. Other packets belong to none.
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
            // It could end a GSO packet, but not start one.
            Ok(candidate) if candidate.ends => {
                pass(frame, vnet, reason.unwrap_or(Refusal::Ends), deliver)
            }
            Ok(candidate) => {
                // The oldest has been delayed the longest. The kernel does the same
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

    /// Delivers all held packets, oldest first.
    pub fn flush(&mut self, deliver: &mut impl FnMut(Delivery<'_>)) {
        for held in &mut self.slots[..self.len] {
            deliver(held.finish());
        }
        self.len = 0;
    }

    fn deliver(&mut self, position: usize, deliver: &mut impl FnMut(Delivery<'_>)) {
        deliver(self.slots[position].finish());
        // The slot moves behind those in use, whose order does not change.
        self.slots[position..self.len].rotate_left(1);
        self.len -= 1;
    }

    fn parse(&self, frame: &[u8]) -> Result<Packet, Unsupported> {
        let headers = Headers::parse(frame)?;
        if let (Transport::Udp, Some(port)) = (headers.transport, self.options.vxlan_port)
            && crate::get16(frame, headers.transport_offset + 2) == port
        {
            // If the inner packet is not TCP or UDP, the outer UDP packet must not be merged
            // either, because it would overtake the inner flows.
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
