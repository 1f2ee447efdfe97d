//! A real Docker Swarm of two hosts on this machine, found like a user's.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use doctor::{Diagnosis, Host, Scope, Severity, collect, diagnose, dump};
use lab::Network;
use test_support::require;

use super::bench::{at_rest, build, judge, others};
use super::privileged;

/// The mode, or the reason why it cannot be built.
fn swarm() -> Result<Network, String> {
    let probed = lab::find("swarm").unwrap().probe(&privileged()?);
    probed.map_err(|unsupported| format!("swarm: {}", unsupported.reason))?;
    Ok(build("swarm", 1500))
}

/// Inodes of the Swarm's namespaces: those of the hosts, and those that Docker keeps.
fn namespaces(network: &Network) -> BTreeSet<u64> {
    let mut inodes: BTreeSet<u64> =
        network.hosts().iter().map(|host| host.netns().inode()).collect();
    for host in ["a", "b"] {
        let init = network.init_pid(host).unwrap();
        let docker = format!("/proc/{init}/root/run/docker/exec/netns");
        let files = std::fs::read_dir(docker).unwrap();
        inodes.extend(files.map(|file| std::fs::metadata(file.unwrap().path()).unwrap().ino()));
    }
    inodes
}

/// The whole machine as `overlane doctor` reads it, without other programs' namespaces.
fn read(network: &Network) -> Host {
    let mut host = collect(Scope::All, Duration::from_millis(200)).unwrap();
    let ours = namespaces(network);
    host.namespaces.retain(|namespace| ours.contains(&namespace.inode));
    assert_eq!(host.namespaces.len(), ours.len(), "Docker's namespaces are found");
    at_rest(&mut host);
    host
}

/// Kinds of the devices on a path.
fn kinds(path: &doctor::path::Path) -> Vec<&str> {
    path.hops.iter().map(|hop| hop.kind.as_str()).collect()
}

/// Both containers' paths lead through Docker's sandbox to the NIC of the host.
fn assert_drawn(host: &Host, diagnosis: &Diagnosis) {
    let label = |inode: u64| {
        &host.namespaces.iter().find(|namespace| namespace.inode == inode).unwrap().label
    };
    // A namespace with docker_gwbridge is a host's.
    let has = |namespace: &&doctor::host::Namespace, name: &str| {
        namespace.interfaces.get().unwrap().iter().any(|link| link.name == name)
    };
    let hosts: Vec<_> =
        host.namespaces.iter().filter(|namespace| has(namespace, "docker_gwbridge")).collect();
    assert_eq!(hosts.len(), 2);
    for at in hosts {
        let whole: Vec<_> = diagnosis
            .paths
            .iter()
            .filter(|path| {
                kinds(path) == ["veth", "veth", "bridge", "vxlan 4097", "veth"]
                    && path.hops.last().unwrap().namespace == *label(at.inode)
            })
            .collect();
        let names = |at: usize| -> BTreeSet<&str> {
            whole.iter().map(|path| path.hops[at].device.as_str()).collect()
        };
        assert!(!whole.is_empty(), "{}: {:#?}", at.label, diagnosis.paths);
        assert_eq!(names(2), BTreeSet::from(["br0"]));
        assert_eq!(names(3), BTreeSet::from(["vxlan0"]));
        assert_eq!(names(4), BTreeSet::from(["nic0"]));
        // One of them belongs to the container with two devices.
        let two = |path: &&&doctor::path::Path| {
            let of = |namespace: &&doctor::host::Namespace| {
                namespace.label == path.hops[0].namespace && has(namespace, "eth1")
            };
            path.hops[0].device == "eth0" && host.namespaces.iter().any(|n| of(&n))
        };
        assert_eq!(whole.iter().filter(two).count(), 1, "{whole:#?}");
        for path in whole {
            // Bridge, tunnel and port are in one namespace, which is neither end's.
            let places: Vec<&str> = path.hops.iter().map(|hop| hop.namespace.as_str()).collect();
            assert!(places[1] == places[2] && places[2] == places[3], "{places:?}");
            assert!(places[0] != places[1] && places[3] != places[4], "{places:?}");
        }
    }
    let alarms = others(diagnosis, "", Severity::Warn);
    assert_eq!(alarms, Vec::<String>::new());
    // Docker forbids traffic between the containers on `docker_gwbridge`.
    assert!(!diagnosis.findings.iter().any(|finding| finding.code == "OV073"));
}

/// Its name in the library of saved hosts: without a code, because it is healthy.
const NAME: &str = "docker-swarm";

#[test]
fn a_swarm_is_drawn_and_found_healthy() {
    let network = require!(swarm());
    let host = read(&network);
    assert_drawn(&host, &judge(NAME, &host));
}

#[test]
fn a_saved_swarm_is_drawn_and_found_healthy() {
    let saved = format!("{}/tests/hosts/{NAME}.tar.zst", env!("CARGO_MANIFEST_DIR"));
    let host = dump::read(std::fs::File::open(saved).unwrap()).unwrap();
    assert_drawn(&host, &diagnose(&host));
}
