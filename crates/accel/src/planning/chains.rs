//! Tests which chains and programs at netfilter hooks refuse a device, depending on how packets
//! reach it: through a bridge, through a bridge with br_netfilter, or by a route.

use netstate::overlay::BridgeEntry;
use ruleset::Ruleset;
use ruleset::model::{Base, Chain};

use super::fixture::{BRIDGES, VXLANS, entry, mac, remote, snapshot};
use super::*;
use crate::model::{Foreign, RuleEffect};

/// `NFPROTO_*` of `linux/netfilter.h`.
const INET: u8 = 1;
const IPV4: u8 = 2;
const BRIDGE: u8 = 7;
const IPV6: u8 = 10;
/// `NF_INET_FORWARD`, `NF_INET_LOCAL_OUT`.
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;

/// How packets reach the device.
#[derive(Debug, Clone, Copy)]
enum Route {
    Bridged,
    /// Sysctl `net.bridge.bridge-nf-call-iptables`.
    Checked,
    /// Bridge option `nf_call_iptables`.
    CheckedThere,
    Routed,
}

/// Returns the refusal of the device, or of the path to its only remote VTEP.
fn refused(way: Route, change: impl FnOnce(&mut NetnsSnapshot)) -> Option<Refusal> {
    let mut snapshot = snapshot();
    snapshot.connections = true;
    let device = if matches!(way, Route::Routed) { VXLANS[4] } else { VXLANS[0] };
    snapshot.overlay.links.retain(|index, _| *index == device || !VXLANS.contains(index));
    match way {
        Route::Routed => {
            snapshot.overlay.vxlan_fdb.insert((device, mac(3)), vec![entry(remote(0))]);
        }
        Route::Bridged | Route::Checked | Route::CheckedThere => {
            let behind = BridgeEntry { port: device, own: false };
            snapshot.overlay.bridge_fdb.insert((BRIDGES[0], mac(3)), behind);
        }
    }
    snapshot.bridge_netfilter = matches!(way, Route::Checked);
    let bridge = snapshot.overlay.links.get_mut(&BRIDGES[0]).unwrap().bridge.as_mut().unwrap();
    bridge.detail.calls_filters = matches!(way, Route::CheckedThere);
    change(&mut snapshot);
    let plan = Plan::new(&snapshot, &BTreeMap::new(), |_| true);
    let [device] = &plan.devices[..] else { panic!("{:?}", plan.devices) };
    let remotes = device.remotes.values().filter_map(|remote| remote.refused.clone());
    device.refused.clone().or_else(|| remotes.into_iter().next())
}

fn chain(snapshot: &mut NetnsSnapshot, family: u8, hook: u32, drops: bool) {
    let (table, kind) = ("t".to_owned(), "filter".to_owned());
    let base = Some(Base { hook, priority: 0, devices: Vec::new(), kind, drops });
    let (name, rules) = ("c".to_owned(), Vec::new());
    let (is_dormant, is_legacy, unsupported) = (false, false, None);
    let chain = Chain { family, table, name, base, is_dormant, is_legacy, unsupported, rules };
    snapshot.ruleset = Ruleset::of_chains(vec![chain]).into();
}

#[test]
fn a_chain_is_a_reason_where_packets_of_tenants_come_to_it() {
    use Route::{Bridged, Checked, CheckedThere, Routed};
    for (way, family, wanted) in [
        (Bridged, IPV4, false),
        (Bridged, IPV6, false),
        (Bridged, INET, false),
        (Bridged, BRIDGE, true),
        // Not refused: each flow needs a verdict instead.
        (Checked, IPV4, false),
        (Checked, INET, false),
        (Checked, BRIDGE, true),
        (CheckedThere, IPV4, false),
        (Routed, IPV4, false),
        (Routed, INET, false),
        (Routed, BRIDGE, true),
    ] {
        let refusal = refused(way, |snapshot| chain(snapshot, family, FORWARD, false));
        let is_chain = matches!(refusal, Some(Refusal::BaseChain { .. }));
        assert_eq!(is_chain, wanted, "{way:?}, family {family}: {refusal:?}");
        assert_eq!(refusal.is_some(), wanted, "{way:?}, family {family}: {refusal:?}");
    }
}

/// Verdicts are given on connections. Chains of one family suffice to require them.
#[test]
fn chains_that_forwarded_packets_come_to_want_connections() {
    let without = |way, family: Option<u8>| {
        let refusal = refused(way, |snapshot| {
            snapshot.connections = false;
            if let Some(family) = family {
                chain(snapshot, family, FORWARD, false);
            }
        });
        matches!(refusal, Some(Refusal::NoConnections {}))
    };
    for family in [IPV4, IPV6, INET] {
        for way in [Route::Routed, Route::Checked, Route::CheckedThere] {
            assert!(without(way, Some(family)), "family {family}, {way:?}");
        }
        assert!(!without(Route::Bridged, Some(family)), "family {family}");
    }
    assert!(!without(Route::Routed, None));
    assert!(!without(Route::Checked, None));
}

/// A program at the forward hook sees routed packets, and bridged packets with br_netfilter.
#[test]
fn a_program_at_forward_is_a_reason_where_packets_of_tenants_come_to_it() {
    use Route::{Bridged, Checked, CheckedThere, Routed};
    for (way, wanted) in [(Bridged, false), (Checked, true), (CheckedThere, true), (Routed, true)] {
        let refusal = refused(way, |snapshot| {
            let program = Foreign::Netfilter { ipv6: false, hook: FORWARD };
            snapshot.links.foreign.insert(7, program);
        });
        assert_eq!(refusal.is_some(), wanted, "{way:?}: {refusal:?}");
    }
}

/// The refusal names the policy of a chain with policy drop.
#[test]
fn a_policy_that_drops_is_named() {
    let refusal = refused(Route::Bridged, |snapshot| chain(snapshot, IPV4, OUTPUT, true));
    let Some(Refusal::Rule { effect, .. }) = &refusal else { panic!("{refusal:?}") };
    assert_eq!(*effect, RuleEffect::PolicyDrop);
    assert!(refused(Route::Bridged, |snapshot| chain(snapshot, IPV6, OUTPUT, true)).is_none());
}

/// Only plain entries are accelerated: the kernel sends other entries' frames to more places.
#[test]
fn entries_with_a_place_of_their_own_stay_slow() {
    let addresses = |change: fn(&mut netstate::overlay::VxlanEntry), more: bool| {
        let mut snapshot = snapshot();
        snapshot.overlay.links.retain(|index, _| *index == VXLANS[4] || !VXLANS.contains(index));
        snapshot.overlay.vxlan_fdb.remove(&(VXLANS[4], MacAddr([0; 6])));
        let mut own = entry(remote(0));
        change(&mut own);
        let entries = if more { vec![own, entry(remote(1))] } else { vec![own] };
        snapshot.overlay.vxlan_fdb.insert((VXLANS[4], mac(3)), entries);
        let plan = Plan::new(&snapshot, &BTreeMap::new(), |_| true);
        plan.fdb.values().filter(|entry| matches!(entry, Fdb::Remote(_))).count()
    };
    assert_eq!(addresses(|_| (), false), 1);
    assert_eq!(addresses(|entry| entry.port = Some(4790), false), 0);
    assert_eq!(addresses(|entry| entry.vni = Some(9), false), 0);
    assert_eq!(addresses(|entry| entry.link = Some(3), false), 0);
    assert_eq!(addresses(|entry| entry.remote = None, false), 0);
    assert_eq!(addresses(|_| (), true), 0, "several destinations");
}
