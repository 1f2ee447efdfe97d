//! The structs of `bpf/abi.h`, written byte by byte: no layout is assumed.

use std::net::IpAddr;

use packet::ethernet::MacAddr;

/// Entry of a local port, else of a remote VTEP.
pub const FDB_LOCAL: u32 = 1;
/// May be handed to the veth's peer directly.
pub const FDB_PEER: u32 = 2;
/// Outer checksums are sent.
pub const FDB_CHECKSUM: u32 = 4;
/// The host's own address: packets to it are routed.
pub const FDB_OWN: u32 = 8;
/// Those of IPv6, too.
pub const FDB_OWN_IPV6: u32 = 16;

/// The VXLAN device answers neighbour solicitations.
pub const FDB_PROXY: u32 = 32;
/// The underlay is IPv6.
pub const FDB_IPV6: u32 = 64;
/// br_netfilter looks at the IP headers of a domain.
pub const DOMAIN_CHECKED: u32 = 1;
/// Datagrams over IPv6 are taken without an outer checksum.
pub const VTEP_ZERO_CHECKSUM: u32 = 2;

/// `struct state`.
pub const STATE: usize = 24;
/// `struct place`.
pub const PLACE: usize = 8;
/// `struct port`.
pub const PORT: usize = 8;
/// `struct vtep_key`.
pub const VTEP_KEY: usize = 8;
/// `struct vtep`.
pub const VTEP: usize = 48;
/// `struct mac_key`.
pub const MAC_KEY: usize = 12;
/// `struct source`.
pub const SOURCE: usize = 24;
/// `struct fdb`.
pub const FDB: usize = 104;
/// `struct count`.
pub const COUNT: usize = 16;

struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Writer { bytes: [0; N], at: 0 }
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn end(self) -> [u8; N] {
        debug_assert_eq!(self.at, N, "every field is written");
        self.bytes
    }
}

/// `struct state`.
pub fn state(heartbeat: u64, generation: u64, refresh: u64) -> [u8; STATE] {
    Writer::new()
        .put(&heartbeat.to_ne_bytes())
        .put(&generation.to_ne_bytes())
        .put(&refresh.to_ne_bytes())
        .end()
}

/// A device of one of the namespaces: the NICs' (0) or a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the namespace.
    pub netns: u16,
    /// Index there.
    pub index: u32,
}

impl Place {
    /// `struct place`.
    pub fn bytes(&self) -> [u8; PLACE] {
        let netns = u32::from(self.netns).to_ne_bytes();
        Writer::new().put(&netns).put(&self.index.to_ne_bytes()).end()
    }
}

/// What is common to the addresses of a bridge, or of a device that is no port of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Domain {
    /// The bridge or device.
    pub place: Place,
    /// Indices of the veth pair to the NICs' namespace, where the domain is in another:
    /// the domain's end, the NICs' end.
    pub trampoline: Option<(u32, u32)>,
    /// br_netfilter looks at IP headers.
    pub checked: bool,
}

impl Domain {
    fn flags(&self) -> u32 {
        if self.checked { DOMAIN_CHECKED } else { 0 }
    }
}

/// By what a datagram is known as a VXLAN device's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VtepKey {
    /// VNI.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// Over IPv6.
    pub ipv6: bool,
}

impl VtepKey {
    /// `struct vtep_key`.
    pub fn bytes(&self) -> [u8; VTEP_KEY] {
        Writer::new()
            .put(&(self.vni << 8).to_be_bytes())
            .put(&self.port.to_be_bytes())
            .put(&u16::from(self.ipv6).to_ne_bytes())
            .end()
    }
}

/// A VTEP of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    /// The bridge, or the VXLAN device where that is no port of one.
    pub domain: Domain,
    /// Index of the underlay NIC.
    pub nic: u32,
    /// Index of the VXLAN device.
    pub vxlan: u32,
    /// Own address.
    pub local: IpAddr,
    /// Datagrams over IPv6 are taken without an outer checksum.
    pub takes_zero_checksum: bool,
}

/// An address in the four words that there are for either family.
fn four_words(address: IpAddr) -> [u8; 16] {
    let mut words = [0; 16];
    match address {
        IpAddr::V4(address) => words[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => words = address.octets(),
    }
    words
}

impl Vtep {
    /// The VXLAN device.
    pub fn device(&self) -> Place {
        Place { index: self.vxlan, ..self.domain.place }
    }

    /// `struct vtep`, counted in `slot`.
    pub fn bytes(&self, slot: u32) -> [u8; VTEP] {
        let outer = self.domain.trampoline.map_or(0, |(_, outer)| outer);
        let zero = if self.takes_zero_checksum { VTEP_ZERO_CHECKSUM } else { 0 };
        Writer::new()
            .put(&self.domain.place.index.to_ne_bytes())
            .put(&self.nic.to_ne_bytes())
            .put(&u32::from(self.domain.place.netns).to_ne_bytes())
            .put(&outer.to_ne_bytes())
            .put(&(self.domain.flags() | zero).to_ne_bytes())
            .put(&self.vxlan.to_ne_bytes())
            .put(&four_words(self.local))
            .put(&slot.to_ne_bytes())
            .put(&[0; 4])
            .end()
    }
}

/// `struct mac_key`: an address in a domain, or at one of its ports.
pub fn mac_key(device: Place, mac: MacAddr) -> [u8; MAC_KEY] {
    let netns = device.netns.to_ne_bytes();
    Writer::new().put(&device.index.to_ne_bytes()).put(&mac.0).put(&netns).end()
}

/// `struct port`, counted in `slot`.
pub fn port(domain: &Domain, slot: u32) -> [u8; PORT] {
    Writer::new().put(&domain.place.index.to_ne_bytes()).put(&slot.to_ne_bytes()).end()
}

/// `struct source`, never used yet, counted in `slot`.
pub fn source(domain: &Domain, slot: u32) -> [u8; SOURCE] {
    Writer::new()
        .put(&[0; 8])
        .put(&domain.place.index.to_ne_bytes())
        .put(&domain.trampoline.map_or(0, |(inner, _)| inner).to_ne_bytes())
        .put(&domain.flags().to_ne_bytes())
        .put(&slot.to_ne_bytes())
        .end()
}

/// Where frames to an address go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fdb {
    /// To a port of this host.
    Local {
        /// Index of the port.
        port: u32,
        /// Its MTU, bytes; with `peer`, the smaller of both ends'.
        mtu: u32,
        /// The number of the namespace of the veth's peer, where frames may be
        /// handed to it directly.
        peer: Option<u32>,
    },
    /// To a remote VTEP.
    Remote(Remote),
    /// To the host itself, which routes them.
    Own {
        /// Those of IPv6, too.
        ipv6: bool,
    },
}

/// The way to a remote VTEP, with what the outer headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Index of the underlay NIC.
    pub nic: u32,
    /// Largest inner layer-3 packet, bytes.
    pub mtu: u32,
    /// Index of the VXLAN device.
    pub vxlan: u32,
    /// VNI.
    pub vni: u32,
    /// Own address.
    pub local: IpAddr,
    /// The VTEP's, of the same family.
    pub remote: IpAddr,
    /// The VTEP's UDP port.
    pub udp_port: u16,
    /// Source ports: from the first up to, not including, the second.
    pub source_ports: (u16, u16),
    /// Outer don't-fragment flag of IPv4.
    pub dont_fragment: bool,
    /// Outer checksums are sent.
    pub checksum: bool,
    /// Neighbour solicitations are answered by the VXLAN device.
    pub proxy: bool,
    /// Outer time to live.
    pub ttl: u8,
    /// Outer type of service, without ECN.
    pub tos: u8,
    /// Outer flow label of IPv6.
    pub label: u32,
    /// Next hop's address.
    pub next_hop: MacAddr,
    /// The NIC's address.
    pub source: MacAddr,
}

impl Remote {
    /// The part of the outer UDP checksum that is the same for all datagrams: the
    /// pseudo header but for the length, added up as the bytes are, in one's complement
    /// (RFC 768, RFC 8200 section 8.1).
    fn pseudo(&self) -> u16 {
        const UDP: [u8; 2] = [0, 17];
        let addresses = [four_words(self.local), four_words(self.remote)];
        let pairs = addresses.iter().flat_map(|address| address.as_chunks::<2>().0).chain([&UDP]);
        let sum: u32 = pairs.map(|pair| u32::from(u16::from_ne_bytes(*pair))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        // Of at most 17 words the carry is small: what it is added to has room.
        (folded & 0xffff) as u16 + (folded >> 16) as u16
    }
}

impl Fdb {
    /// The device that frames go to, of an entry in `domain`; the host itself has none.
    pub fn device(&self, domain: Place) -> Option<Place> {
        let index = match self {
            Fdb::Local { port, .. } => *port,
            Fdb::Remote(remote) => remote.vxlan,
            Fdb::Own { .. } => return None,
        };
        Some(Place { index, ..domain })
    }

    /// `struct fdb`, never used yet, counted in `slot`.
    pub fn bytes(&self, slot: u32) -> [u8; FDB] {
        let writer = Writer::new().put(&[0; 16]);
        match self {
            Fdb::Local { port, mtu, peer } => {
                let flags = FDB_LOCAL | if peer.is_some() { FDB_PEER } else { 0 };
                let words = [flags, *port, *mtu, peer.unwrap_or(0)];
                words
                    .iter()
                    .fold(writer, |writer, word| writer.put(&word.to_ne_bytes()))
                    .put(&[0; FDB - 36])
                    .put(&slot.to_ne_bytes())
                    .end()
            }
            Fdb::Own { ipv6 } => {
                let flags = FDB_OWN | if *ipv6 { FDB_OWN_IPV6 } else { 0 };
                writer.put(&flags.to_ne_bytes()).put(&[0; FDB - 20]).end()
            }
            Fdb::Remote(remote) => {
                let flag = |set: bool, flag| if set { flag } else { 0 };
                let flags = flag(remote.checksum, FDB_CHECKSUM)
                    | flag(remote.proxy, FDB_PROXY)
                    | flag(remote.remote.is_ipv6(), FDB_IPV6);
                let fragment: u16 = if remote.dont_fragment { 0x4000 } else { 0 };
                let words = [flags, remote.nic, remote.mtu, 0, remote.vxlan];
                words
                    .iter()
                    .fold(writer, |writer, word| writer.put(&word.to_ne_bytes()))
                    .put(&(remote.vni << 8).to_be_bytes())
                    .put(&four_words(remote.remote))
                    .put(&four_words(remote.local))
                    .put(&remote.udp_port.to_be_bytes())
                    .put(&remote.source_ports.0.to_ne_bytes())
                    .put(&remote.source_ports.1.to_ne_bytes())
                    .put(&fragment.to_be_bytes())
                    .put(&[remote.ttl, remote.tos])
                    .put(&remote.next_hop.0)
                    .put(&remote.source.0)
                    .put(&remote.pseudo().to_ne_bytes())
                    .put(&remote.label.to_be_bytes())
                    .put(&slot.to_ne_bytes())
                    .end()
            }
        }
    }
}
