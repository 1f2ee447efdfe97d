//! Reasons for the path a packet took: the counters of the BPF programs.

/// How much of the kernel's path a packet bypassed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Bypassed bridge, routes, packet filters and the VXLAN device.
    Fast,
    /// Partial bypass: bypassed the VXLAN device and the underlay's routes and packet filters. A
    /// flow without a verdict passes everything else.
    Half,
    /// Bypassed nothing.
    Slow,
}

impl Path {
    /// Label value in the metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Path::Fast => "fast",
            Path::Half => "half",
            Path::Slow => "slow",
        }
    }
}

/// In the order of `enum reason` in `bpf/abi.h`; a test in the build checks it.
macro_rules! reasons {
    ($($variant:ident, $word:literal, $meaning:literal;)*) => {
        /// Outcome of a packet, as the programs in `bpf/` count it (`enum reason` in `bpf/abi.h`).
        /// A GSO packet counts as one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// Name in the status report: the name in `enum reason`, in lower case.
            pub const fn word(self) -> &'static str {
                match self { $(Reason::$variant => $word,)* }
            }

            /// Whether program `encap` counts it, for packets from a tenant; otherwise `decap`
            /// does, for packets from the wire.
            pub fn is_encap(self) -> bool {
                self < Reason::DecapHit
            }

            /// How much of the kernel's path the packet bypassed.
            pub fn path(self) -> Path {
                match self {
                    Reason::EncapHit | Reason::EncapShortcut | Reason::DecapHit => Path::Fast,
                    Reason::EncapHalf | Reason::DecapHalf => Path::Half,
                    _ => Path::Slow,
                }
            }

            /// Description for users.
            pub fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    EncapHit, "encap_hit", "encapsulated and sent by the fast path";
    EncapShortcut, "encap_shortcut", "passed to the VXLAN device past the bridge: it computes checksums that BPF cannot";
    EncapStale, "encap_stale", "maps being rewritten, heartbeat too old, or rules or hooks changed";
    EncapPort, "encap_port", "port not accelerated";
    EncapVlan, "encap_vlan", "VLAN tag";
    EncapMalformed, "encap_malformed", "malformed or unsupported headers";
    EncapGroup, "encap_group", "multicast or broadcast";
    EncapProtocol, "encap_protocol", "neither IPv4 nor IPv6, for example ARP";
    EncapSource, "encap_source", "source address unknown at this port";
    EncapDestination, "encap_destination", "destination behind no known remote VTEP";
    EncapTtl, "encap_ttl", "time to live expired: the kernel must answer";
    EncapRoute, "encap_route", "no route through a VXLAN device, or no matching reverse route to the source";
    EncapMtu, "encap_mtu", "larger than the tunnel's MTU";
    EncapRefresh, "encap_refresh", "periodic slow-path packet, so that the kernel's entries do not expire";
    EncapHash, "encap_hash", "no flow hash";
    EncapUnfit, "encap_unfit", "the kernel could not make room for headers";
    EncapLost, "encap_lost", "dropped: headers could not be written";
    EncapTracking, "encap_tracking", "connection tracking must see it: connection start, end or state change";
    EncapVerdict, "encap_verdict", "packet filters must see it: the flow has no verdict";
    EncapHalf, "encap_half", "partial bypass: encapsulated at the VXLAN device, after packet filters and routes";
    DecapHit, "decap_hit", "decapsulated and delivered by the fast path";
    DecapStale, "decap_stale", "maps being rewritten, heartbeat too old, or rules or hooks changed";
    DecapNotOurs, "decap_not_ours", "not for this VTEP, or on another NIC";
    DecapFragment, "decap_fragment", "outer fragment";
    DecapMalformed, "decap_malformed", "malformed or unsupported headers";
    DecapGroup, "decap_group", "multicast or broadcast";
    DecapProtocol, "decap_protocol", "neither IPv4 nor IPv6";
    DecapEcn, "decap_ecn", "congestion mark must be copied to the inner header";
    DecapSource, "decap_source", "source address unknown behind this VTEP";
    DecapDestination, "decap_destination", "destination at no known local port";
    DecapTtl, "decap_ttl", "time to live expired: the kernel must answer";
    DecapRoute, "decap_route", "no route to a tenant, or no matching reverse route to the source";
    DecapChecksum, "decap_checksum", "outer checksum not yet verified";
    DecapGso, "decap_gso", "GSO packet without a matching connection in the tenant";
    DecapMerge, "decap_merge", "TCP segment that the VXLAN device merges with others (GRO), as the NIC does not";
    DecapMtu, "decap_mtu", "larger than the port's MTU";
    DecapRefresh, "decap_refresh", "periodic slow-path packet, so that the kernel's entries do not expire";
    DecapUnfit, "decap_unfit", "the kernel could not remove headers";
    DecapLost, "decap_lost", "dropped: headers could not be written";
    DecapTracking, "decap_tracking", "connection tracking must see it: connection start, end or state change";
    DecapVerdict, "decap_verdict", "packet filters must see it: the flow has no verdict";
    DecapHalf, "decap_half", "partial bypass: decapsulated, then passed to the VXLAN device for packet filters and routes";
    GuardDrop, "guard_drop", "dropped: a segment that connection tracking would call invalid, of a connection on the fast path";
}
