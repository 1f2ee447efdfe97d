//! The devices that a user asks for.

use std::collections::BTreeSet;

/// Selection of VXLAN devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All VXLAN devices in the namespace, and in sandboxes whose underlay it is.
    All,
    /// These devices, once they exist. A device in a sandbox is `NAMESPACE/DEVICE`.
    Named(BTreeSet<String>),
}

impl Wanted {
    pub(crate) fn wants(&self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.contains(name),
        }
    }

    /// Whether some may be in sandboxes, whose names contain a `/`.
    pub(crate) fn wants_sandboxes(&self) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.iter().any(|name| name.contains('/')),
        }
    }
}
