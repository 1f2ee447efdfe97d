//! Permanently restricts system calls (seccomp(2)) to an allow list.
//!
//! The filters are compiled by `seccompiler`. There are three classes of calls: *allowed*, possibly
//! only for some arguments; *refused*, which fail with an error that programs can handle; and all
//! others, which kill the process because they are unexpected. A filter can check only numbers, not
//! the memory to which a pointer refers. Restrictions on paths and addresses must come from users,
//! Landlock, and missing sockets.
//!
//! Source: `include/uapi/linux/seccomp.h`.

use std::collections::BTreeMap;

use nix::errno::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::{Error, Result};

/// The number of a system call, `SYS_*`.
pub type Call = libc::c_long;

/// A condition on an argument. Only the lower 32 bits are compared, which is what the kernel uses
/// for descriptors, flags and operation numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    index: u8,
    operation: Comparison,
    value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Is,
    IsNot,
    Masked(u32),
    AtLeast,
    AtMost,
    /// All 64 bits are 0: a null pointer.
    Null,
}

impl Argument {
    /// The argument at `index` (from 0) equals `value`.
    pub fn is(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::Is, value: low(value) }
    }

    /// The argument does not equal `value`.
    pub fn is_not(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::IsNot, value: low(value) }
    }

    /// The bits of the argument under `mask` equal `value`.
    pub fn has(index: u8, mask: i64, value: i64) -> Argument {
        let mask = low(mask) as u32;
        Argument { index, operation: Comparison::Masked(mask), value: low(value) }
    }

    /// The argument is at least `value`, as an unsigned number.
    pub fn at_least(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::AtLeast, value: low(value) }
    }

    /// The argument is at most `value`, as an unsigned number.
    pub fn at_most(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::AtMost, value: low(value) }
    }

    pub fn null(index: u8) -> Argument {
        Argument { index, operation: Comparison::Null, value: 0 }
    }

    fn condition(self) -> Result<SeccompCondition> {
        let (length, operation) = match self.operation {
            Comparison::Is => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq),
            Comparison::IsNot => (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne),
            Comparison::Masked(mask) => {
                (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask.into()))
            }
            Comparison::AtLeast => (SeccompCmpArgLen::Dword, SeccompCmpOp::Ge),
            Comparison::AtMost => (SeccompCmpArgLen::Dword, SeccompCmpOp::Le),
            Comparison::Null => (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq),
        };
        SeccompCondition::new(self.index, length, operation, self.value).map_err(compile)
    }
}

/// The lower 32 bits.
fn low(value: i64) -> u64 {
    u64::from(value as u32)
}

/// The action for a call that is in no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    Kill,
    /// The call fails with `EPERM`, as if a capability were missing.
    Refuse,
    Allow,
}

/// The system calls of a process, by class.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    allowed: BTreeMap<Call, Vec<Vec<Argument>>>,
    refused: BTreeMap<Call, Vec<Vec<Argument>>>,
    fatal: Vec<Call>,
    missing: Vec<Call>,
}

impl Filter {
    /// Allows calls with any arguments.
    pub fn allow(&mut self, calls: &[Call]) -> &mut Filter {
        self.allowed.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// Allows the calls that every program needs, with glibc or musl: non-executable memory, locks,
    /// returning from a signal, exiting, and `tgkill` of its own threads, which abort uses.
    pub fn allow_basics(&mut self) -> &mut Filter {
        self.allow(&[
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            libc::SYS_brk,
            libc::SYS_futex,
            libc::SYS_getrandom,
            libc::SYS_sched_yield,
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_nanosleep,
            libc::SYS_gettid,
            libc::SYS_getpid,
            libc::SYS_sigaltstack,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_restart_syscall,
            libc::SYS_exit,
            libc::SYS_exit_group,
        ]);
        let own = i64::from(std::process::id());
        self.allow_if(libc::SYS_tgkill, &[Argument::is(0, own)])
            .allow_if(libc::SYS_mmap, &[Argument::has(2, libc::PROT_EXEC.into(), 0)])
            .allow_if(libc::SYS_mprotect, &[Argument::has(2, libc::PROT_EXEC.into(), 0)])
    }

    /// Allows a call if all conditions hold. Several rules for the same call are alternatives.
    pub fn allow_if(&mut self, call: Call, arguments: &[Argument]) -> &mut Filter {
        self.allowed.entry(call).or_default().push(arguments.to_vec());
        self
    }

    /// Makes calls fail with `EPERM`. This is not for a call that is allowed for some arguments:
    /// its other uses get the action passed to [`Filter::apply`].
    pub fn refuse(&mut self, calls: &[Call]) -> &mut Filter {
        self.refused.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// Makes a call fail with `EPERM` if all conditions hold, although it is allowed otherwise.
    pub fn refuse_if(&mut self, call: Call, arguments: &[Argument]) -> &mut Filter {
        self.refused.entry(call).or_default().push(arguments.to_vec());
        self
    }

    /// Makes calls kill the process, even if others are refused.
    pub fn kill(&mut self, calls: &[Call]) -> &mut Filter {
        self.fatal.extend(calls);
        self
    }

    /// Makes calls fail with `ENOSYS`, as on a kernel without them, so that libraries use an
    /// alternative.
    pub fn missing(&mut self, calls: &[Call]) -> &mut Filter {
        self.missing.extend(calls);
        self
    }

    /// Applies the filter to all threads of the process.
    ///
    /// # Errors
    /// `EINVAL` without seccomp, `ESRCH` if a thread has its own filter, `EACCES` if a thread may
    /// gain privileges.
    pub fn apply(&self, otherwise: Otherwise) -> Result<()> {
        // The strictest result of all filters applies. The filter that also handles calls in no
        // class comes last, because it would prevent installing the others.
        let (refusing, killing) = (self.refusing(otherwise)?, self.killing(otherwise)?);
        let [first, last] = match otherwise {
            Otherwise::Refuse => [killing, refusing],
            Otherwise::Kill | Otherwise::Allow => [refusing, killing],
        };
        let programs = [self.lacking()?, first, last];
        for program in programs.iter().flatten() {
            seccompiler::apply_filter_all_threads(program).map_err(|error| {
                let errno = match error {
                    seccompiler::Error::Seccomp(e) | seccompiler::Error::Prctl(e) => {
                        Errno::from_raw(e.raw_os_error().unwrap_or(libc::EINVAL))
                    }
                    seccompiler::Error::ThreadSync(_) => Errno::ESRCH,
                    _ => Errno::EINVAL,
                };
                Error::new("seccomp(SECCOMP_SET_MODE_FILTER)", "all threads", errno)
            })?;
        }
        Ok(())
    }

    /// Returns the filter for calls that shall appear missing.
    fn lacking(&self) -> Result<Option<BpfProgram>> {
        // A filter without rules costs each system call time.
        if self.missing.is_empty() {
            return Ok(None);
        }
        let rules = self.missing.iter().map(|call| (*call, Vec::new())).collect();
        let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        program(&rules, SeccompAction::Allow, missing).map(Some)
    }

    /// Returns the filter for refused calls: either only these, or all that are not allowed.
    fn refusing(&self, otherwise: Otherwise) -> Result<Option<BpfProgram>> {
        let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        match otherwise {
            Otherwise::Refuse => {
                let mut rules = self.allowed.clone();
                // The other filters handle these.
                let others = self.fatal.iter().chain(&self.missing);
                rules.extend(others.map(|call| (*call, Vec::new())));
                program(&rules, refuse, SeccompAction::Allow).map(Some)
            }
            _ if self.refused.is_empty() => Ok(None),
            _ => program(&self.refused, SeccompAction::Allow, refuse).map(Some),
        }
    }

    fn killing(&self, otherwise: Otherwise) -> Result<Option<BpfProgram>> {
        match otherwise {
            Otherwise::Refuse | Otherwise::Allow if self.fatal.is_empty() => Ok(None),
            Otherwise::Refuse | Otherwise::Allow => {
                let rules = self.fatal.iter().map(|call| (*call, Vec::new())).collect();
                program(&rules, SeccompAction::Allow, SeccompAction::KillProcess).map(Some)
            }
            Otherwise::Kill => {
                let mut rules = self.allowed.clone();
                for (call, arguments) in &self.refused {
                    rules.entry(*call).or_insert_with(|| arguments.clone());
                }
                rules.extend(self.missing.iter().map(|call| (*call, Vec::new())));
                program(&rules, SeccompAction::KillProcess, SeccompAction::Allow).map(Some)
            }
        }
    }
}

/// Compiles a program with the action `matched` for calls that match a rule, and `otherwise` for
/// all others.
fn program(
    rules: &BTreeMap<Call, Vec<Vec<Argument>>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram> {
    let mut compiled = BTreeMap::new();
    for (call, ways) in rules {
        let mut some = Vec::new();
        for way in ways {
            let conditions = way.iter().map(|argument| argument.condition());
            some.push(SeccompRule::new(conditions.collect::<Result<_>>()?).map_err(compile)?);
        }
        // seccompiler: no rule means any arguments.
        #[allow(clippy::useless_conversion, reason = "c_long is narrower elsewhere")]
        compiled.insert(i64::from(*call), some);
    }
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(compile)?;
    let filter = SeccompFilter::new(compiled, otherwise, matched, architecture);
    filter.and_then(TryInto::try_into).map_err(compile)
}

fn compile(error: seccompiler::BackendError) -> Error {
    Error::new("compile", format!("system call filter: {error}"), Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::ForkResult;

    use super::*;

    /// Runs calls in a child with a filter; its exit code is the errno of a call.
    fn under(filter: &Filter, otherwise: Otherwise, call: Call, argument: i64) -> WaitStatus {
        // SAFETY: the child only makes system calls and allocates, which glibc allows after fork,
        // and ends without running other code.
        match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Parent { child } => waitpid(child, None).unwrap(),
            ForkResult::Child => {
                let applied = filter.apply(otherwise).is_ok();
                // SAFETY: the calls of these tests take only numbers.
                let answer = unsafe { libc::syscall(call, argument, 0, 0) };
                let errno = if answer < 0 { Errno::last_raw() } else { 0 };
                // SAFETY: ends the child immediately.
                unsafe { libc::_exit(if applied { errno } else { 255 }) }
            }
        }
    }

    #[test]
    fn calls_are_allowed_refused_or_the_end() {
        let mut filter = Filter::default();
        filter
            .allow(&[libc::SYS_exit_group, libc::SYS_getpid])
            .allow_if(libc::SYS_dup, &[Argument::is(0, 1)])
            .allow_if(libc::SYS_dup, &[Argument::at_least(0, 100), Argument::at_most(0, 200)])
            .allow_if(libc::SYS_umask, &[Argument::has(0, 0o70, 0)])
            .refuse(&[libc::SYS_getppid]);
        let code = |status: WaitStatus| match status {
            WaitStatus::Exited(_, code) => Some(code),
            WaitStatus::Signaled(_, nix::sys::signal::Signal::SIGSYS, _) => None,
            other => panic!("{other:?}"),
        };
        let kill = |call, argument| code(under(&filter, Otherwise::Kill, call, argument));
        assert_eq!(kill(libc::SYS_getpid, 0), Some(0));
        assert_eq!(kill(libc::SYS_dup, 1), Some(0));
        assert_eq!(kill(libc::SYS_dup, 150), Some(libc::EBADF));
        assert_eq!(kill(libc::SYS_dup, 2), None);
        // The kernel uses the lower half of a descriptor.
        assert_eq!(kill(libc::SYS_dup, 1 << 32 | 2), None);
        assert_eq!(kill(libc::SYS_umask, 0o7), Some(0));
        assert_eq!(kill(libc::SYS_umask, 0o10), None);
        assert_eq!(kill(libc::SYS_getppid, 0), Some(libc::EPERM));
        assert_eq!(kill(libc::SYS_getuid, 0), None);

        filter.kill(&[libc::SYS_getgid]);
        let refuse = |call, argument| code(under(&filter, Otherwise::Refuse, call, argument));
        assert_eq!(refuse(libc::SYS_getpid, 0), Some(0));
        assert_eq!(refuse(libc::SYS_dup, 2), Some(libc::EPERM));
        assert_eq!(refuse(libc::SYS_getuid, 0), Some(libc::EPERM));
        assert_eq!(refuse(libc::SYS_getgid, 0), None);
    }
}
