//! `flannel+accel`: the real flannel of `flannel`, with `overlane accel`'s fast path in
//! both hosts. Packets pass by the bridge, IP forwarding and `flannel.1`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use accel::Accel;
use netstate::{Hop, Side};

use super::flannel::{DAEMONS, nodes};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, half, hops, meter, run, settle};
use crate::cluster::{self, DEVICE, Nodes, PORT_DEVICE};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// What a reader of the figures has to know.
const SHORT: &str =
    "connections of a few packets (tcp_crr) pass by the VXLAN device only, which the hops show";

/// `flannel` with the fast path in both hosts.
pub struct FlannelAccel;

impl Mode for FlannelAccel {
    fn name(&self) -> &'static str {
        "flannel+accel"
    }

    fn path(&self) -> &'static str {
        "pod - veth - eBPF past bridge cni0, route and flannel.1 - wire"
    }

    /// By name only, as `flannel`.
    fn in_all(&self) -> bool {
        false
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

/// The hops where rules see each packet of short connections: these pass by the VXLAN device only,
/// which all connections do.
fn half_path(hops: Vec<Hop>, [from_a, from_b]: &[Arc<Accel>; 2]) -> Vec<Hop> {
    let stage = |host: &str, side, accel| {
        Hop::stage(host, "accel, half path", side, meter(accel, half)).for_short_connections()
    };
    let lasting = |hop: Hop| match hop.device.as_str() {
        DEVICE => hop,
        _ => hop.for_lasting_connections(),
    };
    let stages = [stage("a", Side::Tx, from_a), stage("b", Side::Rx, from_b)];
    hops.into_iter().map(lasting).chain(stages).collect()
}

/// The network of these nodes, with the fast path in both. `target`: what the client is to
/// reach the server by.
pub(super) fn accelerated(nodes: Nodes, target: Ipv4Addr) -> Result<Network> {
    let both = [run(&nodes.hosts[0])?, run(&nodes.hosts[1])?];
    let [client, serving] = &nodes.pods;
    settle([client, serving], nodes.server(), target, &both)?;
    let hops = half_path(hops(DEVICE, &both, [("a", PORT_DEVICE), ("b", PORT_DEVICE)]), &both);
    let [from_a, from_b] = both;
    Ok(nodes
        .network(hops)
        .keeping(Box::new(from_a))
        .keeping(Box::new(from_b))
        .noting(SHORTCUTS)
        .noting(MIRRORS)
        .noting(SHORT))
}
