//! Which devices a user asks for.

use std::collections::BTreeSet;

/// Which VXLAN devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Every one of the namespace, and of sandboxes whose underlay it is.
    All,
    /// These, when they are there; one of a sandbox is `NAMESPACE/DEVICE`.
    Named(BTreeSet<String>),
}

impl Wanted {
    pub(crate) fn wants(&self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.contains(name),
        }
    }

    /// Whether some may be in sandboxes: their names are those of namespace and device.
    pub(crate) fn wants_sandboxes(&self) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Named(names) => names.iter().any(|name| name.contains('/')),
        }
    }
}
