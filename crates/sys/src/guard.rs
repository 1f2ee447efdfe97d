//! A machine setting that is restored even if the process that changed it is killed.
//!
//! [`Guard`] is a separate process that waits on a socket. The other end closes when the changing
//! process restores the setting, or ends for any reason. The guard then writes the earlier value
//! and exits. It ignores the signals that a terminal sends to both processes. The new value can
//! remain only if both processes are killed at the same moment.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::Error;
use crate::runtime_dir::{Lock, RuntimeDir};

/// Maximum length of a saved value in bytes; settings are short.
const LONGEST_VALUE: usize = 4096;
/// Lock file for changing the settings of the machine. It is in a directory owned by the user, so
/// no other user can lock it, and all network namespaces share it.
const LOCK: &str = "machine-settings.lock";

/// Why a setting was not changed or not restored.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Another process has changed a setting of this machine. Its value would be mistaken for the
    /// earlier value.
    #[error("lock the machine's settings: another run is changing them")]
    Busy,
    /// The value is too long to be saved.
    #[error("read {path}: {bytes} bytes, expected at most {LONGEST_VALUE}")]
    TooLong {
        path: PathBuf,
        /// Length of its value.
        bytes: usize,
    },
    /// The path contains a NUL byte.
    #[error("read {0}: the path contains a NUL byte")]
    Name(PathBuf),
    /// The earlier value was written, but a different value was read back.
    #[error("restore {path}: got {got:?}, expected {expected:?}")]
    NotRestored {
        path: PathBuf,
        /// Earlier value that was written back.
        expected: String,
        /// Value that was read afterwards.
        got: String,
    },
    /// A system call failed; the error names the operation and the object.
    #[error(transparent)]
    Sys(#[from] Error),
}

pub type Result<T> = std::result::Result<T, GuardError>;

/// A changed setting; dropping it restores the earlier value.
#[derive(Debug)]
pub struct Guard {
    path: PathBuf,
    earlier: String,
    pid: Pid,
    lifeline: Option<OwnedFd>,
}

impl Guard {
    /// Saves the value of a file below `/proc/sys`, then writes a new value.
    ///
    /// # Errors
    /// If the file cannot be read or written; [`GuardError::Busy`] while another process has
    /// changed a setting of this machine.
    pub fn change(path: &Path, value: &str) -> Result<Guard> {
        let name = || path.display().to_string();
        let earlier = std::fs::read_to_string(path).map_err(|e| Error::io("read", name(), &e))?;
        // The child has a fixed buffer, because it must not allocate.
        if earlier.len() > LONGEST_VALUE {
            return Err(GuardError::TooLong { path: path.to_owned(), bytes: earlier.len() });
        }
        let lock = lock()?;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|e| Error::new("socketpair", "guard's lifeline", e))?;
        let file = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| GuardError::Name(path.to_owned()))?;
        let flags = libc::SIGCHLD as libc::c_long;
        // SAFETY: clone without CLONE_VM and with a null stack is fork: the child
        // runs on a copy of this stack. It calls only `child_main`, which makes
        // async-signal-safe system calls on data that exists already (no
        // allocation, no locks), and never returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            child_main(theirs.as_raw_fd(), lock.as_fd().as_raw_fd(), &file, earlier.as_bytes());
        }
        if pid < 0 {
            return Err(Error::last("clone", "guard process").into());
        }
        drop((theirs, lock));
        let guard = Guard {
            path: path.to_owned(),
            earlier,
            pid: Pid::from_raw(pid as libc::pid_t),
            lifeline: Some(ours),
        };
        guard.await_readiness()?;
        // Only after the guard is ready; if writing fails, the guard restores the value.
        std::fs::write(path, value).map_err(|e| Error::io("write", name(), &e))?;
        Ok(guard)
    }

    fn await_readiness(&self) -> Result<()> {
        let Some(lifeline) = &self.lifeline else { return Ok(()) };
        let duplicate =
            lifeline.try_clone().map_err(|e| Error::io("dup", "guard's lifeline", &e))?;
        let mut byte = [0];
        File::from(duplicate)
            .read_exact(&mut byte)
            .map_err(|e| Error::io("read", "guard's report of readiness", &e).into())
    }

    /// Restores the earlier value.
    ///
    /// # Errors
    /// [`GuardError::NotRestored`] if the file has another value afterwards.
    pub fn restore(mut self) -> Result<()> {
        self.finish();
        let (path, expected) = (self.path.clone(), self.earlier.clone());
        let got = std::fs::read_to_string(&path)
            .map_err(|e| Error::io("read", path.display().to_string(), &e))?;
        if got == expected { Ok(()) } else { Err(GuardError::NotRestored { path, expected, got }) }
    }

    fn finish(&mut self) {
        if self.lifeline.take().is_some() {
            let _ = waitpid(self.pid, None);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
    }
}

fn lock() -> Result<Lock> {
    let directory = RuntimeDir::open()?;
    directory.lock_file(LOCK)?.ok_or(GuardError::Busy)
}

/// The child process: waits until the parent ends, writes the value and exits. Makes only
/// async-signal-safe calls.
fn child_main(lifeline: i32, lock: i32, file: &CString, value: &[u8]) -> ! {
    // SAFETY: all calls are plain system calls on constants, on open descriptors of this process,
    // and on buffers of the passed length that live until _exit.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"overlane-guard".as_ptr());
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGCHLD] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Other descriptors would stay open after their owner has ended.
        let (low, high) = (lifeline.min(lock), lifeline.max(lock));
        if low > 0 {
            libc::syscall(libc::SYS_close_range, 0, low - 1, 0);
        }
        if high - low > 1 {
            libc::syscall(libc::SYS_close_range, low + 1, high - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, high + 1, u32::MAX, 0);
        libc::write(lifeline, c"r".as_ptr().cast(), 1);
        let mut byte = 0u8;
        loop {
            let got = libc::read(lifeline, (&raw mut byte).cast(), 1);
            // End of file: the process has ended, for whatever reason.
            if got == 0 || (got < 0 && *libc::__errno_location() != libc::EINTR) {
                break;
            }
        }
        let target = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_TRUNC | libc::O_CLOEXEC);
        let written = libc::write(target, value.as_ptr().cast(), value.len());
        libc::_exit(i32::from(written != value.len() as isize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn setting(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn the_earlier_value_comes_back() {
        let file = setting("300\n");
        let read = || std::fs::read_to_string(file.path()).unwrap();
        let guard = Guard::change(file.path(), "1000").unwrap();
        assert_eq!(read(), "1000");
        let other = setting("1\n");
        let error = Guard::change(other.path(), "2").unwrap_err();
        assert!(matches!(error, GuardError::Busy), "{error}");
        assert_eq!(std::fs::read_to_string(other.path()).unwrap(), "1\n");
        guard.restore().unwrap();
        assert_eq!(read(), "300\n");
        drop(Guard::change(file.path(), "1000").unwrap());
        assert_eq!(read(), "300\n");
    }

    #[test]
    fn unreadable_settings_are_not_changed() {
        let error = Guard::change(Path::new("/proc/sys/no/such"), "1").unwrap_err();
        assert!(matches!(&error, GuardError::Sys(e) if e.errno == Errno::ENOENT), "{error}");
        let long = setting(&"1".repeat(LONGEST_VALUE + 1));
        let error = Guard::change(long.path(), "1").unwrap_err();
        assert!(matches!(error, GuardError::TooLong { bytes: 4097, .. }), "{error}");
    }

    #[test]
    fn an_unrestored_value_is_reported() {
        let file = setting("300\n");
        let guard = Guard::change(file.path(), "1000").unwrap();
        let elsewhere = file.path().with_extension("moved");
        std::fs::rename(file.path(), &elsewhere).unwrap();
        // If a directory has replaced the file, it cannot be written.
        std::fs::create_dir(file.path()).unwrap();
        let error = guard.restore().unwrap_err();
        assert!(matches!(&error, GuardError::Sys(e) if e.errno == Errno::EISDIR), "{error}");
        std::fs::remove_dir(file.path()).unwrap();
        std::fs::rename(&elsewhere, file.path()).unwrap();
    }

    /// The test binary runs itself; the copy changes the setting and is killed.
    #[test]
    fn the_earlier_value_comes_back_when_the_changer_is_killed() {
        const TARGET: &str = "OVERLANE_GUARD_TARGET";
        if let Some(target) = std::env::var_os(TARGET) {
            let _guard = Guard::change(Path::new(&target), "1000").unwrap();
            std::thread::sleep(Duration::from_secs(1000));
        }
        let file = setting("300\n");
        let mut changer = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "guard::tests::the_earlier_value_comes_back_when_the_changer_is_killed",
            ])
            .env(TARGET, file.path())
            .spawn()
            .unwrap();
        let wait_for = |text: &str| {
            let begun = Instant::now();
            while std::fs::read_to_string(file.path()).unwrap() != text {
                assert!(begun.elapsed() < Duration::from_secs(10), "never became {text:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for("1000");
        changer.kill().unwrap();
        changer.wait().unwrap();
        wait_for("300\n");
    }
}
