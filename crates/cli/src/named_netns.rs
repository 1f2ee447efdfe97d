//! Network namespaces on the command line.

use std::path::{Path, PathBuf};

use netstate::namespace::discover;
use sys::netns::NetNs;

use crate::exit::usage;
use crate::lab_socket;

/// Opens a namespace by a name that `doctor`, `trace` and `watch` print for one without a name of
/// its own: `host`, `PID:COMMAND`, `net:[INODE]`, a pod (`NAMESPACE/POD`) or container, or a host of a
/// testbed. `None`: it is none of them.
fn as_printed(text: &str) -> Option<NetNs> {
    // A namespace with this name comes first.
    if PathBuf::from("/run/netns").join(text).exists() {
        return None;
    }
    if text.contains('/') {
        // A path, unless it is a pod.
        return if text.starts_with(['/', '.']) { None } else { by_name(text) };
    }
    if text == "host" {
        return NetNs::current().ok();
    }
    if let Some(inode) = text.strip_prefix("net:[").and_then(|text| text.strip_suffix(']')) {
        let mut found = discover().ok()?.namespaces;
        return found.remove(&inode.parse::<u64>().ok()?).map(|found| found.netns);
    }
    if let Some((pid, _)) = text.split_once(':') {
        let pid: u32 = pid.parse().ok()?;
        return NetNs::open(&PathBuf::from(format!("/proc/{pid}/ns/net"))).ok();
    }
    let standing = lab_socket::all().unwrap_or_default();
    let mut hosts = standing.iter().flat_map(|testbed| &testbed.hosts);
    // Two testbeds may have hosts of one name.
    let Some(host) = hosts.find(|host| host.name == text) else { return by_name(text) };
    match hosts.any(|other| other.name == text) {
        true => None,
        false => NetNs::open(Path::new(&host.netns)).ok(),
    }
}

/// Opens the only namespace with the name of a pod or container.
fn by_name(text: &str) -> Option<NetNs> {
    // A process ID needs no search.
    if text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let all = discover().ok()?.namespaces.into_values();
    let mut named = all.filter(|found| found.name().as_deref() == Some(text));
    let first = named.next()?;
    named.next().is_none().then_some(first.netns)
}

/// Opens a namespace by name, process ID or path. `None` is the caller's namespace.
///
/// # Errors
/// A usage error that names `argument` if there is no such network namespace.
pub fn netns(argument: &str, text: Option<&str>) -> anyhow::Result<NetNs> {
    let Some(text) = text else { return Ok(NetNs::current()?) };
    if let Some(netns) = as_printed(text) {
        return Ok(netns);
    }
    let path = if text.contains('/') {
        PathBuf::from(text)
    } else if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        PathBuf::from(format!("/proc/{text}/ns/net"))
    } else {
        PathBuf::from("/run/netns").join(text)
    };
    NetNs::open(&path).map_err(|error| usage(argument, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_trace_prints_are_accepted() {
        let own = NetNs::current().unwrap().inode();
        let of = |text: &str| netns("--netns", Some(text)).map(|netns| netns.inode());
        let pid = std::process::id();
        for text in [format!("net:[{own}]"), format!("{pid}:overlane"), pid.to_string()] {
            assert_eq!(of(&text).unwrap(), own, "{text}");
        }
        for wrong in ["net:[1]", "net:[x", "nosuch", "x:y", ""] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
