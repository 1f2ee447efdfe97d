//! A mode that has been built: who talks to whom, by which hops.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netstate::Hop;
use testbed::{Host, Offload, Process, Processes, Wire};

use crate::Result;
use crate::guest_ends::GuestEnds;
use crate::guest_options::GuestOptions;

/// The server's port, TCP and UDP: the one that `nat` and `nat-proxy` publish.
pub const PORT: u16 = 5301;

/// A tenant's device, where a cable leads from the tenant to its host.
pub(crate) const TENANT_NIC: &str = "eth0";
/// The host's end of that cable.
pub(crate) const PORT_DEVICE: &str = "veth0";
/// Bridge of a host, and its VXLAN device.
pub(crate) const BRIDGE: &str = "br0";
pub(crate) const VXLAN_DEVICE: &str = "vxlan0";

/// Bytes that VXLAN adds before the tenant's IP packet, over an IPv4 underlay:
/// inner Ethernet 14, IPv4 20, UDP 8, VXLAN 8 (RFC 7348).
pub(crate) const VXLAN_OVERHEAD: u32 = 50;
/// Bytes that Geneve adds without options over an IPv4 underlay: as many (RFC 8926, section 3).
pub(crate) const GENEVE_OVERHEAD: u32 = 50;
/// VXLAN's over an IPv6 underlay: the outer header is 20 bytes longer.
pub(crate) const VXLAN_OVERHEAD_IPV6: u32 = VXLAN_OVERHEAD + 20;

/// How a mode is to be built.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    /// Layer-3 MTU of the underlay, bytes.
    pub mtu: u32,
    /// What the wire's NICs can do.
    pub offload: Offload,
    /// How its guests are started, where it has some.
    pub guest: GuestOptions,
}

impl Params {
    /// These, with guests as found.
    pub const fn new(mtu: u32, offload: Offload) -> Params {
        Params { mtu, offload, guest: GuestOptions::AS_FOUND }
    }

    /// The wire they describe.
    pub fn wire(&self) -> Wire {
        Wire { mtu: self.mtu, offload: self.offload }
    }
}

/// Where a server listens and where its client finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// What the client connects to: the server's own or a published address.
    pub target: SocketAddr,
    /// What the server binds.
    pub listen: SocketAddr,
}

/// Anything that a network keeps alive until it is dropped.
pub(crate) type Keep = Box<dyn Send + Sync>;

/// A process tree, and the hosts whose programs are in it (all, where there are
/// none of these).
struct Tree {
    processes: Processes,
    of: Vec<String>,
}

/// A built mode. Dropping it removes everything.
pub struct Network {
    // Dropped in this order: programs, then what keeps running in this process,
    // then the process trees, then the namespaces.
    programs: Vec<Process>,
    kept: Vec<Keep>,
    trees: Vec<Tree>,
    guests: Option<GuestEnds>,
    hosts: Vec<Arc<Host>>,
    client: usize,
    server: usize,
    /// Where the server is.
    pub address: Address,
    /// The path, from client to server.
    pub hops: Vec<Hop>,
    /// MTU of the tenants' devices, bytes.
    pub tenant_mtu: u32,
    /// What the mode has to say of itself.
    pub notes: Vec<String>,
    /// How long datagrams are to be sent at least before the path takes them as it will.
    pub datagram_warmup: Duration,
}

impl Network {
    /// A network of `hosts`; client and server are indices into them, and the
    /// server listens on `server_address`.
    pub(crate) fn new(
        hosts: Vec<Host>,
        client: usize,
        server: usize,
        server_address: Ipv4Addr,
        tenant_mtu: u32,
        hops: Vec<Hop>,
    ) -> Network {
        let at = SocketAddr::new(IpAddr::V4(server_address), PORT);
        Network {
            programs: Vec::new(),
            kept: Vec::new(),
            trees: Vec::new(),
            guests: None,
            hosts: hosts.into_iter().map(Arc::new).collect(),
            client,
            server,
            address: Address { target: at, listen: at },
            hops,
            tenant_mtu,
            notes: Vec::new(),
            datagram_warmup: Duration::ZERO,
        }
    }

    /// The server is reached by a published address instead of its own.
    pub(crate) fn published_at(mut self, address: Ipv4Addr) -> Network {
        self.address.target = SocketAddr::new(IpAddr::V4(address), PORT);
        self
    }

    /// Adds the process tree that the mode's programs run in.
    pub(crate) fn with_processes(self, tree: Processes, programs: Vec<Process>) -> Network {
        self.with_processes_of(&[], tree, programs)
    }

    /// Adds the process tree that the programs of these hosts run in.
    pub(crate) fn with_processes_of(
        mut self,
        hosts: &[&str],
        processes: Processes,
        programs: Vec<Process>,
    ) -> Network {
        let of = hosts.iter().map(|&host| host.to_owned()).collect();
        self.trees.push(Tree { processes, of });
        self.programs.extend(programs);
        self
    }

    /// Keeps `thing` alive until the network is dropped.
    pub(crate) fn keeping(mut self, thing: Keep) -> Network {
        self.kept.push(thing);
        self
    }

    /// Client and server are these guests; the hosts of client and server are theirs.
    pub(crate) fn with_guests(self, guests: GuestEnds) -> Network {
        Network { guests: Some(guests), ..self }
    }

    /// Datagrams are to be sent so long before they count.
    pub(crate) fn warming_datagrams(self, least: Duration) -> Network {
        Network { datagram_warmup: least, ..self }
    }

    /// Adds a remark for the reader of the results.
    pub(crate) fn noting(mut self, note: impl Into<String>) -> Network {
        self.notes.push(note.into());
        self
    }

    /// Test hosts and tenants.
    pub fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }

    /// The one that the client runs in.
    pub fn client(&self) -> &Arc<Host> {
        &self.hosts[self.client]
    }

    /// The one that the server runs in.
    pub fn server(&self) -> &Arc<Host> {
        &self.hosts[self.server]
    }

    /// Virtual machines, where client and server are in some.
    pub fn guests(&self) -> Option<&GuestEnds> {
        self.guests.as_ref()
    }

    /// A host or tenant by name.
    pub fn host(&self, name: &str) -> Option<&Arc<Host>> {
        self.hosts.iter().find(|host| host.name() == name)
    }

    /// The tree that a host's programs run in.
    pub(crate) fn tree(&self, host: &str) -> Option<&Processes> {
        let of = |tree: &&Tree| tree.of.is_empty() || tree.of.iter().any(|name| name == host);
        self.trees.iter().find(of).map(|tree| &tree.processes)
    }

    /// First process of the tree that a host's programs run in.
    pub fn init_pid(&self, host: &str) -> Option<u32> {
        self.tree(host).map(Processes::init_pid)
    }

    /// Control groups that are there for as long as the network.
    pub fn cgroups(&self) -> impl Iterator<Item = &str> {
        self.trees.iter().filter_map(|tree| tree.processes.cgroup())
    }

    /// Programs running for the mode.
    pub fn programs(&self) -> impl Iterator<Item = &Process> {
        self.programs.iter()
    }

    /// An error naming a program of the mode that has ended.
    ///
    /// # Errors
    /// [`crate::Error::Program`].
    pub fn check(&mut self) -> Result<()> {
        self.programs.iter_mut().try_for_each(Process::check)
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("address", &self.address)
            .field("hops", &self.hops)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}
