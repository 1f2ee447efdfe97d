//! The process of `measure serve --allow-settings` that keeps the right to change settings, while
//! the server gives up its own.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::Context;
use daemon::confinement::serving;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout};
use probe::switcher::{self, Switcher};

use crate::trial_guard::Guard;

/// Starts the process, and a guard that restores the settings if the process is killed. Call this
/// before there are threads.
///
/// # Errors
/// If the process cannot be started, or the journal cannot be used.
pub fn start(devices: &[String], journal: &Path) -> anyhow::Result<Switcher> {
    let journal = std::path::absolute(journal).context("path of --journal")?;
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    let socket = sys::monitor::fork_with(c"serve-settings", &[null.as_raw_fd()], |socket| {
        // Otherwise the guard's pipe could become the standard input of this process.
        let replaced =
            dup2_stdin(&null).and_then(|()| dup2_stdout(&null)).and_then(|()| dup2_stderr(&null));
        let failed = |errno: nix::Error| sys::Error::io("dup2", "/dev/null", &Error::from(errno));
        replaced.map_err(failed)?;
        let (guard, prepared) = match prepare(&journal) {
            Ok(guard) => (Some(guard), Ok(())),
            Err(error) => (None, Err(format!("{error:#}"))),
        };
        let restored = switcher::serve(&socket, &journal, devices, prepared);
        // Without a word from this process, the guard tries again to restore the settings.
        if restored.is_err() {
            std::mem::forget(guard);
        }
        Ok(())
    })?;
    Switcher::connect(socket, devices.to_vec()).map_err(anyhow::Error::msg)
}

fn prepare(journal: &Path) -> anyhow::Result<Guard> {
    // First: afterwards, this process can start no program.
    let guard = Guard::start(journal)?;
    serving::give_up_but_settings()?;
    Ok(guard)
}
