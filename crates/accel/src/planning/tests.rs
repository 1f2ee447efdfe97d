//! Tests refusals with hand-made snapshots, also for features that this kernel lacks.

use netstate::overlay::{BridgeEntry, Found};

use super::fixture::{BRIDGES, NICS, PORTS, VXLANS, device, mac, snapshot};
use super::*;
use crate::model::{Foreign, MachineSnapshot, OtherFilter, SelinuxReason};

/// One bridged VXLAN device with an address behind it. Nothing is refused.
fn sound() -> NetnsSnapshot {
    let mut snapshot = snapshot();
    snapshot.overlay.links.retain(|index, _| VXLANS[0] == *index || !VXLANS.contains(index));
    let behind = BridgeEntry { port: VXLANS[0], own: false };
    snapshot.overlay.bridge_fdb.insert((BRIDGES[0], mac(3)), behind);
    snapshot.hooks = Some(Vec::new());
    snapshot
}

/// Returns all refusals of a machine's devices, except ports without carrier.
pub(super) fn refusals_of(machine: &MachineSnapshot) -> Vec<Refusal> {
    let plan = Plan::new(&machine.home, &machine.sandboxes, |_| true);
    let of = |device: DevicePlan| {
        let ports = device.ports.into_iter().filter(|port| port.id.index != PORTS[2]);
        let ports = ports.filter_map(|port| port.refused);
        let remotes = device.remotes.into_values().filter_map(|remote| remote.refused);
        let own = device.refused.into_iter();
        own.chain(ports).chain(device.ipv6).chain(remotes).collect::<Vec<_>>()
    };
    plan.devices.into_iter().flat_map(of).collect()
}

/// Returns all refusals after a change.
fn refusals(change: impl FnOnce(&mut NetnsSnapshot)) -> Vec<String> {
    let mut machine = MachineSnapshot { home: sound(), ..MachineSnapshot::default() };
    change(&mut machine.home);
    refusals_of(&machine).iter().map(ToString::to_string).collect()
}

fn link(snapshot: &mut NetnsSnapshot, index: u32) -> &mut Interface {
    snapshot.overlay.links.get_mut(&index).unwrap()
}

fn refused(change: impl FnOnce(&mut NetnsSnapshot), expected: &str) {
    assert_eq!(refusals(change), [expected]);
}

/// Returns the route from the only VXLAN device to the only remote VTEP.
fn found(snapshot: &mut NetnsSnapshot) -> &mut Found {
    let id = DeviceId { netns: 0, index: VXLANS[0] };
    let of = |((at, _), _): &(&(DeviceId, IpAddr), &mut Option<Found>)| *at == id;
    let first = snapshot.routes.iter_mut().find(of);
    first.unwrap().1.as_mut().unwrap()
}

#[test]
fn nothing_of_a_sound_snapshot_is_refused() {
    assert!(refusals(|_| {}).is_empty());
}

#[test]
fn a_tunnel_on_a_link_in_a_vrf_is_refused() {
    let vrf = |snapshot: &mut NetnsSnapshot, kind: &str| {
        let kind = Some(kind.to_owned());
        snapshot.overlay.links.insert(50, Interface { kind, ..device("red", 150) });
        link(snapshot, NICS[1]).master = Some(50);
        link(snapshot, VXLANS[0]).vxlan.as_mut().unwrap().device = Some(NICS[1]);
    };
    let expected = "nic: it or a master of it is a vrf";
    refused(|f| vrf(f, "vrf"), expected);
    // The VRF itself, and a bond in it.
    let is_vrf = |snapshot: &mut NetnsSnapshot| {
        vrf(snapshot, "vrf");
        link(snapshot, VXLANS[0]).vxlan.as_mut().unwrap().device = Some(50);
    };
    refused(is_vrf, "red: it or a master of it is a vrf");
    let in_bond = |snapshot: &mut NetnsSnapshot| {
        vrf(snapshot, "vrf");
        let kind = Some("bond".to_owned());
        let bond = Interface { kind, master: Some(50), ..device("bond", 151) };
        snapshot.overlay.links.insert(51, bond);
        link(snapshot, NICS[1]).master = Some(51);
    };
    refused(in_bond, expected);
    // The route uses another link, and a bridge has no routes of its own.
    assert!(refusals(|f| vrf(f, "bridge")).is_empty());
}

#[test]
fn a_route_into_a_vrf_is_refused() {
    let vrf = |snapshot: &mut NetnsSnapshot| {
        link(snapshot, NICS[0]).kind = Some("vrf".to_owned());
    };
    refused(vrf, "its route leads into nic");
}

#[test]
fn a_bridge_in_a_vrf_is_refused_if_ip_rules_may_see_its_packets() {
    let vrf = |snapshot: &mut NetnsSnapshot| {
        let kind = Some("vrf".to_owned());
        snapshot.overlay.links.insert(50, Interface { kind, ..device("red", 150) });
        link(snapshot, BRIDGES[0]).master = Some(50);
    };
    assert!(refusals(vrf).is_empty());
    let filtered = "br: it is in red, and br_netfilter passes its packets to IP rules";
    let one_bridge = |snapshot: &mut NetnsSnapshot| {
        vrf(snapshot);
        link(snapshot, BRIDGES[0]).bridge.as_mut().unwrap().detail.calls_filters = true;
    };
    refused(one_bridge, filtered);
    let all_bridges = |snapshot: &mut NetnsSnapshot| {
        vrf(snapshot);
        snapshot.bridge_netfilter = true;
    };
    refused(all_bridges, filtered);
    let routed = snapshot().overlay.links[&VXLANS[4]].clone();
    let routed_beside = |snapshot: &mut NetnsSnapshot| {
        vrf(snapshot);
        snapshot.overlay.links.insert(VXLANS[4], routed);
    };
    let seen = refusals(routed_beside);
    let expected = "br: it is in red, and a VXLAN device outside of bridges routes packets";
    assert!(seen.iter().any(|refusal| refusal == expected), "{seen:?}");
}

#[test]
fn a_bridge_that_filters_vlans_is_refused() {
    let bridge = |snapshot: &mut NetnsSnapshot| {
        link(snapshot, BRIDGES[0]).bridge.as_mut().unwrap().vlan_filtering = true;
    };
    refused(bridge, "br: VLAN filtering is on");
}

#[test]
fn options_of_a_bridge_and_its_ports_are_refused() {
    let bridge = |snapshot: &mut NetnsSnapshot| {
        link(snapshot, BRIDGES[0]).bridge.as_mut().unwrap().detail.option = Some("mst_enable");
    };
    refused(bridge, "br: bridge option mst_enable");
    for option in ["locked", "mab", "vlan_tunnel", "backup_port", "neigh_vlan_suppress"] {
        let port = |snapshot: &mut NetnsSnapshot| {
            link(snapshot, PORTS[0]).port.as_mut().unwrap().detail.option = Some(option);
        };
        refused(port, &format!("p: bridge port option {option}"));
    }
    let suppressed = |snapshot: &mut NetnsSnapshot, index: u32| {
        link(snapshot, index).port.as_mut().unwrap().neigh_suppress = true;
    };
    refused(|f| suppressed(f, PORTS[0]), "p: bridge port option neigh_suppress");
    // On the tunnel's port it is implemented: see `entries.rs`.
    assert!(refusals(|f| suppressed(f, VXLANS[0])).is_empty());
}

#[test]
fn a_tunnel_beside_one_with_suppressed_neighbours_is_refused() {
    let beside = snapshot().overlay.links[&VXLANS[1]].clone();
    let two = |suppressed: &[u32]| {
        refusals(|snapshot| {
            snapshot.overlay.links.insert(VXLANS[1], beside.clone());
            for index in suppressed {
                link(snapshot, *index).port.as_mut().unwrap().neigh_suppress = true;
            }
        })
    };
    assert!(two(&[]).is_empty());
    for one in [VXLANS[0], VXLANS[1]] {
        assert_eq!(two(&[one]), ["vx: bridge port option neigh_suppress"]);
    }
    assert!(two(&[VXLANS[0], VXLANS[1]]).is_empty());
}

#[test]
fn attributes_that_are_not_known_are_refused() {
    let attribute = |of: &str| format!("unknown {of} attribute 99");
    refused(
        |f| link(f, VXLANS[0]).vxlan.as_mut().unwrap().detail.unknown = Some(99),
        &attribute("VXLAN"),
    );
    refused(
        |f| link(f, BRIDGES[0]).bridge.as_mut().unwrap().detail.unknown = Some(99),
        &format!("br: {}", attribute("bridge")),
    );
    refused(
        |f| link(f, PORTS[0]).port.as_mut().unwrap().detail.unknown = Some(99),
        &format!("p: {}", attribute("bridge port")),
    );
}

#[test]
fn virtual_services_and_flowtables_are_refused() {
    refused(|f| f.filters.push(OtherFilter::Ipvs), "packet filter: IPVS");
    let flowtable = "nftables flowtable inet t f";
    refused(
        |f| f.filters.push(OtherFilter::Flowtable(flowtable.into())),
        &format!("packet filter: {flowtable}"),
    );
}

#[test]
fn functions_at_hooks_that_nothing_explains_are_refused() {
    let hook = "ip_vs_in_hook [ip_vs] at hook 1 of ip";
    refused(|f| f.hooks = Some(vec![hook.into()]), &format!("packet filter: {hook}"));
}

#[test]
fn links_that_cannot_be_listed_are_refused_unless_the_kernel_lists_its_hooks() {
    refused(
        |f| (f.links.hidden, f.hooks) = (true, None),
        "cannot list BPF links without CAP_SYS_ADMIN",
    );
    assert!(refusals(|f| f.links.hidden = true).is_empty());
    assert!(refusals(|f| f.hooks = None).is_empty());
}

#[test]
fn programs_at_hooks_are_refused() {
    let netfilter = Foreign::Netfilter { ipv6: false, hook: 1 };
    refused(
        |f| drop(f.links.foreign.insert(7, netfilter)),
        "BPF program at netfilter hook ip 1, link 7",
    );
    let function = Foreign::Function("security hook xfrm_decode_session".into());
    refused(
        |f| drop(f.links.foreign.insert(8, function)),
        "BPF program at security hook xfrm_decode_session, link 8",
    );
    refused(|f| f.socket_lookups = true, "BPF program selects sockets (sk_lookup)");
    assert!(refusals(|f| drop(f.links.foreign.insert(9, Foreign::Device))).is_empty());
}

#[test]
fn security_modules_with_hooks_for_packets_are_refused() {
    for module in ["smack", "number 120"] {
        refused(|f| f.security.push(module.into()), &format!("security module {module}"));
    }
}

#[test]
fn selinux_is_refused_while_it_decides_on_packets() {
    refused(
        |f| f.selinux = Some(SelinuxReason::Secmark(1)),
        "SELinux: 1 rules or objects label packets (SECMARK)",
    );
    let hidden = SelinuxReason::Unknown("no addresses".into());
    refused(|f| f.selinux = Some(hidden), "SELinux: no addresses");
    assert!(refusals(|f| f.selinux = None).is_empty());
}

#[test]
fn ways_that_are_not_followed_are_refused() {
    for unsupported in ["lock", "encap", "realm", "features"] {
        refused(
            |f| found(f).unsupported = Some(unsupported.into()),
            &format!("a route has {unsupported}"),
        );
    }
    refused(
        |f| found(f).comes_back = false,
        "packets from it to 10.0.0.1 on nic are not accepted (local route or rp_filter)",
    );
    refused(|f| found(f).link = BRIDGES[0], "its route leads into br");
    refused(|f| found(f).link = VXLANS[0], "its route leads into vx");
    let everywhere = [10, 0, 0, 0].into();
    refused(
        |f| f.overlay.unsupported_routes.push((everywhere, 8, "an encapsulation")),
        "a route has an encapsulation",
    );
}
