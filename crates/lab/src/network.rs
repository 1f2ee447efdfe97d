//! A mode that has been built: its ends, its hops and everything that must stay alive.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netstate::Hop;
use testbed::{Host, Offload, Process, Processes, Wire};

use crate::Result;
use crate::guest_ends::GuestEnds;
use crate::guest_options::GuestOptions;

/// The server's TCP and UDP port, which `nat` and `nat-proxy` publish.
pub const PORT: u16 = 5301;

/// Device of a tenant that has a veth pair to its host.
pub(crate) const TENANT_NIC: &str = "eth0";
/// The host's end of that veth pair.
pub(crate) const PORT_DEVICE: &str = "veth0";
/// A host's bridge and VXLAN device.
pub(crate) const BRIDGE: &str = "br0";
pub(crate) const VXLAN_DEVICE: &str = "vxlan0";

/// Bytes that VXLAN adds to the tenant's IP packet over IPv4: inner Ethernet 14, IPv4 20, UDP
/// 8, VXLAN 8 (RFC 7348).
pub(crate) const VXLAN_OVERHEAD: u32 = 50;
/// Bytes that Geneve without options adds over IPv4, as VXLAN (RFC 8926, section 3).
pub(crate) const GENEVE_OVERHEAD: u32 = 50;
/// Bytes that VXLAN adds over IPv6, whose header is 20 bytes longer.
pub(crate) const VXLAN_OVERHEAD_IPV6: u32 = VXLAN_OVERHEAD + 20;

/// Parameters of a mode to be built.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    /// Layer-3 MTU of the underlay, bytes.
    pub mtu: u32,
    /// Offloads of the wire's NICs.
    pub offload: Offload,
    pub guest: GuestOptions,
    /// The ends use IPv6 ([`Network::over_ipv6`]).
    pub ipv6: bool,
}

impl Params {
    /// Returns parameters with guests at QEMU's defaults and ends that use IPv4.
    pub const fn new(mtu: u32, offload: Offload) -> Params {
        Params { mtu, offload, guest: GuestOptions::AS_FOUND, ipv6: false }
    }

    /// Returns the wire with this MTU and offload.
    pub fn wire(&self) -> Wire {
        Wire { mtu: self.mtu, offload: self.offload }
    }
}

/// Addresses of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Address that the client connects to: the server's own or a published one.
    pub target: SocketAddr,
    /// Address that the server binds.
    pub listen: SocketAddr,
}

/// Anything that a network keeps alive until it is dropped.
pub(crate) type Keep = Box<dyn Send + Sync>;

/// A process tree, and the hosts whose programs run in it. An empty list means all hosts.
struct Tree {
    processes: Processes,
    of: Vec<String>,
}

/// A built mode. Dropping it removes everything.
pub struct Network {
    // Drop order matters: programs, then objects of this process, then the process trees, then
    // the namespaces.
    programs: Vec<Process>,
    kept: Vec<Keep>,
    trees: Vec<Tree>,
    guests: Option<GuestEnds>,
    hosts: Vec<Arc<Host>>,
    client: usize,
    server: usize,
    /// The server's addresses.
    pub address: Address,
    /// The path, from client to server.
    pub hops: Vec<Hop>,
    /// MTU of the tenants' devices, bytes.
    pub tenant_mtu: u32,
    /// Notes about the mode, printed with the figures.
    pub notes: Vec<String>,
    /// Minimum time to send datagrams before the path reaches its steady state.
    pub datagram_warmup: Duration,
}

impl Network {
    /// Returns a network of `hosts`. `client` and `server` are indices. The server listens on
    /// `server_address`.
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

    /// Makes clients connect to a published address instead of the server's own.
    pub(crate) fn published_at(mut self, address: Ipv4Addr) -> Network {
        self.address.target = SocketAddr::new(IpAddr::V4(address), PORT);
        self
    }

    /// Adds the process tree of the mode's programs.
    pub(crate) fn with_processes(self, tree: Processes, programs: Vec<Process>) -> Network {
        self.with_processes_of(&[], tree, programs)
    }

    /// Adds the process tree with the programs of these hosts.
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

    /// Sets the guests that are client and server. Their hosts stay client and server host.
    pub(crate) fn with_guests(self, guests: GuestEnds) -> Network {
        Network { guests: Some(guests), ..self }
    }

    /// Sets the minimum time to send datagrams before they count.
    pub(crate) fn warming_datagrams(self, least: Duration) -> Network {
        Network { datagram_warmup: least, ..self }
    }

    /// Adds a note that is printed with the figures.
    pub(crate) fn noting(mut self, note: impl Into<String>) -> Network {
        self.notes.push(note.into());
        self
    }

    /// Returns all test hosts and tenants.
    pub fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }

    /// Returns the host or tenant that runs the client.
    pub fn client(&self) -> &Arc<Host> {
        &self.hosts[self.client]
    }

    /// Returns the host or tenant that runs the server.
    pub fn server(&self) -> &Arc<Host> {
        &self.hosts[self.server]
    }

    /// Returns the virtual machines, if client and server run in some.
    pub fn guests(&self) -> Option<&GuestEnds> {
        self.guests.as_ref()
    }

    pub fn host(&self, name: &str) -> Option<&Arc<Host>> {
        self.hosts.iter().find(|host| host.name() == name)
    }

    /// Returns the process tree of a host's programs.
    pub(crate) fn tree(&self, host: &str) -> Option<&Processes> {
        // Modes with a single tree do not name its hosts.
        let of = |tree: &&Tree| tree.of.is_empty() || tree.of.iter().any(|name| name == host);
        self.trees.iter().find(of).map(|tree| &tree.processes)
    }

    /// Returns the PID of the first process in a host's process tree.
    pub fn init_pid(&self, host: &str) -> Option<u32> {
        self.tree(host).map(Processes::init_pid)
    }

    /// Returns the control groups that exist while the network does.
    pub fn cgroups(&self) -> impl Iterator<Item = &str> {
        self.trees.iter().filter_map(|tree| tree.processes.cgroup())
    }

    /// Returns the programs that run for the mode.
    pub fn programs(&self) -> impl Iterator<Item = &Process> {
        self.programs.iter()
    }

    /// Checks that all programs of the mode still run.
    ///
    /// # Errors
    /// [`crate::Error::Program`], naming the program that ended.
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
