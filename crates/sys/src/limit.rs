//! Limits of the calling process.
//!
//! Source: getrlimit(2).

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that a privileged process may have, whatever its hard limit was: a test host
/// takes a dozen, and a run of all modes has a hundred of them.
const PRIVILEGED: u64 = 65_536;

/// Lets the process have as many descriptors open as it may: its soft limit becomes its hard
/// one. The soft one is 1,024 in a shell and in a service, for programs that use select(2).
/// With `CAP_SYS_RESOURCE` the hard one becomes 65,536, where it is less. Where that is refused
/// it stays as it was.
///
/// Programs that are started later have it, too.
pub fn raise_descriptors() {
    let to = |limit| setrlimit(Resource::RLIMIT_NOFILE, limit, limit);
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| to(hard.max(PRIVILEGED)).or_else(|_| to(hard)));
    // A filter of system calls may refuse it: the limit that there is may do.
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
