//! The real control planes of nodes: flannel, etcd, kube-apiserver and kube-proxy.
//!
//! etcd comes from Debian, the other programs from `make cluster`. Each node's programs have
//! their own process tree with a private `/run` and `/tmp`, so they run with default flags.

mod control_plane;
mod etcd;
mod flannel;
mod kube_proxy;
mod node;
mod objects;
mod relay;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(crate) use control_plane::ControlPlane;
pub(crate) use etcd::Etcd;
pub(crate) use flannel::{Source, Subnet, start as flannel};
pub(crate) use kube_proxy::{ProxyMode, programmed, start as kube_proxy};
pub(crate) use node::{DEVICE, Nodes, POD_NIC, PORT_DEVICE, knows, pod};
pub(crate) use objects::{CLUSTER_IP, Objects};

use crate::Capabilities;
use crate::unsupported::{Supported, Unsupported, find_program};

/// Address range of all pods, in flannel's format.
const NETWORK: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
/// The same range for kube-proxy.
const POD_NETWORK: &str = "10.244.0.0/16";
/// `PATH` of flannel and kube-proxy, which run iptables and other programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Time limit for a daemon to start.
const LIMIT: Duration = Duration::from_secs(60);

/// Checks whether flannel can run with etcd.
pub(crate) fn has_flannel(machine: &Capabilities) -> Supported {
    let needed = [("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("iptables", "iptables")];
    can(machine, "flannel", &needed, &["flannel"])
}

/// Checks whether Kubernetes nodes can run.
pub(crate) fn has_kubernetes(machine: &Capabilities) -> Supported {
    let needed = [
        ("etcd", "etcd-server"),
        ("etcdctl", "etcd-client"),
        ("iptables", "iptables"),
        ("conntrack", "conntrack"),
        ("curl", "curl"),
        ("openssl", "openssl"),
    ];
    can(machine, "Kubernetes", &needed, &["flannel", "kube-apiserver", "kube-proxy"])
}

fn can(
    machine: &Capabilities,
    what: &str,
    needed: &[(&str, &str)],
    ours: &[&'static str],
) -> Supported {
    machine.links(&["veth", "bridge", "vxlan"])?;
    // flannel and kube-proxy change settings that belong to root of the machine.
    if machine.privileges() != testbed::Privileges::Root {
        return Err(Unsupported::without_root(format!("{what} needs root"), "run as root"));
    }
    for (program, package) in needed {
        machine.program(program, package)?;
    }
    // Debian has no packages of these.
    ours.iter().try_for_each(|name| built(name).map(drop))
}

/// Finds a program that `make cluster` builds, in `OVERLANE_CLUSTER` or below
/// `target/cluster/bin` of the directory that this program was built in.
fn built(name: &'static str) -> std::result::Result<PathBuf, Unsupported> {
    let named = std::env::var_os("OVERLANE_CLUSTER").map(|bin| PathBuf::from(bin).join(name));
    let own = std::env::current_exe().ok();
    let beside = own.iter().flat_map(|own| own.ancestors()).map(|above| above.join("cluster/bin"));
    let mut places = named.into_iter().chain(beside.map(|bin| bin.join(name)));
    places.find(|path| path.is_file()).ok_or_else(|| {
        Unsupported::new(
            format!("{name} is not built"),
            "run make cluster (requires Go), or set OVERLANE_CLUSTER to its directory",
        )
    })
}

/// Returns a command for a program that was found by the probe. Its environment is cleared, so
/// that no proxy of the machine applies.
fn program(name: &'static str) -> Command {
    // If it was removed since the probe, starting it fails with its name.
    let path = built(name).ok().or_else(|| find_program(name)).unwrap_or_else(|| name.into());
    let mut command = Command::new(path);
    command.env_clear().env("PATH", PATH).env("HOME", "/tmp");
    command
}

/// Writes a file inside the mount namespace of `tree`.
fn write(
    tree: &testbed::Processes,
    host: &testbed::Host,
    path: &str,
    text: &str,
) -> crate::Result<()> {
    let written = tree.inside(host, || std::fs::write(path, text))?;
    Ok(written.map_err(|error| sys::Error::io("write", path, &error))?)
}
