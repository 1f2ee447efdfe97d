//! `k8s-node`: from a Kubernetes node itself to a pod of another node, as a probe of the kubelet or
//! a program with `hostNetwork` reaches it.

use netstate::Hop;
use testbed::NIC;

use super::k8s::{ClusterPath, DAEMONS, nodes};
use crate::cluster::{self, DEVICE, PORT_DEVICE, ProxyMode};
use crate::{Network, Params, Result};

/// Node to pod.
pub const NODE_TO_POD: ClusterPath = ClusterPath {
    name: "k8s-node",
    path: "node - flannel.1 - wire - flannel.1 - kube-proxy's iptables rules - cni0 - veth - pod",
    build,
};

fn build(params: &Params) -> Result<Network> {
    let nodes = nodes(params, ProxyMode::Iptables, 0, 1)?;
    let server = nodes.server();
    let hops = vec![
        Hop::tx("a", DEVICE),
        Hop::tx("a", NIC),
        Hop::rx("b", NIC),
        Hop::rx("b", DEVICE),
        Hop::tx("b", PORT_DEVICE),
        Hop::rx("tenant-b", cluster::POD_NIC),
    ];
    Ok(nodes.network_between("a", "tenant-b", server, hops).noting(DAEMONS))
}
