//! Scheduling priority of threads.
//!
//! System calls are made directly: musl's `sched_getscheduler` and `sched_setscheduler` only
//! return `ENOSYS`.
//!
//! Source: sched(7).

use std::marker::PhantomData;

use nix::errno::Errno;

use crate::{Error, Result};

/// The lowest real-time priority: above all normally scheduled threads, below all other real-time
/// threads.
const LEAST: libc::c_int = 1;

/// Policies that already have priority over normally scheduled threads.
const REAL_TIME: [libc::c_int; 3] = [libc::SCHED_FIFO, libc::SCHED_RR, SCHED_DEADLINE];
/// `linux/sched.h`. The libc crate lacks it for some C libraries.
const SCHED_DEADLINE: libc::c_int = 6;
/// The policy that [`real_time`] gives.
const GIVEN: libc::c_int = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;

/// The real-time priority of the thread that called [`real_time`].
#[derive(Debug)]
pub struct RealTime {
    /// Policy to return to. `None`: an administrator gave the thread a real-time policy, which
    /// stays.
    before: Option<libc::c_int>,
    /// Scheduling belongs to a thread.
    of_thread: PhantomData<*const ()>,
}

/// Gives the calling thread priority over all normally scheduled threads (`SCHED_RR`), for short
/// work with a deadline. Threads and processes that it starts later are scheduled normally. A
/// thread that already has a real-time policy does not change.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or `RLIMIT_RTPRIO`, or if the control group has no real-time
/// budget.
pub fn real_time() -> Result<RealTime> {
    let mut priority = RealTime { before: None, of_thread: PhantomData };
    priority.resume()?;
    Ok(priority)
}

impl RealTime {
    /// Schedules the thread as before [`real_time`], until [`RealTime::resume`]. Returns whether it
    /// did: a real-time policy that others set stays.
    ///
    /// # Errors
    /// `EPERM` if a filter forbids it.
    pub fn suspend(&self) -> Result<bool> {
        match self.before {
            // An administrator may have changed the policy since.
            Some(before) if current()? == GIVEN => {
                set(before | libc::SCHED_RESET_ON_FORK, 0)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Ends [`RealTime::suspend`].
    pub fn resume(&mut self) -> Result<()> {
        let policy = current()?;
        let plain = policy & !libc::SCHED_RESET_ON_FORK;
        // A policy that the administrator has given the thread stays.
        if policy == GIVEN && self.before.is_some() {
            return Ok(());
        }
        self.before = None;
        if !REAL_TIME.contains(&plain) {
            set(GIVEN, LEAST)?;
            self.before = Some(plain);
        }
        Ok(())
    }
}

/// Sets policy and priority of the calling thread.
fn set(policy: libc::c_int, priority: libc::c_int) -> Result<()> {
    // The kernel's `struct sched_param` is one int.
    // SAFETY: the kernel reads the parameter, which outlives the call.
    let set =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    let operation = match priority {
        0 => "sched_setscheduler(SCHED_OTHER)",
        _ => "sched_setscheduler(SCHED_RR)",
    };
    Errno::result(set).map(drop).map_err(|errno| Error::new(operation, "calling thread", errno))
}

/// Returns the scheduling policy of the calling thread with its flags.
fn current() -> Result<libc::c_int> {
    let failed = |errno| Error::new("sched_getscheduler", "calling thread", errno);
    Errno::result(policy()).map_err(failed)
}

/// Returns the scheduling policy of the calling thread with its flags, or -1.
fn policy() -> libc::c_int {
    // SAFETY: applies to the calling thread; nothing is passed by reference.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) as libc::c_int }
}

/// The lowest priority of setpriority(2).
const NICEST: libc::c_int = 19;
/// A priority with a tenth of the default weight (`sched_prio_to_weight`: 110 of 1024).
const NICE: libc::c_int = 10;
/// Time slice in nanoseconds after which such a thread yields the CPU to a waiting thread: the
/// shortest that Linux accepts. The default is several milliseconds.
const SHORT_SLICE: u64 = 100_000;

/// Gives the calling thread, and what it starts later, lower priority than all other threads on its
/// CPU: they get 98.5% of the time. It preempts no thread when it wakes up (`SCHED_BATCH`), and
/// yields after 0.1 ms to a thread that wakes up. The slice requires Linux 6.12. It is the only
/// part that also works between sessions or control groups, among which the kernel divides CPU time
/// first. This cannot be undone without `CAP_SYS_NICE`.
///
/// # Errors
/// `EPERM` if a filter forbids it.
///
/// Source: sched(7), sched_setattr(2); `__setparam_fair` in Linux' `kernel/sched/fair.c`.
pub fn give_way() -> Result<()> {
    give_way_at(NICEST)
}

/// As [`give_way`], but at nice 10: the thread gets about a tenth of the CPU time beside a busy
/// thread of the default priority. For work whose result another host waits for.
pub fn lower_priority() -> Result<()> {
    give_way_at(NICE)
}

fn give_way_at(nice: libc::c_int) -> Result<()> {
    let size = std::mem::size_of::<libc::sched_attr>();
    let attributes = libc::sched_attr {
        size: u32::try_from(size).unwrap_or(u32::MAX),
        sched_policy: libc::SCHED_BATCH as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SHORT_SLICE,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: applies to the calling thread; the kernel reads `size` bytes of a structure that
    // outlives the call.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if set == 0 {
        return Ok(());
    }
    // Fallback for a kernel or filter without the call.
    // SAFETY: applies to the calling thread (Linux has a nice value for each thread; see
    // setpriority(2), "C library/kernel differences"); nothing is passed by reference.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    let failed = |errno| Error::new("setpriority", "calling thread", errno);
    Errno::result(set).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_and_nothing_that_it_starts() {
        let mut priority = match real_time() {
            Ok(priority) => priority,
            Err(error) => {
                assert_eq!(error.errno, Errno::EPERM, "{error}");
                test_support::skip!("needs CAP_SYS_NICE: {error}");
            }
        };
        assert_eq!(policy(), GIVEN);
        priority.resume().unwrap();
        assert!(priority.suspend().unwrap());
        assert_eq!(policy(), libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK);
        assert!(!priority.suspend().unwrap());
        priority.resume().unwrap();
        assert_eq!(policy(), GIVEN);
        assert_eq!(std::thread::spawn(policy).join().unwrap(), libc::SCHED_OTHER);
    }

    #[test]
    fn a_policy_that_others_set_stays() {
        let batch = libc::SCHED_BATCH;
        for (before, later) in [
            // Set before the thread asks for priority.
            (libc::SCHED_FIFO, None),
            (libc::SCHED_RR, None),
            (GIVEN, None),
            (batch, None),
            // Set later, as by chrt(1).
            (batch, Some(libc::SCHED_FIFO)),
            (batch, Some(libc::SCHED_RR)),
            (libc::SCHED_OTHER, Some(batch)),
        ] {
            let plain = |policy: libc::c_int| policy & !libc::SCHED_RESET_ON_FORK;
            let is_real_time = |policy| REAL_TIME.contains(&plain(policy));
            let priority = |policy| if is_real_time(policy) { 7 } else { 0 };
            if let Err(error) = set(before, priority(before)) {
                assert_eq!(error.errno, Errno::EPERM, "{error}");
                test_support::skip!("needs CAP_SYS_NICE: {error}");
            }
            let mut own = real_time().unwrap();
            let is_given = !is_real_time(before);
            assert_eq!(policy(), if is_given { GIVEN } else { before });
            if let Some(later) = later {
                set(later, priority(later)).unwrap();
            }
            let present = later.unwrap_or(before);
            assert_eq!(own.suspend().unwrap(), is_given && later.is_none());
            assert_eq!(plain(policy()), plain(present));
            own.resume().unwrap();
            assert_eq!(policy(), if is_real_time(present) { present } else { GIVEN });
            set(libc::SCHED_OTHER, 0).unwrap();
        }
    }

    #[test]
    fn a_thread_that_gives_way_needs_no_rights() {
        // SAFETY: applies to the calling thread; nothing is passed by reference.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        /// Nanoseconds; 0 on a kernel without a slice per thread (before Linux 6.12).
        fn slice() -> u64 {
            // SAFETY: all zero bits are valid for each of its members.
            let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
            let (size, no_flags) = (std::mem::size_of_val(&attributes), 0);
            // SAFETY: the kernel writes at most `size` bytes to memory that outlives the call.
            let got = unsafe {
                libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, no_flags)
            };
            assert_eq!(got, 0);
            attributes.sched_runtime
        }
        let before = (nice(), policy());
        let own = std::thread::spawn(move || give_way().map(|()| (nice(), policy())));
        assert_eq!(own.join().unwrap().unwrap(), (NICEST, libc::SCHED_BATCH));
        assert_eq!((nice(), policy()), before);
        let own = std::thread::spawn(|| give_way().map(|()| slice())).join().unwrap().unwrap();
        assert_eq!(own, if slice() == 0 { 0 } else { SHORT_SLICE });
    }
}
