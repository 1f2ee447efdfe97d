//! A healthy node of flannel, as its daemon sets it up by default, has no findings.

use std::process::Command;
use std::time::Duration;

use doctor::{Diagnosis, Scope, Severity, collect, diagnose};
use test_support::{need, require};
use testbed::{Host, NIC, Wire};

/// `flannel.1` and `cni0` with a pod, on a host whose NIC carries the tunnel; the rules were
/// recorded from flannel with `-ip-masq`.
fn node() -> [Host; 3] {
    let wire = Wire { mtu: 1500, offload: testbed::Offload::Full };
    let [node, other] = wire.hosts().unwrap();
    let pod = Host::new("pod").unwrap();
    let ip = |line: &str| {
        node.run(Command::new("ip").args(line.split_whitespace())).unwrap();
    };
    ip(&format!(
        "link add flannel.1 type vxlan id 1 dev {NIC} local 10.0.0.1 dstport 8472 nolearning"
    ));
    ip("link set flannel.1 mtu 1450 up");
    ip("address add 10.244.1.0/32 dev flannel.1");
    ip("route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink");
    ip("neigh add 10.244.2.0 lladdr 02:00:00:00:00:02 dev flannel.1 nud permanent");
    node.run(
        Command::new("bridge").args(
            "fdb append 02:00:00:00:00:02 dev flannel.1 dst 10.0.0.2 self permanent".split(' '),
        ),
    )
    .unwrap();
    node.connect("veth0", &pod, "eth0", 1450).unwrap();
    node.bridge("cni0", 1450, &["veth0"]).unwrap();
    ip("address add 10.244.1.1/24 dev cni0");
    pod.address("eth0", std::net::Ipv4Addr::new(10, 244, 1, 2), 24).unwrap();
    node.forward().unwrap();
    let rules =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../ruleset/tests/recorded/flannel-masq.iptables");
    node.run(Command::new("iptables-nft-restore").arg(rules)).unwrap();
    [node, other, pod]
}

fn look(node: &Host) -> Diagnosis {
    let scope = Scope::Some(vec![("node".to_owned(), node.netns().try_clone().unwrap())]);
    diagnose(&collect(scope, Duration::ZERO).unwrap())
}

fn codes(diagnosis: &Diagnosis) -> Vec<String> {
    let found = diagnosis.findings.iter().filter(|found| {
        // Findings about the machine itself do not count.
        found.severity >= Severity::Warn && found.namespace == "node"
    });
    found.map(|found| found.code.clone()).collect()
}

#[test]
fn nothing_is_found_on_a_healthy_node_of_flannel() {
    require!(
        need::networks(),
        need::root(),
        need::tools(&["ip", "bridge", "iptables-nft-restore"])
    );
    let [node, _other, _pod] = node();
    let diagnosis = look(&node);
    assert_eq!(codes(&diagnosis), Vec::<String>::new(), "{:?}", diagnosis.findings);
}

#[test]
fn a_larger_mtu_behind_the_node_is_found_and_its_fix_leaves_nothing() {
    require!(
        need::networks(),
        need::root(),
        need::tools(&["ip", "bridge", "iptables-nft-restore"])
    );
    let [node, _other, _pod] = node();
    // A second bridge, of containers that know nothing of the overlay.
    let container = Host::new("container").unwrap();
    node.connect("veth1", &container, "eth0", 1500).unwrap();
    node.bridge("docker0", 1500, &["veth1"]).unwrap();
    node.address("docker0", std::net::Ipv4Addr::new(172, 17, 0, 1), 16).unwrap();
    let diagnosis = look(&node);
    assert_eq!(codes(&diagnosis), ["OV019"], "{:?}", diagnosis.findings);
    let found = diagnosis.findings.iter().find(|found| found.code == "OV019").unwrap();
    let fix = found.fix.as_ref().unwrap();
    assert!(fix.command.contains("nft "), "{}", fix.command);
    // The path of the namespace may be a descriptor of another program that has ended since.
    let inside = |command: &str| {
        let command = command.find("nft ").map(|at| command[at..].to_owned()).unwrap();
        node.run(Command::new("sh").args(["-c", &command])).unwrap();
    };
    inside(&fix.command);
    let after = look(&node);
    assert_eq!(codes(&after), Vec::<String>::new(), "{:?}", after.findings);
    inside(&fix.undo);
    assert_eq!(codes(&look(&node)), ["OV019"]);
}
