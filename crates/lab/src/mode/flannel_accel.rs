//! `flannel+accel`: the real flannel of `flannel`, with `overlane accel`'s fast path in
//! both hosts. Packets pass by the bridge, IP forwarding and `flannel.1`.

use std::net::Ipv4Addr;

use netstate::Hop;

use super::flannel::{DAEMONS, nodes};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, hops, run, settle};
use crate::cluster::{self, DEVICE, Nodes, PORT_DEVICE};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// What a reader of the figures has to know.
const SHORT: &str =
    "connections of a few packets (tcp_crr) take the kernel's own path, which the hops show";

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

/// The network of these nodes, with the fast path in both. `target`: what the client is to
/// reach the server by.
pub(super) fn accelerated(nodes: Nodes, target: Ipv4Addr) -> Result<Network> {
    let both = [run(&nodes.hosts[0])?, run(&nodes.hosts[1])?];
    let [client, serving] = &nodes.pods;
    settle([client, serving], nodes.server(), target, &both)?;
    let hops = hops(DEVICE, &both, [("a", PORT_DEVICE), ("b", PORT_DEVICE)]);
    // Rules see where connections begin and end.
    let hops = hops.into_iter().map(Hop::for_lasting_connections).collect();
    let [from_a, from_b] = both;
    Ok(nodes
        .network(hops)
        .keeping(Box::new(from_a))
        .keeping(Box::new(from_b))
        .noting(SHORTCUTS)
        .noting(MIRRORS)
        .noting(SHORT))
}
