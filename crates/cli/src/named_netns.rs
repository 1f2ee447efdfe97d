//! Network namespaces on the command line.

use std::path::{Path, PathBuf};

use netstate::namespace::discover;
use sys::netns::NetNs;

use crate::exit::usage;
use crate::lab_socket;

/// Opens a namespace by a name that `doctor`, `trace` and `watch` print for one without a name of
/// its own: `host`, `PID:COMMAND`, `net:[INODE]`, a pod (`NAMESPACE/POD`) or container, or a host of a
/// testbed, also as `TESTBED/HOST`. `None`: it is none of them.
///
/// # Errors
/// If hosts of several testbeds have the name.
fn as_printed(text: &str) -> Result<Option<NetNs>, String> {
    // A namespace with this name comes first.
    if PathBuf::from("/run/netns").join(text).exists() || text.starts_with(['/', '.']) {
        return Ok(None);
    }
    if text == "host" {
        return Ok(NetNs::current().ok());
    }
    if let Some(inode) = text.strip_prefix("net:[").and_then(|text| text.strip_suffix(']')) {
        return Ok(by_inode(inode));
    }
    if let Some((pid, _)) = text.split_once(':') {
        let pid: Option<u32> = pid.parse().ok();
        let path = pid.map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
        return Ok(path.and_then(|path| NetNs::open(&path).ok()));
    }
    let standing = lab_socket::all().unwrap_or_default();
    let hosts = lab_socket::hosts(&standing, text);
    match hosts[..] {
        [] => Ok(by_name(text)),
        [(_, host)] => Ok(NetNs::open(Path::new(&host.netns)).ok()),
        _ => Err(lab_socket::ambiguous(text, &hosts)),
    }
}

fn by_inode(inode: &str) -> Option<NetNs> {
    let inode: u64 = inode.parse().ok()?;
    Some(discover().ok()?.namespaces.remove(&inode)?.netns)
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
/// A usage error that names `argument` if there is no such network namespace, or several.
pub fn netns(argument: &str, text: Option<&str>) -> anyhow::Result<NetNs> {
    let Some(text) = text else { return Ok(NetNs::current()?) };
    if let Some(netns) = as_printed(text).map_err(|problem| usage(argument, problem))? {
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
