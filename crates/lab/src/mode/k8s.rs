//! `k8s` and its variants: Kubernetes nodes with the real kube-apiserver, flannel and
//! kube-proxy. There is no kubelet: pods are namespaces, and this module registers their
//! addresses with the API.
//!
//! The suffix names the difference. `-nft`: kube-proxy in nftables mode; otherwise iptables
//! mode. `-service`: the client connects to a service address. `-100`, `-5000`: number of other
//! services. `+accel`: `overlane accel`'s fast path in both nodes.

use std::time::Duration;

use testbed::{Host, Process, Processes, Wire};

use super::flannel_accel::accelerated;
use crate::cluster::{
    self, CLUSTER_IP, ControlPlane, Nodes, Objects, ProxyMode, Source, Subnet, flannel, knows,
    kube_proxy, pod, programmed,
};
use crate::network::Keep;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Exceeds the 2 s after which conntrack may mark an answered UDP flow as assured
/// (net/netfilter/nf_conntrack_proto_udp.c).
const ASSURED: Duration = Duration::from_millis(2500);
/// Time to build nodes without other services: about 6 s on two cores.
const BUILD_SECONDS: u32 = 10;
/// Note printed with the figures.
const WARMUP: &str =
    "datagrams are sent for 2.5 s before counting starts: conntrack then marks the flow as assured";

/// Two Kubernetes nodes. Not in `--modes all`.
pub struct Kubernetes {
    name: &'static str,
    path: &'static str,
    proxy: ProxyMode,
    /// The client connects to the server's service address.
    by_service: bool,
    /// Number of services beside the server's.
    others: u32,
    accel: bool,
}

const IPTABLES: Kubernetes = Kubernetes {
    name: "k8s",
    path: "pod - veth - cni0 - kube-proxy's iptables rules - flannel.1 - wire",
    proxy: ProxyMode::Iptables,
    by_service: false,
    others: 0,
    accel: false,
};
const NFTABLES: Kubernetes = Kubernetes {
    name: "k8s-nft",
    path: "pod - veth - cni0 - kube-proxy's nftables rules - flannel.1 - wire",
    proxy: ProxyMode::Nftables,
    ..IPTABLES
};

const fn service(
    of: Kubernetes,
    name: &'static str,
    path: &'static str,
    others: u32,
) -> Kubernetes {
    Kubernetes { name, path, by_service: true, others, ..of }
}

const fn accel(of: Kubernetes, name: &'static str, path: &'static str) -> Kubernetes {
    Kubernetes { name, path, accel: true, ..of }
}

const POD_ACCEL: &str = "pod - veth - eBPF bypassing cni0, rules and flannel.1 - wire";
const SERVICE: &str =
    "pod - veth - cni0 - service address translated by iptables - flannel.1 - wire";
const SERVICE_NFT: &str =
    "pod - veth - cni0 - service address translated by nftables - flannel.1 - wire";
const SERVICE_100: &str = "as k8s-service, among 100 other services";
const SERVICE_NFT_100: &str = "as k8s-service-nft, among 100 other services";
const SERVICE_5000: &str = "as k8s-service, among 5000 other services";
const SERVICE_NFT_5000: &str = "as k8s-service-nft, among 5000 other services";
const SERVICE_ACCEL: &str =
    "pod - veth - eBPF bypassing cni0, rules and flannel.1 to the service's pod - wire";
const AMONG_100_ACCEL: &str = "as k8s-service+accel, among 100 other services";
const AMONG_5000_ACCEL: &str = "as k8s-service+accel, among 5000 other services";

const BY_SERVICE: Kubernetes = service(IPTABLES, "k8s-service", SERVICE, 0);
const BY_SERVICE_NFT: Kubernetes = service(NFTABLES, "k8s-service-nft", SERVICE_NFT, 0);
const OF_100: Kubernetes = service(IPTABLES, "k8s-service-100", SERVICE_100, 100);
const OF_100_NFT: Kubernetes = service(NFTABLES, "k8s-service-nft-100", SERVICE_NFT_100, 100);
const OF_5000: Kubernetes = service(IPTABLES, "k8s-service-5000", SERVICE_5000, 5000);
const OF_5000_NFT: Kubernetes = service(NFTABLES, "k8s-service-nft-5000", SERVICE_NFT_5000, 5000);

/// All variants; each precedes its `+accel` form.
pub const ALL: [Kubernetes; 16] = [
    IPTABLES,
    accel(IPTABLES, "k8s+accel", POD_ACCEL),
    NFTABLES,
    accel(NFTABLES, "k8s-nft+accel", POD_ACCEL),
    BY_SERVICE,
    accel(BY_SERVICE, "k8s-service+accel", SERVICE_ACCEL),
    BY_SERVICE_NFT,
    accel(BY_SERVICE_NFT, "k8s-service-nft+accel", SERVICE_ACCEL),
    OF_100,
    accel(OF_100, "k8s-service-100+accel", AMONG_100_ACCEL),
    OF_100_NFT,
    accel(OF_100_NFT, "k8s-service-nft-100+accel", AMONG_100_ACCEL),
    OF_5000,
    accel(OF_5000, "k8s-service-5000+accel", AMONG_5000_ACCEL),
    OF_5000_NFT,
    accel(OF_5000_NFT, "k8s-service-nft-5000+accel", AMONG_5000_ACCEL),
];

/// Path of the kubeconfig that a node's programs read.
pub(super) const CONFIG: &str = "/tmp/kubeconfig";
/// Pod network of each node, /24.
pub(super) const PODS: [std::net::Ipv4Addr; 2] =
    [std::net::Ipv4Addr::new(10, 244, 0, 0), std::net::Ipv4Addr::new(10, 244, 1, 0)];
pub(super) const DAEMONS: &str = "kube-apiserver, etcd, flannel and kube-proxy run beside the workload and are not pinned to CPUs; there is no kubelet";

impl Mode for Kubernetes {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(self.name, self.path).not_in_all()
    }

    fn build_seconds(&self) -> Option<u32> {
        // Measured on two cores: 46 s with 5000 services.
        Some(BUILD_SECONDS + self.others / 130 + if self.accel { 5 } else { 0 })
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        cluster::has_kubernetes(machine)?;
        if self.proxy == ProxyMode::Nftables {
            machine.program("nft", "nftables")?;
        }
        if self.accel { machine.fast_path() } else { Ok(()) }
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let nodes = nodes(params, self.proxy, self.others, 1)?;
        let target = if self.by_service { CLUSTER_IP } else { nodes.server() };
        let network = if self.accel {
            accelerated(nodes, target)?.warming_datagrams(ASSURED).noting(WARMUP)
        } else {
            nodes.network(Nodes::kernel_hops())
        };
        let network = if self.by_service { network.published_at(target) } else { network };
        Ok(network.noting(DAEMONS))
    }
}

/// A path of a cluster other than that between two pods. Not in `--modes all`.
pub struct ClusterPath {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) build: fn(&Params) -> Result<Network>,
}

impl Mode for ClusterPath {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(self.name, self.path).not_in_all()
    }

    fn build_seconds(&self) -> Option<u32> {
        Some(BUILD_SECONDS)
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        cluster::has_kubernetes(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        (self.build)(params)
    }
}

/// Lets packet filters see traffic that crosses the pods' bridge: kubeadm's preflight checks require
/// this on a node.
pub(super) fn filters_see_bridges(host: &Host) -> Result<()> {
    host.sysctl_if_present("net/bridge/bridge-nf-call-iptables", "1")
}

/// Makes a host a node that the control plane knows: starts flannel. Returns also what must live as
/// long as the node.
pub(super) fn member(
    control_plane: &ControlPlane,
    tree: &Processes,
    host: &Host,
) -> Result<(Keep, Process, Subnet)> {
    let kept = control_plane.reached_from(host)?;
    ControlPlane::write_config(tree, host, CONFIG)?;
    let (flannel, subnet) = flannel(tree, host, &Source::Kubernetes { config: CONFIG })?;
    Ok((kept, flannel, subnet))
}

/// Starts two nodes with a pod each, and the control plane. The service's pod is that of the node
/// `serving`, 0 or 1; there are `others` beside it.
pub(super) fn nodes(
    params: &Params,
    mode: ProxyMode,
    others: u32,
    serving: usize,
) -> Result<Nodes> {
    let hosts = params.wire().hosts()?;
    hosts.iter().try_for_each(filters_see_bridges)?;
    let trees = [Processes::new()?, Processes::new()?];
    let mut control_plane = ControlPlane::start()?;
    let mut objects = Objects::default();
    for (host, (address, pods)) in hosts.iter().zip([Wire::A, Wire::B].into_iter().zip(PODS)) {
        objects.node(host.name(), address, pods);
    }
    control_plane.create(&objects)?;
    let node = |at: usize| member(&control_plane, &trees[at], &hosts[at]);
    let ((kept_a, flannel_a, subnet_a), (kept_b, flannel_b, subnet_b)) = (node(0)?, node(1)?);
    let subnets = [subnet_a, subnet_b];
    let name = ["tenant-a", "tenant-b"];
    let pods = [pod(&hosts[0], name[0], subnet_a)?, pod(&hosts[1], name[1], subnet_b)?];
    let mut objects = Objects::default();
    // `programmed` waits for the last of these services, or for the server's if alone.
    objects.server(hosts[serving].name(), subnets[serving].pod());
    objects.others(others, PODS);
    control_plane.create(&objects)?;
    let start = |at: usize| kube_proxy(&trees[at], &hosts[at], mode, CONFIG);
    let mut proxies = [start(0)?, start(1)?];
    for (proxy, host) in proxies.iter_mut().zip(&hosts) {
        programmed(proxy, host, mode, others)?;
    }
    knows(&hosts[0], subnet_b)?;
    knows(&hosts[1], subnet_a)?;
    let ([tree_a, tree_b], [proxy_a, proxy_b]) = (trees, proxies);
    Ok(Nodes {
        hosts,
        pods,
        subnets,
        programs: [(tree_a, vec![proxy_a, flannel_a]), (tree_b, vec![proxy_b, flannel_b])],
        control_plane: Some(control_plane.into_parts()),
        kept: vec![kept_a, kept_b],
    })
}
