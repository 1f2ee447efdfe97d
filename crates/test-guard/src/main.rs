//! Runs one root test and reports what the test left on the machine.
//!
//! ```text
//! test-guard --begin DIR               before a run: record the state of the machine in DIR
//! test-guard TEST-BINARY ARGUMENT...   one test, as a run wrapper of cargo-nextest
//! test-guard --finish DIR              after a run: compare, and judge the suspects
//! ```
//!
//! A test that passes and leaves something fails with exit status 101, and one line on the
//! standard error stream names what is left. Objects that the machine had before the test do not
//! count. Without root, the guard executes the test and checks nothing.
//!
//! Some objects show which test made them: descendants of the test, and files in the test's own
//! `TMPDIR`. All others, such as a link or a BPF program, belong to the whole machine. If no other
//! guard ran at the same time, they are this test's. Otherwise they are *suspects*: the guard
//! writes them to `OVERLANE_TEST_RUN/suspects`, and `--finish` judges them. Most are objects of
//! tests that were still running, and are gone by then. A test that left an object has recorded it
//! at its end, so the tests that recorded an object are the only candidates.
//!
//! Limits:
//! - A program that is not a test (a container engine, an administrator) may create an object
//!   while a test runs. The test is blamed, except for BPF objects that the program holds.
//! - A network namespace without a name, a mount or a process does not show. `--finish` prints how
//!   many namespaces the kernel has, as a note.
//! - Orphans of a test become children of the guard instead of process 1.

#![forbid(unsafe_code)]

mod overlap;
mod processes;
mod run;
mod state;
mod whole;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Exit status of a test that passed and left something; that of a Rust test that failed.
const LEFT: u8 = 101;
/// The kernel removes namespaces and BPF programs some time after their last user is gone.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval between two checks of the machine.
const TICK: Duration = Duration::from_millis(20);
/// Names the test in its environment, which all its descendants inherit.
const MARK: &str = "OVERLANE_TEST";
/// Names the directory of the run, in which suspects are recorded.
const RUN: &str = "OVERLANE_TEST_RUN";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some((first, rest)) = arguments.split_first() else {
        eprintln!("usage: test-guard --begin DIR | --finish DIR | TEST-BINARY ARGUMENT...");
        return ExitCode::from(2);
    };
    let root = nix::unistd::geteuid().is_root();
    let done = match (first.to_str(), rest) {
        // Without root no guard checks anything, so there is nothing to compare.
        (Some("--begin" | "--finish"), [_]) if !root => Ok(0),
        (Some("--begin"), [directory]) => whole::begin(Path::new(directory)).map(|()| 0),
        (Some("--finish"), [directory]) => whole::finish(Path::new(directory)),
        _ if !root => Err(Command::new(first).args(rest).exec()),
        _ => run::run(first, rest),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("test-guard: {}: {error}", first.display());
            ExitCode::from(127)
        }
    }
}
