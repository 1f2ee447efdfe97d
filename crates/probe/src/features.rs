//! Features of a device that can cause a verdict. A search switches these and no others.

use crate::class::{Checksum, Class, Extra, Family, Transport, Tunnel, TunnelKind};

/// A feature of a sending device, and the classes that use it.
pub(crate) struct Sending {
    pub feature: &'static str,
    pub uses: fn(&Class) -> bool,
}

pub(crate) fn is_gso(class: &Class, transport: Transport) -> bool {
    class.segment > 0 && class.transport == transport
}

/// Whether a device must cut packets of a UDP tunnel with or without outer checksums. The kernel
/// itself cuts those of a tunnel in a tunnel.
fn is_tunnel_gso(class: &Class, checksum: bool) -> bool {
    let wanted = |tunnel: Tunnel| {
        tunnel.kind != TunnelKind::Gre && tunnel.checksum == checksum && !tunnel.nested
    };
    class.segment > 0 && class.tunnel.is_some_and(wanted)
}

/// Features of the sending device, the most specific first. Names as in `ethtool -k`.
pub(crate) const SENDING: &[Sending] = &[
    Sending { feature: "tx-udp_tnl-csum-segmentation", uses: |class| is_tunnel_gso(class, true) },
    Sending { feature: "tx-udp_tnl-segmentation", uses: |class| is_tunnel_gso(class, false) },
    Sending {
        feature: "tx-gre-segmentation",
        uses: |class| {
            class.segment > 0 && class.tunnel.is_some_and(|tunnel| tunnel.kind == TunnelKind::Gre)
        },
    },
    Sending {
        feature: "tx-tcp-ecn-segmentation",
        uses: |class| is_gso(class, Transport::Tcp) && class.extra == Extra::Ecn,
    },
    Sending { feature: "tx-udp-segmentation", uses: |class| is_gso(class, Transport::Udp) },
    Sending {
        feature: "tx-tcp-segmentation",
        uses: |class| is_gso(class, Transport::Tcp) && class.inner_family() == Family::V4,
    },
    Sending {
        feature: "tx-tcp6-segmentation",
        uses: |class| is_gso(class, Transport::Tcp) && class.inner_family() == Family::V6,
    },
    Sending {
        feature: "tx-gso-partial",
        uses: |class| class.segment > 0 && class.tunnel.is_some(),
    },
    Sending {
        feature: "tx-checksum-ipv4",
        uses: |class| class.checksum == Checksum::Partial && class.inner_family() == Family::V4,
    },
    Sending {
        feature: "tx-checksum-ipv6",
        uses: |class| class.checksum == Checksum::Partial && class.inner_family() == Family::V6,
    },
    Sending {
        feature: "tx-checksum-ip-generic",
        uses: |class| class.checksum == Checksum::Partial,
    },
    Sending { feature: "tx-scatter-gather", uses: |class| class.segment > 0 },
];

/// Features of the receiving device that merge packets or judge checksums.
pub(crate) const RECEIVING: &[&str] =
    &["rx-gro-hw", "rx-lro", "rx-udp-gro-forwarding", "rx-gro-list", "rx-gro", "rx-checksum"];

/// Returns the name of each feature that a search may switch, in the order of switching off:
/// segmentation first. Without checksums the kernel switches segmentation off by itself, and a
/// setting that has changed by itself is not touched.
pub fn candidate_features() -> impl Iterator<Item = &'static str> {
    SENDING.iter().map(|one| one.feature).chain(RECEIVING.iter().copied())
}

/// Returns the place of a feature in the order of switching off.
pub(crate) fn order(feature: &str) -> usize {
    candidate_features().position(|known| known == feature).unwrap_or(usize::MAX)
}
