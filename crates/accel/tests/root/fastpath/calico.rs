//! Nodes of Calico in VXLAN mode: `vxlan.calico`, pods alone on `cali*` devices with proxy ARP and
//! the gateway 169.254.1.1, and the rules of felix.
//!
//! The rules follow felix's source (`felix/rules`, version 3.30) for a node with one pod, without
//! host endpoints.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use accel::status::Refused;
use accel::{Accel, Status, Wanted};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use test_support::{need, require};
use testbed::{Host, NIC, Offload, Wire, mac};

use super::pair::{Pair, TENANT_A, TENANT_B, sh, since};
use super::refusals::refused;
use super::underlay::Underlay;

const DEVICE: &str = "vxlan.calico";
/// Names of the pods' devices: `cali` and part of a hash.
const PODS: [&str; 2] = ["cali839f4f93e61", "calic30bcf0776f"];
/// Address blocks of the nodes, whose first address is that of their VXLAN device.
const BLOCKS: [(Ipv4Addr, u8); 2] =
    [(Ipv4Addr::new(10, 1, 0, 8), 30), (Ipv4Addr::new(10, 1, 0, 12), 31)];

/// Address of a node's VXLAN device.
fn tunnel(node: usize) -> Ipv4Addr {
    [Ipv4Addr::new(10, 1, 0, 8), Ipv4Addr::new(10, 1, 0, 13)][node]
}

/// Two nodes with a pod each, as felix and Calico's CNI plug-in set them up.
fn nodes() -> Pair {
    let host = |name| Host::new(name).unwrap();
    let pair = Pair {
        a: host("a"),
        b: host("b"),
        tenant_a: host("tenant-a"),
        tenant_b: host("tenant-b"),
        sandboxes: None,
    };
    Underlay::V4.join(&pair.a, &pair.b, Offload::Full, false);
    for (node, here, there, pod, address) in [
        (0, &pair.a, &pair.b, &pair.tenant_a, TENANT_A),
        (1, &pair.b, &pair.a, &pair.tenant_b, TENANT_B),
    ] {
        let (device, other) = (PODS[node], 1 - node);
        let (own_ip, other_ip) = (tunnel(node), tunnel(other));
        let (local, remote) = ([Wire::A, Wire::B][node], [Wire::A, Wire::B][other]);
        let (own_mac, other_mac) = (mac(here.name(), DEVICE), mac(there.name(), DEVICE));
        let ((own_block, own_bits), (block, bits)) = (BLOCKS[node], BLOCKS[other]);
        here.forward().unwrap();
        here.connect(device, pod, "eth0", 1450).unwrap();
        sh(
            here,
            &format!(
                "ip link add {DEVICE} address {own_mac} type vxlan id 4096 local {local} dev {NIC} \
                     dstport 4789 nolearning udpcsum
                 ip link set {DEVICE} mtu 1450 up
                 ip address add {own_ip}/32 dev {DEVICE}
                 ip route add default via {remote} dev {NIC}
                 ip route add blackhole {own_block}/{own_bits} proto 80
                 ip route add {block}/{bits} via {other_ip} dev {DEVICE} onlink proto 80
                 ip neighbour add {other_ip} lladdr {other_mac} dev {DEVICE} nud permanent
                 bridge fdb add {other_mac} dev {DEVICE} dst {remote} self permanent
                 ip link set {device} address ee:ee:ee:ee:ee:ee
                 sysctl -qw net.ipv4.conf.{device}.proxy_arp=1
                 sysctl -qw net.ipv4.neigh.{device}.proxy_delay=0
                 sysctl -qw net.ipv4.conf.{device}.route_localnet=1
                 sysctl -qw net.ipv4.conf.{device}.rp_filter=1
                 ip route add {address}/32 dev {device} scope link proto 80"
            ),
        );
        sh(
            pod,
            &format!(
                "ip address add {address}/32 dev eth0
                 ip route add 169.254.1.1 dev eth0 scope link
                 ip route add default via 169.254.1.1 dev eth0"
            ),
        );
    }
    pair
}

/// felix's table in nftables mode, for a node with this pod and this other node.
fn nftables(device: &str, other: Ipv4Addr) -> String {
    let dispatch = |way: &str, prefix: &str| {
        format!(
            "map filter-cali-{way}-wl-dispatch {{
                type ifname : verdict
                elements = {{ \"{device}\" : goto filter-cali-{prefix}-{device} }}
            }}"
        )
    };
    // Chains of a pod: `fw` for its packets, `tw` for packets to it.
    let pod = |prefix: &str, profile: &str, drops: &str| {
        format!(
            "chain filter-cali-{prefix}-{device} {{
                ct state established,related counter accept
                ct state invalid counter drop
                meta mark set meta mark & 0xfffcffff counter
                {drops}
                jump filter-cali-{profile}-kns.default
                meta mark & 0x00010000 == 0x00010000 counter return comment \"Return if profile accepted\"
                counter drop comment \"Drop if no profiles matched\"
            }}
            chain filter-cali-{profile}-kns.default {{
                meta mark set meta mark | 0x00010000 counter
            }}"
        )
    };
    format!(
        "nft -f - <<'END'
        table ip calico {{
            set cali40all-ipam-pools {{ type ipv4_addr; flags interval; elements = {{ 10.1.0.0/24 }}; }}
            set cali40masq-ipam-pools {{ type ipv4_addr; flags interval; elements = {{ 10.1.0.0/24 }}; }}
            set cali40all-vxlan-net {{ type ipv4_addr; flags interval; elements = {{ {other} }}; }}
            {fw}
            {tw}
            chain raw-PREROUTING {{
                type filter hook prerouting priority raw; policy accept;
                jump raw-cali-PREROUTING
            }}
            chain raw-cali-PREROUTING {{
                meta mark set meta mark & 0xfff0ffff counter
                iifname \"cali*\" meta mark set meta mark | 0x00040000 counter
                meta mark & 0x00040000 == 0x00040000 jump raw-cali-rpf-skip
                meta mark & 0x00040000 == 0x00040000 fib saddr . mark . iif oif 0 counter drop
                meta mark & 0x00040000 == 0 jump raw-cali-from-host-endpoint
                meta mark & 0x00010000 == 0x00010000 counter accept
            }}
            chain raw-cali-rpf-skip {{ }}
            chain raw-cali-from-host-endpoint {{ }}
            chain mangle-PREROUTING {{
                type filter hook prerouting priority mangle; policy accept;
                jump mangle-cali-PREROUTING
            }}
            chain mangle-cali-PREROUTING {{
                ct state established,related counter accept
                meta mark & 0x00010000 == 0x00010000 counter accept
                jump mangle-cali-from-host-endpoint
                meta mark & 0x00010000 == 0x00010000 counter accept comment \"Host endpoint policy accepted packet.\"
            }}
            chain mangle-cali-from-host-endpoint {{ }}
            chain mangle-POSTROUTING {{
                type filter hook postrouting priority mangle; policy accept;
                jump mangle-cali-POSTROUTING
            }}
            chain mangle-cali-POSTROUTING {{
                meta mark & 0x00010000 == 0x00010000 counter return
                meta mark set meta mark & 0xfff0ffff counter
                ct status dnat jump mangle-cali-to-host-endpoint
                meta mark & 0x00010000 == 0x00010000 counter return comment \"Host endpoint policy accepted packet.\"
            }}
            chain mangle-cali-to-host-endpoint {{ }}
            chain nat-PREROUTING {{
                type nat hook prerouting priority dstnat; policy accept;
                jump nat-cali-PREROUTING
            }}
            chain nat-cali-PREROUTING {{ jump nat-cali-fip-dnat; }}
            chain nat-cali-fip-dnat {{ }}
            chain nat-OUTPUT {{
                type nat hook output priority -100; policy accept;
                jump nat-cali-OUTPUT
            }}
            chain nat-cali-OUTPUT {{ jump nat-cali-fip-dnat; }}
            chain nat-POSTROUTING {{
                type nat hook postrouting priority srcnat; policy accept;
                jump nat-cali-POSTROUTING
            }}
            chain nat-cali-POSTROUTING {{
                jump nat-cali-fip-snat
                jump nat-cali-nat-outgoing
                oifname \"{DEVICE}\" fib saddr . oif type != local fib saddr type local counter masquerade fully-random
            }}
            chain nat-cali-fip-snat {{ }}
            chain nat-cali-nat-outgoing {{
                ip saddr @cali40masq-ipam-pools ip daddr != @cali40all-ipam-pools counter masquerade fully-random
            }}
            chain filter-INPUT {{
                type filter hook input priority filter; policy accept;
                jump filter-cali-INPUT
            }}
            chain filter-cali-INPUT {{
                meta l4proto udp ip saddr @cali40all-vxlan-net udp dport 4789 fib daddr type local counter accept comment \"Allow IPv4 VXLAN packets from allowed hosts\"
                meta l4proto udp udp dport 4789 fib daddr type local counter drop comment \"Drop IPv4 VXLAN packets from non-allowed hosts\"
                iifname \"cali*\" goto filter-cali-wl-to-host
                meta mark & 0x00010000 == 0x00010000 counter accept
                meta mark set meta mark & 0xfff0ffff counter
                jump filter-cali-from-host-endpoint
                meta mark & 0x00010000 == 0x00010000 counter accept comment \"Host endpoint policy accepted packet.\"
            }}
            chain filter-cali-wl-to-host {{
                jump filter-cali-from-wl-dispatch
                counter accept comment \"Configured DefaultEndpointToHostAction\"
            }}
            chain filter-cali-from-host-endpoint {{ }}
            chain filter-FORWARD {{
                type filter hook forward priority filter; policy accept;
                jump filter-cali-FORWARD
                meta mark & 0x00010000 == 0x00010000 counter accept comment \"Policy explicitly accepted packet.\"
                meta mark set meta mark | 0x00010000 counter
            }}
            chain filter-cali-FORWARD {{
                meta mark set meta mark & 0xfff1ffff counter
                meta mark & 0x00010000 == 0 jump filter-cali-from-hep-forward
                iifname \"cali*\" jump filter-cali-from-wl-dispatch
                oifname \"cali*\" jump filter-cali-to-wl-dispatch
                jump filter-cali-to-hep-forward
                jump filter-cali-cidr-block
            }}
            chain filter-cali-from-hep-forward {{ }}
            chain filter-cali-to-hep-forward {{ }}
            chain filter-cali-cidr-block {{ }}
            chain filter-cali-from-wl-dispatch {{
                iifname vmap @filter-cali-from-wl-dispatch
                counter drop comment \"Unknown interface\"
            }}
            chain filter-cali-to-wl-dispatch {{
                oifname vmap @filter-cali-to-wl-dispatch
                counter drop comment \"Unknown interface\"
            }}
            {pod_fw}
            {pod_tw}
            chain filter-OUTPUT {{
                type filter hook output priority filter; policy accept;
                jump filter-cali-OUTPUT
            }}
            chain filter-cali-OUTPUT {{
                meta mark & 0x00010000 == 0x00010000 counter accept
                oifname \"cali*\" counter return
                meta l4proto udp udp dport 4789 fib saddr type local ip daddr @cali40all-vxlan-net counter accept comment \"Allow IPv4 VXLAN packets to other allowed hosts\"
                meta mark set meta mark & 0xfff0ffff counter
                ct status ! dnat jump filter-cali-to-host-endpoint
                meta mark & 0x00010000 == 0x00010000 counter accept comment \"Host endpoint policy accepted packet.\"
            }}
            chain filter-cali-to-host-endpoint {{ }}
        }}
END",
        fw = dispatch("from", "fw"),
        tw = dispatch("to", "tw"),
        pod_fw = pod(
            "fw",
            "pro",
            "meta l4proto udp udp dport 4789 counter drop comment \"Drop VXLAN encapped packets originating in workloads\"
                meta l4proto 4 counter drop comment \"Drop IPinIP encapped packets originating in workloads\""
        ),
        pod_tw = pod("tw", "pri", ""),
    )
}

/// A set of `ipset`.
const SET: &str = "cali40all-vxlan-net";

/// Creates a set of networks with one address, as `ipset create` and `ipset add` do
/// (`linux/netfilter/ipset/ip_set.h`).
fn ipset(host: &Host, address: Ipv4Addr) {
    const NESTED: u16 = 1 << 15;
    const NETWORK_ORDER: u16 = 1 << 14;
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let name = format!("{SET}\0");
    // IPSET_ATTR_PROTOCOL, IPSET_ATTR_SETNAME.
    let head = [attribute(1, &[7]), attribute(2, name.as_bytes())].concat();
    // IPSET_ATTR_TYPENAME, _REVISION, _FAMILY, _DATA.
    let kind = [attribute(3, b"hash:net\0"), attribute(4, &[0]), attribute(5, &[2])].concat();
    let create = [head.clone(), kind, attribute(7 | NESTED, &[])].concat();
    // IPSET_ATTR_IP with IPSET_ATTR_IPADDR_IPV4, IPSET_ATTR_CIDR.
    let ip = attribute(1 | NESTED, &attribute(1 | NETWORK_ORDER, &address.octets()));
    let add = [head, attribute(7 | NESTED, &[ip, attribute(3, &[32])].concat())].concat();
    host.netns()
        .run(|| {
            let socket = socket(
                AddressFamily::Netlink,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::NetlinkNetFilter,
            )
            .unwrap();
            // IPSET_CMD_CREATE, IPSET_CMD_ADD.
            for (command, attributes) in [(2_u16, create), (9, add)] {
                let mut message = (20 + attributes.len() as u32).to_ne_bytes().to_vec();
                // NFNL_SUBSYS_IPSET; NLM_F_REQUEST and NLM_F_ACK; AF_INET.
                message.extend((6 << 8 | command).to_ne_bytes());
                message.extend(5_u16.to_ne_bytes());
                message.extend([0; 8]);
                message.extend([2, 0, 0, 0]);
                message.extend(attributes);
                send(socket.as_raw_fd(), &message, MsgFlags::empty()).unwrap();
                let mut answer = [0; 512];
                assert!(recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap() >= 20);
                let error = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
                assert_eq!(error, 0, "ipset command {command}");
            }
        })
        .unwrap();
}

/// felix's rules for the tunnel in iptables mode. They match a set.
fn iptables_of_tunnel() -> String {
    format!(
        "iptables-nft -N cali-INPUT
         iptables-nft -A INPUT -j cali-INPUT
         iptables-nft -A cali-INPUT -p udp -m comment --comment 'Allow IPv4 VXLAN packets from allowed hosts' \
             -m multiport --dports 4789 -m set --match-set {SET} src -m addrtype --dst-type LOCAL -j ACCEPT
         iptables-nft -A cali-INPUT -p udp -m comment --comment 'Drop IPv4 VXLAN packets from non-allowed hosts' \
             -m multiport --dports 4789 -m addrtype --dst-type LOCAL -j DROP"
    )
}

/// Refusals but that of IPv6, which these nodes do not forward.
fn refusals(status: &Status) -> Vec<String> {
    let refused = status.refusals().filter(|(name, _)| *name != "IPv6");
    refused.map(|(name, why)| format!("{name}: {} {why}", why.code)).collect()
}

/// Why the only remote VTEP takes the slow path.
fn why(accel: &Accel) -> Refused {
    let status = accel.status();
    let device = status.devices.iter().find(|device| device.device == DEVICE).unwrap();
    device.remotes[0].refused.clone().unwrap()
}

#[test]
fn nodes_of_calico_are_accelerated() {
    require!(need::root());
    let pair = nodes();
    let accels = pair.accelerate();
    for accel in &accels {
        let status = accel.status();
        assert!(status.accelerates(DEVICE), "{status:#?}");
        assert_eq!(refusals(&status), [""; 0]);
    }
    pair.stream(TENANT_B.into(), 4 << 20);
}

/// The status of a connection (`ct status dnat`) is not evaluated.
#[test]
fn felix_s_nftables_rules_are_refused_by_name() {
    require!(need::root());
    let pair = nodes();
    for (node, host) in [&pair.a, &pair.b].into_iter().enumerate() {
        sh(host, &nftables(PODS[node], [Wire::B, Wire::A][node]));
    }
    let start = |host: &Host| Accel::start(host.netns(), Wanted::All).unwrap();
    let accels = [start(&pair.a), start(&pair.b)];
    for (accel, remote) in accels.iter().zip(["[10.0.0.2: ", "[10.0.0.1: "]) {
        refused(accel, remote, "felix's rules");
        let why = why(accel);
        assert!(why.code == "AX202" && why.object.contains("mangle-cali-POSTROUTING"), "{why:?}");
        assert!(why.evidence.ends_with(": unsupported: ct status"), "{why:?}");
    }
    let before = accels[0].status();
    pair.ping(&[]);
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0);
    assert_eq!(since(&accels[0], &before, "encap_shortcut"), 0);
}

/// In iptables mode, felix matches the nodes' addresses by a set of `ipset`, whose changes the
/// kernel does not report.
#[test]
fn a_set_of_ipset_that_the_tunnel_s_packets_reach_is_refused_by_name() {
    require!(need::root());
    let pair = nodes();
    let accels = pair.accelerate();
    ipset(&pair.b, Wire::A);
    sh(&pair.b, &iptables_of_tunnel());
    refused(&accels[1], "[10.0.0.1: ", "a rule with a set");
    let why = why(&accels[1]);
    assert!(why.code == "AX202" && why.evidence.ends_with(": set"), "{why:?}");
    // The kernel accepts the packets.
    pair.ping(&[]);
}
