//! `k8s-hairpin`: a pod that reaches itself by the address of its service. kube-proxy translates the
//! destination to the pod, and the source to the node, so that answers take the same way back.

use std::process::Command;

use netstate::Hop;

use super::k8s::{BUILD_SECONDS, DAEMONS, nodes};
use crate::cluster::{self, CLUSTER_IP, PORT_DEVICE, ProxyMode};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// Pod to itself by its service. Not in `--modes all`.
pub struct Hairpin;

impl Mode for Hairpin {
    fn name(&self) -> &'static str {
        "k8s-hairpin"
    }

    fn path(&self) -> &'static str {
        "pod - veth - cni0 - service address translated to the same pod by iptables - the same veth"
    }

    /// False, as for `k8s`.
    fn in_all(&self) -> bool {
        false
    }

    fn build_seconds(&self) -> Option<u32> {
        Some(BUILD_SECONDS)
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        cluster::has_kubernetes(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
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
}
