//! `flannel+accel`: the network of `flannel`, with `overlane accel`'s fast path in both hosts.
//! Packets bypass the bridge, IP forwarding and `flannel.1`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use accel::Accel;
use netstate::{Hop, Side};

use super::flannel::{DAEMONS, nodes};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, half, hops, meter, run, settle};
use crate::cluster::{self, DEVICE, Nodes, PORT_DEVICE};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Note printed with the figures.
const SHORT: &str =
    "connections of a few packets (tcp_crr) bypass the VXLAN device only, as the hops show";

/// `flannel` with the fast path in both hosts.
pub struct FlannelAccel;

impl Mode for FlannelAccel {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(
            "flannel+accel",
            "pod - veth - eBPF bypassing bridge cni0, route and flannel.1 - wire",
        )
        .not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        cluster::has_flannel(machine)?;
        machine.fast_path()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let nodes = nodes(params)?;
        let server = nodes.server();
        Ok(accelerated(nodes, server)?.noting(DAEMONS))
    }
}

/// Adapts the hops to packet filters that must see each packet of short connections. Such
/// packets bypass the VXLAN device only. Established connections bypass every device.
fn partial_bypass(hops: Vec<Hop>, [from_a, from_b]: &[Arc<Accel>; 2]) -> Vec<Hop> {
    let stage = |host: &str, side, accel| {
        Hop::stage(host, "accel, partial bypass", side, meter(accel, half)).for_short_connections()
    };
    let lasting = |hop: Hop| match hop.device.as_str() {
        DEVICE => hop,
        _ => hop.for_lasting_connections(),
    };
    let stages = [stage("a", Side::Tx, from_a), stage("b", Side::Rx, from_b)];
    hops.into_iter().map(lasting).chain(stages).collect()
}

/// Returns the network of these nodes with the fast path in both. The client connects to
/// `target`.
pub(super) fn accelerated(nodes: Nodes, target: Ipv4Addr) -> Result<Network> {
    let both = [run(&nodes.hosts[0])?, run(&nodes.hosts[1])?];
    let [client, serving] = &nodes.pods;
    settle([client, serving], nodes.server(), target, &both)?;
    let hops = partial_bypass(hops(DEVICE, &both, [("a", PORT_DEVICE), ("b", PORT_DEVICE)]), &both);
    let [from_a, from_b] = both;
    Ok(nodes
        .network(hops)
        // The fast path stops when it is dropped.
        .keeping(Box::new(from_a))
        .keeping(Box::new(from_b))
        .noting(SHORTCUTS)
        .noting(MIRRORS)
        .noting(SHORT))
}
