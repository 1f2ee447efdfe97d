//! Real nodes, of flannel and of Kubernetes: healthy, and with faults.

use std::process::Command;
use std::time::Duration;

use doctor::{Severity, diagnose};
use lab::Network;
use test_support::{left_out, require};
use testbed::NIC;

use super::bench::{build, judge, others, read};
use super::fixes::make_each;
use super::make::{features, get, namespace, underlay_mtu};
use super::privileged;

/// How long a fault may take to show: the kernel asks three times for a neighbour.
const LIMIT: Duration = Duration::from_secs(20);

/// A fault that is made and undone on a node.
struct Fault {
    what: &'static str,
    /// The check that must be the first finding.
    code: &'static str,
    make: fn(&Network),
    undo: fn(&Network),
}

fn sh(network: &Network, host: &str, script: &str) {
    network.host(host).unwrap().run(Command::new("sh").args(["-ec", script])).unwrap();
}

/// Recreates `flannel.1` of host b with a VNI and a port, with flannel's settings.
fn remake(network: &Network, vni: u32, port: u16) {
    let script = format!(
        "mac=$(ip -br link show flannel.1 | awk '{{print $3}}')
        address=$(ip -4 -br address show flannel.1 | awk '{{print $3}}')
        gateway=$(ip -4 neighbour show dev flannel.1 | awk '{{print $1}}')
        remote=$(ip -4 neighbour show dev flannel.1 | awk '{{print $3}}')
        ip link delete flannel.1
        ip link add flannel.1 type vxlan id {vni} dev {NIC} local 10.0.0.2 dstport {port} nolearning
        ip link set flannel.1 address $mac mtu 1450 up
        ip address add $address dev flannel.1
        ip neighbour add $gateway lladdr $remote dev flannel.1 nud permanent
        bridge fdb append $remote dev flannel.1 dst 10.0.0.1 self permanent
        ip route add $gateway/24 via $gateway dev flannel.1 onlink"
    );
    sh(network, "b", &script);
}

/// Saves flannel's entries of host a, to be restored.
const KEPT: &str = "gateway=$(ip -4 route show dev flannel.1 | awk '/via/ {print $3; exit}')";

const FAULTS: &[Fault] = &[
    Fault {
        what: "the forwarding entry of the other node is gone",
        code: "OV035",
        make: |network| {
            sh(
                network,
                "a",
                "mac=$(bridge fdb show dev flannel.1 | awk '/dst 10.0.0.2/ {print $1; exit}')
                bridge fdb del $mac dev flannel.1 dst 10.0.0.2",
            );
        },
        undo: |network| {
            sh(
                network,
                "a",
                "mac=$(ip -4 neighbour show dev flannel.1 | awk '{print $3; exit}')
                bridge fdb append $mac dev flannel.1 dst 10.0.0.2 self permanent",
            );
        },
    },
    Fault {
        what: "the neighbour entry has another node's hardware address",
        code: "OV035",
        make: |network| {
            let change =
                "ip neighbour change $gateway lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent";
            sh(network, "a", &format!("{KEPT}\n{change}"));
        },
        undo: restore_neighbour,
    },
    Fault {
        what: "the neighbour entry is gone",
        code: "OV041",
        make: |network| {
            // Traffic makes the kernel ask for the neighbour, without an answer.
            sh(
                network,
                "a",
                &format!(
                    "{KEPT}\nip neighbour del $gateway dev flannel.1\nping -c 1 -W 1 $gateway || true"
                ),
            );
        },
        undo: restore_neighbour,
    },
    Fault {
        what: "a pod's MTU is the underlay's",
        code: "OV015",
        make: |network| sh(network, "tenant-a", "ip link set dev eth0 mtu 1500"),
        undo: |network| sh(network, "tenant-a", "ip link set dev eth0 mtu 1450"),
    },
    Fault {
        what: "the underlay's MTU is too small for the overlay",
        code: "OV013",
        make: |network| underlay_mtu(network, 1400),
        undo: |network| {
            underlay_mtu(network, 1500);
            for side in ["a", "b"] {
                let devices = ["flannel.1", "cni0", "veth0"]
                    .map(|device| format!("ip link set dev {device} mtu 1450"));
                sh(network, side, &devices.join("\n"));
                sh(network, &format!("tenant-{side}"), "ip link set dev eth0 mtu 1450");
            }
        },
    },
    Fault {
        what: "the NIC cuts no tunnelled super-packets",
        code: "OV001",
        make: |network| features(network, "a", NIC, &TUNNEL_OFFLOADS.map(|name| (name, false))),
        undo: |network| features(network, "a", NIC, &TUNNEL_OFFLOADS.map(|name| (name, true))),
    },
    Fault {
        what: "the other node has another VNI",
        code: "OV034",
        make: |network| remake(network, 2, 8472),
        undo: |network| remake(network, 1, 8472),
    },
    Fault {
        what: "the other node has another port",
        code: "OV033",
        make: |network| remake(network, 1, 4789),
        undo: |network| remake(network, 1, 8472),
    },
];

const TUNNEL_OFFLOADS: [&str; 2] = ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];

fn restore_neighbour(network: &Network) {
    let add = "mac=$(bridge fdb show dev flannel.1 | awk '/dst 10.0.0.2/ {print $1; exit}')
        ip neighbour replace $gateway lladdr $mac dev flannel.1 nud permanent";
    sh(network, "a", &format!("{KEPT}\n{add}"));
}

/// The check of the first finding at warn or above.
fn first(network: &Network) -> String {
    let diagnosis = diagnose(&read(network, None));
    let mut reported = diagnosis.findings.iter().filter(|found| found.severity >= Severity::Warn);
    reported.next().map_or_else(String::new, |found| found.code.clone())
}

fn waits_for(network: &Network, code: &str) -> testbed::Result<()> {
    testbed::poll(code, LIMIT, || {
        let first = first(network);
        Ok(if first == code { Ok(()) } else { Err(format!("first is {first:?}")) })
    })
}

#[test]
fn each_fault_of_a_real_node_is_named_first_and_health_is_not() {
    let machine = require!(privileged());
    let mut problems = Vec::new();
    for mode in ["flannel", "k8s"] {
        if let Err(unsupported) = lab::find(mode).unwrap().probe(&machine) {
            left_out(&format!("{mode}: {}", unsupported.reason));
            continue;
        }
        let network = build(mode, 1500);
        for Fault { what, code, make, undo } in FAULTS {
            make(&network);
            if let Err(error) = waits_for(&network, code) {
                problems.push(format!("{mode}: {what}: {error}"));
            }
            let mut wrong = Vec::new();
            make_each(&network, code, &mut wrong);
            problems.extend(wrong.iter().map(|wrong| format!("{mode}: {what}: {wrong}")));
            undo(&network);
            if let Err(error) = waits_for(&network, "") {
                problems.push(format!("{mode}: {what}, mended: {error}"));
            }
        }
        // The limit belongs to the machine: other tests' connections must not be cut off.
        let mut host = read(&network, None);
        let conntrack = get(&mut namespace(&mut host, "a").conntrack);
        conntrack.after.max = conntrack.after.count.max(1);
        conntrack.after.count = conntrack.after.max;
        let diagnosis = judge(&format!("OV028-{mode}"), &host);
        assert_eq!(diagnosis.findings.first().map(|found| found.code.as_str()), Some("OV028"));
        let alarms = others(&diagnosis, "OV028", Severity::Warn);
        assert_eq!(alarms, Vec::<String>::new());
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
