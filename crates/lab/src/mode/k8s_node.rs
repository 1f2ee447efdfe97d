//! `k8s-node`: from a Kubernetes node itself to a pod of another node, as a probe of the kubelet or
//! a program with `hostNetwork` reaches it.

use netstate::Hop;
use testbed::NIC;

use super::k8s::{BUILD_SECONDS, DAEMONS, nodes};
use crate::cluster::{self, DEVICE, PORT_DEVICE, ProxyMode};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// Node to pod. Not in `--modes all`.
pub struct NodeToPod;

impl Mode for NodeToPod {
    fn name(&self) -> &'static str {
        "k8s-node"
    }

    fn path(&self) -> &'static str {
        "node - flannel.1 - wire - flannel.1 - kube-proxy's iptables rules - cni0 - veth - pod"
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
}
