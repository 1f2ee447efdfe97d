//! `swarm`: two real Docker Engines form a Swarm, with a container each on an overlay network.
//! Docker keeps the network's bridge and VXLAN device in a sandbox namespace. The NIC stays in
//! the host's namespace.

use std::net::Ipv4Addr;
use std::time::Duration;

use netstate::{Hop, MacAddr};
use testbed::{Host, NIC, Process, Processes, Wire, poll};

use super::vxlan::{DEVICE, TENANT_A, TENANT_B};
use crate::docker::{Engine, IMAGE};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Two Docker Engines with one container each. Not in `--modes all`.
pub struct Swarm;

/// Name of the container on each host, and of the overlay network.
const CONTAINER: &str = "tenant";
const NETWORK: &str = "overlay";
const SUBNET: &str = "10.1.0.0/24";
/// Address pool of Docker's other networks (`ingress`). The default pool overlaps the underlay.
const POOL: &str = "10.2.0.0/16";
/// Port of the manager for nodes that join.
const PORT: u16 = 2377;
/// The container's device on the overlay network.
const TENANT_NIC: &str = "eth0";
/// Time limit for both engines to learn each other's containers.
const LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a container's attachment to the network.
const ATTACHED: Duration = Duration::from_secs(90);

impl Mode for Swarm {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(
            "swarm",
            "container - veth - Docker's sandbox: bridge, kernel VXLAN device - wire",
        )
        .not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        machine.docker()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        Swarmed::new(params)?.network(params, |a, b| {
            Ok(vec![
                Hop::tx("tenant-a", TENANT_NIC),
                Hop::rx("sandbox-a", &a.port),
                Hop::tx("sandbox-a", DEVICE),
                Hop::tx("a", NIC),
                Hop::rx("b", NIC),
                Hop::rx("sandbox-b", DEVICE),
                Hop::tx("sandbox-b", &b.port),
                Hop::rx("tenant-b", TENANT_NIC),
            ])
        })
    }
}

/// Two hosts, each with a member of the Swarm.
pub(super) struct Swarmed {
    pub(super) hosts: [Host; 2],
    pub(super) members: [Member; 2],
}

impl Swarmed {
    pub(super) fn new(params: &Params) -> Result<Swarmed> {
        let hosts = params.wire().hosts()?;
        let members = join(&hosts[0], &hosts[1], params)?;
        Ok(Swarmed { hosts, members })
    }

    /// Returns the network between the two containers, with these hops.
    pub(super) fn network(
        self,
        params: &Params,
        hops: impl FnOnce(&Member, &Member) -> Result<Vec<Hop>>,
    ) -> Result<Network> {
        let ([a, b], [member_a, member_b]) = (self.hosts, self.members);
        let hops = hops(&member_a, &member_b)?;
        let hosts =
            vec![a, b, member_a.sandbox, member_b.sandbox, member_a.tenant, member_b.tenant];
        let (tree_a, daemon_a) = member_a.programs;
        let (tree_b, daemon_b) = member_b.programs;
        Ok(Network::new(hosts, 4, 5, TENANT_B, params.mtu - VXLAN_OVERHEAD, hops)
            .with_processes_of(&["a", "sandbox-a", "tenant-a"], tree_a, vec![daemon_a])
            .with_processes_of(&["b", "sandbox-b", "tenant-b"], tree_b, vec![daemon_b])
            .noting("Docker's daemons run beside the workload and are not pinned to CPUs; containers are attached to an overlay network without encryption"))
    }
}

/// Docker in a host of the Swarm, and the namespaces that it created.
pub(super) struct Member {
    programs: (Processes, Process),
    /// Namespace with the bridge and the VXLAN device.
    sandbox: Host,
    /// Namespace of the container that acts as tenant.
    pub(super) tenant: Host,
    /// The container's port on the sandbox's bridge.
    pub(super) port: String,
}

/// Creates a Swarm of two hosts, with a container on each.
fn join(a: &Host, b: &Host, params: &Params) -> Result<[Member; 2]> {
    // In parallel, since each engine takes seconds to start.
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| Engine::start(b));
        let first = Engine::start(a);
        (first, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (mut first, mut second) = (first?, second?);
    let [address_a, address_b] = [Wire::A, Wire::B].map(|address| address.to_string());
    first.ask(&["swarm", "init", "--advertise-addr", &address_a, "--default-addr-pool", POOL])?;
    let token = first.ask(&["swarm", "join-token", "--quiet", "worker"])?;
    let manager = format!("{address_a}:{PORT}");
    second.ask(&["swarm", "join", "--advertise-addr", &address_b, "--token", &token, &manager])?;
    // The option takes the underlay's MTU: Docker subtracts its overhead.
    let mtu = format!("com.docker.network.driver.mtu={}", params.mtu);
    let create = ["network", "create", "--driver", "overlay", "--attachable", "--subnet", SUBNET];
    let network = first.ask(&[&create[..], &["--opt", &mtu, NETWORK]].concat())?;
    let members =
        [member(first, "a", TENANT_A, &network)?, member(second, "b", TENANT_B, &network)?];
    let [a, b] = &members;
    known(&a.sandbox, &b.tenant)?;
    known(&b.sandbox, &a.tenant)?;
    Ok(members)
}

/// Creates and starts the container of host `name` on the network with this id.
fn member(mut engine: Engine<'_>, name: &str, address: Ipv4Addr, network: &str) -> Result<Member> {
    let (ip, create) = (address.to_string(), ["create", "--name", CONTAINER]);
    engine.ask(&[&create[..], &["--network", NETWORK, "--ip", &ip, IMAGE]].concat())?;
    attached(&mut engine)?;
    let sandbox = Host::found(&format!("sandbox-{name}"), engine.sandbox(network)?)?;
    let tenant = Host::found(&format!("tenant-{name}"), engine.container(CONTAINER)?)?;
    let port = port_of(&tenant, &sandbox)?;
    Ok(Member { programs: engine.into_parts(), sandbox, tenant, port })
}

/// Starts the container. On a loaded machine, Docker's manager misses its limit of 20 s for
/// attaching it, or a node does not know the network yet ("network overlay not found").
fn attached(engine: &mut Engine<'_>) -> Result<()> {
    poll("the container's attachment to the network", ATTACHED, || {
        match engine.ask(&["start", CONTAINER]) {
            Ok(_) => Ok(Ok(())),
            // The user wants to stop: do not retry.
            Err(error @ testbed::Error::Interrupted { .. }) => Err(error),
            Err(error) => Ok(Err(error.to_string())),
        }
    })
}

/// Returns the device in `sandbox` at the other end of the container's veth pair.
fn port_of(tenant: &Host, sandbox: &Host) -> Result<String> {
    let device = tenant.netlink().link(TENANT_NIC)?;
    let links = sandbox.netlink().links()?;
    let port = links.into_iter().find(|link| {
        // Both ends must name each other: an index is unique in its namespace only.
        link.kind.as_deref() == Some("veth")
            && Some(link.index) == device.link
            && link.link == Some(device.index)
    });
    let missing = || {
        let part = format!("peer of {TENANT_NIC} of {} in {}", tenant.name(), sandbox.name());
        testbed::Error::NotStarted { part, reason: "there is no such veth device".to_owned() }
    };
    Ok(port.ok_or_else(missing)?.name)
}

/// Waits until the VXLAN device in `sandbox` has an entry for `tenant`.
fn known(sandbox: &Host, tenant: &Host) -> Result<()> {
    let mac: Option<MacAddr> = tenant.netlink().link(TENANT_NIC)?.mac;
    let what = format!("the entry for {} in {}", tenant.name(), sandbox.name());
    poll(&what, LIMIT, || {
        let entries = sandbox.netlink().fdb()?;
        let is_there = entries.iter().any(|entry| entry.mac == mac && entry.remote.is_some());
        Ok(if is_there { Ok(()) } else { Err(format!("{} other entries", entries.len())) })
    })
}
