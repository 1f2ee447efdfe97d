//! Obtains the privilege to create namespaces, if necessary by a user namespace.

use crate::Result;

/// Privileges with which testbeds are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// Root (or its capabilities) in the machine's initial user namespace.
    Root,
    /// Ordinary user, root in a user namespace: no BPF, and `/dev/net/tun` only if its permissions
    /// allow it.
    UserNamespace,
}

impl Privileges {
    /// Name in the results file: `root` or `user-namespace`.
    pub fn name(self) -> &'static str {
        match self {
            Privileges::Root => "root",
            Privileges::UserNamespace => "user-namespace",
        }
    }
}

/// Makes sure that this process may create namespaces. Call it before starting any thread: a
/// process with threads cannot enter a user namespace.
///
/// # Errors
/// If the machine forbids user namespaces to ordinary users.
pub fn acquire() -> Result<Privileges> {
    if sys::userns::may_administer_networks() {
        return Ok(if sys::userns::in_initial_user_namespace() {
            Privileges::Root
        } else {
            // Root of a container has capabilities only in the container's user namespace.
            Privileges::UserNamespace
        });
    }
    sys::userns::enter_new()?;
    Ok(Privileges::UserNamespace)
}
