//! A host as the checks see it: everything they read, at one moment, with what
//! moved until a second one. It can be saved and read again; the checks do not
//! know the difference.
//!
//! What could not be read is here too, with the reason: a check that needs it
//! says so instead of passing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netstate::conntrack::Conntrack;
use netstate::cpu::CpuStat;
use netstate::entry::{Address, FdbEntry, Neighbour};
use netstate::interface::{Counters, Interface};
use netstate::interrupts::Interrupts;
use netstate::machine::MachineFacts;
use netstate::namespace::{Holder, Member};
use netstate::neighbour_table::NeighbourTable;
use netstate::netfilter::Clamp;
use netstate::openvswitch::Datapaths;
use netstate::qdisc::Qdisc;
use netstate::reassembly::Reassembly;
use netstate::route::Way;
use netstate::snmp;
use netstate::softnet::SoftnetStat;
use netstate::udp_socket::UdpSocket;
use serde::{Deserialize, Serialize};

/// Version of the saved form; another one is refused.
pub const FORMAT: u32 = 1;

/// A host as it was read: what every check may look at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Version of the saved form: [`FORMAT`].
    pub format: u32,
    /// Version of the program that read it.
    pub program: String,
    /// When, seconds since 1970.
    pub taken_s: u64,
    /// Time between the two readings, s.
    pub interval_s: f64,
    /// What has no namespace.
    pub machine: Machine,
    /// Network namespaces, the reader's own first.
    pub namespaces: Vec<Namespace>,
    /// Namespaces and processes that could not be looked into.
    pub left_out: Vec<LeftOut>,
    /// Hosts at the other end of tunnels that were asked.
    #[serde(default)]
    pub far_ends: Vec<FarEnd>,
}

/// A host at the other end of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarEnd {
    /// The address that it was asked at.
    pub address: IpAddr,
    /// VXLAN devices of that host, as it told them.
    pub tunnels: Vec<Interface>,
}

/// What could not be looked into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// The namespace or process, by label or number.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub object: String,
    /// The kernel's answer, or the limit that was reached.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub reason: String,
}

/// Something that was read, or why it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// The value that was read.
    Read(T),
    /// Why it was not.
    Unread(String),
}

impl<T> Reading<T> {
    /// From a result: the error is the reason.
    pub fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Reading<T> {
        match result {
            Ok(value) => Reading::Read(value),
            Err(error) => Reading::Unread(error.to_string()),
        }
    }

    /// The value; `None` where it was not read.
    pub fn get(&self) -> Option<&T> {
        self.as_result().ok()
    }

    /// What was read, or why not.
    ///
    /// # Errors
    /// The reason.
    pub fn as_result(&self) -> Result<&T, &str> {
        match self {
            Reading::Read(value) => Ok(value),
            Reading::Unread(reason) => Err(reason),
        }
    }
}

/// Two readings of the same counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair<T> {
    /// Value of the first reading.
    pub before: T,
    /// [`Host::interval_s`] later.
    pub after: T,
}

/// What has no namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// CPU model and number, memory, kernel and distribution.
    pub facts: Reading<MachineFacts>,
    /// Settings by their path below `/proc/sys`.
    pub sysctls: BTreeMap<String, Reading<String>>,
    /// The network softirq, by CPU.
    pub softnet: Reading<Pair<SoftnetStat>>,
    /// CPU time by kind, by CPU, in ticks.
    pub cpu: Reading<Pair<CpuStat>>,
    /// How often each interrupt came, by CPU.
    #[serde(default = "not_saved")]
    pub interrupts: Reading<Pair<Interrupts>>,
    /// CPUs of each NUMA node, as the kernel lists them; empty where it knows none.
    #[serde(default)]
    pub nodes: BTreeMap<u32, String>,
    /// What sets the CPUs' frequency; `None` where the kernel does not.
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// Statistics of the IPv4 neighbour table (`/proc/net/stat/arp_cache`).
    pub arp: Reading<Pair<NeighbourTable>>,
    /// Open vSwitch's datapath is in the kernel (built in, or its module loaded).
    pub kernel_openvswitch: bool,
    /// `/dev/vhost-net` is there.
    #[serde(default)]
    pub kernel_vhost_net: bool,
}

/// What sets the CPUs' frequency (`/sys/devices/system/cpu/cpufreq`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// Driver (`acpi-cpufreq`, `intel_pstate`).
    pub driver: String,
    /// Governors, and the number of policies that have them.
    pub governors: BTreeMap<String, u32>,
}

fn not_saved<T>() -> Reading<T> {
    Reading::Unread("the host was saved by an earlier version".to_owned())
}

/// State of one network namespace, from two readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Inode number, as `lsns` prints it.
    pub inode: u64,
    /// The number that no other namespace of this boot has; `None` before Linux 5.14.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// What to call it: a name of its own on this host.
    pub label: String,
    /// A path that opens it, for `nsenter --net=`; `None`: the reader's own.
    pub path: Option<String>,
    /// Processes in it, the first few.
    pub members: Vec<Member>,
    /// How many there are.
    pub member_count: usize,
    /// Processes of this namespace that hold TAP devices.
    pub holders: Vec<Holder>,
    /// Links (`RTM_GETLINK`).
    pub interfaces: Reading<Vec<Interface>>,
    /// What each link's driver says, by index.
    pub devices: BTreeMap<u32, Device>,
    /// Counters of the second reading, by index.
    pub later: Reading<BTreeMap<u32, Counters>>,
    /// IP addresses of the links (`RTM_GETADDR`).
    pub addresses: Reading<Vec<Address>>,
    /// Neighbours of IPv4 and IPv6 (`RTM_GETNEIGH`).
    pub neighbours: Reading<Vec<Neighbour>>,
    /// Forwarding entries of bridges and VXLAN devices.
    pub fdb: Reading<Vec<FdbEntry>>,
    /// Queueing disciplines with their counters (`RTM_GETQDISC`).
    pub qdiscs: Reading<Pair<Vec<Qdisc>>>,
    /// UDP sockets, the kernel's own among them.
    pub udp_sockets: Reading<Vec<UdpSocket>>,
    /// Protocol counters (`/proc/net/snmp`, `netstat`, `snmp6`).
    pub snmp: Reading<Pair<snmp::Counters>>,
    /// Connection tracking: entries, their limit, and what was refused.
    pub conntrack: Reading<Pair<Conntrack>>,
    /// Memory for fragments, by the second reading.
    #[serde(default = "not_saved")]
    pub reassembly: Reading<Reassembly>,
    /// Packet filter chains that packets are handed to.
    pub chains: Reading<Vec<Chain>>,
    /// Packet filter rules that clamp the maximum segment size of TCP.
    #[serde(default = "not_saved")]
    pub clamps: Reading<Vec<Clamp>>,
    /// Datapaths of Open vSwitch.
    #[serde(default = "not_saved")]
    pub datapaths: Reading<Pair<Datapaths>>,
    /// Settings by their path below `/proc/sys`; what the kernel does not have is
    /// left out.
    pub sysctls: BTreeMap<String, String>,
    /// VXLAN devices of the namespace, and the ways to their remotes.
    pub tunnels: Vec<Tunnel>,
}

impl From<&Namespace> for settings::Namespace {
    fn from(namespace: &Namespace) -> settings::Namespace {
        settings::Namespace {
            inode: namespace.inode,
            cookie: namespace.cookie,
            // Asked for when the change is made.
            first: false,
            path: namespace.path.clone(),
            label: namespace.label.clone(),
        }
    }
}

/// A packet filter's base chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`; `iptables-legacy` for a table of it.
    pub family: String,
    /// Name of its table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
}

/// What a link's driver says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The namespace (inode) of [`Interface::link`], where it is another one.
    pub link_namespace: Option<u64>,
    /// Name of the driver (`ETHTOOL_GDRVINFO`).
    pub driver: Option<String>,
    /// Features by the kernel's names; why there are none.
    pub features: Option<Reading<BTreeMap<String, Feature>>>,
    /// Rings, where the driver has any.
    pub rings: Option<Rings>,
    /// Queues, where the driver can say.
    pub channels: Option<Channels>,
    /// CPUs that each receive queue's packets are spread over (`rps_cpus`), as
    /// the kernel's hexadecimal masks.
    pub rps: Option<Vec<String>>,
    /// `tun_flags` of a TAP or TUN (`IFF_…` of `linux/if_tun.h`).
    pub tun_flags: Option<u32>,
    /// Times that a transmit queue stood still (`tx_timeout`), all together.
    pub tx_timeouts: Option<u64>,
    /// Interrupts of the hardware behind it.
    pub interrupts: Option<Vec<Interrupt>>,
    /// NUMA node of the hardware behind it.
    pub numa_node: Option<u32>,
    /// What its receive queues are chosen by for UDP over IPv4 (`RXH_…` of
    /// `linux/ethtool.h`), where the driver can say.
    pub udp4_hash: Option<u64>,
}

/// An interrupt of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// Number, as in `/proc/interrupts`.
    pub number: u32,
    /// Name of its handler, as in [`Machine::interrupts`].
    pub name: String,
    /// CPUs that take it, as the kernel lists them.
    pub cpus: String,
}

/// State of an offload feature, as `ethtool -k` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// On, and may be switched off.
    On,
    /// Off, and may be switched on.
    Off,
    /// On, and cannot be switched off (`[fixed]` in `ethtool -k`).
    OnFixed,
    /// Off, and cannot be switched on (`[fixed]` in `ethtool -k`).
    OffFixed,
}

impl Feature {
    /// Whether it is in effect.
    pub fn is_on(self) -> bool {
        matches!(self, Feature::On | Feature::OnFixed)
    }
}

/// How many there are, and how many there can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// How many are in use.
    pub now: u32,
    /// How many the device can have.
    pub most: u32,
}

/// A device's rings, in descriptors (`ETHTOOL_GRINGPARAM`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rings {
    /// Descriptors of the receive ring.
    pub rx: Amount,
    /// Descriptors of the transmit ring.
    pub tx: Amount,
}

/// A device's queues (`ETHTOOL_GCHANNELS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Receive queues of their own.
    pub rx: Amount,
    /// Transmit queues of their own.
    pub tx: Amount,
    /// Queues for both ways.
    pub combined: Amount,
}

/// A VXLAN device's ways to its remotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// Index of the VXLAN device in its namespace.
    pub link: u32,
    /// Namespace (inode) of the underlay: where the device was made.
    pub underlay: u64,
    /// By remote: the way, as the kernel routes now.
    pub ways: Vec<(IpAddr, Reading<Way>)>,
}
