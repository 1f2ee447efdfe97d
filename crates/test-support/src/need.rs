//! What a test may need: each is `Ok` where the machine has it, else says what is missing.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// `CAP_NET_ADMIN` and `CAP_SYS_ADMIN` (capabilities(7): bits 12 and 21).
const NETWORKS: u64 = 1 << 12 | 1 << 21;

/// Root in the machine's own user namespace, with the right to administer networks.
pub fn root() -> Result<(), String> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The initial user namespace maps all 2³² − 1 ids to themselves.
    let initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let uid = status("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse::<u32>().ok());
    if initial && uid == Some(0) && may_administer_networks() {
        Ok(())
    } else {
        Err("needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF)".to_owned())
    }
}

/// The right to create network namespaces and to administer them, in whatever user
/// namespace.
pub fn networks() -> Result<(), String> {
    that(may_administer_networks(), "needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN)")
}

/// The right to administer networks, in whatever user namespace, and `/dev/net/tun`.
pub fn tun() -> Result<(), String> {
    networks()?;
    let mut options = std::fs::OpenOptions::new();
    match options.read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("needs /dev/net/tun: {error}")),
    }
}

/// A program that is installed, by name.
pub fn tool(name: &str) -> Result<(), String> {
    match crate::find(name) {
        Some(_) => Ok(()),
        None => Err(format!("{name} is not installed")),
    }
}

/// Installed programs, all of them.
pub fn tools(names: &[&str]) -> Result<(), String> {
    names.iter().try_for_each(|name| tool(name))
}

/// A `PATH` on which an FRR comes first that is newer than Debian 12's: crates/lab/tests/guest/fetch-frr
/// puts it there.
pub fn newer_frr() -> Result<OsString, String> {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/frr/bin");
    let programs = Path::new(programs).canonicalize().map_err(|_| {
        "no newer FRR in target/frr; run crates/lab/tests/guest/fetch-frr".to_owned()
    })?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(programs).chain(std::env::split_paths(&path));
    std::env::join_paths(all).map_err(|error| error.to_string())
}

/// Room for so many open descriptors, which the hard limit gives. Who may raise that has it, too.
pub fn descriptors(count: u64) -> Result<(), String> {
    const LIMIT: Resource = Resource::RLIMIT_NOFILE;
    let (_, hard) = getrlimit(LIMIT).map_err(|error| error.to_string())?;
    let most = hard.max(count);
    setrlimit(LIMIT, most, most)
        .map_err(|_| format!("the hard limit of descriptors is {hard}, {count} are needed"))
}

/// A kind of network device that the kernel can make (`ip link add type KIND`), tried in a
/// namespace of its own, once a kind.
pub fn device(kind: &str) -> Result<(), String> {
    once(kind, || {
        let made = in_new_namespace(&[
            "ip link add parent0 type veth peer name parent1",
            &format!("ip link add link parent0 name probe0 type {kind}"),
        ]);
        // An option that is missing shows that the kernel knows the kind.
        let unknown = ["Unknown device type", "Operation not supported"];
        match made {
            Err(said) if unknown.iter().any(|text| said.contains(text)) => {
                Err(format!("the kernel has no {kind} devices"))
            }
            _ => Ok(()),
        }
    })
}

/// A bridge that filters VLANs (`CONFIG_BRIDGE_VLAN_FILTERING`).
pub fn vlan_filtering() -> Result<(), String> {
    once("vlan_filtering", || {
        in_new_namespace(&["ip link add probe0 type bridge vlan_filtering 1"]).map_err(|said| {
            format!("the kernel has no CONFIG_BRIDGE_VLAN_FILTERING: {}", said.trim())
        })
    })
}

/// Something that `probe` has found out, or `what` is missing.
pub fn that(probe: bool, what: &str) -> Result<(), String> {
    if probe { Ok(()) } else { Err(what.to_owned()) }
}

/// What `probe` says, asked once in this process.
fn once(name: &str, probe: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static KNOWN: Mutex<BTreeMap<String, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name.to_owned()).or_insert_with(probe).clone()
}

/// Runs shell commands in a network namespace that ends with them; what they said if one
/// failed.
fn in_new_namespace(commands: &[&str]) -> Result<(), String> {
    let script = commands.join(" && ");
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

/// A field of `/proc/self/status`.
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
        // Asked again, it is what was found out before.
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
