//! Kubernetes nodes with the real control plane: their traffic, their rules, and the clean-up.

use crate::modes::mode;
use crate::traffic;

use std::process::Command;

use lab::{Network, Params, modes};
use netstate::HopKind;
use test_support::require;
use test_support::standing::{Standing, is_meant, stands};
use testbed::Offload;
use traffic::{LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

const PARAMS: Params = Params::new(1500, Offload::Full);

/// Output of a shell command in a host of the network.
fn printed(network: &Network, host: &str, command: &str) -> String {
    network.host(host).unwrap().run(Command::new("sh").args(["-c", command])).unwrap()
}

/// Traffic to the server, by the devices that the mode declares.
fn drive(network: &mut Network) {
    echo(network, &[1, 1400]);
    stream_both_ways(network);
    segmented_datagrams_arrive(network);
    network.check().unwrap();
    for hop in &network.hops {
        if hop.kind != HopKind::Device || hop.bypass.is_some() {
            continue;
        }
        let host = network.host(&hop.host).unwrap();
        let counters = host.netlink().link(&hop.device).unwrap().counters;
        let least = counters.rx_bytes.min(counters.tx_bytes);
        assert!(least > traffic::BYTES as u64, "{} {}: {counters:?}", hop.host, hop.device);
    }
}

#[test]
fn pods_reach_each_other_by_address_and_by_service_in_both_modes_of_kube_proxy() {
    for name in ["k8s", "k8s-nft", "k8s-service", "k8s-service-nft", "k8s-service-100"] {
        let mut network = require!(mode(name)).build(&PARAMS).unwrap();
        assert_eq!(
            network.address.target.ip() == network.address.listen.ip(),
            !name.contains("service")
        );
        drive(&mut network);
        let rules =
            if name.contains("nft") { "nft list table ip kube-proxy" } else { "iptables-nft-save" };
        for host in ["a", "b"] {
            let rules = printed(&network, host, rules);
            assert!(rules.contains("10.96.0.10"), "{name} in {host}: {rules}");
            let others = (0..100).filter(|n| rules.contains(&format!("default/other-{n}"))).count();
            assert_eq!(others, if name.ends_with("100") { 100 } else { 0 }, "{name} in {host}");
        }
        // The nodes have no device for the control plane, and the wire carries none of its traffic.
        let links = network.host("a").unwrap().netlink().links().unwrap();
        let mut names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["cni0", "flannel.1", "lo", "nic0", "veth0"]);
    }
}

/// Rewritten addresses of the server's connections in a host, as conntrack lists them.
fn entries(network: &Network, host: &str) -> String {
    printed(network, host, "conntrack -L -p tcp 2>/dev/null")
}

#[test]
fn a_node_reaches_pods_a_pod_itself_by_service_and_an_external_host() {
    require!(mode("k8s-node"));
    for name in ["k8s-node", "k8s-hairpin", "k8s-external"] {
        let mut network = mode(name).unwrap().build(&PARAMS).unwrap();
        drive(&mut network);
        let (client, server) = (network.client().name(), network.server().name());
        let entries = entries(&network, "a");
        let has = |parts: &[&str]| {
            entries.lines().any(|line| parts.iter().all(|part| line.contains(part)))
        };
        match name {
            "k8s-node" => assert_eq!((client, server), ("a", "tenant-b")),
            "k8s-hairpin" => {
                assert_eq!((client, server), ("tenant-a", "tenant-a"));
                // Both addresses of answers are rewritten: the pod answers to the node's bridge.
                let (pod, bridge) = ("src=10.244.0.2", "dst=10.244.0.1 ");
                assert!(has(&["dst=10.96.0.10", pod, bridge]), "{entries}");
            }
            _ => {
                assert_eq!((client, server), ("tenant-a", "b"));
                let (pod, node) = ("src=10.244.0.2 dst=10.0.0.2", "src=10.0.0.2 dst=10.0.0.1 ");
                assert!(has(&[pod, node]), "{entries}");
            }
        }
    }
}

/// A client that connects to the service's address passes its rules.
#[test]
fn a_service_s_connections_are_translated() {
    let network = require!(mode("k8s-service")).build(&PARAMS).unwrap();
    stream_both_ways(&network);
    let entries = entries(&network, "a");
    let translated =
        |line: &&str| line.contains("dst=10.96.0.10") && line.contains("src=10.244.1.2");
    assert!(entries.lines().any(|line| translated(&line)), "{entries}");
}

#[test]
fn the_fast_path_takes_a_node_s_packets_with_its_rules_in_force() {
    for name in ["k8s+accel", "k8s-service+accel", "k8s-service-nft+accel"] {
        let mut network = require!(mode(name)).build(&PARAMS).unwrap();
        drive(&mut network);
        let mut stages = network.hops.iter().filter(|hop| hop.kind == HopKind::Stage);
        assert!(
            stages.all(|stage| {
                let carried = stage.meter.as_ref().unwrap().read().carried;
                carried.tx_packets > 0 && carried.rx_packets > 0
            }),
            "{name}"
        );
    }
}

#[test]
fn variants_say_how_they_differ() {
    let names = modes().iter().map(|mode| mode.name()).filter(|name| name.starts_with("k8s"));
    let names: Vec<_> = names.collect();
    assert_eq!(names.len(), 19);
    for name in names {
        let mode = lab::find(name).unwrap();
        assert!(!mode.in_all() && mode.build_seconds().is_some(), "{name}");
        assert_eq!(
            name.ends_with("+accel"),
            mode.path().contains("eBPF") || mode.path().contains("+accel")
        );
    }
}

/// Process ids with one of these programs.
fn processes() -> Vec<String> {
    let names = ["kube-apiserver", "kube-proxy", "flannel", "etcd"];
    let comm = |entry: std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        names.contains(&name.trim()).then(|| format!("{} {name}", entry.path().display()))
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(comm).collect()
}

fn mounts() -> String {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    // Other tests may name namespaces meanwhile.
    text.lines()
        .filter(|line| !line.contains("/run/netns"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The test that a separate process runs until it is killed.
const STANDING: &str = "k8s::nothing_is_left_after_its_end_or_a_kill";

/// In a process of its own.
fn stands_until_killed() {
    let network = mode("k8s").unwrap().build(&PARAMS).unwrap();
    echo(&network, &[64]);
    let _ = stands("").next();
    drop(network);
}

#[test]
fn nothing_is_left_after_its_end_or_a_kill() {
    require!(mode("k8s"));
    if is_meant() {
        return stands_until_killed();
    }
    for killed in [false, true] {
        let before = mounts();
        // No proxy listens there, and none must be used.
        let proxy = "http://192.0.2.1:3128";
        let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, proxy));
        let mut standing = Standing::start(STANDING, &proxies).unwrap();
        let own = descendants(standing.pid());
        assert!(own.len() >= 6, "{own:?}");
        if killed { standing.kill() } else { standing.end() }.unwrap();
        testbed::poll("the end of the programs", LIMIT, || {
            let left: Vec<_> = processes()
                .into_iter()
                .filter(|process| {
                    own.iter().any(|own| process.starts_with(&format!("/proc/{own} ")))
                })
                .collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .unwrap();
        assert_eq!(mounts(), before);
    }
}

/// Names of the descendants of a process that are one of the programs.
fn descendants(of: u32) -> Vec<String> {
    let parent = |pid: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
    };
    let is_below = |pid: &str| {
        let mut at = pid.to_owned();
        while let Some(above) = parent(&at) {
            if above == of {
                return true;
            }
            at = above.to_string();
        }
        false
    };
    let pid = |process: &String| process.split(['/', ' ']).nth(2).unwrap().to_owned();
    processes().iter().map(pid).filter(|pid| is_below(pid)).collect()
}

/// Takes most of a minute: each service is created through the API.
#[test]
fn a_node_among_five_thousand_services_stands() {
    let mut network = require!(mode("k8s-service-nft-5000")).build(&PARAMS).unwrap();
    drive(&mut network);
    let rules = printed(&network, "a", "nft list map ip kube-proxy service-ips");
    assert!(rules.contains("other-4999"), "{}", rules.len());
}
