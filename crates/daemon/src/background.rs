//! Starts this program again in the background.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Beginning of the first output line of a background process that is ready.
pub const READY: &str = "ready";

/// Builds a command that runs this program, detached from the terminal and in the root directory.
///
/// # Errors
/// If the path of this program is unknown.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("path of this program")?);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        // A new process group, so that Ctrl-C or a hangup of this terminal does not reach it.
        .process_group(0);
    Ok(command)
}

/// Starts the background process `who` and waits until it is ready. It runs in the root directory.
///
/// # Errors
/// The error message of the process.
pub fn start(who: &str, arguments: &[&OsStr]) -> anyhow::Result<()> {
    let mut child = command(arguments)?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {who}"))?;
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("{who} has no pipes");
    };
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    // The process has failed and printed its error on standard error.
    if !line.starts_with(READY) {
        let mut said = String::new();
        stderr.read_to_string(&mut said)?;
        child.wait()?;
        bail!("{}", said.trim().trim_start_matches("error: "));
    }
    Ok(())
}
