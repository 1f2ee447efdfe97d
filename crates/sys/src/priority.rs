//! Which threads run first.
//!
//! Source: sched(7).

use nix::errno::Errno;

use crate::{Error, Result};

/// The lowest: before everybody who is scheduled fairly, behind every other real-time
/// thread.
const LEAST: libc::c_int = 1;

/// Lets the calling thread run before all that are scheduled fairly (`SCHED_RR`), for
/// work that is short and has a deadline. What it starts later is scheduled fairly again.
/// A thread that runs in real time already stays as it is.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or `RLIMIT_RTPRIO`, or where the control group has no
/// real-time budget.
pub fn real_time() -> Result<()> {
    let failed = |errno| Error::new("sched_setscheduler(SCHED_RR)", "calling thread", errno);
    // SAFETY: of the calling thread; nothing is passed by reference.
    let policy = Errno::result(unsafe { libc::sched_getscheduler(0) }).map_err(failed)?;
    if [libc::SCHED_RR, libc::SCHED_FIFO].contains(&(policy & !libc::SCHED_RESET_ON_FORK)) {
        return Ok(());
    }
    let parameter = libc::sched_param { sched_priority: LEAST };
    // SAFETY: the kernel reads the parameter, which outlives the call.
    let set = unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_RR | libc::SCHED_RESET_ON_FORK,
            &raw const parameter,
        )
    };
    Errno::result(set).map(drop).map_err(failed)
}

/// The lowest of setpriority(2).
const NICEST: libc::c_int = 19;
/// How long such a thread keeps a CPU that another wants, nanoseconds: the shortest that Linux
/// takes. Without it that is some milliseconds.
const SHORT_SLICE: u64 = 100_000;

/// Lets the calling thread, and what it starts later, run after all others that want its
/// CPU: they get 98.5% of it. It takes a CPU from nobody when it wakes up (`SCHED_BATCH`), and
/// gives it back to who wakes up after 0.1 ms. The latter is Linux 6.12's, and the only one that
/// holds beyond the session or control group of this process, among which the kernel divides
/// CPUs first. There is no way back without `CAP_SYS_NICE`.
///
/// # Errors
/// `EPERM` where a filter forbids it.
///
/// Source: sched(7), sched_setattr(2); `__setparam_fair` in Linux' `kernel/sched/fair.c`.
pub fn give_way() -> Result<()> {
    let size = std::mem::size_of::<libc::sched_attr>();
    let attributes = libc::sched_attr {
        size: u32::try_from(size).unwrap_or(u32::MAX),
        sched_policy: libc::SCHED_BATCH as u32,
        sched_flags: 0,
        sched_nice: NICEST,
        sched_priority: 0,
        sched_runtime: SHORT_SLICE,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: of the calling thread; the kernel reads as many bytes as `size` says of what
    // outlives the call.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set == 0 {
        return Ok(());
    }
    // A kernel or a filter that knows no such call has the older one.
    // SAFETY: of the calling thread (Linux has a nice value for each; see setpriority(2),
    // "C library/kernel differences"); nothing is passed by reference.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICEST) };
    let failed = |errno| Error::new("setpriority(19)", "calling thread", errno);
    Errno::result(set).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: of the calling thread; nothing is passed by reference.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_and_nothing_that_it_starts() {
        if let Err(error) = real_time() {
            assert_eq!(error.errno, Errno::EPERM, "{error}");
            test_support::skip!("needs CAP_SYS_NICE: {error}");
        }
        assert_eq!(policy(), libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
        real_time().unwrap();
        assert_eq!(std::thread::spawn(policy).join().unwrap(), libc::SCHED_OTHER);
    }

    #[test]
    fn a_thread_that_gives_way_needs_no_rights() {
        // SAFETY: of the calling thread; nothing is passed by reference.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        /// Nanoseconds; 0 of a kernel that has no slice for a thread (before Linux 6.12).
        fn slice() -> u64 {
            // SAFETY: all bits zero are a value of each of its members.
            let mut told: libc::sched_attr = unsafe { std::mem::zeroed() };
            let (size, no_flags) = (std::mem::size_of_val(&told), 0);
            // SAFETY: the kernel writes `size` bytes at most to what outlives the call.
            let got =
                unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut told, size, no_flags) };
            assert_eq!(got, 0);
            told.sched_runtime
        }
        let before = (nice(), policy());
        let own = std::thread::spawn(move || give_way().map(|()| (nice(), policy())));
        assert_eq!(own.join().unwrap().unwrap(), (NICEST, libc::SCHED_BATCH));
        assert_eq!((nice(), policy()), before);
        let own = std::thread::spawn(|| give_way().map(|()| slice())).join().unwrap().unwrap();
        assert_eq!(own, if slice() == 0 { 0 } else { SHORT_SLICE });
    }
}
