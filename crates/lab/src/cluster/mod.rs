//! The real control planes of nodes: flannel, etcd, kube-apiserver and kube-proxy.
//!
//! etcd comes from Debian, the others from `make cluster`. A node's programs have a process
//! tree of their own, with a private `/run` and `/tmp`, so that they can run with their
//! default flags.

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
pub(crate) use flannel::{Source, start as flannel};
pub(crate) use kube_proxy::{ProxyMode, programmed, start as kube_proxy};
pub(crate) use node::{DEVICE, Nodes, PORT_DEVICE, knows, pod};
pub(crate) use objects::{CLUSTER_IP, Objects};

use crate::Capabilities;
use crate::unsupported::{Supported, Unsupported, find_program};

/// What pods of all nodes have their addresses from, as flannel reads it.
const NETWORK: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
/// The same for kube-proxy.
const POD_NETWORK: &str = "10.244.0.0/16";
/// Where flannel and kube-proxy look for iptables and others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long a daemon may take to start.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether flannel can be run with etcd.
pub(crate) fn has_flannel(machine: &Capabilities) -> Supported {
    let needed = [("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("iptables", "iptables")];
    can(machine, "flannel", &needed, &["flannel"])
}

/// Whether nodes of Kubernetes can be run.
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
    if machine.privileges() != testbed::Privileges::Root {
        return Err(Unsupported::without_root(format!("{what} needs root"), "run as root"));
    }
    for (program, package) in needed {
        machine.program(program, package)?;
    }
    ours.iter().try_for_each(|name| built(name).map(drop))
}

/// A program that `make cluster` builds: below `target/cluster/bin` of the directory that
/// this program was built in, or where `OVERLANE_CLUSTER` says.
fn built(name: &'static str) -> std::result::Result<PathBuf, Unsupported> {
    let named = std::env::var_os("OVERLANE_CLUSTER").map(|bin| PathBuf::from(bin).join(name));
    let own = std::env::current_exe().ok();
    let beside = own.iter().flat_map(|own| own.ancestors()).map(|above| above.join("cluster/bin"));
    let mut places = named.into_iter().chain(beside.map(|bin| bin.join(name)));
    places.find(|path| path.is_file()).ok_or_else(|| {
        Unsupported::new(
            format!("{name} is not built"),
            "run make cluster (wants Go), or name its directory by OVERLANE_CLUSTER",
        )
    })
}

/// A program that was there when the mode was probed, without this process's environment:
/// no proxy of the machine leads to the testbed.
fn program(name: &'static str) -> Command {
    // Removed since it was probed: starting it fails, and names it.
    let path = built(name).ok().or_else(|| find_program(name)).unwrap_or_else(|| name.into());
    let mut command = Command::new(path);
    command.env_clear().env("PATH", PATH).env("HOME", "/tmp");
    command
}

/// Writes a file where the programs of `tree` see it.
fn write(
    tree: &testbed::Processes,
    host: &testbed::Host,
    path: &str,
    text: &str,
) -> crate::Result<()> {
    let written = tree.inside(host, || std::fs::write(path, text))?;
    Ok(written.map_err(|error| sys::Error::io("write", path, &error))?)
}
