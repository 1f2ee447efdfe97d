//! Why a packet went which way: the counters of the BPF programs.

/// In the order of the enumeration in `bpf/abi.h`.
macro_rules! reasons {
    ($($variant:ident, $word:literal, $meaning:literal;)*) => {
        /// What became of a packet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// Its name in the status.
            pub fn word(self) -> &'static str {
                match self { $(Reason::$variant => $word,)* }
            }

            /// Whether it is of packets that come from a tenant, else from the wire.
            pub fn is_egress(self) -> bool {
                self < Reason::IngressHit
            }

            /// Whether the packet did not go the kernel's whole way.
            pub fn is_taken(self) -> bool {
                matches!(
                    self,
                    Reason::EgressHit | Reason::EgressShortcut | Reason::IngressHit
                )
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    EgressHit, "egress_hit", "encapsulated and sent here";
    EgressShortcut, "egress_shortcut", "handed to the VXLAN device past the bridge: it sums up what BPF cannot";
    EgressStale, "egress_stale", "the mirror was being rewritten, or its heartbeat too old";
    EgressPort, "egress_port", "the port is not accelerated";
    EgressVlan, "egress_vlan", "VLAN tag";
    EgressMalformed, "egress_malformed", "headers that the slow path is to judge";
    EgressGroup, "egress_group", "multicast or broadcast";
    EgressProtocol, "egress_protocol", "neither IPv4 nor IPv6: ARP and others";
    EgressSource, "egress_source", "source address not known at this port";
    EgressDestination, "egress_destination", "destination not known behind a remote VTEP";
    EgressTtl, "egress_ttl", "time to live at its end: routers answer that";
    EgressRoute, "egress_route", "no route over a VXLAN device, or the source's does not lead back";
    EgressMtu, "egress_mtu", "too big for the tunnel";
    EgressRefresh, "egress_refresh", "the slow path's turn, so that its entries do not age";
    EgressHash, "egress_hash", "no flow hash";
    EgressUnfit, "egress_unfit", "the kernel would not make room";
    EgressLost, "egress_lost", "dropped: headers could not be written";
    IngressHit, "ingress_hit", "decapsulated and delivered here";
    IngressStale, "ingress_stale", "the mirror was being rewritten, or its heartbeat too old";
    IngressNotOurs, "ingress_not_ours", "not to this VTEP, or by another NIC";
    IngressFragment, "ingress_fragment", "outer fragment";
    IngressMalformed, "ingress_malformed", "headers that the slow path is to judge";
    IngressGroup, "ingress_group", "multicast or broadcast";
    IngressProtocol, "ingress_protocol", "neither IPv4 nor IPv6";
    IngressEcn, "ingress_ecn", "congestion to be marked in the inner header";
    IngressSource, "ingress_source", "source address not known behind this VTEP";
    IngressDestination, "ingress_destination", "destination not known at a local port";
    IngressTtl, "ingress_ttl", "time to live at its end: routers answer that";
    IngressRoute, "ingress_route", "no route to a tenant, or the source's does not lead back";
    IngressChecksum, "ingress_checksum", "outer checksum yet to be verified";
    IngressGso, "ingress_gso", "super-packet that no connection in the tenant takes";
    IngressMtu, "ingress_mtu", "too big for the port";
    IngressRefresh, "ingress_refresh", "the slow path's turn, so that its entries do not age";
    IngressUnfit, "ingress_unfit", "the kernel would not remove the headers";
    IngressLost, "ingress_lost", "dropped: headers could not be written";
}
