//! Refused objects are reported with the reason; traffic continues on the slow path.

use std::os::fd::AsFd;
use std::process::Command;

use accel::{Accel, Status, Wanted};
use libbpf_rs::ObjectBuilder;
use sys::bpf_link;
use sys::tcx::{self, Hook};
use test_support::{need, require};
use testbed::{Host, Offload, poll};

use super::pair::{DEVICE, LIMIT, PORT, Pair, sh};

/// Every reason in a status, with its object.
fn reasons(status: &Status) -> String {
    status.refusals().map(|(name, reason)| format!("[{name}: {}]", reason.evidence)).collect()
}

pub fn refused(accel: &Accel, expected: &str, after: &str) {
    poll(&format!("the refusal after {after:?}: {expected:?}"), LIMIT, || {
        let seen = without_handles(&reasons(&accel.status()));
        Ok(if seen.contains(expected) { Ok(()) } else { Err(seen) })
    })
    .unwrap();
}

/// The kernel assigns rule handles.
fn without_handles(reasons: &str) -> String {
    let mut parts = reasons.split(" handle ");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        all.push_str(part.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    }
    all
}

/// (command in a host, its inverse, reason, whether traffic still passes)
pub type Case = (&'static str, &'static str, &'static str, bool);

/// Each is refused while the state exists; afterwards packets take the fast path again.
pub fn refused_in_turn(pair: &Pair, cases: &[Case]) {
    let accels = pair.accelerate();
    for (change, undo, expected, flows) in cases {
        sh(&pair.a, change);
        refused(&accels[0], expected, change);
        if *flows {
            pair.ping(&[]);
            pair.ping6();
        }
        sh(&pair.a, undo);
        pair.settle(&accels);
    }
}

/// In a sandbox no flow gets a verdict.
pub const OF_SANDBOXES: &[Case] = &[
    (
        "nft 'table inet t { chain c { type filter hook input priority 0; }; }'
         sysctl -qw net.bridge.bridge-nf-call-iptables=1",
        "nft delete table inet t; sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        "[vxlan0: packet filter: nftables inet t c]",
        true,
    ),
    (
        "nft 'table ip6 t { chain c { type filter hook input priority 0; }; }'
         ip link set br0 type bridge nf_call_ip6tables 1",
        "nft delete table ip6 t; ip link set br0 type bridge nf_call_ip6tables 0",
        "[vxlan0: packet filter: nftables ip6 t c]",
        true,
    ),
];

pub const CASES: &[Case] = &[
    (
        "nft 'table bridge t { chain c { type filter hook forward priority 0; }; }'",
        "nft delete table bridge t",
        "[vxlan0: packet filter: nftables bridge t c]",
        true,
    ),
    (
        "nft 'table netdev t { chain c { type filter hook ingress device nic0 priority 0; }; }'",
        "nft delete table netdev t",
        "[vxlan0: packet filter: nftables netdev t c]",
        true,
    ),
    (
        "nft 'table netdev t { chain c { type filter hook egress device nic0 priority 0; }; }'",
        "nft delete table netdev t",
        "[vxlan0: packet filter: nftables netdev t c]",
        true,
    ),
    (
        "tc qdisc add dev nic0 clsact",
        "tc qdisc del dev nic0 clsact",
        "[10.0.0.2: nic0: tc filters (clsact qdisc)]",
        true,
    ),
    (
        "tc qdisc add dev veth0 ingress",
        "tc qdisc del dev veth0 ingress",
        "[veth0: veth0: tc filters (ingress qdisc)]",
        true,
    ),
    (
        "tc qdisc add dev vxlan0 clsact",
        "tc qdisc del dev vxlan0 clsact",
        "[vxlan0: vxlan0: tc filters",
        true,
    ),
    (
        "tc qdisc add dev br0 clsact",
        "tc qdisc del dev br0 clsact",
        "[vxlan0: br0: tc filters",
        true,
    ),
    (
        "tc qdisc add dev vxlan0 root pfifo",
        "tc qdisc del dev vxlan0 root",
        "[vxlan0: vxlan0: queueing discipline pfifo]",
        true,
    ),
    (
        "ip rule add fwmark 1 table 100",
        "ip rule del fwmark 1 table 100",
        "[vxlan0: policy routing: rule 32765 (table 100)]",
        true,
    ),
    (
        "ip rule add not from 10.9.0.0/16 l3mdev",
        "ip rule del not from 10.9.0.0/16 l3mdev",
        "[vxlan0: policy routing: rule 32765 (table 0)]",
        true,
    ),
    (
        "bridge link set dev veth0 isolated on",
        "bridge link set dev veth0 isolated off",
        "[veth0: veth0: bridge port option isolated]",
        true,
    ),
    (
        "bridge link set dev veth0 hairpin on",
        "bridge link set dev veth0 hairpin off",
        "[veth0: veth0: bridge port option hairpin]",
        true,
    ),
    (
        "bridge link set dev veth0 neigh_suppress on",
        "bridge link set dev veth0 neigh_suppress off",
        "[veth0: veth0: bridge port option neigh_suppress]",
        true,
    ),
    (
        "bridge link set dev vxlan0 isolated on",
        "bridge link set dev vxlan0 isolated off",
        "[vxlan0: vxlan0: bridge port option isolated]",
        true,
    ),
    (
        "bridge link set dev veth0 state 0",
        "bridge link set dev veth0 state 3",
        "[veth0: veth0: not in the forwarding state]",
        false,
    ),
    (
        "ip route add 10.0.0.2/32 nexthop dev nic0 nexthop dev veth0",
        "ip route del 10.0.0.2/32",
        "[10.0.0.2: a route has several next hops]",
        false,
    ),
    (
        "ip route add 10.0.0.2/32 dev nic0 mtu lock 1500",
        "ip route del 10.0.0.2/32",
        "[10.0.0.2: a route has a locked metric]",
        true,
    ),
    (
        "ip route add 10.0.0.2/32 dev nic0 tos 0x10",
        "ip route del 10.0.0.2/32 tos 0x10",
        "[10.0.0.2: a route has a type of service]",
        true,
    ),
    (
        "sysctl -qw net.ipv4.nexthop_compat_mode=0
         ip nexthop add id 7 dev nic0; ip route add 10.0.0.2/32 nhid 7",
        "ip route del 10.0.0.2/32; ip nexthop del id 7
         sysctl -qw net.ipv4.nexthop_compat_mode=1",
        "[10.0.0.2: a route has a next hop object]",
        true,
    ),
    (
        "ip route add 10.0.0.2/32 dev veth0",
        "ip route del 10.0.0.2/32",
        "[10.0.0.2: veth0: port of a bridge, bond or VRF]",
        false,
    ),
    (
        "ip route del local 10.0.0.1 table local",
        "ip route add local 10.0.0.1 dev nic0 table local proto kernel scope host src 10.0.0.1",
        "[10.0.0.2: packets from it to 10.0.0.1 on nic0 are not accepted",
        false,
    ),
    (
        "ip rule add iif nic0 unreachable",
        "ip rule del iif nic0 unreachable",
        "[vxlan0: policy routing: rule",
        false,
    ),
    (
        "ip rule add ipproto udp dport 4789 table 100",
        "ip rule del ipproto udp dport 4789 table 100",
        "[vxlan0: policy routing: rule",
        true,
    ),
    ("ip link set vxlan0 down", "ip link set vxlan0 up", "[vxlan0: it is down]", false),
    (
        "ip link set vxlan0 nomaster",
        "ip link set vxlan0 master br0",
        "[vxlan0: vxlan0: IPv4 forwarding is off]",
        false,
    ),
    (
        "ip xfrm policy add dir out src 10.9.0.0/16 dst 10.8.0.0/16 action block",
        "ip xfrm policy flush",
        "[vxlan0: IPsec policies]",
        true,
    ),
];

#[test]
fn hooks_that_would_be_bypassed_are_refused_while_they_exist() {
    require!(need::root());
    refused_in_turn(&Pair::new(Offload::Full, true), CASES);
}

#[test]
fn options_for_other_packets_are_no_reason() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    for change in [
        "bridge link set dev veth0 guard on",
        "bridge link set dev veth0 root_block on",
        "bridge link set dev veth0 fastleave on",
        "bridge link set dev veth0 flood off",
        "bridge link set dev veth0 mcast_flood off",
        "bridge link set dev veth0 mcast_to_unicast on",
        "ip link set br0 type bridge mcast_snooping 1",
        "bridge mdb add dev br0 port veth0 grp 239.1.1.1 permanent",
        "ip link set br0 type bridge group_fwd_mask 8",
        "ip route add 10.0.0.2/32 dev nic0 initcwnd 20 advmss 1000",
        "ip route add throw 10.9.0.0/16",
        "ip -6 rule add fwmark 1 table 100",
        // As for VRFs.
        "ip rule add pref 1000 l3mdev; ip rule add pref 2000 l3mdev unreachable",
        "ip rule add pref 32765 table local; ip rule del pref 0",
    ] {
        sh(&pair.a, change);
        pair.settle(&accels);
        let status = accels[0].status();
        assert_eq!(reasons(&status), "", "{change}");
    }
}

#[test]
fn older_tables_of_iptables_are_refused() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    // Reading creates the table.
    let read = pair.a.run(Command::new("iptables-legacy").args(["-t", "filter", "-L"]));
    require!(read.map_err(|e| format!("iptables-legacy does not work here: {e}")));
    refused(&accels[0], "[vxlan0: packet filter: iptables-legacy filter]", "iptables-legacy");
    pair.ping(&[]);
}

#[test]
fn rules_for_arp_alone_are_no_reason() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    sh(&pair.a, "nft 'table arp t { chain c { type filter hook input priority 0; }; }'");
    pair.settle(&accels);
    assert!(accels[0].status().accelerates(DEVICE), "{:#?}", accels[0].status());
}

#[test]
fn devices_with_options_that_are_not_done_are_refused() {
    require!(need::root());
    let host = Host::with_ipv6("a").unwrap();
    sh(&host, "ip link add nic0 type veth peer name nic1; ip link set nic0 up");
    let accel = Accel::start(host.netns(), Wanted::All).unwrap();
    for (options, expected) in [
        ("external", "VXLAN option external"),
        ("id 9 remote 10.0.0.2 gbp", "VXLAN option gbp"),
        ("id 9 remote 10.0.0.2 tos inherit", "it is down"),
        ("id 9 remote 10.0.0.2 ttl inherit", "VXLAN option ttl inherit"),
        ("id 9 remote 10.0.0.2 df inherit", "VXLAN option df inherit"),
        ("id 9 remote 10.0.0.2 remcsumtx", "VXLAN option remcsumtx"),
        ("id 9 remote 10.0.0.2 remcsumrx", "VXLAN option remcsumrx"),
        ("id 9 remote 10.0.0.2 rsc", "VXLAN option rsc"),
        ("id 9 remote fd00::2 local fd00::1 df inherit", "it is down"),
        ("id 9 remote fd00::2 local fd00::1 ttl inherit", "VXLAN option ttl inherit"),
        ("id 9 remote fe80::2 local fe80::1 dev nic0", "its local address is link-local"),
        ("id 9 remote 10.0.0.2", "it is down"),
    ] {
        sh(&host, &format!("ip link add vx9 type vxlan dstport 4799 {options}"));
        refused(&accel, &format!("[vx9: {expected}]"), options);
        sh(&host, "ip link del vx9");
        poll("the end of vx9", LIMIT, || {
            let status = accel.status();
            Ok(if status.devices.is_empty() { Ok(()) } else { Err(format!("{status:?}")) })
        })
        .unwrap();
    }
}

#[test]
fn a_program_of_somebody_else_is_neither_displaced_nor_passed_by() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    // A second fast path counts as a foreign program.
    let second = Accel::start(pair.a.netns(), Wanted::All).unwrap();
    let expected = "[veth0: veth0: foreign program at a tcx hook]";
    refused(&second, expected, "a second fast path");
    pair.ping(&[]);
    drop(second);
    pair.settle(&accels);
}

/// A foreign program: with empty maps it lets every packet pass.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fastpath.bpf.o"));

#[test]
fn a_program_at_the_egress_of_what_is_passed_by_is_a_reason() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accels = pair.accelerate();
    let object = ObjectBuilder::default().open_memory(OBJECT).unwrap().load().unwrap();
    let program = object.progs().find(|program| program.name() == "encap").unwrap();
    for (device, expected) in [
        (DEVICE, "[vxlan0: vxlan0: foreign program at a tcx hook]"),
        (PORT, "[veth0: veth0: foreign program at a tcx hook]"),
    ] {
        let index = pair.a.netlink().link(device).unwrap().index;
        let program = program.as_fd();
        let attach = || tcx::attach(program, index, Hook::Egress).unwrap();
        let link = pair.a.netns().run(attach).unwrap();
        refused(&accels[0], expected, device);
        pair.ping(&[]);
        drop(link);
        pair.settle(&accels);
    }
}

#[test]
fn a_program_goes_at_once_though_another_process_looks_at_its_link() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let object = ObjectBuilder::default().open_memory(OBJECT).unwrap().load().unwrap();
    let program = object.progs().find(|program| program.name() == "encap").unwrap();
    let program = program.as_fd();
    let index = pair.a.netlink().link(PORT).unwrap().index;
    let at = || pair.a.netns().run(|| tcx::count(index, Hook::Egress).unwrap()).unwrap();
    let link = pair.a.netns().run(|| tcx::attach(program, index, Hook::Egress)).unwrap();
    let link = link.unwrap().released_early().unwrap();
    assert_eq!(at(), 1);
    // Holds every link of the machine open, as a program that lists links does.
    let mut held = Vec::new();
    let mut last = 0;
    while let Some(id) = bpf_link::next(last).unwrap() {
        held.extend(bpf_link::open(id).unwrap());
        last = id;
    }
    assert!(!held.is_empty());
    drop(link);
    assert_eq!(at(), 0);
}

#[test]
fn a_device_that_is_not_named_is_left_alone() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let accel = Accel::start(pair.a.netns(), Wanted::Named(["vx7".into()].into())).unwrap();
    pair.ping(&[]);
    let status = accel.status();
    assert!(status.devices.is_empty() && status.packets.is_empty(), "{status:#?}");
}
