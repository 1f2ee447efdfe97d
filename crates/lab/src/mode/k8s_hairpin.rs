//! `k8s-hairpin`: a pod that reaches itself by the address of its service. kube-proxy translates the
//! destination to the pod, and the source to the node, so that answers take the same way back.

use std::process::Command;

use netstate::Hop;

use super::k8s::{ClusterPath, DAEMONS, nodes};
use crate::cluster::{self, CLUSTER_IP, PORT_DEVICE, ProxyMode};
use crate::{Network, Params, Result};

/// Pod to itself by its service.
pub const HAIRPIN: ClusterPath = ClusterPath {
    name: "k8s-hairpin",
    path: "pod - veth - cni0 - service address translated to the same pod by iptables - the same veth",
    build,
};

fn build(params: &Params) -> Result<Network> {
    let nodes = nodes(params, ProxyMode::Iptables, 0, 0)?;
    // As the CNI plugin does with `hairpinMode`, which flannel's configuration sets: otherwise a
    // bridge sends nothing back through the port that it came from.
    let mut port = Command::new("ip");
    port.args(["link", "set", PORT_DEVICE, "type", "bridge_slave", "hairpin", "on"]);
    nodes.hosts[0].run(&mut port)?;
    let pod = nodes.subnets[0].pod();
    // Each device carries the traffic to the service, and again back to the pod.
    let hops = vec![Hop::tx("tenant-a", cluster::POD_NIC), Hop::rx("a", PORT_DEVICE)];
    Ok(nodes
        .network_between("tenant-a", "tenant-a", pod, hops)
        .published_at(CLUSTER_IP)
        .noting("no wire: the offload profile and the underlay's MTU do not apply")
        .noting(DAEMONS))
}
