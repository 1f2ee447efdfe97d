//! The state that verdicts on flows depend on.

use std::collections::BTreeMap;
use std::sync::Arc;

use netstate::overlay::AddressTypes;
use ruleset::Ruleset;

use super::{Accounting, Domain, NetnsSnapshot, Plan};

/// State of the NICs' namespace that verdicts on flows depend on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Basis {
    /// A verdict is void unless it carries this number. 0: no verdicts are given.
    pub(crate) number: u64,
    pub(crate) ruleset: Arc<Ruleset>,
    /// The part of `ruleset` that verdicts depend on.
    established_part: Arc<Ruleset>,
    /// Types of addresses, as rules match them.
    pub(crate) address_types: AddressTypes,
    /// Conntrack's timeouts. The fast path renews an entry's timeout to the value that conntrack set
    /// last.
    timeouts: Vec<Option<String>>,
    /// Tenants' devices, by interface index.
    pub(crate) ports: BTreeMap<u32, Port>,
    /// VXLAN devices by interface index: routed ones, and ports of a bridge with br_netfilter.
    pub(crate) tunnels: BTreeMap<u32, Port>,
    /// Families for which rules may translate the first packet of a connection: IPv4, IPv6.
    translates: [bool; 2],
    /// Connections whose packets conntrack counts get no verdict.
    pub(crate) leaves_counted: bool,
    /// All devices for which verdicts of this number have been given, removed ones included.
    known: BTreeMap<u32, Port>,
}

/// A tenant's device, or a VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// The device at which rules see the port's packets: the bridge, or the port itself. Index,
    /// name.
    pub(crate) domain: (u32, String),
    /// br_netfilter passes the port's packets to the rules, which see the port.
    pub(crate) checked: bool,
}

impl Basis {
    /// Derives the state from the input of a plan. The number is not set yet. Reuses the rules of
    /// `last` if they are unchanged.
    pub(crate) fn new(snapshot: &NetnsSnapshot, plan: &Plan, last: &Basis) -> Basis {
        let ruleset = snapshot.ruleset.clone();
        // Unchanged rules have the same established_part part.
        let established_part = match Arc::ptr_eq(&ruleset, &last.ruleset) {
            true => last.established_part.clone(),
            false => Arc::new(ruleset.established_part()),
        };
        let links = &snapshot.overlay.links;
        let name = |index: u32| links.get(&index).map(|link| link.name.clone()).unwrap_or_default();
        let wants = |domain: &Domain| domain.id.netns == 0 && (domain.rules || domain.rules_ipv6);
        let port = |index: u32, domain: &Domain| {
            let of = domain.id.index;
            // br_netfilter affects bridge ports only.
            let checked = domain.checked && of != index;
            (index, Port { name: name(index), domain: (of, name(of)), checked })
        };
        let ports = plan.ports.iter().filter(|(_, domain)| wants(domain));
        let ports = ports.map(|(id, domain)| port(id.index, domain));
        let tunnels = plan.vteps.values().filter(|vtep| wants(&vtep.domain));
        let tunnels = tunnels.map(|vtep| port(vtep.vxlan, &vtep.domain));
        // Without br_netfilter, bridged packets reach no rule.
        let tunnels = tunnels.filter(|(_, tunnel)| tunnel.checked || !tunnel.is_bridged());
        let translates = [false, true].map(|ipv6| ruleset.translates(ipv6));
        Basis {
            number: 0,
            ruleset,
            established_part,
            address_types: snapshot.overlay.address_types.clone(),
            timeouts: snapshot.timeouts.clone(),
            ports: ports.collect(),
            tunnels: tunnels.collect(),
            translates,
            leaves_counted: snapshot.accounting != Accounting::Never,
            known: BTreeMap::new(),
        }
    }

    /// Keeps the number of `last` if its verdicts remain valid: devices may have come and gone, but
    /// no index means another device. Otherwise takes a new number, which voids all verdicts.
    pub(crate) fn succeed(&mut self, last: &Basis) {
        self.number = last.number + 1;
        self.known.clear();
        if last.number > 0 && self.continues(last) {
            self.number = last.number;
            self.known.clone_from(&last.known);
        }
        let devices: Vec<(u32, Port)> = self.devices().collect();
        self.known.extend(devices);
    }

    /// Whether no flow needs a verdict.
    pub(crate) fn is_idle(&self) -> bool {
        self.ports.is_empty() || self.tunnels.is_empty()
    }

    /// Whether verdicts given in state `last` remain valid.
    fn continues(&self, last: &Basis) -> bool {
        self.established_part == last.established_part
            // A route may change the type of any address, translated ones included.
            && (!self.established_part.asks_address_types()
                || self.address_types == last.address_types)
            // A flow that no rule had sent to conntrack may have an entry by now.
            && self.translates == last.translates
            && self.timeouts == last.timeouts
            && self.devices().all(|(index, device)| {
                last.known.get(&index).is_none_or(|known| *known == device)
            })
    }

    /// Tenants' devices and VXLAN devices, by interface index.
    fn devices(&self) -> impl Iterator<Item = (u32, Port)> {
        self.ports.iter().chain(&self.tunnels).map(|(index, port)| (*index, port.clone()))
    }
}

impl Port {
    pub(crate) fn is_bridged(&self) -> bool {
        self.domain.1 != self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that routes packets.
    fn port((index, name): &(u32, &str)) -> (u32, Port) {
        let domain = (*index, (*name).to_owned());
        (*index, Port { name: (*name).to_owned(), domain, checked: false })
    }

    /// A state with these tenants' devices.
    fn with(ports: &[(u32, &str)]) -> Basis {
        Basis { ports: ports.iter().map(port).collect(), ..Basis::default() }
    }

    #[test]
    fn verdicts_outlast_devices_that_come_and_go_but_no_index_that_is_another_s() {
        let mut states = Vec::from([Basis::default()]);
        let mut number = |mut next: Basis| {
            next.succeed(states.last().unwrap());
            states.push(next);
            states.last().unwrap().number
        };
        assert_eq!(number(with(&[(5, "veth5")])), 1);
        assert_eq!(number(with(&[(5, "veth5"), (6, "veth6")])), 1);
        assert_eq!(number(with(&[(6, "veth6")])), 1);
        assert_eq!(number(with(&[(5, "veth5")])), 1, "it is back");
        assert_eq!(number(with(&[(5, "veth5")])), 1);
        assert_eq!(number(with(&[(5, "veth5"), (6, "other")])), 2, "6 is another, plans later");
        assert_eq!(number(with(&[(6, "veth6")])), 3);
        let tunnel = Basis { tunnels: [port(&(6, "vxlan0"))].into(), ..Basis::default() };
        assert_eq!(number(tunnel), 4, "a tunnel where a tenant was");
    }

    #[test]
    fn the_first_rule_of_nat_ends_verdicts_and_the_next_ones_do_not() {
        let mut first = with(&[(5, "veth5")]);
        first.succeed(&Basis::default());
        let mut next = Basis { translates: [true, false], ..first.clone() };
        next.succeed(&first);
        assert_eq!(next.number, first.number + 1);
        let mut same = next.clone();
        same.succeed(&next);
        assert_eq!(same.number, next.number);
    }
}
