//! Programs running inside test hosts: they and their files end with the testbed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use sys::init::Init;

use crate::host::describe;
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
    pub fn start_as(&self, program: &str, host: &Host, command: &mut Command) -> Result<Process> {
        let log = File::from(sys::memfd::create("overlane-process-log")?);
        let copy = || log.try_clone().map_err(|e| sys::Error::io("dup", "process log", &e));
        // A process group of its own: Ctrl-C is for the run, which ends the
        // program when it has written what it measured.
        command.stdin(Stdio::null()).stdout(copy()?).stderr(copy()?).process_group(0);
        let child = self.init.spawn(command, host.netns())?;
        Ok(Process { child, program: program.to_owned(), log, told: 0 })
    }

    /// Runs a program in `host`, inside the tree, to its end; returns what it
    /// printed.
    ///
    /// # Errors
    /// [`Error::Program`] when it fails.
    pub fn run(&self, host: &Host, command: &mut Command) -> Result<String> {
        let mut process = self.start(host, command)?;
        let status = process
            .child
            .wait()
            .map_err(|e| sys::Error::io("wait", process.program.clone(), &e))?;
        let output = process.output();
        if status.success() {
            Ok(output)
        } else {
            Err(Error::Program {
                program: process.program.clone(),
                status: status.to_string(),
                output,
            })
        }
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
    child: Child,
    program: String,
    log: File,
    /// Bytes of the log that have served their purpose.
    told: u64,
}

impl Process {
    /// Its process id, as this process numbers it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait().map_err(|e| sys::Error::io("wait", self.program.clone(), &e))?)
    }

    /// An error when it has ended: a program that stays should not have.
    ///
    /// # Errors
    /// [`Error::Program`] with what it printed.
    pub fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(Error::Program {
                program: self.program.clone(),
                status: status.to_string(),
                output: self.output(),
            }),
        }
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        let length = self.log.metadata().map_or(0, |m| m.len()).saturating_sub(self.told);
        let mut bytes = vec![0; length as usize];
        // read_at: the file position is shared with the program that writes.
        let length = self.log.read_at(&mut bytes, self.told).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Leaves what it has printed so far out of [`output`](Process::output): a
    /// sign of readiness explains no failure.
    pub fn forget_output(&mut self) {
        self.told = self.log.metadata().map_or(0, |m| m.len());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
