//! Why a packet went which way: the counters of the BPF programs.

/// How much of the kernel's way a packet was spared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Bridge, routes, packet filters and the VXLAN device.
    Fast,
    /// The VXLAN device and the underlay's routes and packet filters: a flow without a verdict
    /// meets all others.
    Half,
    /// Nothing.
    Slow,
}

impl Path {
    /// Its name in the metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Path::Fast => "fast",
            Path::Half => "half",
            Path::Slow => "slow",
        }
    }
}

/// In the order of `enum reason` in `bpf/abi.h`, which a test of the build holds.
macro_rules! reasons {
    ($($variant:ident, $word:literal, $meaning:literal;)*) => {
        /// What became of a packet, as the programs of `bpf/` count it: `enum reason` of
        /// `bpf/abi.h`. A GSO packet counts once.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// Its name in the status: that of the enumeration, in small letters.
            pub const fn word(self) -> &'static str {
                match self { $(Reason::$variant => $word,)* }
            }

            /// Whether it is of packets that come from a tenant (program `encap`), else from
            /// the wire (`decap`).
            pub fn is_encap(self) -> bool {
                self < Reason::DecapHit
            }

            /// How much of the kernel's way the packet was spared.
            pub fn path(self) -> Path {
                match self {
                    Reason::EncapHit | Reason::EncapShortcut | Reason::DecapHit => Path::Fast,
                    Reason::EncapHalf | Reason::DecapHalf => Path::Half,
                    _ => Path::Slow,
                }
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    EncapHit, "encap_hit", "encapsulated and sent here";
    EncapShortcut, "encap_shortcut", "handed to the VXLAN device past the bridge: it sums up what BPF cannot";
    EncapStale, "encap_stale", "the maps were being rewritten, the heartbeat too old, or rules had changed";
    EncapPort, "encap_port", "the port is not accelerated";
    EncapVlan, "encap_vlan", "VLAN tag";
    EncapMalformed, "encap_malformed", "headers that the slow path is to judge";
    EncapGroup, "encap_group", "multicast or broadcast";
    EncapProtocol, "encap_protocol", "neither IPv4 nor IPv6: ARP and others";
    EncapSource, "encap_source", "source address not known at this port";
    EncapDestination, "encap_destination", "destination not known behind a remote VTEP";
    EncapTtl, "encap_ttl", "time to live at its end: routers answer that";
    EncapRoute, "encap_route", "no route over a VXLAN device, or the source's does not lead back";
    EncapMtu, "encap_mtu", "too big for the tunnel";
    EncapRefresh, "encap_refresh", "the slow path's turn, so that its entries do not age";
    EncapHash, "encap_hash", "no flow hash";
    EncapUnfit, "encap_unfit", "the kernel would not make room";
    EncapLost, "encap_lost", "dropped: headers could not be written";
    EncapTracking, "encap_tracking", "connection tracking is to see it: a beginning, an end, a change";
    EncapVerdict, "encap_verdict", "packet filters are to see it: the flow has no verdict";
    EncapHalf, "encap_half", "encapsulated here behind packet filters and routes, at the VXLAN device";
    DecapHit, "decap_hit", "decapsulated and delivered here";
    DecapStale, "decap_stale", "the maps were being rewritten, the heartbeat too old, or rules had changed";
    DecapNotOurs, "decap_not_ours", "not to this VTEP, or by another NIC";
    DecapFragment, "decap_fragment", "outer fragment";
    DecapMalformed, "decap_malformed", "headers that the slow path is to judge";
    DecapGroup, "decap_group", "multicast or broadcast";
    DecapProtocol, "decap_protocol", "neither IPv4 nor IPv6";
    DecapEcn, "decap_ecn", "congestion to be marked in the inner header";
    DecapSource, "decap_source", "source address not known behind this VTEP";
    DecapDestination, "decap_destination", "destination not known at a local port";
    DecapTtl, "decap_ttl", "time to live at its end: routers answer that";
    DecapRoute, "decap_route", "no route to a tenant, or the source's does not lead back";
    DecapChecksum, "decap_checksum", "outer checksum yet to be verified";
    DecapGso, "decap_gso", "GSO packet that no connection in the tenant takes";
    DecapMtu, "decap_mtu", "too big for the port";
    DecapRefresh, "decap_refresh", "the slow path's turn, so that its entries do not age";
    DecapUnfit, "decap_unfit", "the kernel would not remove the headers";
    DecapLost, "decap_lost", "dropped: headers could not be written";
    DecapTracking, "decap_tracking", "connection tracking is to see it: a beginning, an end, a change";
    DecapVerdict, "decap_verdict", "packet filters are to see it: the flow has no verdict";
    DecapHalf, "decap_half", "decapsulated here and handed to the VXLAN device: packet filters and routes see it";
}
