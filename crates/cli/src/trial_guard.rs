//! A process of its own that takes back what a killed trial has left.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::Context;

use crate::background;

/// Told by this that the trial has ended by itself.
const DONE: &[u8] = b"d";

/// Waits for this process's end; dropping it lets it go.
pub struct Guard(Child);

impl Guard {
    /// Starts it: from here on a kill is noticed at once.
    ///
    /// # Errors
    /// When this program cannot be started again.
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
            // One that was killed needs no word.
            let _ = pipe.write_all(DONE);
        }
        let _ = self.0.wait();
    }
}

/// In that process: waits for the end of `watched`; whether it was a kill.
pub fn was_killed(watched: u32) -> bool {
    let mut byte = [0];
    if std::io::stdin().read(&mut byte).is_ok_and(|length| length > 0) {
        return false;
    }
    // Its descriptors are closed before its children are told of its end: a command
    // that it was running must be gone, too, before the inverse is run.
    while std::os::unix::process::parent_id() == watched {
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
