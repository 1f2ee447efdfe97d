//! Starting this program again, to go on in the background.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// What such a program begins its first line with when it is ready.
pub const READY: &str = "ready";

/// This program with these arguments, away from the terminal and its directory.
///
/// # Errors
/// Where its path is not known.
pub fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("path of this program")?);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        // Neither Ctrl-C at this terminal nor its end is meant for it.
        .process_group(0);
    Ok(command)
}

/// Starts it with these arguments and waits until it is ready; `who` it is, for
/// errors. It starts in the root directory.
///
/// # Errors
/// What it said instead.
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
    if !line.starts_with(READY) {
        let mut said = String::new();
        stderr.read_to_string(&mut said)?;
        child.wait()?;
        bail!("{}", said.trim().trim_start_matches("error: "));
    }
    Ok(())
}
