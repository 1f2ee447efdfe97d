//! System calls given up for good (seccomp(2)), by a list of those that stay.
//!
//! The filters are compiled by `seccompiler`. Every call is in one of three classes:
//! *allowed*, perhaps for some arguments only; *refused*, which fails with an error that
//! programs know how to take; and the rest, which kills the process, since it means that
//! something is not as was thought. A filter can look at numbers only, never at what a
//! pointer points to: what a path or an address may be is for users, Landlock, and
//! sockets that are not there to decide.
//!
//! Source: `include/uapi/linux/seccomp.h`.

use std::collections::BTreeMap;

use nix::errno::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::{Error, Result};

/// A number of a call, `SYS_*`.
pub type Call = libc::c_long;

/// What an argument must be. The kernel uses the lower 32 bits of what is compared here:
/// descriptors, flags, numbers of operations.
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
    /// All 64 bits are 0: no pointer.
    Null,
}

impl Argument {
    /// The argument at `index`, from 0, is `value`.
    pub fn is(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::Is, value: low(value) }
    }

    /// It is anything else.
    pub fn is_not(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::IsNot, value: low(value) }
    }

    /// Its bits under `mask` are `value`.
    pub fn has(index: u8, mask: i64, value: i64) -> Argument {
        let mask = low(mask) as u32;
        Argument { index, operation: Comparison::Masked(mask), value: low(value) }
    }

    /// It is no smaller, as an unsigned number.
    pub fn at_least(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::AtLeast, value: low(value) }
    }

    /// It is no larger, as an unsigned number.
    pub fn at_most(index: u8, value: i64) -> Argument {
        Argument { index, operation: Comparison::AtMost, value: low(value) }
    }

    /// The argument is a null pointer.
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

/// What happens to a call of no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// The process is killed.
    Kill,
    /// It fails with `EPERM`, as one for which a right is missing.
    Refuse,
    /// The call is allowed.
    Allow,
}

/// The calls of a process, by class.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    allowed: BTreeMap<Call, Vec<Vec<Argument>>>,
    refused: BTreeMap<Call, Vec<Vec<Argument>>>,
    fatal: Vec<Call>,
    missing: Vec<Call>,
}

impl Filter {
    /// These stay, whatever their arguments.
    pub fn allow(&mut self, calls: &[Call]) -> &mut Filter {
        self.allowed.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// What any program does in between: memory that cannot be made executable, locks,
    /// returning from a signal, the end; `tgkill` of its own threads, which is how it aborts.
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

    /// This one stays where all of the arguments are so. Called again for the same call,
    /// it stays where those of either are.
    pub fn allow_if(&mut self, call: Call, arguments: &[Argument]) -> &mut Filter {
        self.allowed.entry(call).or_default().push(arguments.to_vec());
        self
    }

    /// These fail with `EPERM`. A call that is allowed for some arguments has no place
    /// here: for others it is what [`Filter::apply`] is told.
    pub fn refuse(&mut self, calls: &[Call]) -> &mut Filter {
        self.refused.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// This one fails with `EPERM` where all of the arguments are so, although it is
    /// allowed for others.
    pub fn refuse_if(&mut self, call: Call, arguments: &[Argument]) -> &mut Filter {
        self.refused.entry(call).or_default().push(arguments.to_vec());
        self
    }

    /// These kill the process, also where others are refused.
    pub fn kill(&mut self, calls: &[Call]) -> &mut Filter {
        self.fatal.extend(calls);
        self
    }

    /// These fail with `ENOSYS`, as on a kernel that has no such call: libraries take
    /// another then.
    pub fn missing(&mut self, calls: &[Call]) -> &mut Filter {
        self.missing.extend(calls);
        self
    }

    /// Gives up all others, for every thread of the process.
    ///
    /// # Errors
    /// `EINVAL` without seccomp, `ESRCH` when a thread has a filter of its own, `EACCES`
    /// unless no thread can gain rights.
    pub fn apply(&self, otherwise: Otherwise) -> Result<()> {
        // The strictest answer of all filters counts. The one that has an answer for calls
        // of no class comes last: the others could not be put in force under it.
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

    /// Does as if there were no such calls.
    fn lacking(&self) -> Result<Option<BpfProgram>> {
        if self.missing.is_empty() {
            return Ok(None);
        }
        let rules = self.missing.iter().map(|call| (*call, Vec::new())).collect();
        let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        program(&rules, SeccompAction::Allow, missing).map(Some)
    }

    /// Allows what is allowed and refuses the rest: of the refused calls, or of all.
    fn refusing(&self, otherwise: Otherwise) -> Result<Option<BpfProgram>> {
        let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        match otherwise {
            Otherwise::Refuse => {
                let mut rules = self.allowed.clone();
                // The other filters' answer.
                let others = self.fatal.iter().chain(&self.missing);
                rules.extend(others.map(|call| (*call, Vec::new())));
                program(&rules, refuse, SeccompAction::Allow).map(Some)
            }
            _ if self.refused.is_empty() => Ok(None),
            _ => program(&self.refused, SeccompAction::Allow, refuse).map(Some),
        }
    }

    /// Kills for the rest.
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

/// A program that does one for every rule's call and arguments, else the other.
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
        // seccompiler: no rule means whatever the arguments.
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

    /// What becomes of a child under a filter: its exit code is the error number of a call.
    fn under(filter: &Filter, otherwise: Otherwise, call: Call, argument: i64) -> WaitStatus {
        // SAFETY: the child makes system calls and allocates at most, which glibc's fork
        // makes possible, and ends without running anything else.
        match unsafe { nix::unistd::fork() }.unwrap() {
            ForkResult::Parent { child } => waitpid(child, None).unwrap(),
            ForkResult::Child => {
                let applied = filter.apply(otherwise).is_ok();
                // SAFETY: the calls of these tests take numbers only.
                let answer = unsafe { libc::syscall(call, argument, 0, 0) };
                let errno = if answer < 0 { Errno::last_raw() } else { 0 };
                // SAFETY: ends the child at once.
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
        // The kernel takes a descriptor's lower half.
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
