//! The kernel's state from which a plan is made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netstate::interface::Interface;
use netstate::overlay::{Found, Overlay};

use ruleset::Ruleset;

use super::{Accounting, DeviceId, Links, Passes, SelinuxReason};

/// State of one network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetnsSnapshot {
    /// Links, entries, addresses, rules.
    pub overlay: Overlay,
    /// Veth peers in other namespaces, by the local end's interface index.
    pub peers: BTreeMap<u32, Interface>,
    /// Links without a master whose frames somebody wants all, and neither the administrator, a
    /// packet socket nor a device of this namespace above the link explains it.
    pub promiscuous: BTreeSet<u32>,
    /// In a sandbox: ids of the tenants' namespaces here, mapped to their ids in the namespace of
    /// the NICs.
    pub numbers: Option<BTreeMap<u32, u32>>,
    /// Routes to remote VTEPs, by VXLAN device and address.
    pub routes: BTreeMap<(DeviceId, IpAddr), Option<Found>>,
    /// The nftables rules.
    pub ruleset: Arc<Ruleset>,
    /// Cached decisions of these rules that hold for any remote VTEP.
    pub passes: Passes,
    /// BPF programs can look up connections. Set in the NICs' namespace only.
    pub connections: bool,
    /// Packet filters whose rules are not read and that see packets of this namespace.
    pub filters: Vec<OtherFilter>,
    /// Unexplained functions at netfilter hooks. `None`: the kernel cannot list hooks.
    pub hooks: Option<Vec<String>>,
    /// Addresses of the lists of functions at these hooks, read before. Zeros in sandboxes.
    pub hook_lists: [u64; 15],
    /// Foreign programs at hooks that are not bound to a namespace. Set in the NICs' namespace
    /// only.
    pub links: Links,
    /// BPF programs select the sockets of packets that arrive in this namespace.
    pub socket_lookups: bool,
    /// Security modules other than SELinux that inspect packets, or why they are unknown.
    pub security: Vec<String>,
    /// Why SELinux may decide on packets.
    pub selinux: Option<SelinuxReason>,
    /// br_netfilter is on.
    pub bridge_netfilter: bool,
    /// IPsec has policies in this namespace.
    pub ipsec: bool,
    /// Forwarding sysctls of devices that are not ports.
    pub forwarding: BTreeMap<u32, Forwarding>,
    /// `net.ipv6.conf.all.forwarding` is off, so that no IPv6 packet is routed.
    pub ipv6_forwarding_off: bool,
    /// `net.ipv6.conf.all.proxy_ndp` is on.
    pub neighbour_proxy: bool,
    /// Links with foreign programs at their tcx hooks.
    pub occupied: BTreeSet<u32>,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: (u16, u16),
    /// The kernel encapsulates GSO packets above 64 KiB by VXLAN devices.
    pub big_tunnels: bool,
    /// VXLAN devices that merge received segments (GRO), and underlay NICs that do.
    pub merging: BTreeSet<u32>,
    /// Conntrack's timeouts of established connections and of datagrams, as their sysctls show them.
    pub timeouts: Vec<Option<String>>,
    /// Conntrack sees packets of this namespace.
    pub tracks: bool,
    /// Conntrack counts the packets of new connections (`nf_conntrack_acct`).
    pub counts_packets: bool,
    /// Which counters must stay exact. Set in the NICs' namespace only.
    pub accounting: Accounting,
    /// `net.ipv4.ip_default_ttl`.
    pub default_ttl: u8,
}

/// A sandbox: a namespace with VXLAN devices whose underlay is in the NICs' namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSnapshot {
    /// Display name.
    pub name: String,
    pub snapshot: NetnsSnapshot,
    /// Id of the NICs' namespace in this one.
    pub underlay: u32,
    /// Veth pair to the NICs' namespace: interface index of the local end, of the other end.
    pub crossing: Option<(u32, u32)>,
    /// Why there is no such pair.
    pub problem: Option<String>,
}

impl NetnsSnapshot {
    /// Whether br_netfilter passes packets of this bridge to IP rules.
    pub(crate) fn filters_bridged(&self, bridge: u32) -> bool {
        let bridge = self.overlay.links.get(&bridge).and_then(|link| link.bridge.as_ref());
        self.bridge_netfilter || bridge.is_some_and(|bridge| bridge.detail.calls_filters)
    }
}

/// Families that a device forwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// `net.ipv4.conf.*.forwarding`.
    pub ipv4: bool,
    /// `net.ipv6.conf.*.forwarding`, where IPv6 is not disabled.
    pub ipv6: bool,
}

/// Input of a plan: the state of the NICs' namespace, and of sandboxes by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MachineSnapshot {
    pub home: NetnsSnapshot,
    pub sandboxes: BTreeMap<u16, SandboxSnapshot>,
}

impl MachineSnapshot {
    /// Moves forwarding entries and neighbours out, by namespace.
    pub fn take_entries(&mut self) -> BTreeMap<u16, Overlay> {
        let mut taken = BTreeMap::new();
        for (number, overlay) in self.overlays() {
            overlay.swap_entries(taken.entry(number).or_default());
        }
        taken
    }

    /// Moves forwarding entries and neighbours back in.
    pub fn give_entries(&mut self, mut entries: BTreeMap<u16, Overlay>) {
        for (number, overlay) in self.overlays() {
            overlay.swap_entries(entries.entry(number).or_default());
        }
    }

    /// Returns the state of all namespaces, by number.
    pub(crate) fn overlays(&mut self) -> impl Iterator<Item = (u16, &mut Overlay)> {
        let sandboxes = self.sandboxes.iter_mut();
        std::iter::once((0, &mut self.home.overlay))
            .chain(sandboxes.map(|(number, sandboxed)| (*number, &mut sandboxed.snapshot.overlay)))
    }
}

/// A packet filter whose rules are not read. Strings describe the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherFilter {
    /// A table of iptables-legacy or ip6tables-legacy.
    Legacy(String),
    /// A table of ebtables-legacy.
    Ebtables(String),
    /// IPVS has services.
    Ipvs,
    /// An nftables flowtable.
    Flowtable(String),
}
