//! Network namespaces on the command line.

use std::path::PathBuf;

use sys::netns::NetNs;

use crate::exit::usage;

/// Opens a namespace by name, process ID or path. `None` is the caller's namespace.
///
/// # Errors
/// A usage error that names `argument` if there is no such network namespace.
pub fn netns(argument: &str, text: Option<&str>) -> anyhow::Result<NetNs> {
    let Some(text) = text else { return Ok(NetNs::current()?) };
    let path = if text.contains('/') {
        PathBuf::from(text)
    } else if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        PathBuf::from(format!("/proc/{text}/ns/net"))
    } else {
        PathBuf::from("/run/netns").join(text)
    };
    NetNs::open(&path).map_err(|error| usage(argument, error))
}
