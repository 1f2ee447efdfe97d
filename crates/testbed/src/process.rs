//! Programs inside test hosts. They and their files vanish with the testbed.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use sys::init::Init;
use sys::program::{Program, describe};

use crate::{Error, Host, Result};

/// The process tree of a testbed, with a private `/run` and `/tmp`.
#[derive(Debug)]
pub struct Processes {
    init: Init,
}

impl Processes {
    /// Starts an empty tree.
    ///
    /// # Errors
    /// `EPERM` without the privilege to create PID namespaces.
    pub fn new() -> Result<Processes> {
        Ok(Processes { init: Init::start()? })
    }

    /// Starts an empty tree with its own control group (version 2) on `/sys/fs/cgroup`, for
    /// programs that create control groups. It vanishes with the tree.
    ///
    /// # Errors
    /// As [`Processes::new`], or without the privilege to create control groups.
    pub fn with_cgroup() -> Result<Processes> {
        Ok(Processes { init: Init::with_cgroup()? })
    }

    /// Path of the tree's control group, if it has one.
    pub fn cgroup(&self) -> Option<&str> {
        self.init.cgroup()
    }

    /// PID of the tree's first process in this process's PID namespace.
    pub fn init_pid(&self) -> u32 {
        self.init.pid().unsigned_abs()
    }

    /// Starts a program in `host` that runs until the [`Process`] is dropped. Its output is kept
    /// for messages.
    pub fn start(&self, host: &Host, command: &mut Command) -> Result<Process> {
        self.start_as(&describe(command), host, command)
    }

    /// Like [`start`](Processes::start), with another name in messages than the command line.
    pub fn start_as(&self, name: &str, host: &Host, command: &mut Command) -> Result<Process> {
        let program = Program::start(&self.init, host.netns(), command, &[])?;
        Ok(Process { program, name: name.to_owned() })
    }

    /// Runs a program in `host`, inside the tree, to completion and returns its output.
    ///
    /// # Errors
    /// [`Error::Program`] if it fails.
    pub fn run(&self, host: &Host, command: &mut Command) -> Result<String> {
        let mut process = self.start(host, command)?;
        let status = process.program.wait()?;
        if status.success() { Ok(process.output()) } else { Err(process.failed(status)) }
    }

    /// Like [`run`](Processes::run), but fails if one of the `daemons` that the program talks to
    /// ends, or after `limit`.
    ///
    /// # Errors
    /// [`Error::Program`] for the program or a daemon that ended; [`Error::NotReady`] after the
    /// limit.
    pub fn ask(
        &self,
        host: &Host,
        command: &mut Command,
        limit: Duration,
        daemons: &mut [&mut Process],
    ) -> Result<String> {
        let program = describe(command);
        let mut process = self.start(host, command)?;
        let status = crate::poll(&program, limit, || {
            // Fail early: without the daemon the program would wait until the limit.
            daemons.iter_mut().try_for_each(|daemon| daemon.check())?;
            Ok(process.ended()?.ok_or_else(|| process.output()))
        })?;
        if status.success() { Ok(process.output()) } else { Err(process.failed(status)) }
    }

    /// Runs `f` in the tree's mount namespace and the host's network namespace.
    ///
    /// # Errors
    /// If the tree has been killed.
    pub fn inside<T: Send>(&self, host: &Host, f: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(self.init.run_inside(host.netns(), || Ok(f()))?)
    }
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Process {
    program: Program,
    name: String,
}

impl Process {
    /// PID in this process's PID namespace.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Returns the exit status if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.program.ended()?)
    }

    /// Fails if it has ended; daemons are expected to keep running.
    ///
    /// # Errors
    /// [`Error::Program`] with its output.
    pub fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(self.failed(status)),
        }
    }

    /// Returns its output so far.
    pub fn output(&self) -> String {
        self.program.output()
    }

    /// Returns the last whole lines of its output, for messages.
    pub fn last_lines(&self) -> String {
        let output = self.output();
        end_of(&output).to_owned()
    }

    /// Discards the output so far. Messages about readiness would not explain a later failure.
    pub fn forget_output(&mut self) {
        self.program.forget_output();
    }

    fn failed(&self, status: ExitStatus) -> Error {
        Error::Program {
            program: self.name.clone(),
            status: status.to_string(),
            output: self.last_lines(),
        }
    }
}

/// Maximum output of a program in a message, bytes. A daemon that keeps retrying prints
/// megabytes.
const SAID: usize = 4096;

/// Returns the last whole lines that fit [`SAID`] bytes, or the end of a longer line.
fn end_of(text: &str) -> &str {
    let Some(cut) = text.len().checked_sub(SAID) else { return text };
    let cut = (cut..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (before, end) = text.split_at(cut);
    if before.ends_with('\n') {
        return end;
    }
    match end.find('\n') {
        Some(at) if at + 1 < end.len() => &end[at + 1..],
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_last_lines() {
        assert_eq!(end_of("one\ntwo\n"), "one\ntwo\n");
        let lines: String = (0..1000).map(|at| format!("line {at:04}\n")).collect();
        let end = end_of(&lines);
        assert!(end.starts_with("line 0591\n") && end.ends_with("line 0999\n"), "{end}");
        let end_of_one = "é".repeat(SAID);
        assert_eq!(end_of(&end_of_one).len(), SAID);
        assert_eq!(end_of(&format!("x{end_of_one}\n")).len(), SAID - 1);
    }
}
