//! The fast path beside SELinux and VRFs, in a QEMU guest with a stock Debian kernel. Functional only.

use std::process::Command;
use std::time::Duration;

use accel::{Accel, Wanted};
use test_support::{need, require};
use testbed::{Host, Offload};

use crate::fastpath::pair::{Pair, sh};
use crate::fastpath::refusals::refused;
use crate::qemu::{self, Guest};

/// The test that the guest runs, in this program: it performs the part inside.
const INSIDE: &str = "guest::packets_go_fast_beside_selinux_without_labels_and_beside_vrfs";
const SOURCE: &str = include_str!("selinux.conf");
/// Policies: file in the guest, and capabilities.
const POLICIES: [(&str, &[&str]); 3] = [
    (ACCEPTING, &["network_peer_controls"]),
    (CHECKING, &["network_peer_controls", "always_check_network"]),
    (OLD, &[]),
];
const ACCEPTING: &str = "/policy-accepting";
const CHECKING: &str = "/policy-checking";
const OLD: &str = "/policy-old";
const LABEL: &str = "all_u:all_r:all_t";
/// Time to verify four programs in software emulation, and for 14 changes.
const LIMIT: Duration = Duration::from_secs(900);

/// Compiles a policy with these capabilities.
fn policy(capabilities: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "policy"].map(|name| directory.path().join(name));
    let lines: String = capabilities.iter().map(|name| format!("policycap {name};\n")).collect();
    std::fs::write(&source, SOURCE.replace("# policycap\n", &lines)).unwrap();
    let mut command = Command::new("checkpolicy");
    command.args(["-U", "allow", "-c", "31", "-o"]).arg(&target).arg(&source);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::read(target).unwrap()
}

fn run(line: &str) {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
}

/// The kernel accepts a policy by a single write(2).
fn load_policy(file: &str) {
    std::fs::write("/sys/fs/selinux/load", std::fs::read(file).unwrap()).unwrap();
}

/// Packets of both directions on the fast path in a host.
fn fast(accel: &Accel) -> u64 {
    let status = accel.status();
    let hits = ["encap_hit", "encap_shortcut", "decap_hit"];
    hits.iter().map(|name| status.packets(name)).sum()
}

/// Prints a line for each expected result.
fn live() {
    let active = sys::lsm::active().unwrap();
    assert!(active.iter().any(|name| name == "selinux"), "{active:?}");
    // Busybox's shell prefers its own `ip` and `ping` to this machine's programs.
    std::fs::remove_file("/usr/bin/sh").unwrap();
    std::os::unix::fs::symlink("dash", "/usr/bin/sh").unwrap();
    run("busybox mount -t selinuxfs selinuxfs /sys/fs/selinux");
    let pair = Pair::new(Offload::Full, false);
    // A namespace of neither the tunnel nor its tenants.
    let elsewhere = Host::new("elsewhere").unwrap();

    let early = Accel::start(pair.a.netns(), Wanted::All).unwrap();
    let no_policy = "SELinux: no policy with the capability network_peer_controls is loaded";
    refused(&early, no_policy, "no policy");
    drop(early);
    println!("refused without a policy");

    load_policy(ACCEPTING);
    std::fs::write("/sys/fs/selinux/enforce", "1").unwrap();
    let accels = pair.accelerate();
    let before = fast(&accels[0]);
    pair.settle(&accels);
    println!("enforcing, fast packets: {}", fast(&accels[0]) - before);

    for (file, expected) in [
        (CHECKING, "SELinux: the policy has the capability always_check_network"),
        (OLD, no_policy),
    ] {
        load_policy(file);
        refused(&accels[0], expected, file);
        pair.ping(&[]);
        load_policy(ACCEPTING);
        pair.settle(&accels);
        println!("refused with {file}");
    }

    // NetLabel answers in the initial namespace only, which is this thread's.
    run("netlabelctl cipsov4 add pass doi:16 tags:1
         netlabelctl map add domain:other_t protocol:cipsov4,16");
    refused(&accels[0], "SELinux: NetLabel has 1 label definitions", "a NetLabel mapping");
    pair.ping(&[]);
    run("netlabelctl map del domain:other_t
         netlabelctl cipsov4 del doi:16");
    pair.settle(&accels);
    println!("refused with a NetLabel mapping");

    let add_secmark = format!("nft 'table inet t {{ secmark label {{ \"{LABEL}\"; }}; }}'");
    let add_policy = format!("ip xfrm policy add src 192.0.2.1 dst 192.0.2.2 dir out ctx {LABEL}");
    for (add, remove, expected) in [
        (
            add_secmark,
            "nft delete table inet t",
            "SELinux: 1 rules or objects label packets (SECMARK)",
        ),
        (
            add_policy,
            "ip xfrm policy deleteall",
            "SELinux: 1 IPsec policies or states have a label",
        ),
    ] {
        sh(&elsewhere, &add);
        refused(&accels[0], expected, &add);
        pair.ping(&[]);
        sh(&elsewhere, remove);
        pair.settle(&accels);
        println!("refused with {expected}, in another namespace");
    }
    live_beside_vrfs(&pair, &accels);
    println!("all of it");
}

/// Only a VRF that has a device of the path matters.
fn live_beside_vrfs(pair: &Pair, accels: &[Accel; 2]) {
    for accepted in [
        "ip link add red type vrf table 10; ip link set red up",
        "ip link add other type dummy; ip link set other master red up",
        // As manuals of VRFs recommend.
        "ip rule add pref 32765 table local; ip rule del pref 0",
        "ip link set br0 master red",
    ] {
        sh(&pair.a, accepted);
        pair.settle(accels);
        println!("fast after {accepted}");
    }
    for (change, undo, expected) in [
        ("ip link set nic0 master red", "ip link set nic0 nomaster", "no unicast IPv4 route"),
        ("ip route add 10.0.0.2 dev red", "ip route del 10.0.0.2", "its route leads into red"),
        (
            "ip link set br0 type bridge nf_call_iptables 1",
            "ip link set br0 type bridge nf_call_iptables 0",
            "br0: it is in red, and br_netfilter passes its packets to IP rules",
        ),
    ] {
        sh(&pair.a, change);
        refused(&accels[0], expected, change);
        sh(&pair.a, undo);
        pair.settle(accels);
        println!("refused after {change}");
    }
}

#[test]
fn packets_go_fast_beside_selinux_without_labels_and_beside_vrfs() {
    if qemu::is_inside() {
        return live();
    }
    require!(need::tools(&["checkpolicy", "netlabelctl"]));
    let mut guest = require!(Guest::of_series("6.12"))
        .within(LIMIT)
        .booting_with("lsm=landlock,lockdown,yama,selinux,bpf")
        .with_programs(&["bridge", "dash", "ip", "netlabelctl", "ping", "sysctl"]);
    for (file, capabilities) in POLICIES {
        guest = guest.containing(file, policy(capabilities));
    }
    let program = std::env::current_exe().unwrap();
    let output = guest.run(&program, &["--exact", INSIDE, "--nocapture"]);
    println!("{}", output.stdout);
    assert!(output.stdout.contains("all of it"), "{output:#?}");
}
