//! Injects system calls into another process, as an attacker in control of it would make them.
//!
//! Stops a thread of the process (ptrace(2)), points its registers at a `syscall` instruction of
//! its own code, with the number and arguments of the call, and executes one step. Strings and
//! structures are written below the stack of the thread. Afterwards, registers and memory are
//! restored and the thread continues; an interrupted call is restarted.
//!
//! Limit: x86-64 only; [`possible`] fails on other architectures.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call returned this value.
    Returned(i64),
    /// The call failed with this error.
    Failed(nix::errno::Errno),
    /// The process was killed by this signal (SIGSYS: by a seccomp filter).
    Killed(nix::sys::signal::Signal),
}

impl CallOutcome {
    /// Returns whether the call did not succeed.
    pub fn is_refused(self) -> bool {
        !matches!(self, CallOutcome::Returned(_))
    }
}

impl fmt::Display for CallOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallOutcome::Returned(value) => write!(f, "returned {value}"),
            CallOutcome::Failed(errno) => write!(f, "failed: {errno}"),
            CallOutcome::Killed(signal) => write!(f, "killed by {signal}"),
        }
    }
}

#[derive(Debug, Clone)]
pub enum Argument {
    /// A plain register value.
    Number(u64),
    /// A pointer to these bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for Argument {
    fn from(number: i64) -> Argument {
        Argument::Number(number.cast_unsigned())
    }
}

impl From<i32> for Argument {
    fn from(number: i32) -> Argument {
        i64::from(number).into()
    }
}

impl From<u32> for Argument {
    fn from(number: u32) -> Argument {
        Argument::Number(number.into())
    }
}

/// A string, with a terminating NUL byte.
impl From<&str> for Argument {
    fn from(text: &str) -> Argument {
        Argument::Bytes([text.as_bytes(), &[0]].concat())
    }
}

impl From<Vec<u8>> for Argument {
    fn from(bytes: Vec<u8>) -> Argument {
        Argument::Bytes(bytes)
    }
}

/// Checks whether calls can be injected on this machine.
///
/// # Errors
/// The reason why not.
pub fn possible() -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("calls are injected on x86-64 only".to_owned());
    }
    crate::need::root()
}

#[cfg(target_arch = "x86_64")]
pub use x86_64::inject;

/// Never called, because [`possible`] fails.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn inject(_thread: i32, _call: i64, _arguments: &[Argument]) -> Result<CallOutcome, String> {
    possible().map(|()| unreachable!("possible() refuses this architecture"))
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;

    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::sys::signal::Signal;
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::{Argument, CallOutcome};

    /// The instruction `syscall`.
    const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
    /// Distance below the stack pointer: more than the red zone of 128 bytes.
    const BELOW: u64 = 16 << 10;
    /// An invalid call number, so that the kernel restarts no call.
    const NO_CALL: u64 = u64::MAX;
    /// The largest error number is 4095 (`MAX_ERRNO` of `include/linux/err.h`).
    const MIN_RESULT: i64 = -4095;

    /// Injects a call into the thread with this ID, of any process.
    ///
    /// # Errors
    /// A description of the ptrace operation that failed. The call was then not made.
    pub fn inject(thread: i32, call: i64, arguments: &[Argument]) -> Result<CallOutcome, String> {
        let pid = Pid::from_raw(thread);
        let failed = |what: &str| {
            let what = format!("{what} thread {thread}");
            move |errno: Errno| format!("{what}: {errno}")
        };
        let instruction = instruction(thread)?;
        ptrace::seize(pid, ptrace::Options::empty()).map_err(failed("seize"))?;
        ptrace::interrupt(pid).map_err(failed("interrupt"))?;
        stopped(pid)?;
        let before = ptrace::getregs(pid).map_err(failed("registers of"))?;
        let path = format!("/proc/{thread}/mem");
        let memory = OpenOptions::new().read(true).write(true).open(&path);
        let memory = memory.map_err(|e| format!("open {path}: {e}"))?;

        // Align to 16 bytes, so that every structure is aligned.
        let mut at = (before.rsp - BELOW) & !15;
        let mut values = [0; 6];
        let mut overwritten = Vec::new();
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = match argument {
                Argument::Number(number) => *number,
                Argument::Bytes(bytes) => {
                    at = (at - bytes.len() as u64) & !15;
                    overwritten.push((at, put(&memory, at, bytes)?));
                    at
                }
            };
        }
        let mut registers = before;
        registers.rip = instruction;
        registers.rax = call.cast_unsigned();
        registers.orig_rax = NO_CALL;
        let [rdi, rsi, rdx, r10, r8, r9] = values;
        (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
        (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
        ptrace::setregs(pid, registers).map_err(failed("set registers of"))?;
        ptrace::step(pid, None).map_err(failed("step"))?;
        // Nothing to restore: the process is gone.
        if let Some(signal) = stopped(pid)? {
            return Ok(CallOutcome::Killed(signal));
        }
        let after = ptrace::getregs(pid).map_err(failed("registers of"))?;
        for (at, bytes) in overwritten {
            put(&memory, at, &bytes)?;
        }
        ptrace::setregs(pid, before).map_err(failed("restore registers of"))?;
        ptrace::detach(pid, None).map_err(failed("detach from"))?;
        let value = after.rax.cast_signed();
        Ok(match value {
            MIN_RESULT..0 => CallOutcome::Failed(Errno::from_raw(-(value as i32))),
            value => CallOutcome::Returned(value),
        })
    }

    /// Waits until the thread is stopped. Returns the signal if it was killed instead.
    fn stopped(pid: Pid) -> Result<Option<Signal>, String> {
        loop {
            match waitpid(pid, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..)) => return Ok(None),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Some(signal)),
                Ok(other) => return Err(format!("thread {pid} ended: {other:?}")),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(format!("wait for thread {pid}: {errno}")),
            }
        }
    }

    /// Writes to memory. Returns the previous content.
    fn put(memory: &File, at: u64, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut before = vec![0; bytes.len()];
        memory.read_exact_at(&mut before, at).map_err(|e| format!("read memory: {e}"))?;
        memory.write_all_at(bytes, at).map_err(|e| format!("write memory: {e}"))?;
        Ok(before)
    }

    /// Finds the instruction in the code of the process.
    fn instruction(thread: i32) -> Result<u64, String> {
        let text = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let maps = std::fs::read_to_string(format!("/proc/{thread}/maps")).map_err(text("maps"))?;
        let memory = File::open(format!("/proc/{thread}/mem")).map_err(text("memory"))?;
        for line in maps.lines() {
            let mut words = line.split(' ');
            let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
            let Some((start, end)) = range.split_once('-') else { continue };
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            let (start, end) = (number(start), number(end));
            // Skip the vsyscall page, which cannot be read.
            if !rights.starts_with("r-x") || line.ends_with("[vsyscall]") {
                continue;
            }
            let mut code = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut code, start).map_err(text("code"))?;
            if let Some(at) = code.windows(2).position(|two| two == INSTRUCTION) {
                return Ok(start + at as u64);
            }
        }
        Err(format!("thread {thread} has no syscall instruction"))
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    /// A process that is killed at the end of the test, even if it fails.
    struct Ended(std::process::Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_makes_the_call_and_goes_on() {
        crate::require!(possible());
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let mut child = Ended(std::process::Command::new("sleep").arg("600").spawn().unwrap());
        let thread = child.0.id().cast_signed();
        // Retry: shortly after its start, the process has not mapped its code yet.
        let begun = std::time::Instant::now();
        let outcome = loop {
            let outcome = inject(thread, libc::SYS_getpid, &[]);
            if outcome.is_ok() || begun.elapsed() > std::time::Duration::from_secs(20) {
                break outcome;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!(outcome, Ok(CallOutcome::Returned(thread.into())));
        let path = made.to_str().unwrap();
        let outcome = inject(thread, libc::SYS_mkdir, &[path.into(), 0o700.into()]);
        assert_eq!(outcome, Ok(CallOutcome::Returned(0)));
        assert!(made.is_dir());
        let outcome = inject(thread, libc::SYS_mkdir, &[path.into(), 0o700.into()]);
        assert_eq!(outcome, Ok(CallOutcome::Failed(nix::errno::Errno::EEXIST)));
        assert!(child.0.try_wait().unwrap().is_none(), "it goes on");
        let kill = [thread.into(), libc::SIGTERM.into()];
        assert!(inject(thread, libc::SYS_kill, &kill).is_ok());
        child.0.wait().unwrap();
    }
}
