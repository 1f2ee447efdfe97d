//! `overlane probe` between two QEMU guests with a stock Debian kernel, in software emulation: over
//! virtio-net, which is sound, and over a network card of QEMU that is not.
//!
//! Before version 8.0, QEMU has no TCP segmentation for vmxnet3 and e1000e behind a backend without
//! vnet headers. It offers it to the guest all the same, and sends fragments of IPv4. It treats IPv6
//! packets alike, and writes an IPv4 header checksum into their source address
//! (`net_tx_pkt_do_sw_fragmentation`; "hw/net/net_tx_pkt: Implement TCP segmentation").

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use test_support::{need, require};
use testbed::Host;

use crate::foreground::OVERLANE;
use crate::program::schema;
use crate::qemu::{Guest, Output};

/// Finds a device by its hardware address, and gives it an address.
const COMMON: &str = "
set -e
b=/bin/busybox
for module in virtio_pci virtio_net vmxnet3; do modprobe $module; done
# A card answers for its own address only.
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
$b chmod 600 /token
address() {
    for at in /sys/class/net/*; do
        if [ \"$($b cat $at/address)\" = $1 ]; then
            device=$($b basename $at)
            $b ip link set $device up
            for one in $2; do $b ip addr add $one/24 dev $device; done
        fi
    done
}
";
/// The server ends when the client has gone.
const SERVER: &str = "
address 02:00:00:00:00:01 '10.9.0.1 10.10.0.1'
PROGRAM measure serve --bind 0.0.0.0 --token /token &
until $b ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done
while $b ping -c 5 -W 5 10.9.0.2 >/dev/null; do $b sleep 1; done
";
const CLIENT: &str = "
address 02:00:00:00:00:02 10.9.0.2
address 02:00:00:00:00:03 10.10.0.2
probe() {
    # The server may not listen yet.
    for attempt in 1 2 3 4 5 6 7 8; do
        status=0
        PROGRAM probe $1 --token /token --quick --rate 20000000 --json $3 >$2 || status=$?
        [ $status = 1 ] || break
        $b sleep 2
    done
    echo \"exit $2 $status\"
}
probe 10.9.0.1 /virtio ''
probe 10.10.0.1 /vmxnet3 --yes
";
const TOKEN: &str = "a secret of the tests 7Jx0";

/// The bridge between the guests' TAP devices.
fn outside() -> Host {
    let host = Host::new("outside").unwrap();
    let ip = |line: &str| host.run(Command::new("ip").args(line.split(' '))).unwrap();
    ip("link add br0 type bridge");
    ip("link set dev br0 up");
    for (tap, vnet) in [("server", " vnet_hdr"), ("virtio", " vnet_hdr"), ("card", "")] {
        ip(&format!("tuntap add dev {tap} mode tap{vnet}"));
        ip(&format!("link set dev {tap} master br0"));
        ip(&format!("link set dev {tap} up"));
    }
    host
}

/// QEMU's arguments for a network card behind a TAP device.
fn card(tap: &str, vnet_header: &str, device: &str, number: u8) -> String {
    format!(
        "-netdev tap,id={tap},ifname={tap},script=no,downscript=no,vhost=off,vnet_hdr={vnet_header} \
         -device {device},netdev={tap},mac=02:00:00:00:00:{number:02x},romfile= "
    )
}

/// Whether QEMU is older than 8.0.
fn has_fault() -> Result<(), String> {
    need::tool("qemu-system-x86_64")?;
    let output = Command::new("qemu-system-x86_64").arg("--version").output();
    let text = output.map_err(|e| e.to_string())?.stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let version = text.split("version ").nth(1).and_then(|rest| rest.split('.').next());
    match version.and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major < 8 => Ok(()),
        _ => Err(format!("QEMU before 8.0 has the fault: {}", text.lines().next().unwrap_or(""))),
    }
}

/// Two namespaces of one guest, whose kernel has all kinds of tunnels.
const TUNNELS: &str = "
set -e
b=/bin/busybox
for module in veth vxlan geneve; do modprobe $module; done
$b chmod 600 /token
$b unshare -n $b sleep 100000 &
pid=$!
while [ \"$($b readlink /proc/$pid/ns/net)\" = \"$($b readlink /proc/self/ns/net)\" ]; do :; done
# Its peer is veth0: busybox cannot name it.
$b ip link add va type veth
$b ip link set veth0 netns $pid
inside() { $b nsenter -t $pid -n \"$@\"; }
for n in all default; do
    for at in '' inside; do $at $b sysctl -q -w net.ipv6.conf.$n.accept_dad=0; done
done
$b ip addr add 10.9.0.1/24 dev va
$b ip -6 addr add fd09::1/64 dev va
$b ip link set lo up
$b ip link set va up
inside $b ip addr add 10.9.0.2/24 dev veth0
inside $b ip -6 addr add fd09::2/64 dev veth0
inside $b ip link set lo up
inside $b ip link set veth0 up
for address in 10.9.0.2 fd09::2; do
    until $b ping -c 1 -W 1 $address >/dev/null; do :; done
done
inside PROGRAM measure serve --bind :: --token /token &
probe() {
    for attempt in 1 2 3 4 5 6 7 8; do
        status=0
        PROGRAM probe $1 --token /token --quick --rate 20000000 --json >$2 || status=$?
        [ $status = 1 ] || break
        $b sleep 2
    done
    echo \"exit $2 $status\"
}
probe 10.9.0.2 /without
$b ip -o link | $b grep -c gre && echo 'exit /gre 1'
for module in ip_gre ip6_gre; do modprobe $module; done
probe 10.9.0.2 /ipv4
probe fd09::2 /ipv6
$b ip link | $b grep overlane && echo 'exit /left 1'
echo end
";

fn run(guest: Guest, host: &Host, program: &Path, script: &str) -> Output {
    let program = program.to_str().unwrap();
    let script = script.replace("PROGRAM", program);
    let guest = guest.with_programs(&[program]).containing("/token", TOKEN.into());
    guest.inside(host.netns().clone()).run(Path::new("/bin/sh"), &["-c", &script])
}

fn report(output: &Output, path: &str) -> Value {
    let file = output.files.iter().find(|(name, _)| name == path);
    let (_, bytes) = file.unwrap_or_else(|| panic!("no {path}: {output:#?}"));
    let report = serde_json::from_slice(bytes);
    let report =
        report.unwrap_or_else(|e| panic!("{path}: {e}\n{}\n{}", output.stdout, output.stderr));
    schema::validate("probe", &report);
    report
}

/// The program without debugging information: a guest's file system is in its memory.
fn stripped() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("overlane");
    let stripped = Command::new("strip").arg("-o").arg(&program).arg(OVERLANE).status().unwrap();
    assert!(stripped.success());
    (directory, program)
}

/// Verdicts on the classes to the peer that are GSO packets in tunnels, by a word of their names.
fn tunnels<'a>(report: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    let classes = report["classes"].as_array().unwrap().iter();
    let named = classes.filter(|one| one["way"] == "out").filter_map(|one| {
        let name = one["name"].as_str()?;
        (name.contains(kind) && name.contains("GSO")).then_some((name, &one["verdict"]))
    });
    named.collect()
}

#[test]
fn gso_packets_in_tunnels_of_each_kind_are_tested() {
    require!(need::networks(), need::tool("strip"));
    let guest = require!(Guest::find());
    let host = Host::new("outside").unwrap();
    let (_directory, program) = stripped();
    let guest = guest.fetching("/without").fetching("/ipv4").fetching("/ipv6");
    let output = run(guest, &host, &program, TUNNELS);
    let said = format!("{}\n{}", output.stdout, output.stderr);
    assert!(output.stdout.ends_with("end\n"), "{said}");
    // The module is not loaded for a probe: its devices would stay.
    let without = report(&output, "/without");
    for (name, verdict) in tunnels(&without, "in GRE/IPv4") {
        let reason = verdict["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("module ip_gre"), "{name}: {verdict}");
    }
    for (name, gre) in [("/ipv4", 2), ("/ipv6", 2)] {
        let report = report(&output, name);
        assert!(output.stdout.contains(&format!("exit {name} 0")), "{:#}\n{said}", report["bad"]);
        let family = if name == "/ipv4" { "IPv4" } else { "IPv6" };
        let mut found = tunnels(&report, &format!("in GRE/{family}"));
        assert_eq!(found.len(), gre, "{found:?}");
        found.extend(tunnels(&report, &format!("in VXLAN/{family}")));
        found.extend(tunnels(&report, &format!("in Geneve/{family}")));
        for (name, verdict) in found {
            let reason = verdict["reason"].as_str().unwrap_or_default();
            if name.starts_with("UDP") && reason.contains("since Linux 6.2") {
                continue;
            }
            assert_eq!(verdict["verdict"], "intact", "{name}: {verdict}");
        }
    }
    for wrong in ["exit /gre", "exit /left"] {
        assert!(!output.stdout.contains(wrong), "{said}");
    }
}

#[test]
fn segmentation_that_a_hypervisor_does_wrongly_is_found_between_guests() {
    require!(need::networks(), need::tool("strip"), has_fault());
    let [client, server] = [require!(Guest::find()), require!(Guest::find())];
    let host = outside();
    let (_directory, program) = stripped();
    let server = server.with_devices(&card("server", "on", "virtio-net-pci", 1));
    let cards = card("virtio", "on", "virtio-net-pci", 2) + &card("card", "off", "vmxnet3", 3);
    let client = client.with_devices(&cards).fetching("/virtio").fetching("/vmxnet3");
    let (client, server) = std::thread::scope(|threads| {
        let server = threads.spawn(|| run(server, &host, &program, &(COMMON.to_owned() + SERVER)));
        let client = run(client, &host, &program, &(COMMON.to_owned() + CLIENT));
        (client, server.join().unwrap())
    });
    let said = format!("{}\n{}\n{}", client.stdout, client.stderr, server.stderr);

    let sound = report(&client, "/virtio");
    assert!(client.stdout.contains("exit /virtio 0"), "{:#}\n{said}", sound["bad"]);
    assert_eq!(sound["here"]["driver"], "virtio_net", "{said}");
    assert_eq!(sound["there"]["driver"], "virtio_net", "{said}");
    let on = sound["here"]["features_on"].as_array().unwrap();
    for feature in ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"] {
        assert!(on.iter().any(|one| one == feature), "{on:?}");
    }

    let faulty = report(&client, "/vmxnet3");
    assert!(client.stdout.contains("exit /vmxnet3 10"), "{said}");
    assert_eq!(faulty["here"]["driver"], "vmxnet3", "{said}");
    let [bad] = &faulty["bad"].as_array().unwrap()[..] else { panic!("{:#}", faulty["bad"]) };
    assert_eq!(bad["way"], "out", "{bad:#}");
    assert_eq!(bad["verdict"], "corrupted", "{bad:#}");
    assert_eq!(bad["search"]["guilty"]["feature"], "tx-tcp6-segmentation", "{bad:#}");
    for name in bad["classes"].as_array().unwrap() {
        let name = name.as_str().unwrap();
        assert!(name.starts_with("TCP/IPv6, GSO"), "{name}");
    }
}
