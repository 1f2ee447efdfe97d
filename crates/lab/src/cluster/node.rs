//! What a node has beside its programs: pods behind a bridge, and the hops between two.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use netstate::Hop;
use netstate::route::Route;
use testbed::{Host, NIC, Process, Processes};

use super::flannel::Subnet;
use crate::network::Keep;
use crate::{Network, Result};

/// The device that flannel makes.
pub(crate) const DEVICE: &str = "flannel.1";
/// The bridge that a CNI plugin makes.
const BRIDGE: &str = "cni0";
/// The pod's port of it.
pub(crate) const PORT_DEVICE: &str = "veth0";
pub(crate) const POD_NIC: &str = "eth0";
/// How long two daemons may take to tell each other of their subnets.
const LIMIT: Duration = Duration::from_secs(30);

/// A pod behind the bridge of a host, as the CNI plugin "bridge" sets it up.
pub(crate) fn pod(host: &Host, name: &str, subnet: Subnet) -> Result<Host> {
    let pod = Host::new(name)?;
    host.forward()?;
    host.connect(PORT_DEVICE, &pod, POD_NIC, subnet.mtu)?;
    host.bridge(BRIDGE, subnet.mtu, &[PORT_DEVICE])?;
    host.address(BRIDGE, subnet.gateway, subnet.prefix)?;
    pod.address(POD_NIC, subnet.pod(), subnet.prefix)?;
    pod.netlink().add_route(&Route::default_by(subnet.gateway, POD_NIC))?;
    Ok(pod)
}

/// Waits until a host's flannel has written where the other's subnet is. The route is the
/// last that it writes.
pub(crate) fn knows(host: &Host, other: Subnet) -> Result<()> {
    let what = format!("flannel's route to {} in {}", other.gateway, host.name());
    let mut show = Command::new("ip");
    show.args(["-4", "route", "show", "dev", DEVICE]);
    let subnet = Ipv4Addr::from_bits(other.gateway.to_bits() - 1).to_string();
    testbed::poll(&what, LIMIT, || {
        let routes = host.run(&mut show)?;
        Ok(if routes.contains(&subnet) { Ok(()) } else { Err(routes) })
    })
}

/// Two nodes with a pod each, and what runs in them.
pub(crate) struct Nodes {
    pub(crate) hosts: [Host; 2],
    pub(crate) pods: [Host; 2],
    pub(crate) subnets: [Subnet; 2],
    /// Of each node: its process tree and the programs in it.
    pub(crate) programs: [(Processes, Vec<Process>); 2],
    /// Where the control plane is, when it is in neither.
    pub(crate) control_plane: Option<(Host, Processes, Vec<Process>)>,
    /// What is kept for as long as they are.
    pub(crate) kept: Vec<Keep>,
}

impl Nodes {
    /// The pod that serves.
    pub(crate) fn server(&self) -> Ipv4Addr {
        self.subnets[1].pod()
    }

    /// The devices between the two pods, by the kernel's own path.
    pub(crate) fn kernel_hops() -> Vec<Hop> {
        vec![
            Hop::rx("a", PORT_DEVICE),
            Hop::tx("a", DEVICE),
            Hop::tx("a", NIC),
            Hop::rx("b", NIC),
            Hop::rx("b", DEVICE),
            Hop::tx("b", PORT_DEVICE),
        ]
    }

    /// The network between the two pods, past these hops between them.
    pub(crate) fn network(self, middle: Vec<Hop>) -> Network {
        let (server, mtu) = (self.server(), self.subnets[1].mtu);
        let mut hops = vec![Hop::tx("tenant-a", POD_NIC)];
        hops.extend(middle);
        hops.push(Hop::rx("tenant-b", POD_NIC));
        let ([a, b], [pod_a, pod_b]) = (self.hosts, self.pods);
        let mut hosts = vec![a, b, pod_a, pod_b];
        let control = self.control_plane.map(|(host, tree, programs)| {
            hosts.push(host);
            (tree, programs)
        });
        let mut network = Network::new(hosts, 2, 3, server, mtu, hops);
        for (of, (tree, programs)) in
            [["a", "tenant-a"], ["b", "tenant-b"]].iter().zip(self.programs)
        {
            network = network.with_processes_of(of, tree, programs);
        }
        if let Some((tree, programs)) = control {
            network = network.with_processes_of(&["control-plane"], tree, programs);
        }
        self.kept.into_iter().fold(network, Network::keeping)
    }
}
