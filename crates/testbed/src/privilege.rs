//! The right to make namespaces: had, or taken by entering a user namespace.

use crate::Result;

/// With what rights testbeds are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// Root (or the capabilities) in the machine's own user namespace.
    Root,
    /// An ordinary user, root in a user namespace: no BPF, and `/dev/net/tun`
    /// only where its permissions allow it.
    UserNamespace,
}

impl Privileges {
    /// `root` or `user-namespace`, as the results file has it.
    pub fn name(self) -> &'static str {
        match self {
            Privileges::Root => "root",
            Privileges::UserNamespace => "user-namespace",
        }
    }
}

/// Makes sure that this process may make namespaces. Call it before any thread
/// is started: a process with threads cannot enter a user namespace.
///
/// # Errors
/// When the machine forbids user namespaces to ordinary users.
pub fn acquire() -> Result<Privileges> {
    if sys::userns::may_administer_networks() {
        return Ok(if sys::userns::in_initial_user_namespace() {
            Privileges::Root
        } else {
            // Root of a container: its capabilities count in its own user namespace only.
            Privileges::UserNamespace
        });
    }
    sys::userns::enter_new()?;
    Ok(Privileges::UserNamespace)
}
