//! Starting this program again, to go on in the background.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// What such a program begins its first line with when it is ready.
pub const READY: &str = "ready";

/// Starts it with these arguments and waits until it is ready; `who` it is, for
/// errors. It starts in the root directory.
///
/// # Errors
/// What it said instead.
pub fn start(who: &str, arguments: &[&OsStr]) -> anyhow::Result<()> {
    let mut child = Command::new(std::env::current_exe().context("path of this program")?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        // Ctrl-C at this terminal is not meant for it.
        .process_group(0)
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
