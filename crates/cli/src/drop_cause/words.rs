//! Descriptions of the object behind a drop.

use std::net::IpAddr;

use netstate::MacAddr;
use netstate::entry::FdbEntry;
use netstate::interface::{Interface, PortState};
use netstate::route_table::{RouteEntry, RouteKind};
use ruleset::Place;

/// Describes the place that drops a packet.
pub fn place(at: &Place) -> String {
    let chain = format!("{} {} {}", at.family_name(), at.table, at.chain);
    match at.handle {
        Some(number) if at.is_legacy => format!("rule {number} of {chain} drops it"),
        Some(handle) => format!("the rule with handle {handle} of {chain} drops it"),
        None => format!("the policy of {chain} drops it"),
    }
}

/// Describes the route that drops packets to an address, or that there is none.
pub fn route(routes: &[RouteEntry], to: IpAddr) -> String {
    let best = routes.iter().filter(|route| route.covers(to)).max_by_key(|route| route.prefix);
    match best {
        Some(route) if route.kind != RouteKind::Unicast => {
            format!("route: {} {}/{}", route.kind.name(), route.to, route.prefix)
        }
        // Policy routing may use another table.
        Some(_) => format!("no route to {to} for this packet"),
        None => format!("no route to {to}"),
    }
}

/// Describes why a VXLAN device has no remote endpoint for a hardware address; `None`: it has one
/// now.
pub fn vxlan_entry(device: &Interface, entries: &[FdbEntry], to: MacAddr) -> Option<String> {
    let own =
        || entries.iter().filter(|entry| entry.link == device.index && entry.bridge.is_none());
    let is_known = own().any(|entry| entry.mac == Some(to) || entry.mac == Some(MacAddr::ZERO));
    let has_default = device.vxlan.as_ref().is_some_and(|vxlan| vxlan.remote.is_some());
    // The entry exists, so the reason is another one, or the state has changed.
    if is_known || has_default {
        return None;
    }
    let count = own().count();
    Some(format!(
        "{} has no forwarding entry for {to}, and no default remote; its entries: {count}",
        device.name
    ))
}

/// Describes why a bridge has no output port for a hardware address, for a frame that came by a
/// port; `None`: unknown.
pub fn bridge_entry(
    bridge: &Interface,
    links: &[Interface],
    entries: &[FdbEntry],
    (to, came_by): (MacAddr, Option<u32>),
) -> Option<String> {
    let name = &bridge.name;
    let is_of = |entry: &&FdbEntry| entry.bridge == Some(bridge.index) && entry.mac == Some(to);
    let input = came_by.and_then(|index| links.iter().find(|link| link.index == index));
    let Some(entry) = entries.iter().find(is_of) else {
        let others = || {
            let of_bridge = links.iter().filter(|link| link.master == Some(bridge.index));
            of_bridge.filter(|link| Some(link.index) != came_by)
        };
        let is_flooded = |link: &Interface| {
            link.carrier
                && link.port.is_some_and(|port| {
                    let passes = match (to.is_broadcast(), to.is_multicast()) {
                        (true, _) => port.bcast_flood,
                        (_, true) => port.mcast_flood,
                        _ => port.flood,
                    };
                    passes && port.state == PortState::Forwarding
                })
        };
        // The frame is flooded, so the missing entry is not the cause.
        if others().any(is_flooded) {
            return None;
        }
        let ports = others().count();
        return Some(format!(
            "{name} has no forwarding entry for {to}, and floods it to none of its {ports} other \
             ports"
        ));
    };
    let output = links.iter().find(|link| link.index == entry.link)?;
    let entry = format!("{name} has {to} at {}", output.name);
    let port = output.port?;
    if Some(output.index) == came_by && !port.hairpin {
        return Some(format!("{entry}, its input port"));
    }
    if port.state != PortState::Forwarding {
        return Some(format!("{entry}, whose state is {}", port.state.name()));
    }
    let is_isolated = port.isolated && input.and_then(|input| input.port)?.isolated;
    is_isolated.then(|| format!("{entry}, isolated like its input port"))
}

/// Describes the fixed entry of a VXLAN device that contradicts a packet's source: its inner
/// hardware address and its outer address. `None`: they agree now.
pub fn fixed_entry(
    device: &Interface,
    entries: &[FdbEntry],
    (from, sender): (MacAddr, IpAddr),
) -> Option<String> {
    let is_of = |entry: &&FdbEntry| {
        entry.link == device.index && entry.bridge.is_none() && entry.mac == Some(from)
    };
    let entry = entries.iter().find(is_of).filter(|entry| entry.fixed)?;
    let remote = entry.remote.filter(|remote| *remote != sender)?;
    Some(format!("{} has {from} at {remote}, fixed; the packet came from {sender}", device.name))
}

/// Describes the sockets of a port, which are all bound to other addresses than a packet's.
pub fn sockets(protocol: &str, port: u16, mut open: Vec<IpAddr>) -> Option<String> {
    open.sort_unstable();
    open.dedup();
    // It takes the packet now, so the socket is new.
    if open.is_empty() || open.iter().any(IpAddr::is_unspecified) {
        return None;
    }
    let at: Vec<String> = open.iter().map(IpAddr::to_string).collect();
    Some(format!("{protocol} port {port} is open at {} only", at.join(", ")))
}

/// Describes the VXLAN devices of a UDP port, none of which has this VNI.
pub fn other_vnis(links: &[Interface], port: u16, vni: u32) -> Option<String> {
    /// Devices that are named.
    const MOST: usize = 3;
    let of_port = || links.iter().filter_map(|link| Some((link, link.vxlan.as_ref()?)));
    let of_port = || of_port().filter(|(_, vxlan)| vxlan.port == port && !vxlan.external);
    // The VNI exists now: the device was added after the drop.
    if of_port().any(|(_, vxlan)| vxlan.vni == vni) {
        return None;
    }
    let named =
        of_port().take(MOST).map(|(link, vxlan)| format!("{} has {}", link.name, vxlan.vni));
    let named: Vec<String> = named.collect();
    let others = match of_port().count().saturating_sub(MOST) {
        0 => String::new(),
        others => format!(", and {others} more devices"),
    };
    let named = match named.is_empty() {
        true => "none exists".to_owned(),
        false => named.join(", "),
    };
    Some(format!("no VXLAN device of port {port} has VNI {vni}: {named}{others}"))
}

#[cfg(test)]
mod tests {
    use netstate::interface::Port;

    use super::*;

    #[test]
    fn places_are_named_as_their_programs_name_them() {
        let place = |family, handle, is_legacy| Place {
            family,
            table: "filter".to_owned(),
            chain: "INPUT".to_owned(),
            handle,
            is_legacy,
        };
        for (place, expected) in [
            (place(2, Some(7), false), "the rule with handle 7 of ip filter INPUT drops it"),
            (place(1, None, false), "the policy of inet filter INPUT drops it"),
            (place(2, Some(3), true), "rule 3 of iptables-legacy filter INPUT drops it"),
            (place(10, None, true), "the policy of ip6tables-legacy filter INPUT drops it"),
        ] {
            assert_eq!(super::place(&place), expected);
        }
    }

    #[test]
    fn the_longest_route_decides() {
        let entry = |to: [u8; 4], prefix, kind| RouteEntry {
            to: to.into(),
            prefix,
            kind,
            via: None,
            link: Some(2),
            table: 254,
            protocol: 3,
            metric: 0,
            source: None,
        };
        let routes = [
            entry([10, 0, 0, 0], 8, RouteKind::Unicast),
            entry([10, 244, 2, 0], 24, RouteKind::Blackhole),
            entry([10, 244, 0, 0], 16, RouteKind::Unreachable),
        ];
        for (to, expected) in [
            ([10, 244, 2, 9], "route: blackhole 10.244.2.0/24"),
            ([10, 244, 3, 9], "route: unreachable 10.244.0.0/16"),
            ([10, 1, 1, 1], "no route to 10.1.1.1 for this packet"),
            ([192, 0, 2, 1], "no route to 192.0.2.1"),
        ] {
            assert_eq!(route(&routes, to.into()), expected);
        }
    }

    const HERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const THERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn entry(link: u32, bridge: Option<u32>, mac: MacAddr, remote: Option<[u8; 4]>) -> FdbEntry {
        let remote = remote.map(IpAddr::from);
        FdbEntry {
            link,
            mac: Some(mac),
            bridge,
            remote,
            port: None,
            vni: None,
            fixed: true,
            external: false,
        }
    }

    fn vxlan(index: u32, vni: u32) -> Interface {
        let vxlan = netstate::interface::Vxlan { vni, port: 4789, ..Default::default() };
        Interface { index, name: format!("vx{vni}"), vxlan: Some(vxlan), ..Default::default() }
    }

    #[test]
    fn a_vxlan_device_without_a_remote_is_named() {
        let device = vxlan(3, 100);
        let named = "vx100 has no forwarding entry for 02:00:00:00:00:02, and no default remote; \
                     its entries: 1";
        let remote = Some([10, 77, 0, 2]);
        for (entries, expected) in [
            (vec![entry(3, None, HERE, remote)], Some(named.to_owned())),
            // The entry has come since, or there is a default.
            (vec![entry(3, None, THERE, remote)], None),
            (vec![entry(3, None, MacAddr::ZERO, remote)], None),
        ] {
            assert_eq!(vxlan_entry(&device, &entries, THERE), expected);
        }
        let fixed = |sender: [u8; 4]| {
            fixed_entry(&device, &[entry(3, None, HERE, remote)], (HERE, sender.into()))
        };
        let named = "vx100 has 02:00:00:00:00:01 at 10.77.0.2, fixed; the packet came from \
                     10.77.0.1";
        assert_eq!(fixed([10, 77, 0, 1]).as_deref(), Some(named));
        assert_eq!(fixed([10, 77, 0, 2]), None);
        let links = [device, vxlan(4, 101)];
        assert_eq!(other_vnis(&links, 4789, 100), None);
        for (port, expected) in [
            (4789, "no VXLAN device of port 4789 has VNI 7: vx100 has 100, vx101 has 101"),
            (8472, "no VXLAN device of port 8472 has VNI 7: none exists"),
        ] {
            assert_eq!(other_vnis(&links, port, 7).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_bridge_without_an_output_port_is_named() {
        let bridge = Interface { index: 1, name: "br0".to_owned(), ..Default::default() };
        let open = Port::default();
        let port = |index: u32, port| Interface {
            index,
            name: format!("port{index}"),
            master: Some(1),
            carrier: true,
            port: Some(port),
            ..Default::default()
        };
        // The frame came by port 2, which is isolated.
        let named = |entries: &[FdbEntry], other: Port| {
            let links = [bridge.clone(), port(2, Port { isolated: true, ..open }), port(3, other)];
            bridge_entry(&bridge, &links, entries, (THERE, Some(2)))
        };
        let at = |index| [entry(index, Some(1), THERE, None)];
        let learning = Port { state: PortState::Learning, ..open };
        for (entries, other, expected) in [
            (&at(2)[..], open, Some("br0 has 02:00:00:00:00:02 at port2, its input port")),
            (&at(3), learning, Some("br0 has 02:00:00:00:00:02 at port3, whose state is learning")),
            (
                &at(3),
                Port { isolated: true, ..open },
                Some("br0 has 02:00:00:00:00:02 at port3, isolated like its input port"),
            ),
            (&at(3), open, None),
            (
                &[],
                Port { flood: false, ..open },
                Some(
                    "br0 has no forwarding entry for 02:00:00:00:00:02, and floods it to none of \
                     its 1 other ports",
                ),
            ),
            (&[], open, None),
        ] {
            assert_eq!(named(entries, other).as_deref(), expected);
        }
    }
}
