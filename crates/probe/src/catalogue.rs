//! The classes of a run: fixed lists, and a covering array of all pairs of properties.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg32;

use crate::class::{
    Checksum, Class, Extra, Family, MOST_DATAGRAMS, Port, SHORTEST_TAIL, Transport, Tunnel,
    TunnelKind,
};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Bytes of headers in front of the payload, from the outer IP header on.
pub fn overhead(class: &Class) -> u32 {
    let ip = |family| match family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let outer = class.tunnel.map_or(0, |tunnel| match tunnel.kind {
        // Outer IP and UDP, the tunnel's header of 8 bytes, inner Ethernet.
        TunnelKind::Vxlan | TunnelKind::Geneve => ip(class.family) + 8 + 8 + 14,
        TunnelKind::Gre => ip(class.family) + 4,
    });
    // A tunnel in a VXLAN tunnel has IPv4 addresses.
    let nested = class.tunnel.is_some_and(|tunnel| tunnel.nested);
    let outer = outer + if nested { 20 + 8 + 8 + 14 } else { 0 };
    let transport = match (class.transport, class.extra) {
        (Transport::Tcp, Extra::Options) => 32,
        (Transport::Tcp, _) => 20,
        (Transport::Udp | Transport::Icmp, _) => 8,
    };
    let options = match (class.extra, class.transport) {
        (Extra::Options, Transport::Udp | Transport::Icmp) => 8,
        _ => 0,
    };
    outer + ip(class.inner_family()) + options + transport
}

/// Sizes of a class's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    Byte,
    Small,
    /// One packet that is as large as the MTU allows, plus this.
    Full(i8),
    /// A GSO packet of a few equal segments.
    Equal,
    /// A GSO packet whose last segment is shorter.
    Tail,
    /// A GSO packet with a very short last segment.
    ShortTail,
    /// A GSO packet as large as possible.
    Large,
    /// A GSO packet that needs BIG TCP.
    Big,
}

const SIZES: [Size; 9] = [
    Size::Byte,
    Size::Small,
    Size::Full(-1),
    Size::Full(0),
    Size::Full(1),
    Size::Equal,
    Size::Tail,
    Size::ShortTail,
    Size::Large,
];

impl Size {
    /// Sets payload and segment size of a class.
    fn apply(self, class: Class, mtu: u32) -> Class {
        let full = mtu.saturating_sub(overhead(&class)).max(128);
        let gso = |payload: u32| {
            let segment = u16::try_from(full).unwrap_or(u16::MAX);
            Class { segment, payload, checksum: Checksum::Partial, ..class }
        };
        let most = match class.transport {
            Transport::Udp => full * MOST_DATAGRAMS,
            _ => u32::MAX,
        };
        match self {
            Size::Byte => Class { payload: 1, ..class },
            Size::Small => Class { payload: 301, ..class },
            Size::Full(more) => Class { payload: full.saturating_add_signed(more.into()), ..class },
            Size::Equal => gso(4 * full),
            Size::Tail => gso(3 * full + full / 3),
            Size::ShortTail => gso(2 * full + SHORTEST_TAIL),
            Size::Large => gso((64_000 / full * full).min(most)),
            Size::Big => gso(100_000 / full * full),
        }
    }
}

fn tcp(family: Family, size: Size, mtu: u32) -> Class {
    size.apply(Class { family, transport: Transport::Tcp, ..Class::PLAIN }, mtu)
}

fn udp(family: Family, size: Size, mtu: u32) -> Class {
    size.apply(Class { family, ..Class::PLAIN }, mtu)
}

/// Sends a class as two fragments, which are as large as fragments of real hosts. Open vSwitch's
/// connection tracking in user space drops first fragments below 1,200 bytes over IPv4 and 1,280
/// over IPv6 (`dpctl/ipf-get-status`).
fn fragmented(class: Class, mtu: u32) -> Class {
    /// IPv6 header and fragment header, bytes.
    const HEADERS: u32 = 48;
    let size = mtu.saturating_sub(100).max(1280).min(mtu);
    let part = size.saturating_sub(HEADERS) / 8 * 8;
    // The header of the datagram is in the first fragment.
    Class { extra: Extra::Fragments, payload: (2 * part).saturating_sub(8).max(256), ..class }
}

fn in_tunnel(
    kind: TunnelKind,
    (family, inner): (Family, Family),
    checksum: bool,
    transport: Transport,
    size: Size,
    mtu: u32,
) -> Class {
    let tunnel = Some(Tunnel { kind, checksum, inner, nested: false });
    let port = match kind {
        TunnelKind::Vxlan => Port::Vxlan,
        TunnelKind::Geneve => Port::Geneve,
        TunnelKind::Gre => Port::Own,
    };
    size.apply(Class { family, tunnel, transport, port, ..Class::PLAIN }, mtu)
}

/// The cases of the kernel's selftest `drivers/net/hw/tso.py`: TCP segmentation without a tunnel,
/// in VXLAN with and without outer checksums, and in GRE; outer and inner IPv4 and IPv6.
pub fn tso_cases(mtu: u32) -> Vec<Class> {
    let mut classes: Vec<Class> =
        FAMILIES.iter().map(|family| tcp(*family, Size::Tail, mtu)).collect();
    for (kind, checksum) in
        [(TunnelKind::Vxlan, false), (TunnelKind::Vxlan, true), (TunnelKind::Gre, false)]
    {
        for family in FAMILIES {
            for inner in FAMILIES {
                let families = (family, inner);
                classes.push(in_tunnel(kind, families, checksum, Transport::Tcp, Size::Tail, mtu));
            }
        }
    }
    classes
}

/// The cases of the kernel's selftest `drivers/net/hw/csum.py`: received checksums of TCP and UDP,
/// valid and wrong; sent partial checksums of UDP, also of packets that add up to zero.
pub fn checksum_cases() -> Vec<Class> {
    let mut classes = Vec::new();
    for family in FAMILIES {
        for transport in [Transport::Tcp, Transport::Udp] {
            for checksum in [Checksum::Finished, Checksum::Wrong] {
                classes.push(Class { family, transport, checksum, payload: 301, ..Class::PLAIN });
            }
        }
        let partial = Class { family, checksum: Checksum::Partial, ..Class::PLAIN };
        classes.push(Class { payload: 301, ..partial });
        classes.push(Class { payload: 302, extra: Extra::ZeroSum, ..partial });
    }
    classes
}

/// A few classes, of the kinds of packets that a measurement sends.
pub fn sample(mtu: u32) -> Vec<Class> {
    let mut classes = vec![Class::PLAIN];
    for family in FAMILIES {
        for transport in [Transport::Tcp, Transport::Udp] {
            let partial = Class { family, transport, checksum: Checksum::Partial, ..Class::PLAIN };
            let bare = Class { family, transport, ..Class::PLAIN };
            classes.push(partial);
            classes.push(Class { checksum: Checksum::Partial, ..Size::Full(0).apply(bare, mtu) });
            classes.push(Size::Tail.apply(bare, mtu));
        }
        classes.push(tcp(family, Size::Large, mtu));
    }
    unique(classes)
}

/// Tunnels in a VXLAN tunnel, as of pods on virtual machines of a cloud: single packets, and packets
/// that a device must cut or finish.
fn nested(mtu: u32) -> Vec<Class> {
    let mut classes = Vec::new();
    for kind in [TunnelKind::Vxlan, TunnelKind::Geneve] {
        let tunnel = Tunnel { kind, checksum: false, inner: Family::V4, nested: true };
        let bare = Class { tunnel: Some(tunnel), port: Port::Vxlan, ..Class::PLAIN };
        let tcp = Class { transport: Transport::Tcp, ..bare };
        classes.push(Size::Small.apply(bare, mtu));
        classes.push(Class { checksum: Checksum::Partial, ..Size::Full(0).apply(tcp, mtu) });
        classes.push(Size::Tail.apply(tcp, mtu));
        classes.push(Size::Tail.apply(bare, mtu));
    }
    classes
}

/// The most important classes: for `--quick`, and the beginning of other lists.
pub fn quick(mtu: u32) -> Vec<Class> {
    let mut classes = vec![Class::PLAIN];
    classes.extend(checksum_cases());
    classes.extend(tso_cases(mtu));
    for family in FAMILIES {
        for size in [Size::Equal, Size::Tail, Size::ShortTail] {
            classes.push(udp(family, size, mtu));
        }
        classes.push(Class { extra: Extra::Ecn, ..tcp(family, Size::Equal, mtu) });
        classes.push(fragmented(Class { family, ..Class::PLAIN }, mtu));
        classes.push(Class { family, checksum: Checksum::Zero, payload: 301, ..Class::PLAIN });
        classes.push(Class { transport: Transport::Icmp, payload: 301, family, ..Class::PLAIN });
        let kind = TunnelKind::Geneve;
        let tunnel = Tunnel { kind, checksum: false, inner: Family::V4, nested: false };
        classes.push(Class {
            family,
            tunnel: Some(tunnel),
            port: Port::Geneve,
            payload: 301,
            ..Class::PLAIN
        });
    }
    for port in [Port::Next, Port::Vxlan, Port::Otv, Port::Geneve] {
        for checksum in [Checksum::Finished, Checksum::Partial, Checksum::Zero] {
            classes.push(Class { port, checksum, payload: 301, ..Class::PLAIN });
        }
        classes.push(Class { port, ..udp(Family::V4, Size::Tail, mtu) });
    }
    for inner in FAMILIES {
        let kind = TunnelKind::Vxlan;
        let families = (Family::V4, inner);
        classes.push(in_tunnel(kind, families, false, Transport::Udp, Size::Tail, mtu));
        for outer in [false, true] {
            classes.push(Class {
                checksum: Checksum::Partial,
                ..in_tunnel(kind, families, outer, Transport::Tcp, Size::Small, mtu)
            });
        }
        classes.push(in_tunnel(kind, families, false, Transport::Tcp, Size::Small, mtu));
    }
    let families = (Family::V4, Family::V4);
    let geneve = TunnelKind::Geneve;
    classes.push(in_tunnel(geneve, families, false, Transport::Tcp, Size::Tail, mtu));
    classes.push(tcp(Family::V4, Size::Large, mtu));
    classes.extend(FAMILIES.map(|family| tcp(family, Size::Big, mtu)));
    classes.extend(nested(mtu));
    unique(classes)
}

/// The default: the classes of [`quick`], and a covering array in which each possible pair of
/// properties occurs. The same seed gives the same list.
pub fn default(mtu: u32, seed: u64) -> Vec<Class> {
    let mut classes = quick(mtu);
    classes.extend(covering(mtu, seed));
    unique(classes)
}

/// All possible combinations, in random order.
pub fn full(mtu: u32, seed: u64) -> Vec<Class> {
    let mut classes: Vec<Class> = product(mtu).into_iter().map(|(_, class)| class).collect();
    classes.shuffle(&mut Pcg32::seed_from_u64(seed));
    let mut all = quick(mtu);
    all.extend(classes);
    unique(all)
}

fn unique(mut classes: Vec<Class>) -> Vec<Class> {
    let mut seen = BTreeSet::new();
    classes.retain(|class| class.validate().is_ok() && seen.insert(*class));
    classes
}

/// Values of a row's properties, as numbers.
type Row = [u8; PROPERTIES];
const PROPERTIES: usize = 7;

/// A pair of properties with their values.
type Pair = (usize, u8, usize, u8);

/// Every possible class with its row.
fn product(mtu: u32) -> Vec<(Row, Class)> {
    let mut tunnels = vec![None];
    for kind in [TunnelKind::Vxlan, TunnelKind::Geneve] {
        for checksum in [false, true] {
            for inner in FAMILIES {
                tunnels.push(Some(Tunnel { kind, checksum, inner, nested: false }));
            }
        }
    }
    for kind in [TunnelKind::Vxlan, TunnelKind::Geneve] {
        let (checksum, inner, nested) = (false, Family::V4, true);
        tunnels.push(Some(Tunnel { kind, checksum, inner, nested }));
    }
    let transports = [Transport::Tcp, Transport::Udp, Transport::Icmp];
    let checksums = [Checksum::Finished, Checksum::Partial, Checksum::Zero];
    let extras = [Extra::Plain, Extra::Ecn, Extra::Dscp, Extra::Options, Extra::Fragments];
    let mut rows = Vec::new();
    let mut seen = BTreeSet::new();
    for (a, family) in FAMILIES.into_iter().enumerate() {
        for (b, tunnel) in tunnels.iter().enumerate() {
            for (c, transport) in transports.into_iter().enumerate() {
                for (d, checksum) in checksums.into_iter().enumerate() {
                    for (e, size) in SIZES.into_iter().enumerate() {
                        for (f, port) in Port::ALL.into_iter().enumerate() {
                            for (g, extra) in extras.into_iter().enumerate() {
                                let class = Class {
                                    family,
                                    tunnel: *tunnel,
                                    transport,
                                    checksum,
                                    port,
                                    extra,
                                    ..Class::PLAIN
                                };
                                let class = match (extra, size) {
                                    (Extra::Fragments, Size::Small) => fragmented(class, mtu),
                                    // `fragmented` sets the size itself: one of the sizes is enough.
                                    (Extra::Fragments, _) => continue,
                                    _ => size.apply(class, mtu),
                                };
                                // A size that needs another checksum is another row.
                                if class.checksum != checksum || class.validate().is_err() {
                                    continue;
                                }
                                if seen.insert(class) {
                                    rows.push(([a, b, c, d, e, f, g].map(|n| n as u8), class));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    rows
}

fn pairs(row: &Row) -> impl Iterator<Item = Pair> {
    let row = *row;
    (0..PROPERTIES).flat_map(move |a| (a + 1..PROPERTIES).map(move |b| (a, row[a], b, row[b])))
}

/// Chooses rows greedily until each pair that occurs in the product occurs among them.
fn covering(mtu: u32, seed: u64) -> Vec<Class> {
    let mut rows = product(mtu);
    // Among rows that cover equally many pairs, chance decides.
    rows.shuffle(&mut Pcg32::seed_from_u64(seed));
    let mut open: BTreeSet<Pair> = rows.iter().flat_map(|(row, _)| pairs(row)).collect();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let covered = |row: &Row| pairs(row).filter(|pair| open.contains(pair)).count();
        let Some((row, class)) = rows.iter().max_by_key(|(row, _)| covered(row)) else { break };
        for pair in pairs(row) {
            open.remove(&pair);
        }
        chosen.push(*class);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 14 cases of `tso.py`, by its names: type of the inner packet, outer IP version, tunnel.
    #[test]
    fn each_case_of_tso_py_has_a_class() {
        let cases = tso_cases(1500);
        let vxlan = |checksum, outer, inner| (Some((TunnelKind::Vxlan, checksum)), outer, inner);
        let gre = |outer, inner| (Some((TunnelKind::Gre, false)), outer, inner);
        let (v4, v6) = (Family::V4, Family::V6);
        for (name, wanted) in [
            ("v4", (None, v4, v4)),
            ("v6", (None, v6, v6)),
            ("vxlan4_v4", vxlan(false, v4, v4)),
            ("vxlan4_v6", vxlan(false, v4, v6)),
            ("vxlan6_v4", vxlan(false, v6, v4)),
            ("vxlan6_v6", vxlan(false, v6, v6)),
            ("vxlan_csum4_v4", vxlan(true, v4, v4)),
            ("vxlan_csum4_v6", vxlan(true, v4, v6)),
            ("vxlan_csum6_v4", vxlan(true, v6, v4)),
            ("vxlan_csum6_v6", vxlan(true, v6, v6)),
            ("gre4_v4", gre(v4, v4)),
            ("gre4_v6", gre(v4, v6)),
            ("gre6_v4", gre(v6, v4)),
            ("gre6_v6", gre(v6, v6)),
        ] {
            let found = cases.iter().filter(|class| {
                let tunnel = class.tunnel.map(|tunnel| (tunnel.kind, tunnel.checksum));
                class.transport == Transport::Tcp
                    && class.segment > 0
                    && (tunnel, class.family, class.inner_family()) == wanted
            });
            assert_eq!(found.count(), 1, "{name}");
        }
    }

    /// The 12 cases of `csum.py`, by its names: `rx` receives, `tx` sends a partial checksum.
    #[test]
    fn each_case_of_csum_py_has_a_class() {
        let cases = checksum_cases();
        for (family, v) in [(Family::V4, 4), (Family::V6, 6)] {
            let plain = Extra::Plain;
            for (name, transport, checksum, extra) in [
                ("rx_tcp", Transport::Tcp, Checksum::Finished, plain),
                ("rx_tcp_invalid", Transport::Tcp, Checksum::Wrong, plain),
                ("rx_udp", Transport::Udp, Checksum::Finished, plain),
                ("rx_udp_invalid", Transport::Udp, Checksum::Wrong, plain),
                ("tx_udp_csum_offload", Transport::Udp, Checksum::Partial, plain),
                // `csum -U -Z`: `cfg_zero_sum`, not `cfg_zero_disable`.
                ("tx_udp_zero_checksum", Transport::Udp, Checksum::Partial, Extra::ZeroSum),
            ] {
                let wanted = (family, transport, checksum, extra);
                let found = cases.iter().filter(|class| {
                    (class.family, class.transport, class.checksum, class.extra) == wanted
                        && class.segment == 0
                });
                assert_eq!(found.count(), 1, "ipv{v}_{name}");
            }
        }
    }

    #[test]
    fn the_kernels_selftests_are_among_the_classes() {
        assert_eq!((tso_cases(1500).len(), checksum_cases().len()), (14, 12));
        let quick = quick(1500);
        for class in tso_cases(1500).into_iter().chain(checksum_cases()) {
            assert_eq!(class.validate(), Ok(()));
            assert!(quick.contains(&class), "{class}");
        }
    }

    #[test]
    fn each_possible_pair_of_properties_occurs_and_the_seed_decides_the_list() {
        let rows = product(1500);
        let array = covering(1500, 7);
        let chosen: BTreeSet<Class> = array.iter().copied().collect();
        let among = rows.iter().filter(|(_, class)| chosen.contains(class));
        let covered: BTreeSet<Pair> = among.flat_map(|(row, _)| pairs(row)).collect();
        let all: BTreeSet<Pair> = rows.iter().flat_map(|(row, _)| pairs(row)).collect();
        assert_eq!(covered, all);
        assert!(array.len() * 10 < rows.len(), "{} of {}", array.len(), rows.len());
        assert_eq!(array, covering(1500, 7));
        assert_ne!(array, covering(1500, 8));
    }

    #[test]
    fn every_size_fits_its_mtu_exactly() {
        for mtu in [576, 1280, 1450, 1500, 9000] {
            for class in default(mtu, 1) {
                let largest = match class.segment {
                    0 if class.extra == Extra::Fragments => class.payload / 2,
                    0 => class.payload,
                    segment => segment.into(),
                };
                // A single packet may be one byte too large on purpose.
                let most = mtu.max(700) + u32::from(class.segment == 0);
                assert!(largest + overhead(&class) <= most, "{class} at {mtu}");
            }
        }
        let among = covering(1500, 1);
        for more in [-1, 0, 1] {
            let full = udp(Family::V4, Size::Full(more), 1500);
            let size = 1500_u32.saturating_add_signed(more.into());
            assert_eq!(full.payload + overhead(&full), size);
            let same = |class: &&Class| class.payload + overhead(class) == size;
            assert!(among.iter().any(|class| class.segment == 0 && same(&class)), "{more}");
        }
    }
}
