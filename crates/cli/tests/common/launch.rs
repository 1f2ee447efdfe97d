//! Starts `overlane`.

use std::ffi::OsStr;
use std::process::Command;

#[allow(unused_imports, reason = "not every test binary uses all of it")]
pub use test_support::program::{Ended, LIMIT, MARK, Running, entries, eventually, sh};

/// The program under test.
pub const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");

/// `overlane` with arguments.
pub fn overlane<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(OVERLANE);
    command.args(arguments);
    command
}

/// Runs `overlane` to its end.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ended {
    Running::start(overlane(arguments)).wait()
}
