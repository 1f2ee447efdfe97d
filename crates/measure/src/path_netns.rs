//! Network namespaces on a path.

use std::sync::Arc;

use sys::netns::NetNs;

/// A network namespace on the path.
#[derive(Debug, Clone)]
pub struct PathNetns {
    /// Name in hops and figures (`a`, `tenant-b`).
    pub name: String,
    /// Open descriptor of the namespace.
    pub netns: Arc<NetNs>,
}
