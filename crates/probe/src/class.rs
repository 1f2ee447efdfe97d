//! Classes of packets: each combines a protocol, a segmenter, a checksum, a size and a port.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Largest payload of a class without BIG TCP, bytes: an IPv4 packet has at most 65,535 bytes.
pub const MOST_PAYLOAD: u32 = 65_000;
/// Largest payload of a GSO packet with BIG TCP, bytes. The kernel's limit is 524,280
/// (`GSO_MAX_SIZE`).
pub const MOST_BIG_PAYLOAD: u32 = 160_000;
/// Shortest last segment of a GSO packet, bytes: it must hold a whole block of payload to be
/// recognised.
pub const SHORTEST_TAIL: u32 = 33;
/// UDP segments of a GSO packet: the limit of kernels before 6.10 (`UDP_MAX_SEGMENTS`).
pub const MOST_DATAGRAMS: u32 = 64;

/// IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP or ICMPv6 echo requests.
    Icmp,
}

/// State of the transport checksum when the packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Checksum {
    /// Computed here.
    Finished,
    /// Partial: the device below must finish it.
    Partial,
    /// Absent (UDP only).
    Zero,
    /// Wrong on purpose: a receiver must neither accept nor repair it.
    Wrong,
}

/// Kind of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TunnelKind {
    /// RFC 7348.
    Vxlan,
    /// RFC 8926.
    Geneve,
    /// RFC 2784.
    Gre,
}

/// A tunnel around the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// Encapsulation.
    pub kind: TunnelKind,
    /// Whether outer UDP checksums are sent.
    pub checksum: bool,
    /// IP version of the inner packet; [`Class::family`] is the outer one.
    pub inner: Family,
    /// Whether the tunnel is inside a VXLAN tunnel over IPv4, which has [`Class::family`],
    /// [`Class::port`] and the same `checksum`.
    pub nested: bool,
}

impl Tunnel {
    /// Kind of the encapsulation that is on the wire.
    pub fn outermost(self) -> TunnelKind {
        if self.nested { TunnelKind::Vxlan } else { self.kind }
    }
}

/// UDP or TCP destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// Port of the session.
    Own,
    /// The port after it.
    Next,
    /// IANA's port of VXLAN, 4789.
    Vxlan,
    /// Linux's earlier port of VXLAN, 8472.
    Otv,
    /// IANA's port of Geneve, 6081.
    Geneve,
}

impl Port {
    pub const ALL: [Port; 5] = [Port::Own, Port::Next, Port::Vxlan, Port::Otv, Port::Geneve];

    /// Returns the number, with the session's own port.
    pub fn number(self, own: u16) -> u16 {
        match self {
            Port::Own => own,
            Port::Next => own + 1,
            Port::Vxlan => 4789,
            Port::Otv => 8472,
            Port::Geneve => 6081,
        }
    }
}

/// A property that offloads often handle wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Extra {
    /// None.
    Plain,
    /// ECN: ECT(0), and CWR in TCP.
    Ecn,
    /// DSCP AF11.
    Dscp,
    /// IPv4 NOP options, an IPv6 destination options header of padding, or TCP time stamps.
    Options,
    /// Sent as two IP fragments.
    Fragments,
    /// The last two bytes make the UDP checksum add up to zero. It must be sent as 0xffff, since 0
    /// stands for no checksum (RFC 768).
    ZeroSum,
}

/// A class of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// IP version, of the outer packet in a tunnel.
    pub family: Family,
    /// Tunnel around it.
    pub tunnel: Option<Tunnel>,
    /// Protocol above IP.
    pub transport: Transport,
    /// Payload bytes of each segment that the device below must cut; 0: one packet.
    pub segment: u16,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Payload, bytes.
    pub payload: u32,
    /// Destination port; with a tunnel, the tunnel's port.
    pub port: Port,
    /// Further property.
    pub extra: Extra,
}

impl Class {
    /// A single UDP packet with a finished checksum.
    pub const PLAIN: Class = Class {
        family: Family::V4,
        tunnel: None,
        transport: Transport::Udp,
        segment: 0,
        checksum: Checksum::Finished,
        payload: 64,
        port: Port::Own,
        extra: Extra::Plain,
    };

    /// Checks that the class is possible, and within the limits that a peer accepts.
    ///
    /// # Errors
    /// The contradiction, as text.
    pub fn validate(&self) -> Result<(), String> {
        let no = |why: &str| Err(format!("{self}: {why}"));
        let most = if self.may_be_big() { MOST_BIG_PAYLOAD } else { MOST_PAYLOAD };
        if self.payload == 0 || self.payload > most {
            return no(&format!("payload is not 1 to {most} bytes"));
        }
        if self.segment == 0 && self.payload > 9500 && self.extra != Extra::Fragments {
            return no("one packet of more than 9,500 bytes");
        }
        if self.segment > 0 {
            if u32::from(self.segment) < 128 || u32::from(self.segment) >= self.payload {
                return no("segments are not 128 bytes to less than the payload");
            }
            // The kernel requires a partial checksum for UDP, and computes new ones in any case.
            if self.checksum != Checksum::Partial || self.transport == Transport::Icmp {
                return no("a GSO packet needs TCP or UDP and a partial checksum");
            }
            let tail = self.payload % u32::from(self.segment);
            if tail != 0 && tail < SHORTEST_TAIL {
                return no("the last segment is too short to be recognised");
            }
            // The kernel refuses more segments than UDP_MAX_SEGMENTS in a GSO packet.
            if self.transport == Transport::Udp && self.segments() > MOST_DATAGRAMS {
                return no("too many UDP segments");
            }
            if self.extra == Extra::Fragments {
                return no("a fragment cannot be a GSO packet");
            }
            // The kernel's UDP GSO refuses nothing here, but few devices know the combination.
            if self.extra == Extra::Options && self.transport == Transport::Udp {
                return no("options on UDP segments");
            }
        }
        match self.checksum {
            // TCP has no way to omit its checksum.
            Checksum::Zero if self.transport != Transport::Udp => return no("only UDP has none"),
            Checksum::Partial | Checksum::Wrong if self.transport == Transport::Icmp => {
                return no("ICMP checksums are always finished");
            }
            Checksum::Partial | Checksum::Wrong if self.extra == Extra::Fragments => {
                return no("fragments have no checksum of their own");
            }
            _ => {}
        }
        if self.extra == Extra::Fragments && (self.payload < 256 || self.tunnel.is_some()) {
            return no("fragments need 256 bytes, and no tunnel");
        }
        let may_add_up = self.transport == Transport::Udp
            && self.tunnel.is_none()
            && self.segment == 0
            && [Checksum::Finished, Checksum::Partial].contains(&self.checksum);
        if self.extra == Extra::ZeroSum
            && !(may_add_up && self.payload >= 64 && self.payload.is_multiple_of(2))
        {
            return no(
                "a checksum adds up to zero in single UDP packets of 64, 66 and so on bytes",
            );
        }
        match self.tunnel {
            Some(tunnel) => {
                if self.checksum == Checksum::Zero || self.checksum == Checksum::Wrong {
                    return no("inner checksums are finished or partial");
                }
                if tunnel.nested && tunnel.kind == TunnelKind::Gre {
                    return no("only VXLAN and Geneve are nested");
                }
                let ports: &[Port] = match tunnel.outermost() {
                    TunnelKind::Vxlan => &[Port::Own, Port::Vxlan, Port::Otv],
                    TunnelKind::Geneve => &[Port::Own, Port::Geneve],
                    TunnelKind::Gre => &[Port::Own],
                };
                if !ports.contains(&self.port) {
                    return no("the tunnel has another port");
                }
                if self.extra == Extra::Options {
                    return no("options inside a tunnel");
                }
            }
            None if self.transport != Transport::Udp && self.port != Port::Own => {
                return no("only UDP has tunnels' ports");
            }
            // Without a tunnel, every port is an ordinary one.
            None => {}
        }
        Ok(())
    }

    /// Whether the class may need BIG TCP, which exists for TCP without a tunnel.
    fn may_be_big(&self) -> bool {
        self.segment > 0 && self.tunnel.is_none() && self.transport == Transport::Tcp
    }

    /// Whether the packet is too large for the length field of its IP header.
    pub fn needs_big_tcp(&self) -> bool {
        self.payload > MOST_PAYLOAD
    }

    /// Number of packets that arrive if the device cuts as asked.
    pub fn segments(&self) -> u32 {
        match self.segment {
            0 => 1,
            segment => self.payload.div_ceil(u32::from(segment)),
        }
    }

    /// Whether a real tunnel device must build it: single packets are encapsulated here.
    pub fn needs_device(&self) -> bool {
        self.tunnel.is_some_and(|tunnel| {
            self.checksum == Checksum::Partial || tunnel.kind == TunnelKind::Gre
        })
    }

    /// IP version of the packet itself.
    pub fn inner_family(&self) -> Family {
        self.tunnel.map_or(self.family, |tunnel| tunnel.inner)
    }

    /// Whether the class asks a device for anything.
    pub fn is_offloaded(&self) -> bool {
        self.segment > 0 || self.checksum == Checksum::Partial
    }

    /// The same packet without any offload. Its loss means a filter on the path, not an offload.
    #[must_use]
    pub fn control(&self) -> Class {
        let payload = match self.segment {
            0 => self.payload,
            segment => u32::from(segment),
        };
        let checksum = match (self.checksum, self.tunnel) {
            (Checksum::Partial, _) => Checksum::Finished,
            // Over IPv6, receivers without an exception drop a zero checksum.
            (Checksum::Zero | Checksum::Wrong, None) => Checksum::Finished,
            (other, _) => other,
        };
        let extra = match self.extra {
            // A fragment's payload does not fit into one packet.
            Extra::Fragments => Extra::Plain,
            other => other,
        };
        let payload = if self.extra == Extra::Fragments { 64 } else { payload };
        Class { segment: 0, checksum, payload, extra, ..*self }
    }

    /// Bytes on the wire, about.
    pub fn wire_bytes(&self) -> u64 {
        let header = match self.tunnel {
            None => 74,
            Some(tunnel) => 124 + if tunnel.nested { 50 } else { 0 },
        };
        u64::from(self.payload) + u64::from(self.segments()) * header
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

impl fmt::Display for TunnelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TunnelKind::Vxlan => "VXLAN",
            TunnelKind::Geneve => "Geneve",
            TunnelKind::Gre => "GRE",
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
            Transport::Icmp => "ICMP",
        };
        write!(f, "{transport}/{}", self.inner_family())?;
        if let Some(tunnel) = self.tunnel {
            let kind = tunnel.kind;
            let sums = if tunnel.checksum { "outer checksum" } else { "no outer checksum" };
            let within = if tunnel.nested { " in VXLAN" } else { "" };
            write!(f, " in {kind}{within}/{}, {sums}", self.family)?;
        }
        match (self.segment, self.checksum) {
            (0, Checksum::Finished) => {}
            (0, Checksum::Partial) => f.write_str(", partial checksum")?,
            (0, Checksum::Zero) => f.write_str(", no checksum")?,
            (0, Checksum::Wrong) => f.write_str(", wrong checksum")?,
            (segment, _) => {
                let tail = self.payload % u32::from(segment);
                write!(f, ", GSO {} x {segment} B", self.payload / u32::from(segment))?;
                if tail > 0 {
                    write!(f, " + {tail} B")?;
                }
            }
        }
        if self.segment == 0 {
            write!(f, ", {} B", self.payload)?;
        }
        match self.extra {
            Extra::Plain => {}
            Extra::Ecn => f.write_str(", ECN")?,
            Extra::Dscp => f.write_str(", DSCP")?,
            Extra::Options => f.write_str(", options")?,
            Extra::Fragments => f.write_str(", 2 fragments")?,
            Extra::ZeroSum => f.write_str(", adding up to zero")?,
        }
        match self.port {
            Port::Own => Ok(()),
            Port::Next => f.write_str(", next port"),
            port => write!(f, ", port {}", port.number(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_classes_are_refused_with_a_reason() {
        let gso = Class {
            transport: Transport::Tcp,
            segment: 1000,
            payload: 4000,
            checksum: Checksum::Partial,
            ..Class::PLAIN
        };
        assert_eq!(gso.validate(), Ok(()));
        let kind = TunnelKind::Vxlan;
        let tunnel = Tunnel { kind, checksum: true, inner: Family::V6, nested: false };
        let in_tunnel = Class { tunnel: Some(tunnel), ..gso };
        assert_eq!(in_tunnel.validate(), Ok(()));
        assert!(in_tunnel.needs_device() && !in_tunnel.control().needs_device());
        for (class, word) in [
            (Class { payload: 0, ..Class::PLAIN }, "payload"),
            (Class { payload: MOST_BIG_PAYLOAD + 1, ..gso }, "payload"),
            (Class { payload: MOST_PAYLOAD + 1, ..in_tunnel }, "payload"),
            (Class { payload: 70_000, transport: Transport::Udp, ..gso }, "payload"),
            (Class { payload: 20_000, ..Class::PLAIN }, "9,500"),
            (Class { segment: 5000, ..gso }, "segments"),
            (Class { checksum: Checksum::Finished, ..gso }, "partial"),
            (Class { transport: Transport::Udp, segment: 128, payload: 64_000, ..gso }, "many"),
            (Class { payload: 3001, ..gso }, "too short"),
            (Class { extra: Extra::ZeroSum, payload: 301, ..Class::PLAIN }, "zero"),
            (Class { extra: Extra::ZeroSum, ..gso }, "zero"),
            (Class { checksum: Checksum::Zero, transport: Transport::Tcp, ..Class::PLAIN }, "UDP"),
            (Class { port: Port::Geneve, ..in_tunnel }, "another port"),
            (Class { port: Port::Vxlan, ..gso }, "only UDP"),
        ] {
            let refused = class.validate().unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn a_control_is_possible_and_asks_for_nothing() {
        for class in crate::catalogue::full(1500, 1) {
            assert_eq!(class.validate(), Ok(()));
            let control = class.control();
            assert_eq!(control.validate(), Ok(()), "of {class}");
            assert!(!control.is_offloaded());
        }
    }
}
