//! Tests that a snapshot provokes every refusal, or that an exception states why not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netstate::interface::{PortState, Vxlan};
use netstate::overlay::{BridgeEntry, Found};
use ruleset::Ruleset;
use ruleset::model::{Base, Chain};

use super::fixture::{BRIDGES, NICS, PORTS, VXLANS, device, entry, mac, remote, snapshot};
use super::*;
use crate::model::{
    Accounting, EXPLANATIONS, Explanation, Foreign, MachineSnapshot, OtherFilter, RETIRED,
    SandboxSnapshot, SelinuxReason,
};

/// The only bridged VXLAN device, and the routed one.
const BRIDGED: u32 = VXLANS[0];
const ROUTED: u32 = VXLANS[4];
/// A tenant on a veth pair without a bridge.
const LONE: u32 = 40;
const LINK_LOCAL: [u16; 8] = [0xfe80, 0, 0, 0, 0, 0, 0, 1];

type Change = fn(&mut MachineSnapshot);

/// A bridged and a routed VXLAN device, and a tenant without a bridge. Nothing is refused.
fn sound() -> MachineSnapshot {
    let mut home = snapshot();
    let kept = |index: &u32| [BRIDGED, ROUTED].contains(index) || !VXLANS.contains(index);
    home.overlay.links.retain(|index, _| kept(index) && *index != PORTS[2]);
    home.overlay.vxlan_fdb.retain(|(index, _), _| kept(index));
    home.overlay.vxlan_fdb.insert((ROUTED, mac(3)), vec![entry(remote(1))]);
    let behind = BridgeEntry { port: BRIDGED, own: false };
    home.overlay.bridge_fdb.insert((BRIDGES[0], mac(3)), behind);
    home.overlay.links.insert(LONE, Interface { kind: Some("veth".into()), ..device("lone", 230) });
    home.peers.insert(LONE, device("eth0", 231));
    home.forwarding.insert(LONE, home.forwarding[&ROUTED]);
    MachineSnapshot { home, ..MachineSnapshot::default() }
}

fn link(machine: &mut MachineSnapshot, index: u32) -> &mut Interface {
    machine.home.overlay.links.get_mut(&index).unwrap()
}

fn vxlan(machine: &mut MachineSnapshot) -> &mut Vxlan {
    link(machine, BRIDGED).vxlan.as_mut().unwrap()
}

fn route(machine: &mut MachineSnapshot) -> &mut Found {
    let key = (DeviceId { netns: 0, index: BRIDGED }, remote(0));
    machine.home.routes.get_mut(&key).unwrap().as_mut().unwrap()
}

/// Moves the same state into a sandbox.
fn sandbox(machine: &mut MachineSnapshot) -> &mut SandboxSnapshot {
    let mut inside = machine.home.clone();
    for link in inside.overlay.links.values_mut().filter(|link| link.vxlan.is_some()) {
        link.link_netns = Some(7);
    }
    machine.home.overlay.links.retain(|index, _| !VXLANS.contains(index));
    machine.home.routes = std::mem::take(&mut inside.routes)
        .into_iter()
        .map(|((id, to), found)| ((DeviceId { netns: 1, ..id }, to), found))
        .collect();
    let sandbox = SandboxSnapshot {
        name: "box".into(),
        snapshot: inside,
        underlay: 7,
        crossing: Some((90, 91)),
        problem: None,
    };
    machine.sandboxes.insert(1, sandbox);
    machine.sandboxes.get_mut(&1).unwrap()
}

fn generic_xdp(mut link: Interface) -> Interface {
    link.detail.xdp_generic = true;
    link
}

/// A macvlan device above another.
fn macvlan(below: u32, mode: &'static str) -> Interface {
    let mut link = Interface { link: Some(below), ..device("mv", 154) };
    link.detail.macvlan = Some(mode);
    link
}

fn vrf(machine: &mut MachineSnapshot) {
    let kind = Some("vrf".to_owned());
    machine.home.overlay.links.insert(50, Interface { kind, ..device("red", 150) });
}

fn chain(machine: &mut MachineSnapshot, hook: u32, drops: bool) {
    let kind = "filter".to_owned();
    let chain = Chain {
        family: 1,
        table: "t".to_owned(),
        name: "c".to_owned(),
        base: Some(Base { hook, priority: 0, devices: Vec::new(), kind, drops }),
        is_dormant: false,
        is_legacy: false,
        unsupported: None,
        rules: Vec::new(),
    };
    machine.home.ruleset = Ruleset::of_chains(vec![chain]).into();
}

/// Makes the bridged device's underlay IPv6, with these addresses on the host.
fn over_ipv6(machine: &mut MachineSnapshot, addresses: &[&str]) {
    let to: IpAddr = "fd00::9".parse().unwrap();
    let found = route(machine).clone();
    let key = (BRIDGED, mac(3));
    machine.home.overlay.vxlan_fdb.insert(key, vec![entry(to)]);
    machine.home.routes.insert((DeviceId { netns: 0, index: BRIDGED }, to), Some(found));
    machine.home.overlay.neighbours.insert((NICS[0], to), mac(100));
    machine.home.overlay.addresses.extend(addresses.iter().map(|a| a.parse::<IpAddr>().unwrap()));
    let vxlan = vxlan(machine);
    (vxlan.local, vxlan.remote) = (None, Some(to));
}

/// Changes that provoke each refusal.
const PROVOKED: &[(&str, Change)] = &[
    ("AX001", |m| vxlan(m).detail.option = Some("gbp")),
    ("AX001", |m| vxlan(m).detail.df = None),
    ("AX002", |m| vxlan(m).detail.unknown = Some(99)),
    ("AX003", |m| vxlan(m).local = Some(LINK_LOCAL.into())),
    ("AX004", |m| link(m, BRIDGED).link_netns = Some(3)),
    ("AX005", |m| link(m, BRIDGED).detail.running = false),
    ("AX006", |m| sandbox(m).problem = Some("add veth: File exists".into())),
    ("AX007", |m| {
        let same = link(m, BRIDGED).clone();
        m.home.overlay.links.insert(BRIDGED + 1, same);
    }),
    ("AX008", |m| drop(m.home.overlay.vxlan_fdb.insert((ROUTED, mac(4)), vec![entry(remote(3))]))),
    ("AX009", |m| {
        sandbox(m);
    }),
    ("AX010", |m| link(m, BRIDGED).qdisc = Some("pfifo".into())),
    ("AX011", |m| link(m, BRIDGES[0]).bridge = None),
    ("AX101", |m| link(m, BRIDGES[0]).bridge.as_mut().unwrap().vlan_filtering = true),
    ("AX102", |m| link(m, BRIDGES[0]).bridge.as_mut().unwrap().detail.unknown = Some(99)),
    ("AX102", |m| link(m, PORTS[0]).port.as_mut().unwrap().detail.unknown = Some(99)),
    ("AX103", |m| link(m, BRIDGES[0]).bridge.as_mut().unwrap().detail.option = Some("mst_enable")),
    ("AX104", |m| link(m, NICS[0]).detail.running = false),
    ("AX105", |m| link(m, PORTS[0]).detail.running = false),
    ("AX106", |m| link(m, PORTS[0]).detail.ethernet = false),
    ("AX107", |m| link(m, PORTS[0]).port = None),
    ("AX108", |m| link(m, PORTS[0]).port.as_mut().unwrap().state = PortState::Blocking),
    ("AX109", |m| link(m, PORTS[0]).port.as_mut().unwrap().detail.option = Some("locked")),
    // The ingress of `inet`, NF_INET_LOCAL_OUT.
    ("AX201", |m| chain(m, 5, false)),
    ("AX202", |m| chain(m, 3, true)),
    ("AX203", |m| m.home.filters.push(OtherFilter::Flowtable("nftables flowtable t f".into()))),
    ("AX204", |m| m.home.filters.push(OtherFilter::Legacy("iptables-legacy nat".into()))),
    ("AX205", |m| m.home.filters.push(OtherFilter::Ebtables("ebtables-legacy nat".into()))),
    ("AX206", |m| m.home.filters.push(OtherFilter::Ipvs)),
    ("AX207", |m| m.home.hooks = Some(vec!["f [m] at hook 1 of ip".into()])),
    ("AX208", |m| drop(m.home.overlay.filtered.insert(NICS[0], "clsact".into()))),
    ("AX209", |m| {
        m.home.occupied.insert(NICS[0]);
    }),
    ("AX210", |m| link(m, NICS[0]).detail.xdp_attached = true),
    ("AX211", |m| {
        drop(m.home.links.foreign.insert(7, Foreign::Netfilter { ipv6: false, hook: 1 }));
    }),
    ("AX212", |m| drop(m.home.links.foreign.insert(7, Foreign::Function("f".into())))),
    ("AX213", |m| (m.home.links.hidden, m.home.hooks) = (true, None)),
    ("AX214", |m| m.home.socket_lookups = true),
    ("AX215", |m| m.home.security.push("smack".into())),
    ("AX216", |m| m.home.ipsec = true),
    // NF_INET_FORWARD.
    ("AX217", |m| {
        chain(m, 2, false);
        m.home.connections = false;
    }),
    ("AX218", |m| {
        let unsupported = vec!["message 99".to_owned()];
        let mut rules = Ruleset::default();
        rules.unsupported = unsupported;
        m.home.ruleset = rules.into();
    }),
    ("AX219", |m| m.home.selinux = Some(SelinuxReason::Netlabel(1))),
    ("AX220", |m| {
        (link(m, NICS[0]).kind, link(m, NICS[0]).link) = (Some("macvlan".into()), Some(60));
        let below = Interface { kind: Some("veth".into()), ..device("veth", 151) };
        m.home.overlay.links.insert(60, below);
        m.home.peers.insert(60, generic_xdp(device("eth0", 152)));
    }),
    ("AX220", |m| m.home.peers.get_mut(&LONE).unwrap().detail.xdp_generic = true),
    ("AX220", |m| {
        (link(m, PORTS[0]).kind, link(m, PORTS[0]).link) = (Some("veth".into()), Some(60));
        m.home.overlay.links.insert(60, generic_xdp(device("own", 153)));
    }),
    ("AX221", |m| {
        let above = macvlan(LONE, "passthru");
        m.home.overlay.links.insert(60, above);
    }),
    ("AX221", |m| {
        let above = macvlan(NICS[0], "source");
        m.home.overlay.links.insert(60, above);
    }),
    ("AX222", |m| {
        m.home.promiscuous.insert(NICS[0]);
    }),
    ("AX222", |m| {
        m.home.promiscuous.insert(ROUTED);
    }),
    ("AX223", |m| (m.home.tracks, m.home.counts_packets) = (true, true)),
    // NF_INET_FORWARD.
    ("AX223", |m| {
        chain(m, 2, false);
        m.home.accounting = Accounting::Exact;
    }),
    ("AX224", |m| {
        vrf(m);
        m.home.bridge_netfilter = true;
        link(m, BRIDGES[0]).master = Some(50);
    }),
    ("AX301", |m| m.home.overlay.rules.push("rule 100 (table 100)".into())),
    ("AX302", |m| m.home.overlay.rules6.push("rule 100 (table 100)".into())),
    ("AX303", |m| {
        let six = "fd00::9".parse().unwrap();
        drop(m.home.overlay.vxlan_fdb.insert((BRIDGED, mac(3)), vec![entry(six)]));
    }),
    ("AX304", |m| {
        over_ipv6(m, &["fd00::1"]);
        let to = IpAddr::from(LINK_LOCAL);
        drop(m.home.overlay.vxlan_fdb.insert((BRIDGED, mac(3)), vec![entry(to)]));
    }),
    ("AX305", |m| m.home.routes.clear()),
    ("AX306", |m| route(m).unsupported = Some("encap".into())),
    ("AX307", |m| {
        vrf(m);
        link(m, NICS[1]).master = Some(50);
        vxlan(m).device = Some(NICS[1]);
    }),
    ("AX308", |m| route(m).link = 99),
    ("AX309", |m| route(m).link = BRIDGES[0]),
    ("AX310", |m| link(m, NICS[0]).detail.ethernet = false),
    ("AX311", |m| link(m, NICS[0]).master = Some(BRIDGES[1])),
    ("AX312", |m| (vxlan(m).local, route(m).source) = (None, None)),
    ("AX313", |m| over_ipv6(m, &["fd00::1", "fd00::2"])),
    ("AX314", |m| m.home.overlay.addresses.clear()),
    ("AX315", |m| route(m).comes_back = false),
    ("AX316", |m| m.home.overlay.neighbours.retain(|(link, _), _| *link != NICS[0])),
    ("AX317", |m| over_ipv6(m, &["fd00::1"])),
    ("AX401", |m| {
        m.home.overlay.unsupported_routes.push(([10, 9, 0, 0].into(), 16, "several next hops"))
    }),
    ("AX402", |m| {
        m.home.overlay.route_mtus.insert(LONE);
    }),
    ("AX403", |m| {
        m.home.forwarding.remove(&LONE);
    }),
    ("AX404", |m| m.home.ipv6_forwarding_off = true),
    ("AX405", |m| m.home.neighbour_proxy = true),
    ("AX406", |m| {
        let network = "fd00:9::".parse().unwrap();
        m.home.overlay.unsupported_routes.push((network, 64, "several next hops"));
    }),
    ("AX407", |m| drop(m.home.peers.remove(&LONE))),
];

/// Refusals that no snapshot provokes, with the reason.
const NOT_PROVOKED: &[(&str, &str)] = &[];

fn codes_of(machine: &MachineSnapshot) -> Vec<&'static str> {
    let refusals = super::tests::refusals_of(machine);
    refusals.iter().map(Refusal::code).collect()
}

#[test]
fn nothing_of_the_sound_machine_is_refused() {
    assert_eq!(codes_of(&sound()), [""; 0]);
}

#[test]
fn packets_that_nothing_counts_are_no_reason() {
    let changes: [Change; 5] = [
        |m| m.home.tracks = true,
        // Without rules, conntrack sees no packet.
        |m| m.home.counts_packets = true,
        |m| m.home.accounting = Accounting::Exact,
        |m| (m.home.counts_packets, m.home.accounting) = (true, Accounting::Exact),
        |m| {
            (m.home.tracks, m.home.counts_packets) = (true, true);
            m.home.accounting = Accounting::Never;
        },
    ];
    for change in changes {
        let mut machine = sound();
        change(&mut machine);
        assert_eq!(codes_of(&machine), [""; 0]);
    }
}

#[test]
fn each_refusal_is_provoked_or_says_why_not() {
    for (code, change) in PROVOKED {
        let mut machine = sound();
        change(&mut machine);
        let codes = codes_of(&machine);
        assert!(codes.contains(code), "{code}: {codes:?}");
    }
    let provoked: BTreeSet<&str> = PROVOKED.iter().map(|(code, _)| *code).collect();
    for known in EXPLANATIONS {
        let is_provoked = provoked.contains(known.code);
        assert!(is_provoked || is_excused(known.code), "{} is provoked by nothing", known.code);
    }
}

fn is_excused(code: &str) -> bool {
    NOT_PROVOKED.iter().any(|(excused, _)| *excused == code)
}

#[test]
fn ipv6_packets_are_no_port() {
    let mut machine = sound();
    machine.home.ipv6_forwarding_off = true;
    let plan = Plan::new(&machine.home, &machine.sandboxes, |_| true);
    let routed = plan.devices.iter().find(|device| device.index == ROUTED).unwrap();
    assert_eq!(routed.ipv6, [Refusal::Ipv6ForwardingOff {}]);
    assert!(routed.ports.iter().all(|port| port.refused.is_none()), "{routed:#?}");
}

#[test]
fn codes_are_unique_sorted_and_not_used_again() {
    let codes: Vec<&str> = EXPLANATIONS.iter().map(|known| known.code).collect();
    let mut sorted: Vec<&str> = codes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(codes, sorted);
    for code in &codes {
        let number = code.strip_prefix("AX").unwrap();
        assert!(number.len() == 3 && number.parse::<u16>().is_ok(), "{code}");
        assert!(!RETIRED.contains(code), "{code} was in use for another refusal");
    }
    // Each code ever assigned belongs to one refusal, in use or retired.
    let given: BTreeMap<&str, &str> =
        include_str!("codes.txt").lines().filter_map(|line| line.split_once(' ')).collect();
    for Explanation { code, name, .. } in EXPLANATIONS {
        assert_eq!(given.get(code), Some(name), "{code}: add a line to codes.txt, change none");
    }
    for code in given.keys() {
        assert!(codes.contains(code) || RETIRED.contains(code), "{code}: move it to RETIRED");
    }
    let titles: BTreeMap<&str, &str> = EXPLANATIONS.iter().map(|e| (e.title, e.code)).collect();
    assert_eq!(titles.len(), codes.len(), "two refusals share a title");
    for Explanation { code, explanation, remedy, .. } in EXPLANATIONS {
        assert!(explanation.len() > 20 && remedy.ends_with('.'), "{code}");
    }
}
