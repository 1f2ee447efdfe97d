//! Network namespaces as the command line names them.

use std::path::PathBuf;

use sys::netns::NetNs;

use crate::exit::usage;

/// A namespace by name, process id or path; the caller's without one.
///
/// # Errors
/// Usage, naming `argument`, where nothing there is a network namespace.
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
