//! CPU affinity of threads and timer slack of the calling thread.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::{Error, Result};

/// The calling thread, for `sched_setaffinity(2)`.
const THIS_THREAD: Pid = Pid::from_raw(0);

/// Binds the calling thread to one CPU.
///
/// # Errors
/// `EINVAL` if the CPU does not exist, is offline or is not in the cpuset of the process.
pub fn pin(cpu: usize) -> Result<()> {
    pin_to(&[cpu])
}

/// Binds the calling thread, and the programs it executes, to a set of CPUs.
///
/// # Errors
/// `EINVAL` if a CPU is outside the set of the C library, or none of the CPUs can be used.
pub fn pin_to(cpus: &[usize]) -> Result<()> {
    pin_thread(THIS_THREAD, cpus)
}

/// A thread of this process that can be bound to CPUs later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread(Pid);

impl Thread {
    /// Returns the calling thread, identified by its thread ID (gettid(2)).
    pub fn current() -> Thread {
        Thread(nix::unistd::gettid())
    }

    /// Binds the thread to a set of CPUs.
    ///
    /// # Errors
    /// As [`pin_to`]; `ESRCH` if the thread has ended.
    pub fn pin_to(self, cpus: &[usize]) -> Result<()> {
        pin_thread(self.0, cpus)
    }
}

fn pin_thread(thread: Pid, cpus: &[usize]) -> Result<()> {
    let object = || {
        let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
        format!("CPU {}", numbers.join(","))
    };
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).map_err(|e| Error::new("CPU_SET", object(), e))?;
    }
    sched_setaffinity(thread, &set).map_err(|e| Error::new("sched_setaffinity", object(), e))
}

/// Returns the CPUs on which the calling thread may run, in ascending order.
///
/// # Errors
/// If the kernel has more CPUs than the set of the C library (1024).
pub fn of_this_thread() -> Result<Vec<usize>> {
    let set = sched_getaffinity(THIS_THREAD)
        .map_err(|e| Error::new("sched_getaffinity", "calling thread", e))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Returns whether a thread of this process can be bound to the CPU. This is tried with a new
/// thread, because no file reports exactly which CPUs the cpuset allows.
pub fn usable(cpu: usize) -> bool {
    std::thread::scope(|scope| scope.spawn(|| pin(cpu).is_ok()).join().unwrap_or(false))
}

/// Sets the timer slack of the calling thread in nanoseconds: how late the kernel may wake it from
/// a timed sleep (default 50 µs; `PR_SET_TIMERSLACK`).
///
/// # Errors
/// None is documented for the calling thread.
pub fn set_timer_slack(nanoseconds: u64) -> Result<()> {
    nix::sys::prctl::set_timerslack(nanoseconds)
        .map_err(|e| Error::new("prctl(PR_SET_TIMERSLACK)", format!("{nanoseconds} ns"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_that_cpu_only() {
        let cpu = *of_this_thread().unwrap().last().unwrap();
        std::thread::spawn(move || {
            pin(cpu).unwrap();
            assert_eq!(of_this_thread().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
        assert!(usable(cpu));
    }

    #[test]
    fn another_thread_is_pinned_while_it_runs() {
        let cpu = *of_this_thread().unwrap().last().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            sender.send(Thread::current()).unwrap();
            may_go_on.recv().unwrap();
            of_this_thread().unwrap()
        });
        let thread = receiver.recv().unwrap();
        thread.pin_to(&[cpu]).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(other.join().unwrap(), [cpu]);
        // A joined thread may still exist: the kernel wakes the joining thread before the exit is
        // complete.
        let start = std::time::Instant::now();
        while thread.pin_to(&[cpu]).is_ok() {
            assert!(start.elapsed().as_secs() < 20, "it has ended");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_by_name() {
        assert!(!usable(1023));
        let error = pin(1023).unwrap_err();
        assert!(error.to_string().contains("CPU 1023"), "{error}");
        assert!(pin(usize::MAX).is_err());
    }

    #[test]
    fn timer_slack_is_set_per_thread() {
        std::thread::spawn(|| {
            set_timer_slack(1_000).unwrap();
            assert_eq!(nix::sys::prctl::get_timerslack().unwrap(), 1_000);
        })
        .join()
        .unwrap();
    }
}
