//! A real Docker Swarm: its traffic, and its clean-up.

use crate::traffic;
use crate::traffic::processes;

use std::collections::BTreeSet;
use std::path::PathBuf;

use lab::{Capabilities, Network, Params};
use processes::processes_in;
use test_support::standing::{Standing, is_meant, stands};
use test_support::{need, require};
use testbed::{Offload, Privileges};
use traffic::{LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

fn network(mtu: u32, offload: Offload) -> Result<Network, String> {
    possible()?;
    Ok(lab::find("swarm").unwrap().build(&Params::new(mtu, offload)).unwrap())
}

fn possible() -> Result<(), String> {
    need::root()?;
    let mode = lab::find("swarm").unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("swarm: {}", unsupported.reason))
}

/// Places that Docker writes to unless prevented, with the times of their last change.
fn written() -> Vec<(PathBuf, Option<std::time::SystemTime>)> {
    ["/etc/docker", "/opt", "/opt/containerd", "/var/lib/docker", "/var/lib/containerd"]
        .into_iter()
        .chain([
            "/run/docker",
            "/run/docker.pid",
            "/run/docker.sock",
            "/run/containerd",
            "/run/runc",
        ])
        .map(|path| (path.into(), std::fs::metadata(path).and_then(|meta| meta.modified()).ok()))
        .collect()
}

/// Directories of control groups with one of these names, in every hierarchy.
fn control_groups(names: &[String]) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of_groups = |line: &&str| line.contains(" - cgroup2 ") || line.contains(" - cgroup ");
    let roots = mounts.lines().filter(of_groups).filter_map(|line| line.split(' ').nth(4));
    let mut found: Vec<PathBuf> = roots
        // "docker" is dockerd's default parent.
        .flat_map(|root| {
            names
                .iter()
                .map(String::as_str)
                .chain(["docker"])
                .map(move |name| PathBuf::from(root).join(name))
        })
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found
}

/// The lines of `/proc/self/mountinfo`, without namespaces that other processes name meanwhile.
fn mounts() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_named = |line: &&str| line.contains(" /run/netns");
    text.lines().filter(|line| !is_named(line)).map(str::to_owned).collect()
}

#[test]
fn containers_exchange_what_they_send() {
    exchange(1500, Offload::Full);
}

#[test]
fn containers_exchange_what_they_send_with_a_large_mtu() {
    exchange(9000, Offload::None);
}

fn exchange(mtu: u32, offload: Offload) {
    let mut network = require!(network(mtu, offload));
    assert_eq!(network.tenant_mtu, mtu - 50);
    for tenant in ["tenant-a", "tenant-b"] {
        let link = network.host(tenant).unwrap().netlink().link("eth0").unwrap();
        assert_eq!(link.mtu, network.tenant_mtu);
    }
    echo(&network, &[1, 1400, 1422, 1423, 8922, 8973, 20_000]);
    stream_both_ways(&network);
    segmented_datagrams_arrive(&network);
    network.check().unwrap();
    // Device, bridge and port are where Docker puts them.
    let sandbox = network.host("sandbox-a").unwrap().netlink();
    let vxlan = sandbox.link("vxlan0").unwrap();
    assert_eq!(vxlan.master, Some(sandbox.link("br0").unwrap().index));
    assert!(vxlan.link_netns.is_some(), "its underlay is in another namespace");
    assert!(network.host("a").unwrap().netlink().link("docker_gwbridge").is_ok());
}

/// The test that a separate process runs until it is killed.
const STANDING: &str = "swarm::nothing_is_left_after_its_end_or_a_kill";

/// In a process of its own.
fn stands_until_killed() {
    let network = network(1500, Offload::Full).unwrap();
    echo(&network, &[64]);
    let groups = network.cgroups().collect::<Vec<_>>().join(" ");
    let namespaces = network.hosts().iter().map(|host| host.netns().inode().to_string());
    let namespaces = namespaces.collect::<Vec<_>>().join(" ");
    // Until it is killed or gets the command to end.
    let _ = stands(&format!("{groups}, {namespaces}")).next();
    drop(network);
}

#[test]
fn nothing_is_left_after_its_end_or_a_kill() {
    if is_meant() {
        return stands_until_killed();
    }
    require!(possible());
    for killed in [false, true] {
        let (files, mounted) = (written(), mounts());
        let mut standing = Standing::start(STANDING, &[]).unwrap();
        let (groups, namespaces) = standing.said().split_once(", ").unwrap();
        let groups: Vec<String> = groups.split(' ').map(str::to_owned).collect();
        let namespaces: BTreeSet<u64> = namespaces.split(' ').map(|n| n.parse().unwrap()).collect();
        assert_eq!(groups.len(), 2, "{groups:?}");
        assert!(control_groups(&groups).len() >= 2, "the test looks where they are");
        assert!(processes_in(&namespaces).len() >= 4);
        if killed { standing.kill() } else { standing.end() }.unwrap();
        testbed::poll("the end of Docker", LIMIT, || {
            let mut left = processes_in(&namespaces);
            left.extend(control_groups(&groups).iter().map(|path| path.display().to_string()));
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .unwrap();
        assert_eq!(mounts(), mounted);
        assert_eq!(written(), files);
    }
}
