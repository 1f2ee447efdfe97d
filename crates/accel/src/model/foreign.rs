//! BPF programs of others at hooks that no namespace lists.

use std::collections::BTreeMap;

/// A program where the kernel may ask it about packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// At a hook of netfilter, of IPv4 or IPv6.
    Netfilter {
        /// Of IPv6.
        ipv6: bool,
        /// Number of its hook.
        hook: u32,
    },
    /// At a security module's hook, or in front of a function of the kernel.
    Function(String),
    /// At a device. What is attached to it is asked of the device.
    Device,
}

/// What there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// By number.
    pub foreign: BTreeMap<u32, Foreign>,
    /// The kernel does not let this process list them (`CAP_SYS_ADMIN`).
    pub hidden: bool,
}
