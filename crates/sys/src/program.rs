//! Programs that run in a process tree and a network namespace. Their output is saved. They end
//! when the [`Program`] is dropped, and also with this process, because the tree ends with it.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::init::Init;
use crate::netns::NetNs;
use crate::{Error, Result, affinity, memfd};

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    command: String,
    stdout: Log,
    stderr: Log,
}

/// The data written to one descriptor.
#[derive(Debug)]
struct Log {
    file: File,
    /// Number of bytes at the start that are no longer needed.
    reported: u64,
}

impl Log {
    fn new(name: &str) -> Result<Log> {
        Ok(Log { file: memfd::create(name)?.into(), reported: 0 })
    }

    fn copy(&self) -> Result<File> {
        self.file.try_clone().map_err(|e| Error::io("dup", "program log", &e))
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.len())
    }

    fn text(&self) -> String {
        let mut bytes = vec![0; self.length().saturating_sub(self.reported) as usize];
        // read_at, because the file position is shared with the writing program.
        let length = self.file.read_at(&mut bytes, self.reported).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

impl Program {
    /// Starts a program inside the tree and the network namespace on the CPUs in `cpus` (empty:
    /// any).
    ///
    /// # Errors
    /// If a namespace cannot be entered, a CPU cannot be used, or the program cannot be executed.
    pub fn start(
        tree: &Init,
        net: &NetNs,
        command: &mut Command,
        cpus: &[usize],
    ) -> Result<Program> {
        let described = describe(command);
        let (stdout, stderr) = (Log::new("overlane-stdout")?, Log::new("overlane-stderr")?);
        // A separate process group: Ctrl-C is meant for the run, which ends the program after it
        // has written its results.
        command.stdin(Stdio::null()).stdout(stdout.copy()?).stderr(stderr.copy()?).process_group(0);
        // The output is parsed.
        command.env("LC_ALL", "C");
        // The private /tmp hides the caller's directory, and iperf3 fails without one.
        command.env("TMPDIR", "/tmp");
        end_on_interrupt(command);
        let child = tree.run_inside(net, || {
            // The affinity is inherited by exec, so taskset is not needed.
            if !cpus.is_empty() {
                affinity::pin_to(cpus)?;
            }
            let program = command.get_program().to_string_lossy().into_owned();
            command.spawn().map_err(|e| Error::io("exec", program, &e))
        })?;
        Ok(Program { child, command: described, stdout, stderr })
    }

    /// Returns the program and its arguments as one line, for messages.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Returns the process ID in the PID namespace of this process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the program has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|e| Error::io("wait", self.command.clone(), &e))
    }

    /// Waits for the end of the program.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.child.wait().map_err(|e| Error::io("wait", self.command.clone(), &e))
    }

    /// Asks the program to end, like Ctrl-C.
    pub fn interrupt(&self) {
        // The ID cannot be reused before this process has waited for the program.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
    }

    /// Returns everything written to standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns everything written to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Excludes everything written so far from the output returned later.
    pub fn forget_output(&mut self) {
        for log in [&mut self.stdout, &mut self.stderr] {
            log.reported = log.length();
        }
    }

    /// Returns both outputs, standard output first.
    pub fn output(&self) -> String {
        self.stdout() + &self.stderr()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a program end on SIGINT. After `&` a shell runs this process with the signal ignored,
/// which the program would inherit.
fn end_on_interrupt(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call on integers, which is
    // async-signal-safe; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| match libc::signal(libc::SIGINT, libc::SIG_DFL) {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// Makes the kernel kill a program when the *thread* that started it ends for any reason. For short
/// programs for which the thread waits.
pub fn end_with_thread(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure makes one system call on integers,
    // which is async-signal-safe; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

/// Returns a command line as it would be typed.
pub fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Searches a program in `PATH`, then in `others`.
pub fn find(program: &str, others: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(others.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_in_the_given_place_and_its_output_is_read() {
        test_support::require!(test_support::need::networks());
        let (net, tree) = (NetNs::new().unwrap(), Init::start().unwrap());
        let cpu = *affinity::of_this_thread().unwrap().last().unwrap();
        let script = "grep Cpus_allowed_list /proc/self/status; readlink /proc/self/ns/net; \
                      echo complaint >&2; exec sleep 1000";
        let mut command = Command::new("sh");
        // SAFETY: no handler is set, and the disposition of the signal is restored.
        let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        let started = Program::start(&tree, &net, command.args(["-c", script]), &[cpu]);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGINT, before) };
        let mut program = started.unwrap();
        while program.stderr().is_empty() {
            assert!(program.ended().unwrap().is_none());
            std::thread::yield_now();
        }
        let said = format!("Cpus_allowed_list:\t{cpu}\nnet:[{}]\n", net.inode());
        assert_eq!(program.stdout(), said);
        assert_eq!(program.output(), said + "complaint\n");
        program.forget_output();
        assert_eq!(program.output(), "");
        program.interrupt();
        let status = program.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT));
    }

    #[test]
    fn lines_of_processes_that_write_at_once_are_all_kept() {
        test_support::require!(test_support::need::networks());
        let (net, tree) = (NetNs::new().unwrap(), Init::start().unwrap());
        let script = "for process in a b c d; do \
                      (i=0; while [ $i -lt 5000 ]; do echo line of $process; i=$((i+1)); done) & \
                      done; wait";
        let mut command = Command::new("sh");
        let mut program = Program::start(&tree, &net, command.args(["-c", script]), &[]).unwrap();
        assert!(program.wait().unwrap().success());
        let said = program.stdout();
        for process in ["a", "b", "c", "d"] {
            let line = format!("line of {process}");
            assert_eq!(said.lines().filter(|said| **said == line).count(), 5000);
        }
    }

    #[test]
    fn programs_are_found_by_path() {
        assert!(find("sh", &[]).is_some());
        assert_eq!(find("overlane-no-such-program", &["/usr/sbin"]), None);
        assert_eq!(find("passwd", &["/etc"]).filter(|p| p.starts_with("/etc")), None);
    }
}
