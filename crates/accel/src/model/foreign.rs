//! Foreign BPF programs at hooks that are not bound to a namespace.

use std::collections::BTreeMap;

/// A foreign program, by the place where it may see packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// At a netfilter hook.
    Netfilter {
        /// IPv6 rather than IPv4.
        ipv6: bool,
        hook: u32,
    },
    /// At a hook of the security framework (LSM), or at a kernel function.
    Function(String),
    /// At a device. The device is queried for its programs.
    Device,
}

/// Foreign BPF links.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// Programs by link id.
    pub foreign: BTreeMap<u32, Foreign>,
    /// The kernel denies this process the list (`CAP_SYS_ADMIN`).
    pub hidden: bool,
}
