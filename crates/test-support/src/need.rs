//! Requirements of tests. Each function returns `Ok`, or a text about the missing feature.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// `CAP_NET_ADMIN` and `CAP_SYS_ADMIN` (capabilities(7): bits 12 and 21).
const NETWORKS: u64 = 1 << 12 | 1 << 21;

/// Requires root in the initial user namespace, with the capability to administer networks.
pub fn root() -> Result<(), String> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The initial user namespace maps all 2³² − 1 IDs to themselves.
    let initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let uid = status("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse::<u32>().ok());
    // A container may run as UID 0 without capabilities.
    if initial && uid == Some(0) && may_administer_networks() {
        Ok(())
    } else {
        Err("needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF)".to_owned())
    }
}

/// Requires the capability to create and administer network namespaces, in any user namespace.
pub fn networks() -> Result<(), String> {
    that(may_administer_networks(), "needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN)")
}

/// Requires the capability to administer networks, in any user namespace, and `/dev/net/tun`.
pub fn tun() -> Result<(), String> {
    networks()?;
    let mut options = std::fs::OpenOptions::new();
    match options.read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("needs /dev/net/tun: {error}")),
    }
}

/// Requires an installed program.
pub fn tool(name: &str) -> Result<(), String> {
    match crate::find(name) {
        Some(_) => Ok(()),
        None => Err(format!("{name} is not installed")),
    }
}

/// Requires several installed programs.
pub fn tools(names: &[&str]) -> Result<(), String> {
    names.iter().try_for_each(|name| tool(name))
}

/// Requires an FRR that is newer than Debian 12's, from crates/lab/tests/guest/fetch-frr. Returns a
/// `PATH` that begins with it.
pub fn newer_frr() -> Result<OsString, String> {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/frr/bin");
    let programs = Path::new(programs).canonicalize().map_err(|_| {
        "no newer FRR in target/frr; run crates/lab/tests/guest/fetch-frr".to_owned()
    })?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(programs).chain(std::env::split_paths(&path));
    std::env::join_paths(all).map_err(|error| error.to_string())
}

/// Requires `count` open descriptors, and raises the limits if possible.
pub fn descriptors(count: u64) -> Result<(), String> {
    const LIMIT: Resource = Resource::RLIMIT_NOFILE;
    let (_, hard) = getrlimit(LIMIT).map_err(|error| error.to_string())?;
    let most = hard.max(count);
    setrlimit(LIMIT, most, most)
        .map_err(|_| format!("the hard limit of descriptors is {hard}, {count} are needed"))
}

/// Requires kernel support for a kind of network device (`ip link add type KIND`). Tries it in a
/// new namespace, once per kind.
pub fn device(kind: &str) -> Result<(), String> {
    once(kind, || {
        let made = in_new_namespace(&[
            "ip link add parent0 type veth peer name parent1",
            &format!("ip link add link parent0 name probe0 type {kind}"),
        ]);
        // Any other error, such as a missing option, shows that the kernel knows the kind.
        let unknown = ["Unknown device type", "Operation not supported"];
        match made {
            Err(said) if unknown.iter().any(|text| said.contains(text)) => {
                Err(format!("the kernel has no {kind} devices"))
            }
            _ => Ok(()),
        }
    })
}

/// Requires bridges with VLAN filtering (`CONFIG_BRIDGE_VLAN_FILTERING`).
pub fn vlan_filtering() -> Result<(), String> {
    once("vlan_filtering", || {
        in_new_namespace(&["ip link add probe0 type bridge vlan_filtering 1"]).map_err(|said| {
            format!("the kernel has no CONFIG_BRIDGE_VLAN_FILTERING: {}", said.trim())
        })
    })
}

/// Requires that `probe` is true; `what` describes the missing feature.
pub fn that(probe: bool, what: &str) -> Result<(), String> {
    if probe { Ok(()) } else { Err(what.to_owned()) }
}

/// Runs `probe` once per process and caches its result.
fn once(name: &str, probe: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static KNOWN: Mutex<BTreeMap<String, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name.to_owned()).or_insert_with(probe).clone()
}

/// Runs shell commands in a temporary network namespace. Returns their error output if one fails.
fn in_new_namespace(commands: &[&str]) -> Result<(), String> {
    let script = commands.join(" && ");
    // An ordinary user's PATH often lacks ip(8).
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new("unshare");
    let ran = command.args(["--net", "sh", "-c", &script]).env("PATH", path).output();
    match ran {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

fn may_administer_networks() -> bool {
    status("CapEff:")
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|effective| effective & NETWORKS == NETWORKS)
}

/// Reads a field of `/proc/self/status`.
fn status(field: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(status.lines().find_map(|line| line.strip_prefix(field))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_device_that_no_kernel_has_is_named() {
        crate::require!(networks(), tools(&["ip", "unshare"]));
        assert_eq!(device("nonesuch").unwrap_err(), "the kernel has no nonesuch devices");
        // The second call returns the cached result.
        assert_eq!(device("nonesuch").unwrap_err(), "the kernel has no nonesuch devices");
        device("veth").unwrap();
        device("bridge").unwrap();
    }

    #[test]
    fn a_probe_is_asked_once() {
        let mut asked = 0;
        for _ in 0..3 {
            let answer = once("asked once", || {
                asked += 1;
                Err("missing".to_owned())
            });
            assert_eq!(answer, Err("missing".to_owned()));
        }
        assert_eq!(asked, 1);
    }
}
