//! Resource limits of the calling process.
//!
//! Source: getrlimit(2).

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Minimum hard limit on descriptors for a privileged process: a test host needs a dozen, and a run
/// of all modes has a hundred test hosts.
const PRIVILEGED: u64 = 65_536;

/// Raises the soft limit on open descriptors to the hard limit. The soft limit is 1,024 in a shell
/// and in a service, for programs that use select(2). With `CAP_SYS_RESOURCE` a lower hard limit is
/// raised to 65,536. If that is refused, the limit stays as it was.
///
/// # Panics
/// rograms started later inherit the limit.
pub fn raise_descriptors() {
    let to = |limit| setrlimit(Resource::RLIMIT_NOFILE, limit, limit);
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| to(hard.max(PRIVILEGED)).or_else(|_| to(hard)));
    // A system call filter may refuse this; the present limit may be sufficient.
    let _: Result<(), Errno> = raised;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_allowed_may_be_open() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft - 1, hard).unwrap();
        raise_descriptors();
        let (soft, raised) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, raised);
        assert!(raised == hard || raised == hard.max(PRIVILEGED), "{hard} became {raised}");
    }
}
