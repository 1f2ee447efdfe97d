//! A host as the checks see it: all state they read, and the changes until a second reading. It can
//! be saved and read again; the checks work the same on both.
//!
//! State that could not be read is recorded with the reason, and a check that needs it reports that
//! instead of passing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netstate::bridge_vlan::Vlans;
use netstate::conntrack::Conntrack;
use netstate::cpu::CpuStat;
use netstate::entry::{Address, FdbEntry, Neighbour};
use netstate::inet_diag::TcpListener;
use netstate::interface::{Counters, Interface};
use netstate::interrupts::Interrupts;
use netstate::machine::MachineFacts;
use netstate::mdb::Multicast;
use netstate::namespace::{Holder, Member};
use netstate::neighbour_table::NeighbourTable;
use netstate::openvswitch::Datapaths;
use netstate::policer::Policer;
use netstate::policy_rule::PolicyRule;
use netstate::qdisc::Qdisc;
use netstate::reassembly::Reassembly;
use netstate::route::{NextHop, Routed};
use netstate::route_table::RouteEntry;
use netstate::snmp;
use netstate::softnet::SoftnetStat;
use netstate::tc_filter::Filter;
use netstate::udp_socket::UdpSocket;
use ruleset::Clamp;
use serde::{Deserialize, Serialize};

use crate::probed::Probed;

/// Version of the saved form. Other versions are refused.
pub const FORMAT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Version of the saved form: [`FORMAT`].
    pub format: u32,
    /// Version of the program that read it.
    pub program: String,
    /// Time of the first reading, seconds since 1970.
    pub taken_s: u64,
    /// Time between the two readings, s.
    pub interval_s: f64,
    /// State outside network namespaces.
    pub machine: Machine,
    /// Network namespaces, the reader's own first.
    pub namespaces: Vec<Namespace>,
    /// Namespaces and processes that could not be read.
    pub left_out: Vec<LeftOut>,
    /// Hosts at the other end of tunnels, read with `--peer`.
    #[serde(default)]
    pub far_ends: Vec<FarEnd>,
    /// VXLAN devices that `accel` would accelerate, by its dry run. Empty if it was not asked.
    #[serde(default)]
    pub eligible: Vec<Eligible>,
    /// Faults of paths that `overlane probe` has found in this boot.
    #[serde(default)]
    pub probed: Vec<Probed>,
}

/// A VXLAN device that `accel` would accelerate, and does not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eligible {
    /// Inode of its namespace, which is also that of the NICs.
    pub namespace: u64,
    /// Index of the device.
    pub link: u32,
    /// Ports of tenants that would be accelerated.
    pub ports: usize,
    /// Remote VTEPs that would be accelerated.
    pub remotes: usize,
    /// Ports and remote VTEPs that would take the kernel's path.
    pub slow: usize,
}

/// A host at the other end of a tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarEnd {
    /// Address used for `--peer`.
    pub address: IpAddr,
    /// VXLAN devices that the host reported.
    pub tunnels: Vec<Interface>,
}

/// An object that could not be read.
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

/// A value that was read, or the reason why it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading<T> {
    /// The value that was read.
    Read(T),
    /// Why it could not be read.
    Unread(String),
}

impl<T> Reading<T> {
    /// Converts a result; the error becomes the reason.
    pub fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Reading<T> {
        match result {
            Ok(value) => Reading::Read(value),
            Err(error) => Reading::Unread(error.to_string()),
        }
    }

    /// The value; `None` if it was not read.
    pub fn get(&self) -> Option<&T> {
        self.as_result().ok()
    }

    /// The value, or the reason as the error.
    ///
    /// # Errors
    /// Why it was not read.
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
    /// Value [`Host::interval_s`] later.
    pub after: T,
}

/// State outside network namespaces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// CPU model and number, memory, kernel and distribution.
    pub facts: Reading<MachineFacts>,
    /// Settings by their path below `/proc/sys`.
    pub sysctls: BTreeMap<String, Reading<String>>,
    /// Counters of the network softirq, by CPU (`/proc/net/softnet_stat`).
    pub softnet: Reading<Pair<SoftnetStat>>,
    /// CPU time by kind, by CPU, in ticks.
    pub cpu: Reading<Pair<CpuStat>>,
    /// Count of each interrupt, by CPU.
    #[serde(default = "not_saved")]
    pub interrupts: Reading<Pair<Interrupts>>,
    /// CPUs of each NUMA node, as the kernel lists them; empty if it reports no nodes.
    #[serde(default)]
    pub nodes: BTreeMap<u32, String>,
    /// CPU frequency scaling; `None` if the kernel does none.
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// Statistics of the IPv4 neighbour table (`/proc/net/stat/arp_cache`).
    pub arp: Reading<Pair<NeighbourTable>>,
    /// Whether the kernel has Open vSwitch's datapath (built in, or its module loaded).
    pub kernel_openvswitch: bool,
    /// Whether `/dev/vhost-net` exists.
    #[serde(default)]
    pub kernel_vhost_net: bool,
}

/// CPU frequency scaling (`/sys/devices/system/cpu/cpufreq`).
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
    /// Number that is unique among the namespaces of this boot; `None` before Linux 5.14.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// Label, unique on this host.
    pub label: String,
    /// A path that opens it, for `nsenter --net=`; `None`: the reader's own.
    pub path: Option<String>,
    /// Processes in it, the first few.
    pub members: Vec<Member>,
    /// Number of processes in it.
    pub member_count: usize,
    /// Processes of this namespace that have TAP devices open.
    pub holders: Vec<Holder>,
    /// Links (`RTM_GETLINK`).
    pub interfaces: Reading<Vec<Interface>>,
    /// Data from each link's driver, by index.
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
    /// Policers of received packets, with their counters (`RTM_GETTFILTER`).
    #[serde(default = "not_saved")]
    pub policers: Reading<Pair<Vec<Policer>>>,
    /// Traffic control filters that drop packets or take them elsewhere, with their counters
    /// (`RTM_GETTFILTER`).
    #[serde(default = "not_saved")]
    pub filters: Reading<Pair<Vec<Filter>>>,
    /// Counters of packet filter rules that drop packets or exempt them from tracking.
    #[serde(default = "not_saved")]
    pub drop_rules: Reading<Pair<Vec<DropRule>>>,
    /// Addresses of IPv6 for which devices answer in place of others, by index of the device.
    #[serde(default = "not_saved")]
    pub proxied: Reading<Vec<(u32, IpAddr)>>,
    /// UDP sockets, including the kernel's own.
    pub udp_sockets: Reading<Vec<UdpSocket>>,
    /// Protocol counters (`/proc/net/snmp`, `netstat`, `snmp6`).
    pub snmp: Reading<Pair<snmp::Counters>>,
    /// Connection tracking: entries, their limit and drops.
    pub conntrack: Reading<Pair<Conntrack>>,
    /// Memory for fragments, by the second reading.
    #[serde(default = "not_saved")]
    pub reassembly: Reading<Reassembly>,
    /// Base chains of the packet filters.
    pub chains: Reading<Vec<Chain>>,
    /// Packet filter rules that clamp the maximum segment size of TCP.
    #[serde(default = "not_saved")]
    pub clamps: Reading<Vec<Clamp>>,
    /// Datapaths of Open vSwitch.
    #[serde(default = "not_saved")]
    pub datapaths: Reading<Pair<Datapaths>>,
    /// Settings by their path below `/proc/sys`. Settings that the kernel lacks are left out.
    pub sysctls: BTreeMap<String, String>,
    /// VXLAN devices of the namespace, with the routes to their remotes.
    pub tunnels: Vec<TunnelPaths>,
    /// Routes that forward or drop packets.
    #[serde(default = "not_saved")]
    pub routes: Reading<Vec<RouteEntry>>,
    /// Verdicts of the packet filter on packets that the overlays need.
    #[serde(default = "not_saved")]
    pub passages: Reading<Vec<Passage>>,
    /// Time that a CPU quota has stopped the first processes, µs, for each of their control groups
    /// and those above.
    #[serde(default = "not_saved")]
    pub throttled: Reading<Pair<Vec<u64>>>,
    /// Multicast groups of bridges with a querier.
    #[serde(default = "not_saved")]
    pub multicast: Reading<Multicast>,
    /// Rules that choose a routing table, except the kernel's own three.
    #[serde(default = "not_saved")]
    pub rules: Reading<Vec<PolicyRule>>,
    /// VLANs of bridges with VLAN filtering, and of their ports.
    #[serde(default = "not_saved")]
    pub vlans: Reading<Vec<Vlans>>,
    /// Rules that translate destinations, and translated connections without an answer.
    #[serde(default = "not_saved")]
    pub translations: Reading<Translations>,
    /// Listening TCP sockets, by the second reading. Empty if no counter shows that connections found
    /// none, or a full queue.
    #[serde(default = "not_saved")]
    pub listeners: Reading<Vec<TcpListener>>,
    /// Packets that IPsec dropped, by the kernel's name (`/proc/net/xfrm_stat`).
    #[serde(default = "not_saved")]
    pub xfrm: Reading<Pair<BTreeMap<String, u64>>>,
}

/// Translation of destinations in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translations {
    /// Rules that set a constant destination address.
    pub rules: Vec<TranslationRule>,
    /// Whether every rule sets a constant address, so that no other target exists.
    pub all_constant: bool,
    /// Connections whose destination was translated, and that nobody has answered; `None` if they
    /// were not read.
    pub stalled: Option<Vec<Stalled>>,
    /// Why they were not read.
    #[serde(default)]
    pub stalled_unread: Option<String>,
    /// Services that a map of the rules rejects.
    #[serde(default)]
    pub rejected: Vec<RejectedService>,
}

/// A service whose connections a map of the packet filter rejects or drops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejectedService {
    /// `ip`, `ip6`, `inet`.
    pub family: String,
    /// Table of the map.
    pub table: String,
    /// Name of the map.
    pub map: String,
    /// Address of the service.
    pub to: IpAddr,
    /// `IPPROTO_TCP` or another protocol with ports.
    pub protocol: u8,
    pub port: u16,
}

/// A documentation address, which stands for any host outside.
pub(crate) const OUTSIDE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// A packet filter rule that drops packets, or exempts them from connection tracking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropRule {
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`, `arp`.
    pub family: String,
    pub table: String,
    pub chain: String,
    pub handle: Option<u64>,
    /// Whether it exempts packets from tracking instead of dropping them.
    pub untracks: bool,
    /// Whether it sees packets for this host only.
    pub for_host: bool,
    /// Destination that it compares, if it is a constant address of IPv4.
    pub to: Option<IpAddr>,
    pub comment: Option<String>,
    /// Packets that it has counted.
    pub packets: u64,
}

/// A rule that sets the destination address of packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslationRule {
    /// `ip`, `ip6`, `inet`.
    pub family: String,
    pub table: String,
    pub chain: String,
    pub handle: Option<u64>,
    /// Address that it sets.
    pub to: IpAddr,
}

/// A conntrack entry with a translated destination, of which only one direction was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stalled {
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u8,
    /// Source address.
    pub from: IpAddr,
    /// Destination address and port before the translation.
    pub to: (IpAddr, u16),
    /// Destination address after it.
    pub now: IpAddr,
}

/// Packets that an overlay needs, and the verdict of the packet filter on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Passage {
    /// Kind of packets.
    pub kind: PassageKind,
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// UDP or TCP destination port; 0 for ICMP.
    pub port: u16,
    /// Index of the device by which they come in; 0: they are this host's.
    pub input: u32,
    /// Index of the device by which they leave; 0: they are for this host.
    pub output: u32,
    /// Verdict of all chains together.
    pub verdict: Filtered,
    /// Chain that costs these packets most comparisons.
    pub longest: Option<LongChain>,
    /// Mark that the rules give them before routing.
    #[serde(default)]
    pub mark: u32,
    /// Route of marked packets by the kernel; `None`: they have no mark, or the route was not read.
    #[serde(default)]
    pub routed: Option<Reading<Routed>>,
}

/// Kind of packets that a filter sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassageKind {
    /// Outer packets of a tunnel that this host sends.
    TunnelOut,
    /// Outer packets of a tunnel that this host receives.
    TunnelIn,
    /// Packets routed between a tunnel and a bridge of tenants.
    Forward,
    /// Frames that only cross a bridge and are passed to the filters of IP.
    Bridged,
    /// ICMP messages "fragmentation needed" about the tunnel's packets.
    FragmentationNeeded,
    /// Neighbour solicitations of IPv6 for the tunnel's local address.
    Solicitation,
    /// ICMP echo requests routed between a tunnel and a bridge of tenants.
    ForwardEcho,
    /// TCP connections routed from a tunnel to a port on which a tenant listens.
    ForwardService,
    /// ARP requests that only cross a bridge.
    BridgedArp,
    /// ICMP echo requests at a tenant, in its own namespace.
    TenantEcho,
    /// TCP connections to a port on which a tenant listens, in its own namespace.
    TenantService,
    /// First packets of connections from a tenant's bridge to the uplink.
    Outside,
    /// Their answers.
    OutsideReply,
    /// UDP packets from a tenant to the host's DHCP or DNS server.
    HostService,
    /// First packets of connections from a tenant's bridge to the uplink, as rules for translation
    /// see them.
    OutsideSource,
    /// ARP requests for the tunnel's local address.
    Resolution,
    /// ICMP messages "fragmentation needed" that this host sends to tenants.
    FragmentationNeededOut,
}

/// Verdict of a packet filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filtered {
    /// All packets pass.
    Passed,
    /// All packets are dropped.
    Dropped {
        /// `ip`, `ip6`, `inet`, `bridge`, `iptables-legacy`, `ip6tables-legacy`.
        family: String,
        table: String,
        /// Chain with the rule or the policy.
        chain: String,
        /// Handle of the rule, or its number in a chain of iptables-legacy; `None`: the policy.
        handle: Option<u64>,
        /// The rule is meant for these packets: it names both devices, as `icc=false` of Docker
        /// does, or the rules accept connections from the other side and their answers.
        is_meant: bool,
    },
    /// A rule that may drop packets compares more than addresses, ports and state.
    Depends {
        /// As in [`Filtered::Dropped`].
        family: String,
        table: String,
        chain: String,
        /// Handle of the rule, or its number in a chain of iptables-legacy.
        handle: Option<u64>,
        /// The expression, in terms of `nft` or `iptables`.
        on: String,
    },
    /// A rule changes an address of packets that must keep it.
    Translated {
        /// As in [`Filtered::Dropped`].
        family: String,
        table: String,
        chain: String,
        handle: Option<u64>,
        /// The address that it sets, if it is constant.
        to: Option<IpAddr>,
    },
    /// It depends on sets that change without notice, or the rules are not understood.
    Undecided,
}

/// A chain with many rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongChain {
    /// `ip`, `ip6`, `inet`, `bridge`, `iptables-legacy`, `ip6tables-legacy`.
    pub family: String,
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Rules that each of the packets is compared with.
    pub rules: u64,
    /// Rules that repeat an earlier one.
    pub repeated: u64,
}

impl From<&Namespace> for settings::Namespace {
    fn from(namespace: &Namespace) -> settings::Namespace {
        settings::Namespace {
            inode: namespace.inode,
            cookie: namespace.cookie,
            // Determined when the change is made.
            first: false,
            path: namespace.path.clone(),
            label: namespace.label.clone(),
        }
    }
}

/// Base chain of a packet filter.
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

/// Data from a link's driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Inode of the namespace of [`Interface::link`], if it is another namespace.
    pub link_namespace: Option<u64>,
    /// Name of the driver (`ETHTOOL_GDRVINFO`).
    pub driver: Option<String>,
    /// Features by the kernel's names, or why they could not be read.
    pub features: Option<Reading<BTreeMap<String, Feature>>>,
    /// Rings, if the driver reports them.
    pub rings: Option<Rings>,
    /// Queues, if the driver reports them.
    pub channels: Option<Channels>,
    /// CPUs over which each receive queue spreads its packets (`rps_cpus`), as the kernel's
    /// hexadecimal masks.
    pub rps: Option<Vec<String>>,
    /// `tun_flags` of a TAP or TUN (`IFF_…` of `linux/if_tun.h`).
    pub tun_flags: Option<u32>,
    /// Number of transmit timeouts of all queues (`tx_timeout`).
    pub tx_timeouts: Option<u64>,
    /// Interrupts of the hardware behind it.
    pub interrupts: Option<Vec<Interrupt>>,
    /// NUMA node of the hardware behind it.
    pub numa_node: Option<u32>,
    /// Fields hashed to choose a receive queue for UDP over IPv4 (`RXH_…` of `linux/ethtool.h`), if
    /// the driver reports them.
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

/// State of an offload feature, as in `ethtool -k`.
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

/// Current and largest possible number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Number in use.
    pub now: u32,
    /// Largest number that the device supports.
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
    /// Separate receive queues.
    pub rx: Amount,
    /// Separate transmit queues.
    pub tx: Amount,
    /// Queues for both directions.
    pub combined: Amount,
}

/// Routes of a VXLAN device to its remotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelPaths {
    /// Index of the VXLAN device in its namespace.
    pub link: u32,
    /// Inode of the underlay's namespace, in which the device was created.
    pub underlay: u64,
    /// Route to each remote, as the kernel routes now.
    pub ways: Vec<(IpAddr, Reading<NextHop>)>,
}
