//! Why something stays slow: every reason, with a stable code, evidence and remedy.
//!
//! Codes are kept for ever: what no longer refuses moves to [`RETIRED`], and its code is not
//! used again. Hundreds say what a refusal is about: 0 the VXLAN device, 1 bridges and their
//! ports, 2 packet filters and programs of others, 3 the underlay, 4 routed tenants.

use std::net::IpAddr;

use super::{Family, RuleEffect};

/// Codes that once were in use.
pub const RETIRED: &[&str] = &[];

/// A refusal as it is explained, without an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Explanation {
    /// The refusal's code, for good: `AX001` …
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^AX[0-9]{3}$")))]
    pub code: &'static str,
    /// Its name in [`Refusal`].
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[A-Z][A-Za-z0-9]+$")))]
    pub name: &'static str,
    /// A few words.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub title: &'static str,
    /// What it means, and why packets stay slow then.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub explanation: &'static str,
    /// What would make them fast.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub remedy: &'static str,
}

impl Explanation {
    /// The one with this code, in upper or lower case.
    pub fn of(code: &str) -> Option<&'static Explanation> {
        EXPLANATIONS.iter().find(|known| known.code.eq_ignore_ascii_case(code))
    }
}

macro_rules! refusals {
    ($(
        $(#[doc = $doc:literal])+
        $code:ident $variant:ident { $($field:ident : $type:ty),* }
            $words:literal
            $(of $object:ident)?
            = $title:literal,
            $remedy:literal;
    )+) => {
        /// Why something stays slow. As text it is the evidence.
        // The words of each variant name its fields.
        #[allow(missing_docs)]
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        pub enum Refusal {
            $(
                $(#[doc = $doc])+
                #[error($words)]
                $variant { $($field: $type),* },
            )+
        }

        /// Every refusal, in the order of the codes.
        pub const EXPLANATIONS: &[Explanation] = &[$(
            Explanation {
                code: stringify!($code),
                name: stringify!($variant),
                title: $title,
                explanation: concat!($($doc),+).trim_ascii(),
                remedy: $remedy,
            },
        )+];

        impl Refusal {
            /// Its stable code, `AX001` …
            pub fn code(&self) -> &'static str {
                match self { $(Refusal::$variant { .. } => stringify!($code),)+ }
            }

            /// The thing that it is about, where that is another than what stays slow.
            pub fn object(&self) -> Option<String> {
                match self {
                    $(
                        #[allow(unused_variables)]
                        Refusal::$variant { $($field),* } => {
                            let named: &[String] = &[$($object.to_string())?];
                            named.first().cloned()
                        }
                    )+
                }
            }
        }
    };
}

impl Refusal {
    /// What is said of all with its code.
    pub fn explanation(&self) -> &'static Explanation {
        // Both come of the same list.
        Explanation::of(self.code()).unwrap_or(&EXPLANATIONS[0])
    }
}

refusals! {
    /// The VXLAN device has an option that changes its packets or their way, and that the
    /// programs do not do.
    AX001 VxlanOption { option: &'static str }
        "VXLAN option {option}"
        = "option of the VXLAN device",
        "Create the VXLAN device without the option.";

    /// The kernel tells of an attribute of the VXLAN device that is newer than this program.
    AX002 UnknownVxlanAttribute { number: u16 }
        "VXLAN attribute {number}, which is not known here"
        = "unknown attribute of the VXLAN device",
        "Use a newer overlane.";

    /// The VXLAN device's own address is of a kind for which the kernel decides more than a
    /// route tells.
    AX003 OwnAddress { kind: &'static str }
        "its own address is {kind}"
        = "kind of the VXLAN device's own address",
        "Give the VXLAN device a global address (`local`).";

    /// The VXLAN device is here, its underlay in another namespace.
    AX004 UnderlayElsewhere {}
        "its underlay is in another namespace: accelerate it from there"
        = "underlay in another namespace",
        "Run `overlane accel` in the namespace of the underlay NIC.";

    /// The VXLAN device is down: the kernel would drop its packets.
    AX005 DeviceDown {}
        "it is down"
        = "VXLAN device down",
        "Set the VXLAN device up.";

    /// The veth pair between the sandbox and the namespace of the NICs could not be made.
    AX006 NoCrossing { problem: String }
        "{problem}"
        = "no veth pair into the sandbox",
        "Remove what is in the way, as the evidence says, and run `accel on` again.";

    /// A datagram is known by VNI and port. Another VXLAN device has the same, with another
    /// way to its remote ends.
    AX007 VniTaken { vni: u32, port: u16 }
        "VNI {vni} on port {port} is another device's"
        = "VNI and port of another device",
        "Give each VXLAN device of the host a VNI and port of its own.";

    /// The programs receive the datagrams of a VXLAN device at one NIC and one address.
    AX008 SeveralUnderlays {}
        "remote VTEPs are reached by several NICs or addresses"
        = "several NICs or own addresses",
        "Route all remote VTEPs by one NIC, and give the VXLAN device an address (`local`).";

    /// Routed VXLAN devices are accelerated in the namespace of their NIC only.
    AX009 RoutedInSandbox {}
        "in another namespace than its NIC, and no bridge's port"
        = "routed device in a sandbox",
        "Make the VXLAN device a port of a bridge.";

    /// A queueing discipline would be passed by.
    AX010 QueueingDiscipline { device: String, qdisc: String }
        "{device}: queueing discipline {qdisc}" of device
        = "queueing discipline",
        "Remove it: `tc qdisc del dev DEV root`.";

    /// The VXLAN device belongs to a bond, team, VRF or another device that is no bridge.
    AX011 NoBridge { device: String }
        "{device}: port of something that is no bridge" of device
        = "port of something that is no bridge",
        "Make the VXLAN device a port of a bridge, or of nothing.";

    /// A bridge that filters VLANs decides by tags that the programs do not follow.
    AX101 VlanFiltering { bridge: String }
        "{bridge}: VLAN filtering" of bridge
        = "bridge filters VLANs",
        "Switch it off where no VLAN is used: `ip link set BRIDGE type bridge vlan_filtering 0`.";

    /// The kernel tells of an attribute of a bridge or port that is newer than this program.
    AX102 UnknownBridgeAttribute { device: String, of: &'static str, number: u16 }
        "{device}: {of} attribute {number}, which is not known here" of device
        = "unknown attribute of a bridge or port",
        "Use a newer overlane.";

    /// The bridge has an option that changes which frames it forwards.
    AX103 BridgeOption { bridge: String, option: &'static str }
        "{bridge}: bridge option {option}" of bridge
        = "option of the bridge",
        "Switch the option off.";

    /// A device on the path is down or has no carrier: the kernel would drop the packets.
    AX104 LinkDown { device: String }
        "{device} is down or has no carrier" of device
        = "device of the path down",
        "Set the device up, and its other end.";

    /// The tenant's device is down or has no carrier.
    AX105 PortDown {}
        "it is down or has no carrier"
        = "tenant's device down",
        "Set the device up, and its other end.";

    /// The tenant's device has no Ethernet headers.
    AX106 PortWithoutEthernet {}
        "no Ethernet device"
        = "tenant's device without Ethernet",
        "Use a device with Ethernet headers.";

    /// The kernel tells nothing of the device as a bridge's port.
    AX107 NoBridgePort { device: String }
        "{device}: not a bridge port" of device
        = "not a bridge port",
        "Make the device a port of the bridge anew.";

    /// Spanning tree has not put the port into the state forwarding.
    AX108 NotForwarding { device: String }
        "{device}: spanning tree does not let it forward" of device
        = "port does not forward",
        "Wait for spanning tree, or remove the loop that made it block the port.";

    /// The bridge port has an option that changes which frames it takes or sends.
    AX109 BridgePortOption { device: String, option: &'static str }
        "{device}: bridge port option {option}" of device
        = "option of a bridge port",
        "Switch the option off: `bridge link set dev DEV OPTION off`.";

    /// A base chain of nftables that the packets inside the tunnel come to, or one at a hook
    /// that is not followed. They would pass it by.
    AX201 BaseChain { chain: String }
        "packet filter: nftables {chain}" of chain
        = "base chain of nftables",
        "Remove the chain where it is not needed, or switch br_netfilter's calls off in a sandbox.";

    /// A rule of nftables may do more to the tunnel's datagrams than count or accept them, or
    /// has an expression that is not known.
    AX202 Rule { rule: String, effect: RuleEffect }
        "packet filter: nftables {rule}: {effect}" of rule
        = "rule of nftables",
        "Accept the tunnel's UDP port before the rule, or write the rule so that it excludes it.";

    /// A flowtable forwards connections past everything that is looked at here.
    AX203 Flowtable { table: String }
        "packet filter: {table}" of table
        = "flowtable of nftables",
        "Remove the flowtable.";

    /// Tables of iptables-legacy cannot be read without changing them: they may do anything.
    AX204 LegacyTable { table: String }
        "packet filter: {table}" of table
        = "table of iptables-legacy",
        "Use iptables-nft, and unload the modules of the legacy tables.";

    /// Modules of ebtables-legacy's tables are loaded. Asking for a table would make it.
    AX205 Ebtables { table: String }
        "packet filter: {table}" of table
        = "table of ebtables-legacy",
        "Use ebtables-nft, and unload the modules of the legacy tables.";

    /// IPVS has services: it takes packets at netfilter's hooks.
    AX206 Ipvs {}
        "packet filter: IPVS"
        = "IPVS",
        "Remove the services: `ipvsadm -C`.";

    /// A function at a hook of netfilter that no chain, program or known module explains.
    AX207 UnexplainedHook { hook: String }
        "packet filter: {hook}" of hook
        = "unknown function at a netfilter hook",
        "Unload the module that the function is of.";

    /// tc filters may see, change or redirect packets on this device.
    AX208 TcFilters { device: String, qdisc: String }
        "{device}: tc filters ({qdisc} qdisc)" of device
        = "tc filters",
        "Remove the qdisc where it is not needed: `tc qdisc del dev DEV clsact`.";

    /// A program of somebody else is at a tcx hook of this device.
    AX209 TcxProgram { device: String }
        "{device}: another program at its tcx hooks" of device
        = "tcx program of others",
        "Detach the program (`bpftool net` names it).";

    /// An XDP program sees packets before the fast path, and is not asked by it elsewhere.
    AX210 Xdp { device: String }
        "{device}: XDP program" of device
        = "XDP program",
        "Detach the program: `ip link set DEV xdp off`.";

    /// A BPF program at a netfilter hook. The kernel does not tell in which namespace, so it
    /// is a reason in each.
    AX211 BpfNetfilter { family: &'static str, hook: u32, link: u32 }
        "BPF program at netfilter hook {family} {hook}, link {link}"
        = "BPF program at a netfilter hook",
        "Detach the program (`bpftool link` names it).";

    /// A BPF program at a security module's hook about packets, or one that changes what a
    /// function of the kernel answers.
    AX212 BpfFunction { function: String, link: u32 }
        "BPF program at {function}, link {link}"
        = "BPF program at a kernel function",
        "Detach the program (`bpftool link` names it).";

    /// Without a list of BPF links, and without the kernel's list of hooks, programs of others
    /// may be anywhere.
    AX213 LinksHidden {}
        "BPF links cannot be listed: that needs CAP_SYS_ADMIN"
        = "BPF links cannot be listed",
        "Run `overlane accel` with CAP_SYS_ADMIN, or on a kernel with CONFIG_NETFILTER_NETLINK_HOOK.";

    /// A BPF program chooses which socket takes a packet, so perhaps not the VXLAN device's.
    AX214 SocketLookup {}
        "BPF program that chooses sockets (sk_lookup)"
        = "BPF program that chooses sockets",
        "Detach the program (`bpftool link` names it).";

    /// A security module with functions of its own at netfilter's hooks, or an unknown one.
    AX215 SecurityModule { module: String }
        "security module {module}" of module
        = "security module",
        "Boot without the module (`lsm=`).";

    /// IPsec policies may encrypt or drop packets.
    AX216 Ipsec {}
        "IPsec policies"
        = "IPsec policies",
        "Remove the policies where they are not needed: `ip xfrm policy`.";

    /// Packets that are routed to the tunnel come to packet filters, and programs cannot look
    /// up connections: nf_conntrack was not there when the fast path started.
    AX217 NoConnections {}
        "packet filters, and no connection tracking that programs can ask"
        = "no connection tracking for programs",
        "Load the module nf_conntrack before `overlane accel` starts.";

    /// The kernel tells of rules of nftables something that is not known here, and that may
    /// concern any packet.
    AX218 RulesNotUnderstood { what: String }
        "packet filter: not understood: {what}"
        = "rules that are not understood",
        "Use a newer overlane.";

    /// A routing rule beyond the kernel's three: the way may depend on more than the address.
    AX301 PolicyRouting { rule: String }
        "policy routing: {rule}" of rule
        = "policy routing",
        "Remove the rule where it is not needed: `ip rule del`.";

    /// The same for IPv6, where the kernel has two.
    AX302 PolicyRoutingIpv6 { rule: String }
        "policy routing of IPv6: {rule}" of rule
        = "policy routing of IPv6",
        "Remove the rule where it is not needed: `ip -6 rule del`.";

    /// A remote VTEP of another family than the VXLAN device's underlay.
    AX303 OtherFamily {}
        "of another family than its VXLAN device"
        = "remote VTEP of another family",
        "Correct the forwarding entry (`bridge fdb`).";

    /// The remote VTEP's address is of a kind for which the kernel decides more than a route
    /// tells.
    AX304 RemoteAddress { kind: &'static str }
        "{kind}"
        = "kind of the remote VTEP's address",
        "Use a global address.";

    /// No unicast route leads to the remote VTEP: the kernel would drop the packets.
    AX305 NoRoute { family: Family }
        "no unicast {family} route"
        = "no route",
        "Add a route to the remote VTEP.";

    /// A route that may cover the address has something that no single next hop tells:
    /// several next hops, an encapsulation, a type of service, a locked MTU.
    AX306 OddRoute { what: String }
        "a route with {what}"
        = "route with more than a next hop",
        "Give the remote VTEP a plain route of its own.";

    /// The VXLAN device's link is in a VRF, so that its routes are another table's.
    AX307 Vrf { device: String, kind: String }
        "{device}: belongs to a device of kind {kind}, a VRF or another" of device
        = "VXLAN device on a link in a VRF",
        "Take the link out of the VRF, or create the VXLAN device without `dev`.";

    /// The route leads to a device that the last reading did not have.
    AX308 NicUnknown {}
        "its NIC is unknown"
        = "unknown NIC",
        "None is needed: the next reading has it.";

    /// The route to the remote VTEP leads into a tunnel, or into this tunnel's bridge.
    AX309 LeadsInto { device: String }
        "its route leads into {device}" of device
        = "route into a tunnel",
        "Route the remote VTEP by a NIC.";

    /// The underlay's device has no Ethernet headers.
    AX310 NicWithoutEthernet { nic: String }
        "{nic}: no Ethernet" of nic
        = "NIC without Ethernet",
        "Route the remote VTEP by an Ethernet device.";

    /// The underlay's device belongs to a bridge, bond or VRF, through which packets go on.
    AX311 NicEnslaved { nic: String }
        "{nic}: port of a bridge, bond or VRF" of nic
        = "NIC is a port",
        "Route the remote VTEP by a device of its own.";

    /// The kernel names no source address for the tunnel's datagrams.
    AX312 NoSource {}
        "no source address"
        = "no source address",
        "Give the VXLAN device an address (`local`), or the NIC one.";

    /// The host has several IPv6 addresses, the VXLAN device none of its own. Which one the
    /// kernel takes, no route tells (RFC 6724).
    AX313 SeveralSources {}
        "it has no address of its own, and the host several"
        = "several source addresses",
        "Give the VXLAN device an address (`local`).";

    /// The VXLAN device's own address is none of this host.
    AX314 ForeignSource { local: IpAddr }
        "{local} is not an address of this host" of local
        = "own address that is not here",
        "Add the address, or correct `local` of the VXLAN device.";

    /// The host does not take what the remote VTEP sends by this NIC: a local route is
    /// missing, or rp_filter drops it.
    AX315 NotTaken { local: IpAddr, nic: String }
        "packets from it to {local} by {nic} are not taken (local route or rp_filter)" of nic
        = "packets of the remote VTEP are not taken",
        "Let the route to the remote VTEP lead by the NIC that its packets come by, or set rp_filter to 2.";

    /// The next hop's Ethernet address is not known: the kernel would ask for it first.
    AX316 NoNeighbour { hop: IpAddr }
        "{hop}: no usable neighbour entry" of hop
        = "no neighbour entry",
        "None is needed where the next hop answers: the first packets make the kernel ask. Else look for the host.";

    /// The underlay NIC has IPv6 disabled.
    AX317 Ipv6Disabled { nic: String }
        "{nic}: IPv6 is disabled" of nic
        = "IPv6 disabled on the NIC",
        "Enable it: `sysctl net.ipv6.conf.NIC.disable_ipv6=0`.";

    /// Of several next hops a flow's is chosen by a hash that programs do not see; other
    /// routes have more than a next hop, too.
    AX401 OddTenantRoute { network: IpAddr, length: u8, what: &'static str }
        "routing: {network}/{length} has {what}" of network
        = "route of the tenants with more than a next hop",
        "Replace the route by a plain one.";

    /// A program's look-up takes no notice of a route's MTU that is not locked.
    AX402 RouteMtu { device: String }
        "{device}: a route with an MTU of its own" of device
        = "route with an MTU",
        "Set the MTU at the device, and remove it from the route.";

    /// The host does not forward packets that come by this device.
    AX403 ForwardingOff { device: String, family: Family }
        "{device}: {family} forwarding is off" of device
        = "device does not forward",
        "Switch forwarding on: `sysctl net.ipv4.conf.DEV.forwarding=1`, or of `net.ipv6`.";

    /// The host forwards no IPv6. IPv4 packets are taken.
    AX404 Ipv6ForwardingOff {}
        "IPv6 forwarding is off"
        = "no IPv6 forwarding",
        "Where tenants use IPv6: `sysctl net.ipv6.conf.all.forwarding=1`.";

    /// A proxy of neighbour discovery takes solicitations that others would forward. IPv4
    /// packets are taken.
    AX405 NeighbourProxy {}
        "neighbour discovery proxy"
        = "neighbour discovery proxy",
        "Where tenants use IPv6: `sysctl net.ipv6.conf.all.proxy_ndp=0`.";

    /// An IPv6 route has more than a next hop. IPv4 packets are taken.
    AX406 OddIpv6Route { what: &'static str }
        "an IPv6 route with {what}"
        = "IPv6 route with more than a next hop",
        "Replace the route by a plain one.";

    /// The tenant's address is that of the veth pair's other end, which is not known here.
    AX407 UnknownPeer {}
        "its other end is in no other namespace that is known here"
        = "unknown end of a veth pair",
        "Let the other end be in another namespace that the kernel has numbered here.";
}
