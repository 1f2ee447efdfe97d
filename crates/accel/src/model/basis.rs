//! What verdicts on flows are given by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ruleset::Ruleset;

use super::{Domain, NetnsSnapshot, Plan};

/// The state that verdicts on flows are given by, of the NICs' namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Basis {
    /// Verdicts that were given by another one are void; 0: none are given.
    pub(crate) number: u64,
    pub(crate) ruleset: Arc<Ruleset>,
    /// The part of them that verdicts depend on.
    lasting: Arc<Ruleset>,
    /// Addresses of this host.
    pub(crate) own: BTreeSet<IpAddr>,
    /// Tenants' devices, by their index: the device at which rules see what is routed from or
    /// to them, a bridge or the device itself.
    pub(crate) ports: BTreeMap<u32, Port>,
    /// VXLAN devices that are routed to, by their index: names.
    pub(crate) tunnels: BTreeMap<u32, String>,
}

/// A tenant's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// Index and name of the bridge, or its own.
    pub(crate) domain: (u32, String),
    /// br_netfilter hands what comes by it to the rules, which are told of the port.
    pub(crate) checked: bool,
}

impl Basis {
    /// Of what a plan was made from; without a number yet. `last` may have the same rules.
    pub(crate) fn new(snapshot: &NetnsSnapshot, plan: &Plan, last: &Basis) -> Basis {
        let ruleset = snapshot.ruleset.clone();
        let lasting = match Arc::ptr_eq(&ruleset, &last.ruleset) {
            true => last.lasting.clone(),
            false => Arc::new(ruleset.lasting()),
        };
        let links = &snapshot.overlay.links;
        let name = |index: u32| links.get(&index).map(|link| link.name.clone()).unwrap_or_default();
        let wants = |domain: &Domain| {
            domain.id.netns == 0 && (domain.routed_rules || domain.routed_rules_ipv6)
        };
        let ports = plan.ports.iter().filter(|(_, domain)| wants(domain));
        let ports = ports.map(|(id, domain)| {
            let of = domain.id.index;
            let checked = domain.checked && of != id.index;
            (id.index, Port { name: name(id.index), domain: (of, name(of)), checked })
        });
        let tunnels = plan.vteps.values().map(|vtep| (vtep, &vtep.domain));
        let tunnels =
            tunnels.filter(|(vtep, domain)| wants(domain) && domain.id.index == vtep.vxlan);
        Basis {
            number: 0,
            ruleset,
            lasting,
            own: snapshot.overlay.addresses.iter().copied().collect(),
            ports: ports.collect(),
            tunnels: tunnels.map(|(vtep, _)| (vtep.vxlan, name(vtep.vxlan))).collect(),
        }
    }

    /// Whether nothing passes that wants a verdict.
    pub(crate) fn is_idle(&self) -> bool {
        self.ports.is_empty() || self.tunnels.is_empty()
    }

    /// Whether verdicts that were given by this hold by `next`, too: devices may have come and
    /// gone, but none is another.
    pub(crate) fn lasts(&self, next: &Basis) -> bool {
        fn same<V: PartialEq>(one: &BTreeMap<u32, V>, other: &BTreeMap<u32, V>) -> bool {
            one.iter().all(|(index, value)| other.get(index).is_none_or(|other| other == value))
        }
        self.lasting == next.lasting
            && self.own == next.own
            && same(&self.ports, &next.ports)
            && same(&self.tunnels, &next.tunnels)
    }
}
