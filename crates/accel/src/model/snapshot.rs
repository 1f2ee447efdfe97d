//! The kernel's state that a plan is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netstate::overlay::{Device, Found, Overlay};

use ruleset::Ruleset;

use super::{DeviceId, Links, Passes};

/// The state that a plan is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetnsSnapshot {
    /// Links, entries, addresses, rules.
    pub overlay: Overlay,
    /// The other ends of veth pairs in other namespaces, by this end's index.
    pub peers: BTreeMap<u32, Device>,
    /// In a sandbox: the numbers of the tenants' namespaces here, to those in the
    /// namespace with the NICs.
    pub numbers: Option<BTreeMap<u32, u32>>,
    /// Ways to remote VTEPs from here, by VXLAN device and address.
    pub routes: BTreeMap<(DeviceId, IpAddr), Option<Found>>,
    /// Rules of nftables.
    pub ruleset: Arc<Ruleset>,
    /// What these say of any remote VTEP.
    pub passes: Passes,
    /// Programs can look up connections; of the NICs' namespace only.
    pub connections: bool,
    /// Packet filters that see packets of this namespace, whatever is in them.
    pub filters: Vec<OtherFilter>,
    /// Functions at netfilter's hooks that nothing explains; none: the kernel has no list.
    pub hooks: Option<Vec<String>>,
    /// Programs at hooks that no namespace lists; of the NICs' namespace only.
    pub links: Links,
    /// Programs choose the sockets of packets that come to this namespace.
    pub socket_lookups: bool,
    /// Security modules that look at packets, or why they are not known.
    pub security: Vec<String>,
    /// br_netfilter is on.
    pub bridge_netfilter: bool,
    /// IPsec has policies here.
    pub ipsec: bool,
    /// What devices that are no ports forward.
    pub forwarding: BTreeMap<u32, Forwarding>,
    /// `net.ipv6.conf.all.forwarding` is off: no IPv6 packet is routed here.
    pub ipv6_forwarding_off: bool,
    /// `net.ipv6.conf.all.proxy_ndp` is on.
    pub neighbour_proxy: bool,
    /// Links at whose tcx hooks there are programs of others.
    pub occupied: BTreeSet<u32>,
    /// `net.ipv4.ip_local_port_range`.
    pub local_ports: (u16, u16),
    /// `net.ipv4.ip_default_ttl`.
    pub default_ttl: u8,
}

/// A namespace with VXLAN devices whose underlay is in the NICs' namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSnapshot {
    /// What it is called.
    pub name: String,
    /// Its state.
    pub snapshot: NetnsSnapshot,
    /// The NICs' namespace, as this one numbers it.
    pub underlay: u32,
    /// Its veth pair to the NICs' namespace: its own end, the other.
    pub crossing: Option<(u32, u32)>,
    /// Why there can be none.
    pub problem: Option<String>,
}

/// What a device forwards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// `net.ipv4.conf.*.forwarding`.
    pub ipv4: bool,
    /// `net.ipv6.conf.*.forwarding`, where IPv6 is not disabled.
    pub ipv6: bool,
}

/// What a plan is made from: the state of the NICs' namespace and of sandboxes, by number.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MachineSnapshot {
    pub home: NetnsSnapshot,
    pub sandboxes: BTreeMap<u16, SandboxSnapshot>,
}

impl MachineSnapshot {
    /// Forwarding entries and neighbours out of it, by namespace.
    pub fn take_entries(&mut self) -> BTreeMap<u16, Overlay> {
        let mut taken = BTreeMap::new();
        for (number, overlay) in self.overlays() {
            overlay.swap_entries(taken.entry(number).or_default());
        }
        taken
    }

    /// Puts them into it.
    pub fn give_entries(&mut self, mut entries: BTreeMap<u16, Overlay>) {
        for (number, overlay) in self.overlays() {
            overlay.swap_entries(entries.entry(number).or_default());
        }
    }

    fn overlays(&mut self) -> impl Iterator<Item = (u16, &mut Overlay)> {
        let sandboxes = self.sandboxes.iter_mut();
        std::iter::once((0, &mut self.home.overlay))
            .chain(sandboxes.map(|(number, sandboxed)| (*number, &mut sandboxed.snapshot.overlay)))
    }
}

/// A packet filter whose rules are not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherFilter {
    /// A table of iptables-legacy or ip6tables-legacy, described.
    Legacy(String),
    /// A table of ebtables-legacy, described.
    Ebtables(String),
    /// IPVS has services.
    Ipvs,
    /// A flowtable of nftables, described.
    Flowtable(String),
}
