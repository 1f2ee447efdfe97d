//! Parts of a node beside its programs: pods behind a bridge, and the hops between two pods.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use netstate::Hop;
use netstate::route::Route;
use testbed::{Host, NIC, Process, Processes};

use super::flannel::Subnet;
use crate::network::Keep;
use crate::{Network, Result};

/// Device that flannel creates.
pub(crate) const DEVICE: &str = "flannel.1";
/// Bridge that a CNI plugin creates.
const BRIDGE: &str = "cni0";
/// The pod's port on the bridge.
pub(crate) const PORT_DEVICE: &str = "veth0";
pub(crate) const POD_NIC: &str = "eth0";
/// Time limit for two daemons to learn each other's subnets.
const LIMIT: Duration = Duration::from_secs(30);

/// Creates a pod behind the bridge of a host, as the CNI plugin "bridge" does.
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

/// Waits until a host's flannel has installed the other's subnet. The route comes last.
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

/// Two nodes with a pod each, and the programs in them.
pub(crate) struct Nodes {
    pub(crate) hosts: [Host; 2],
    pub(crate) pods: [Host; 2],
    pub(crate) subnets: [Subnet; 2],
    pub(crate) programs: [(Processes, Vec<Process>); 2],
    pub(crate) control_plane: Option<(Host, Processes, Vec<Process>)>,
    /// Objects that must live as long as the nodes.
    pub(crate) kept: Vec<Keep>,
}

impl Nodes {
    /// Address of the server's pod.
    pub(crate) fn server(&self) -> Ipv4Addr {
        self.subnets[1].pod()
    }

    /// Returns the devices between the two pods on the kernel's own path.
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

    /// Returns the network between the two pods, with these hops between them.
    pub(crate) fn network(self, middle: Vec<Hop>) -> Network {
        let server = self.server();
        let mut hops = vec![Hop::tx("tenant-a", POD_NIC)];
        hops.extend(middle);
        hops.push(Hop::rx("tenant-b", POD_NIC));
        self.network_between("tenant-a", "tenant-b", server, hops)
    }

    /// Returns the network between two of the nodes and pods, with these hops. The server listens on
    /// `address`.
    pub(crate) fn network_between(
        self,
        client: &str,
        server: &str,
        address: Ipv4Addr,
        hops: Vec<Hop>,
    ) -> Network {
        let mtu = self.subnets[1].mtu;
        let ([a, b], [pod_a, pod_b]) = (self.hosts, self.pods);
        let mut hosts = vec![a, b, pod_a, pod_b];
        let control = self.control_plane.map(|(host, tree, programs)| {
            hosts.push(host);
            (tree, programs)
        });
        // Callers name one of these hosts.
        let at = |name: &str| hosts.iter().position(|host| host.name() == name).unwrap_or(0);
        let (client, server) = (at(client), at(server));
        let mut network = Network::new(hosts, client, server, address, mtu, hops);
        for (of, (tree, programs)) in
            [["a", "tenant-a"], ["b", "tenant-b"]].iter().zip(self.programs)
        {
            network = network.with_processes_of(of, tree, programs);
        }
        // flannel with etcd has no control plane of its own.
        if let Some((tree, programs)) = control {
            network = network.with_processes_of(&["control-plane"], tree, programs);
        }
        self.kept.into_iter().fold(network, Network::keeping)
    }
}
