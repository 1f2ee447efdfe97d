//! Network namespaces that a path leads through.

use std::sync::Arc;

use sys::netns::NetNs;

/// A network namespace on the path.
#[derive(Debug, Clone)]
pub struct PathNetns {
    /// Name, as hops and figures have it (`a`, `tenant-b`).
    pub name: String,
    /// Open descriptor of that namespace.
    pub netns: Arc<NetNs>,
}
