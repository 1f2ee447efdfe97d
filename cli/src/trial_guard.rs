//! A process of its own that takes back what a killed trial has left.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;

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
        use std::os::unix::process::CommandExt;
        let directory = std::path::absolute(directory).context("path of --journal")?;
        let child = Command::new(std::env::current_exe().context("path of this program")?)
            .args(["undo", "--when-gone", &std::process::id().to_string(), "--journal"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            // Neither Ctrl-C at this terminal nor its end is meant for it.
            .process_group(0)
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
