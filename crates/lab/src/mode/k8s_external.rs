//! `k8s-external`: from a pod to a host outside of the cluster. flannel's rules translate the source
//! to the node (masquerade), as for every destination that is no pod.

use netstate::Hop;
use testbed::{NIC, Processes, Wire};

use super::k8s::{CONFIG, ClusterPath, DAEMONS, PODS, filters_see_bridges, member};
use crate::cluster::{
    self, ControlPlane, Objects, PORT_DEVICE, ProxyMode, kube_proxy, pod, programmed,
};
use crate::{Network, Params, Result};

/// Pod to external.
pub const EXTERNAL: ClusterPath = ClusterPath {
    name: "k8s-external",
    path: "pod - veth - cni0 - kube-proxy's and flannel's iptables rules, masquerade - wire - host",
    build,
};

/// The cluster has one node.
fn build(params: &Params) -> Result<Network> {
    const PROXY: ProxyMode = ProxyMode::Iptables;
    let [a, b] = params.wire().hosts()?;
    filters_see_bridges(&a)?;
    let tree = Processes::new()?;
    let mut control_plane = ControlPlane::start()?;
    let mut objects = Objects::default();
    objects.node(a.name(), Wire::A, PODS[0]);
    control_plane.create(&objects)?;
    // The relay stops when it is dropped.
    let (relay, flannel, subnet) = member(&control_plane, &tree, &a)?;
    let client = pod(&a, "tenant-a", subnet)?;
    // kube-proxy is ready when it has written the rules of a service.
    let mut objects = Objects::default();
    objects.server(a.name(), subnet.pod());
    control_plane.create(&objects)?;
    let mut proxy = kube_proxy(&tree, &a, PROXY, CONFIG)?;
    programmed(&mut proxy, &a, PROXY, 0)?;
    let (control, control_tree, control_programs) = control_plane.into_parts();
    let hops = vec![
        Hop::tx("tenant-a", cluster::POD_NIC),
        Hop::rx("a", PORT_DEVICE),
        Hop::tx("a", NIC),
        Hop::rx("b", NIC),
    ];
    let hosts = vec![a, b, client, control];
    Ok(Network::new(hosts, 2, 1, Wire::B, subnet.mtu, hops)
        .with_processes_of(&["a", "tenant-a"], tree, vec![proxy, flannel])
        .with_processes_of(&["control-plane"], control_tree, control_programs)
        .keeping(relay)
        .noting(DAEMONS))
}
