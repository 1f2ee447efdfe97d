//! Programs running inside test hosts: they and their files end with the testbed.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use sys::init::Init;
use sys::program::{Program, describe};

use crate::{Error, Host, Result};

/// The process tree of a testbed, with a `/run` and `/tmp` of its own.
#[derive(Debug)]
pub struct Processes {
    init: Init,
}

impl Processes {
    /// Starts an empty tree.
    ///
    /// # Errors
    /// `EPERM` without the right to make PID namespaces.
    pub fn new() -> Result<Processes> {
        Ok(Processes { init: Init::start()? })
    }

    /// Starts an empty tree with a control group of its own on `/sys/fs/cgroup`
    /// (version 2), for programs that make some: it goes with the tree.
    ///
    /// # Errors
    /// As [`Processes::new`]; without the right to make control groups.
    pub fn with_cgroup() -> Result<Processes> {
        Ok(Processes { init: Init::with_cgroup()? })
    }

    /// Name of the tree's own control group.
    pub fn cgroup(&self) -> Option<&str> {
        self.init.cgroup()
    }

    /// Process id of the tree's first process, as this process numbers it.
    pub fn init_pid(&self) -> u32 {
        self.init.pid().unsigned_abs()
    }

    /// Starts a program in `host` that stays until the [`Process`] is dropped.
    /// What it prints is kept for messages.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub fn start(&self, host: &Host, command: &mut Command) -> Result<Process> {
        self.start_as(&describe(command), host, command)
    }

    /// As [`start`](Processes::start), where messages are to call the program
    /// otherwise than by the command that starts it.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub fn start_as(&self, name: &str, host: &Host, command: &mut Command) -> Result<Process> {
        let program = Program::start(&self.init, host.netns(), command, &[])?;
        Ok(Process { program, name: name.to_owned() })
    }

    /// Runs a program in `host`, inside the tree, to its end; returns what it
    /// printed.
    ///
    /// # Errors
    /// [`Error::Program`] when it fails.
    pub fn run(&self, host: &Host, command: &mut Command) -> Result<String> {
        let mut process = self.start(host, command)?;
        let status = process.program.wait()?;
        if status.success() { Ok(process.output()) } else { Err(process.failed(status)) }
    }

    /// As [`run`](Processes::run), for as long as the `daemons` that the program
    /// talks to stay, and for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Program`] of the program, or of a daemon that has ended;
    /// [`Error::NotReady`] past the limit.
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
            // Without the daemon the program would wait for its answer until the limit.
            daemons.iter_mut().try_for_each(|daemon| daemon.check())?;
            Ok(process.ended()?.ok_or_else(|| process.output()))
        })?;
        if status.success() { Ok(process.output()) } else { Err(process.failed(status)) }
    }

    /// Runs `f` where the tree's private files are seen, in the host's network.
    ///
    /// # Errors
    /// When the tree has been killed.
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
    /// Its process id, as this process numbers it.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.program.ended()?)
    }

    /// An error when it has ended: a program that stays should not have.
    ///
    /// # Errors
    /// [`Error::Program`] with what it printed.
    pub fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(self.failed(status)),
        }
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        self.program.output()
    }

    /// The end of that, in whole lines: what a message says of it.
    pub fn last_lines(&self) -> String {
        let output = self.output();
        end_of(&output).to_owned()
    }

    /// Leaves what it has printed so far out of [`output`](Process::output): a
    /// sign of readiness explains no failure.
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

/// Most bytes of a program's output in a message: a daemon that tries again and again prints
/// megabytes.
const SAID: usize = 4096;

/// The last lines of a text, in [`SAID`] bytes; of a longer line its end.
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
