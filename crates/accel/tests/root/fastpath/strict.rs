//! Packets that the kernel's rules may judge by more than their headers, and that therefore take the
//! slow path.

use std::os::fd::AsFd;
use std::process::Command;

use accel::{Accel, Options, Wanted};
use libbpf_rs::{Xdp, XdpFlags};
use netstate::packet_diag::PacketDiag;
use test_support::{need, require};
use testbed::{Host, NIC, Offload, Processes, mac, poll};

use super::listeners::listen;
use super::pair::{BRIDGE, DEVICE, LIMIT, Pair, sh, since};
use super::refusals::refused;
use super::untrusted::load;

/// Sends pings until a counter increases: a packet may take the slow path for another reason first,
/// such as an expired heartbeat.
fn counted(pair: &Pair, accel: &Accel, counter: &str, ping: &[&str], from_host: bool) {
    poll(counter, LIMIT, || {
        let before = accel.status();
        let host = if from_host { &pair.a } else { &pair.tenant_a };
        let mut command = Command::new("ping");
        host.run(command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5"]).args(ping))?;
        Ok(match since(accel, &before, counter) {
            0 => Err(format!("{:#?}", accel.status())),
            _ => Ok(()),
        })
    })
    .unwrap();
}

/// With any rule on `ct`, conntrack holds fragments of the whole namespace.
#[test]
fn routed_fragments_are_left_to_reassembly() {
    require!(need::root());
    let pair = Pair::routed(Offload::Full, false, true);
    for host in [&pair.a, &pair.b] {
        sh(
            host,
            "nft 'table ip f { chain in { type filter hook input priority 0
                ct state established counter accept; }; }'",
        );
    }
    let accels = pair.accelerate();
    for to in ["10.1.0.12", "fd00::12"] {
        let before = accels[0].status();
        counted(&pair, &accels[0], "encap_tracking", &["-s", "3000", to], false);
        counted(&pair, &accels[1], "decap_tracking", &["-s", "3000", to], false);
        assert_eq!(since(&accels[0], &before, "encap_hit"), 0, "{to}: {:#?}", accels[0].status());
    }
    // Whole packets are fast.
    counted(&pair, &accels[0], "encap_hit", &["10.1.0.12"], false);
}

/// A socket of the host's own namespace sends marked packets through a bridge.
#[test]
fn marked_packets_are_left_to_the_rules() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    sh(
        &pair.a,
        "ip link add own0 mtu 1450 type veth peer name own1 mtu 1450
         ip link set own1 master br0 up; ip link set own0 up
         ip addr add 10.1.0.21/24 dev own0",
    );
    let accels = pair.accelerate();
    counted(&pair, &accels[0], "encap_hit", &["-I", "own0", "10.1.0.12"], true);
    counted(&pair, &accels[0], "encap_verdict", &["-m", "5", "-I", "own0", "10.1.0.12"], true);
    let before = accels[0].status();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "5", "-i", "0.01", "-W", "5", "-m", "5", "-I", "own0", "10.1.0.12"]);
    pair.a.run(&mut ping).unwrap();
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0, "{:#?}", accels[0].status());
}

/// The NIC is a macvlan device, and a rule at the device below marks the tunnel's packets.
#[test]
fn packets_marked_below_the_nic_are_left_to_the_rules() {
    require!(need::root(), need::tool("nft"));
    let pair = Pair::new(Offload::Full, false);
    sh(
        &pair.b,
        &format!(
            "ip link add mv0 link {NIC} type macvlan mode bridge
             ip addr del 10.0.0.2/24 dev {NIC}; ip addr add 10.0.0.2/24 dev mv0
             ip link set mv0 up; ip link del {DEVICE}
             ip link add {DEVICE} address {} type vxlan id 42 local 10.0.0.2 remote 10.0.0.1 \
                dev mv0 dstport 4789 learning noudpcsum
             ip link set {DEVICE} mtu 1450 master {BRIDGE} up",
            mac(pair.b.name(), DEVICE)
        ),
    );
    // In a namespace of its own: a chain at a device of the NICs' namespace is a refusal.
    let below = Host::new("below").unwrap();
    pair.b.netlink().set_netns(NIC, below.netns()).unwrap();
    sh(&below, &format!("ip link set {NIC} up"));
    sh(&pair.a, &format!("ip neigh flush dev {NIC}"));
    let accels = pair.accelerate();
    counted(&pair, &accels[1], "decap_hit", &["10.1.0.12"], false);
    sh(
        &below,
        &format!(
            "nft 'table netdev l {{ chain c {{ type filter hook ingress device {NIC} priority 0; \
             meta mark set 5; }}; }}'"
        ),
    );
    counted(&pair, &accels[1], "decap_verdict", &["10.1.0.12"], false);
    let before = accels[1].status();
    let mut ping = Command::new("ping");
    pair.tenant_a.run(ping.args(["-n", "-c", "5", "-i", "0.01", "-W", "5", "10.1.0.12"])).unwrap();
    assert_eq!(since(&accels[1], &before, "decap_hit"), 0, "{:#?}", accels[1].status());
}

/// Conntrack gives the tunnel's entries a mark, and turns packets that a remote end sends from the
/// tunnel's port into answers.
#[test]
fn rules_on_entries_of_the_tunnel_are_refused() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    for (rule, reason) in [("ct mark 7 drop", "ct mark"), ("ct direction reply drop", "drop")] {
        let table = format!(
            "nft 'table ip f {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}'"
        );
        sh(&pair.a, &table);
        refused(&accels[0], reason, rule);
        sh(&pair.a, "nft delete table ip f");
        pair.settle(&accels);
    }
}

/// The kernel skips generic XDP programs for redirected packets.
#[test]
fn generic_xdp_at_a_veth_peer_is_refused() {
    require!(need::root());
    let object = load("look");
    let program = object.progs().find(|program| program.name() == "look").unwrap();
    for pair in [Pair::new(Offload::Full, false), Pair::routed(Offload::Full, false, false)] {
        let accels = pair.accelerate();
        for (host, device, reason) in [
            (&pair.tenant_a, "eth0", "veth0: generic XDP program at its veth peer eth0"),
            (&pair.b, NIC, "nic0: generic XDP program at its veth peer nic0"),
        ] {
            let index = host.netlink().link(device).unwrap().index.cast_signed();
            let xdp = Xdp::new(program.as_fd());
            let attach = |mode| host.netns().run(|| xdp.attach(index, mode)).unwrap().unwrap();
            let detach = |mode| host.netns().run(|| xdp.detach(index, mode)).unwrap().unwrap();
            attach(XdpFlags::SKB_MODE);
            refused(&accels[0], reason, device);
            detach(XdpFlags::SKB_MODE);
            pair.settle(&accels);
            // In native mode the program sees redirected packets.
            attach(XdpFlags::DRV_MODE);
            pair.settle_sender(&accels[0]);
            assert_eq!(accels[0].status().refusals().count(), 0, "{device}");
            detach(XdpFlags::DRV_MODE);
            pair.settle(&accels);
        }
    }
}

/// A macvlan device in mode `passthru` takes all frames, also from another namespace.
#[test]
fn macvlan_devices_that_take_all_frames_are_refused() {
    require!(need::root());
    for (pair, devices) in [
        (Pair::new(Offload::Full, false), &["nic0"][..]),
        (Pair::routed(Offload::Full, false, false), &["veth0", "vxlan0"]),
        (Pair::routed(Offload::Full, false, true), &["br0"]),
    ] {
        let other = Host::new("other").unwrap();
        let accels = pair.accelerate();
        for device in devices {
            let add = format!("ip link add mv0 link {device} type macvlan mode passthru");
            sh(&pair.a, &add);
            refused(&accels[0], &format!("{device}: mv0 above it is a macvlan"), device);
            pair.a.netlink().set_netns("mv0", other.netns()).unwrap();
            sh(&other, "ip link set mv0 up");
            refused(&accels[0], &format!("{device}: all its frames are requested"), device);
            sh(&other, "ip link del mv0");
            pair.settle(&accels);
        }
    }
}

/// Packet captures, and macvlan devices in other modes.
#[test]
fn explained_promiscuity_is_no_reason() {
    require!(need::root(), need::tool("tcpdump"));
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    for (change, undo) in [
        ("ip link set nic0 promisc on", "ip link set nic0 promisc off"),
        ("ip link add mv0 link nic0 up type macvlan mode bridge", "ip link del mv0"),
    ] {
        sh(&pair.a, change);
        pair.settle(&accels);
        assert_eq!(accels[0].status().refusals().count(), 0, "{change}");
        sh(&pair.a, undo);
    }
    let processes = Processes::new().unwrap();
    let _capture = listen(&processes, &pair.a, NIC, &[]);
    poll("the capture", LIMIT, || {
        let wants = PacketDiag::open_in(pair.a.netns()).unwrap().promiscuous().unwrap();
        Ok(if wants.is_empty() { Err(String::new()) } else { Ok(()) })
    })
    .unwrap();
    pair.settle(&accels);
    assert_eq!(accels[0].status().refusals().count(), 0);
}

/// The kernel permits one BPF program of a priority at a netfilter hook.
#[test]
fn a_successor_guards_connections_beside_its_predecessor() {
    require!(need::root());
    let pair = Pair::routed(Offload::Full, false, false);
    sh(&pair.a, "nft 'table ip f { chain c { type filter hook forward priority 0; }; }'");
    let start = |predecessor| {
        let options = Options { predecessor, ..Options::default() };
        Accel::with(pair.a.netns(), Wanted::All, options).unwrap()
    };
    // Pings get no verdict.
    let first = start([].into());
    counted(&pair, &first, "encap_tracking", &["10.1.0.12"], false);
    let second = start(first.programs());
    drop(first);
    counted(&pair, &second, "encap_tracking", &["10.1.0.12"], false);
    // The first priority is free again.
    let third = start(second.programs());
    drop(second);
    counted(&pair, &third, "encap_tracking", &["10.1.0.12"], false);
}
