//! A guard process that undoes the changes of a killed trial.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::Context;
use daemon::background;

/// Message to the guard: the trial has ended normally.
const DONE: &[u8] = b"d";

/// A guard process that waits for the end of this process. Dropping it ends the guard.
pub struct Guard(Child);

impl Guard {
    /// Starts the guard. From then on, it notices a kill at once.
    ///
    /// # Errors
    /// If this program cannot be started again.
    pub fn start(directory: &Path) -> anyhow::Result<Guard> {
        let directory = std::path::absolute(directory).context("path of --journal")?;
        let watched = std::process::id().to_string();
        let words = ["undo", "--when-gone", &watched, "--journal"].map(OsStr::new);
        let child = background::command(words.into_iter().chain([directory.as_os_str()]))?
            .stdin(Stdio::piped())
            .spawn()
            .context("start the process that watches this one")?;
        Ok(Guard(child))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // Ignore errors: the guard may have been killed.
            let _ = pipe.write_all(DONE);
        }
        // The guard has restored the change, or had nothing to restore.
        let _ = self.0.wait();
    }
}

/// Runs in the guard: waits for the end of `watched`. Returns whether it was killed.
pub fn was_killed(watched: u32) -> bool {
    let mut byte = [0];
    // A byte means a normal end; end of file without a byte means a kill.
    if std::io::stdin().read(&mut byte).is_ok_and(|length| length > 0) {
        return false;
    }
    // The kernel closes descriptors before it reparents children. Wait for the reparenting, so that
    // a command of the killed process has ended, too, before its inverse runs.
    while std::os::unix::process::parent_id() == watched {
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
