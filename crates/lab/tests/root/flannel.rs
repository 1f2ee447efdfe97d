//! The real flannel: traffic over it, with and without the fast path.

use crate::modes::mode;
use crate::traffic;

use lab::{Network, Params};
use netstate::HopKind;
use test_support::require;
use testbed::Offload;
use traffic::{echo, segmented_datagrams_arrive, stream_both_ways};

const PARAMS: Params = Params::new(1500, Offload::Full);

#[test]
fn pods_of_flannel_reach_each_other_past_its_own_rules() {
    let network = require!(mode("flannel")).build(&PARAMS).unwrap();
    echo(&network, &[1, 1400]);
    stream_both_ways(&network);
    segmented_datagrams_arrive(&network);
    let a = network.host("a").unwrap();
    let rules = a.run(std::process::Command::new("iptables-nft-save").arg("-c")).unwrap();
    let counted = rules.lines().find(|line| line.contains("-j FLANNEL-FWD")).unwrap();
    assert!(!counted.starts_with("[0:0]"), "{counted}");
}

#[test]
fn the_fast_path_takes_flannel_s_packets_with_its_rules_in_force() {
    let mode = require!(mode("flannel+accel"));
    carried_by_the_fast_path(&mode.build(&PARAMS).unwrap());
}

/// Asserts that both hosts' fast paths forwarded packets.
fn carried_by_the_fast_path(network: &Network) {
    echo(network, &[1, 1400]);
    stream_both_ways(network);
    segmented_datagrams_arrive(network);
    let mut stages = network.hops.iter().filter(|hop| hop.kind == HopKind::Stage);
    assert!(stages.all(|stage| {
        let carried = stage.meter.as_ref().unwrap().read().carried;
        carried.tx_packets > 0 && carried.rx_packets > 0
    }));
}
