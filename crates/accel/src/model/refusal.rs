//! Refusals: why a device, port or remote VTEP takes the slow path. Each has a stable code,
//! evidence and a remedy.
//!
//! A code is never reused: when a refusal is dropped from the list, its code moves to [`RETIRED`].
//! The first digit names the subject: 0 the VXLAN device, 1 bridges and their ports, 2 packet
//! filters and foreign programs, 3 the underlay, 4 routed tenants.

use std::net::IpAddr;

use super::{Explanation, Family, RuleEffect, SelinuxReason};

/// Codes that are no longer in use.
pub const RETIRED: &[&str] = &[];

macro_rules! refusals {
    ($(
        $(#[doc = $doc:literal])+
        $code:ident $variant:ident { $($field:ident : $type:ty),* }
            $words:literal
            $(of $object:ident)?
            = $title:literal,
            $remedy:literal;
    )+) => {
        /// Why something takes the slow path. `Display` writes the evidence.
        // The placeholders in each variant's text are its fields.
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
            /// Stable code, `AX001` …
            pub fn code(&self) -> &'static str {
                match self { $(Refusal::$variant { .. } => stringify!($code),)+ }
            }

            /// Name of the cause, unless the refused device itself is the cause.
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

impl Explanation {
    /// Returns the explanation with this code, which may be in upper or lower case.
    pub fn of(code: &str) -> Option<&'static Explanation> {
        EXPLANATIONS.iter().find(|known| known.code.eq_ignore_ascii_case(code))
    }
}

impl Refusal {
    /// Documentation of this refusal's code.
    pub fn explanation(&self) -> &'static Explanation {
        // The variants and the list come from the same macro call, so the fallback is never used.
        Explanation::of(self.code()).unwrap_or(&EXPLANATIONS[0])
    }
}

refusals! {
    /// The VXLAN device has an option that changes its packets or their path, and the fast path
    /// does not implement the option.
    AX001 VxlanOption { option: &'static str }
        "VXLAN option {option}"
        = "option of the VXLAN device",
        "Create the VXLAN device without the option.";

    /// The kernel reports an attribute of the VXLAN device that this version of overlane does not
    /// know.
    AX002 UnknownVxlanAttribute { number: u16 }
        "unknown VXLAN attribute {number}"
        = "unknown VXLAN attribute",
        "Upgrade overlane.";

    /// The VXLAN device's own address is of a kind that the kernel does not handle by routes alone.
    AX003 OwnAddress { kind: &'static str }
        "its local address is {kind}"
        = "unsupported local address",
        "Give the VXLAN device a global address (`local`).";

    /// The VXLAN device is in this namespace, but its underlay is in another one.
    AX004 UnderlayElsewhere {}
        "its underlay is in another namespace; run accel there"
        = "underlay in another namespace",
        "Run `overlane accel` in the namespace of the underlay NIC.";

    /// The VXLAN device is down, so the kernel would drop its packets.
    AX005 DeviceDown {}
        "it is down"
        = "VXLAN device is down",
        "Bring the device up: `ip link set DEV up`.";

    /// The veth pair between the sandbox and the namespace of the NICs could not be created.
    AX006 NoCrossing { problem: String }
        "{problem}"
        = "cannot create the veth pair to the sandbox",
        "Fix the error that the evidence reports, then run `accel on` again.";

    /// The fast path identifies a VXLAN device by VNI and UDP port. Another device has the same
    /// pair and reaches its remote VTEPs differently.
    AX007 VniTaken { vni: u32, port: u16 }
        "VNI {vni} on port {port} belongs to another device"
        = "VNI and port are already in use",
        "Give each VXLAN device of the host a unique pair of VNI and port.";

    /// The fast path receives a VXLAN device's packets on one NIC and one local address only.
    AX008 SeveralUnderlays {}
        "remote VTEPs are reached through several NICs or local addresses"
        = "several NICs or local addresses",
        "Route all remote VTEPs through one NIC, and set the VXLAN device's `local` address.";

    /// A routed VXLAN device can be accelerated only in the namespace of its NIC.
    AX009 RoutedInSandbox {}
        "routed, and not in the namespace of its NIC"
        = "routed VXLAN device in a sandbox",
        "Add the VXLAN device to a bridge.";

    /// The fast path would bypass this queueing discipline.
    AX010 QueueingDiscipline { device: String, qdisc: String }
        "{device}: queueing discipline {qdisc}" of device
        = "queueing discipline",
        "Remove it: `tc qdisc del dev DEV root`.";

    /// The VXLAN device is a port of a bond, team, VRF or another device that is not a bridge.
    AX011 NoBridge { device: String }
        "{device}: port of a device that is not a bridge" of device
        = "port of a device that is not a bridge",
        "Add the VXLAN device to a bridge, or remove it from its master.";

    /// The bridge filters VLANs. The fast path does not implement VLAN tags.
    AX101 VlanFiltering { bridge: String }
        "{bridge}: VLAN filtering is on" of bridge
        = "VLAN filtering",
        "If no VLAN is in use, turn it off: `ip link set BRIDGE type bridge vlan_filtering 0`.";

    /// The kernel reports an attribute of a bridge or port that this version of overlane does not
    /// know.
    AX102 UnknownBridgeAttribute { device: String, of: &'static str, number: u16 }
        "{device}: unknown {of} attribute {number}" of device
        = "unknown bridge attribute",
        "Upgrade overlane.";

    /// The bridge has an option that changes which frames it forwards.
    AX103 BridgeOption { bridge: String, option: &'static str }
        "{bridge}: bridge option {option}" of bridge
        = "bridge option",
        "Turn the option off.";

    /// A device on the path is down or has no carrier, so the kernel would drop the packets.
    AX104 LinkDown { device: String }
        "{device} is down or has no carrier" of device
        = "device on the path is down",
        "Bring up the device and its peer.";

    /// The tenant's device is down or has no carrier.
    AX105 PortDown {}
        "it is down or has no carrier"
        = "tenant's device is down",
        "Bring up the device and its peer.";

    /// The tenant's device has no Ethernet headers.
    AX106 PortWithoutEthernet {}
        "not an Ethernet device"
        = "tenant's device is not Ethernet",
        "Use an Ethernet device.";

    /// The kernel does not report the device as a bridge port.
    AX107 NoBridgePort { device: String }
        "{device}: not a bridge port" of device
        = "not a bridge port",
        "Remove the device from the bridge and add it again.";

    /// Spanning tree has not put the port into the forwarding state.
    AX108 NotForwarding { device: String }
        "{device}: not in the forwarding state" of device
        = "port is not forwarding",
        "Wait for spanning tree, or remove the loop that blocks the port.";

    /// The bridge port has an option that changes which frames it accepts or sends.
    AX109 BridgePortOption { device: String, option: &'static str }
        "{device}: bridge port option {option}" of device
        = "bridge port option",
        "Turn the option off: `bridge link set dev DEV OPTION off`.";

    /// The fast path would bypass this base chain, which filters the packets inside the tunnel, or
    /// sits at a hook that overlane does not evaluate.
    AX201 BaseChain { chain: String }
        "packet filter: nftables {chain}" of chain
        = "nftables base chain",
        "Remove the chain if it is not needed. In a sandbox, turning off br_netfilter's calls also helps.";

    /// An nftables rule may do more to the tunnel's packets than count or accept them, or contains
    /// an expression that overlane does not know.
    AX202 Rule { rule: String, effect: RuleEffect }
        "packet filter: nftables {rule}: {effect}" of rule
        = "nftables rule",
        "Accept the tunnel's UDP port before this rule, or exclude the port in the rule.";

    /// A flowtable forwards connections past every check that overlane makes.
    AX203 Flowtable { table: String }
        "packet filter: {table}" of table
        = "nftables flowtable",
        "Remove the flowtable.";

    /// Tables of iptables-legacy cannot be read without changing them, so their effect is unknown.
    AX204 LegacyTable { table: String }
        "packet filter: {table}" of table
        = "iptables-legacy table",
        "Switch to iptables-nft and unload the modules of the legacy tables.";

    /// Modules of ebtables-legacy tables are loaded. Reading a table would create it, so its effect
    /// is unknown.
    AX205 Ebtables { table: String }
        "packet filter: {table}" of table
        = "ebtables-legacy table",
        "Switch to ebtables-nft and unload the modules of the legacy tables.";

    /// IPVS has services, and takes packets at netfilter hooks.
    AX206 Ipvs {}
        "packet filter: IPVS"
        = "IPVS services",
        "Remove the services: `ipvsadm -C`.";

    /// A function is registered at a netfilter hook, and belongs to no chain, program or module
    /// that overlane knows.
    AX207 UnexplainedHook { hook: String }
        "packet filter: {hook}" of hook
        = "unknown function at a netfilter hook",
        "Unload the module that registered the function.";

    /// tc filters may read, change or redirect packets on this device.
    AX208 TcFilters { device: String, qdisc: String }
        "{device}: tc filters ({qdisc} qdisc)" of device
        = "tc filters",
        "If the qdisc is not needed, remove it: `tc qdisc del dev DEV clsact`.";

    /// A foreign program is attached to a tcx hook of this device.
    AX209 TcxProgram { device: String }
        "{device}: foreign program at a tcx hook" of device
        = "foreign tcx program",
        "Detach the program (`bpftool net` lists it).";

    /// An XDP program sees packets before the fast path does. The fast path does not call it.
    AX210 Xdp { device: String }
        "{device}: XDP program" of device
        = "XDP program",
        "Detach the program: `ip link set DEV xdp off`.";

    /// A BPF program is attached to a netfilter hook. The kernel does not report the namespace, so
    /// every namespace is refused.
    AX211 BpfNetfilter { family: &'static str, hook: u32, link: u32 }
        "BPF program at netfilter hook {family} {hook}, link {link}"
        = "BPF program at a netfilter hook",
        "Detach the program (`bpftool link` lists it).";

    /// A BPF program is attached to a packet hook of the security framework (LSM), or to a kernel
    /// function whose result it may change.
    AX212 BpfFunction { function: String, link: u32 }
        "BPF program at {function}, link {link}"
        = "BPF program at a kernel function",
        "Detach the program (`bpftool link` lists it).";

    /// BPF links and netfilter hooks cannot be listed, so a foreign program may be attached
    /// anywhere.
    AX213 LinksHidden {}
        "cannot list BPF links without CAP_SYS_ADMIN"
        = "cannot list BPF links",
        "Run `overlane accel` with CAP_SYS_ADMIN, or use a kernel with CONFIG_NETFILTER_NETLINK_HOOK.";

    /// A BPF program selects the socket that receives a packet, so packets may not reach the VXLAN
    /// device.
    AX214 SocketLookup {}
        "BPF program selects sockets (sk_lookup)"
        = "BPF socket lookup program",
        "Detach the program (`bpftool link` lists it).";

    /// A security module registers its own functions at netfilter hooks, or is not known to
    /// overlane.
    AX215 SecurityModule { module: String }
        "security module {module}" of module
        = "security module",
        "Boot without the module (kernel parameter `lsm=`).";

    /// IPsec policies may encrypt or drop packets.
    AX216 Ipsec {}
        "IPsec policies"
        = "IPsec policies",
        "If the policies are not needed, remove them: `ip xfrm policy`.";

    /// Packets that are routed to the tunnel pass packet filters, but BPF programs cannot look up
    /// connections because nf_conntrack was not loaded when the fast path started.
    AX217 NoConnections {}
        "packet filters, but no connection lookup for BPF programs"
        = "no connection lookup for BPF programs",
        "Load the module nf_conntrack, then restart `overlane accel`.";

    /// The kernel reports nftables content that overlane does not support and that may apply to
    /// any packet.
    AX218 RulesNotUnderstood { what: String }
        "packet filter: unsupported: {what}"
        = "unsupported nftables content",
        "Upgrade overlane.";

    /// SELinux may check, label or drop packets, or its state is unknown. It does nothing to them
    /// if no rule, label or policy for labelled networking exists on the whole machine.
    AX219 Selinux { reason: SelinuxReason }
        "SELinux: {reason}"
        = "SELinux decides on packets",
        "Remove what the evidence names. NetLabel: `netlabelctl cipsov4 list`, `netlabelctl calipso list`, `netlabelctl unlbl list`. SECMARK, in every namespace: `nft list secmarks`, `iptables-save -t security`, `iptables-save -t mangle`. IPsec: `ip xfrm policy`, `ip xfrm state`. If addresses are hidden, start `overlane accel` with CAP_SYSLOG.";

    /// An XDP program in generic mode at the other end of a veth pair. The kernel does not run it for
    /// redirected packets, such as those of the fast path. In native mode it does.
    AX220 PeerXdp { device: String, peer: String }
        "{device}: generic XDP program at its veth peer {peer}" of device
        = "generic XDP program at a veth peer",
        "Attach the program in native mode (`xdpdrv`), or detach it, in the peer's namespace.";

    /// A macvlan or macvtap device above this device takes frames before the host does. The fast path
    /// takes them earlier.
    AX221 Macvlan { device: String, macvlan: String, mode: &'static str }
        "{device}: {macvlan} above it is a macvlan in mode {mode}" of device
        = "macvlan device that takes all frames",
        "Remove the macvlan device, or create it in mode `bridge`.";

    /// Something requests all frames of the device, and nothing in this namespace explains it. It may
    /// be a macvlan device in mode `passthru` in another namespace.
    AX222 Promiscuous { device: String }
        "{device}: all its frames are requested for an unknown reason (promiscuity)" of device
        = "device is promiscuous",
        "Find the macvlan device above it in another namespace (`ip -d link`), and remove it or create it in mode `bridge`.";

    /// Conntrack counts the packets of each connection, and rules may match its counters, also rules
    /// that are added later. Or `accel` was started with `--accounting`, and there are rules. The fast
    /// path bypasses these counters.
    AX223 Accounting { why: &'static str }
        "{why}"
        = "packets are counted",
        "If nothing needs exact counters, start `overlane accel` with `--no-accounting`, or turn them off: `sysctl net.netfilter.nf_conntrack_acct=0`.";

    /// The bridge is in a VRF, and IP rules may see its packets: by br_netfilter, or because a VXLAN
    /// device of the namespace routes packets. Rules that match routes or types of addresses use the
    /// VRF's routing table.
    AX224 BridgeInVrf { bridge: String, master: String, why: &'static str }
        "{bridge}: it is in {master}, and {why}" of bridge
        = "bridge in a VRF",
        "Take the bridge out of the VRF. If br_netfilter is the reason, turning off its calls also helps: `sysctl net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0`.";

    /// There is a routing rule beyond the kernel's three default rules, so the path may depend on
    /// more than the address. The rule of VRFs (`l3mdev`) is accepted: it affects only packets that
    /// enter or leave through a VRF.
    AX301 PolicyRouting { rule: String }
        "policy routing: {rule}" of rule
        = "policy routing",
        "If the rule is not needed, remove it: `ip rule del`.";

    /// There is an IPv6 routing rule beyond the kernel's two default rules, so the path may depend
    /// on more than the address. The rule of VRFs (`l3mdev`) is accepted.
    AX302 PolicyRoutingIpv6 { rule: String }
        "IPv6 policy routing: {rule}" of rule
        = "IPv6 policy routing",
        "If the rule is not needed, remove it: `ip -6 rule del`.";

    /// The remote VTEP and the VXLAN device's underlay are of different IP families.
    AX303 OtherFamily {}
        "not in its VXLAN device's IP family"
        = "remote VTEP of another IP family",
        "Correct the forwarding entry (`bridge fdb`).";

    /// The remote VTEP's address is of a kind that the kernel does not handle by routes alone.
    AX304 RemoteAddress { kind: &'static str }
        "{kind} address"
        = "unsupported remote address",
        "Use a global unicast address.";

    /// There is no unicast route to the remote VTEP, so the kernel would drop the packets.
    AX305 NoRoute { family: Family }
        "no unicast {family} route"
        = "no route to the remote VTEP",
        "Add a route to the remote VTEP.";

    /// A route that may cover the address is more than a single next hop: it has several next hops,
    /// an encapsulation, a type of service or a locked MTU.
    AX306 OddRoute { what: String }
        "a route has {what}"
        = "unsupported route",
        "Add a plain host route to the remote VTEP.";

    /// The VXLAN device's link is a VRF or in one, so that another table holds its routes.
    AX307 Vrf { device: String, kind: String }
        "{device}: it or a master of it is a {kind}" of device
        = "VXLAN device's link is in a VRF",
        "Take the link out of the VRF, or create the VXLAN device without `dev`.";

    /// The route leads to a device that did not exist at the last read.
    AX308 NicUnknown {}
        "its NIC is unknown"
        = "NIC is unknown",
        "Wait for the next read.";

    /// The route to the remote VTEP leads into a tunnel, a VRF or this tunnel's own bridge.
    AX309 LeadsInto { device: String }
        "its route leads into {device}" of device
        = "route into a tunnel or VRF",
        "Route the remote VTEP through a NIC.";

    /// The underlay device has no Ethernet headers.
    AX310 NicWithoutEthernet { nic: String }
        "{nic}: not an Ethernet device" of nic
        = "NIC is not Ethernet",
        "Route the remote VTEP through an Ethernet device.";

    /// The underlay device is a port of a bridge, bond or VRF, which processes its packets further.
    AX311 NicEnslaved { nic: String }
        "{nic}: port of a bridge, bond or VRF" of nic
        = "NIC is a port of another device",
        "Route the remote VTEP through a device that is not a port.";

    /// The kernel selects no source address for the tunnel's packets.
    AX312 NoSource {}
        "no source address"
        = "no source address",
        "Set the VXLAN device's `local` address, or add an address to the NIC.";

    /// The host has several IPv6 addresses and the VXLAN device has no `local` address. Routes do
    /// not determine which one the kernel selects (RFC 6724).
    AX313 SeveralSources {}
        "no local address, and the host has several"
        = "several source addresses",
        "Set the VXLAN device's `local` address.";

    /// The VXLAN device's `local` address is not an address of this host.
    AX314 ForeignSource { local: IpAddr }
        "{local} is not an address of this host" of local
        = "local address is not on this host",
        "Add the address, or correct the VXLAN device's `local` address.";

    /// The host does not accept packets from the remote VTEP on this NIC: the local route is
    /// missing, or rp_filter drops them.
    AX315 NotTaken { local: IpAddr, nic: String }
        "packets from it to {local} on {nic} are not accepted (local route or rp_filter)" of nic
        = "packets from the remote VTEP are not accepted",
        "Route the remote VTEP through the NIC that receives its packets, or set rp_filter to 2.";

    /// The next hop's Ethernet address is unknown, so the kernel would have to resolve it first.
    AX316 NoNeighbour { hop: IpAddr }
        "{hop}: no usable neighbour entry" of hop
        = "no neighbour entry",
        "None, if the next hop answers: the first packets make the kernel resolve it. Otherwise check that host.";

    /// IPv6 is disabled on the underlay NIC.
    AX317 Ipv6Disabled { nic: String }
        "{nic}: IPv6 is disabled" of nic
        = "IPv6 disabled on the NIC",
        "Enable it: `sysctl net.ipv6.conf.NIC.disable_ipv6=0`.";

    /// The route has more than a single next hop. With several next hops, the kernel selects one by
    /// a hash that BPF programs cannot see.
    AX401 OddTenantRoute { network: IpAddr, length: u8, what: &'static str }
        "routing: {network}/{length} has {what}" of network
        = "unsupported route to tenants",
        "Replace it with a plain route.";

    /// The route lookup of BPF programs ignores a route's MTU unless it is locked.
    AX402 RouteMtu { device: String }
        "{device}: a route sets an MTU" of device
        = "route sets an MTU",
        "Set the MTU on the device and remove it from the route.";

    /// The host does not forward packets that arrive on this device.
    AX403 ForwardingOff { device: String, family: Family }
        "{device}: {family} forwarding is off" of device
        = "forwarding is off",
        "Turn on forwarding: `sysctl net.ipv4.conf.DEV.forwarding=1`, or the same in `net.ipv6`.";

    /// The host forwards no IPv6 packets. IPv4 packets are still accelerated.
    AX404 Ipv6ForwardingOff {}
        "IPv6 forwarding is off"
        = "IPv6 forwarding is off",
        "If tenants use IPv6: `sysctl net.ipv6.conf.all.forwarding=1`.";

    /// The neighbour discovery proxy answers solicitations that the host would otherwise forward.
    /// IPv4 packets are still accelerated.
    AX405 NeighbourProxy {}
        "neighbour discovery proxy is on"
        = "neighbour discovery proxy",
        "If tenants do not need the proxy: `sysctl net.ipv6.conf.all.proxy_ndp=0`.";

    /// An IPv6 route has more than a single next hop. IPv4 packets are still accelerated.
    AX406 OddIpv6Route { what: &'static str }
        "an IPv6 route has {what}"
        = "unsupported IPv6 route",
        "Replace it with a plain route.";

    /// The tenant's address belongs to the veth peer, which overlane cannot find.
    AX407 UnknownPeer {}
        "its veth peer is in an unknown namespace"
        = "unknown veth peer",
        "Put the peer into a namespace that has an id here (`ip netns set`).";
}
