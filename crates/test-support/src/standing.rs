//! Runs a test of a test program as a separate process that can be killed.
//!
//! The process runs one test of the same program by name. That test checks [`is_meant`] first,
//! builds its objects, calls [`stands`], and stays in its loop.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Beginning of the line of [`stands`].
const WORD: &str = "stands";
/// Environment variable that marks the process.
const MEANT: &str = "OVERLANE_TEST_STANDS";

/// Returns whether this process was started by [`Standing::start`]. The test must then only build
/// its objects, and test nothing.
pub fn is_meant() -> bool {
    std::env::var_os(MEANT).is_some()
}

/// A running process. Killed when dropped.
#[derive(Debug)]
pub struct Standing {
    child: Child,
    /// Closing it ends the process.
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    said: String,
}

impl Standing {
    /// Runs the test `name` of the calling program with additional environment variables, and waits
    /// until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it is ready.
    pub fn start(name: &str, environment: &[(&str, &str)]) -> io::Result<Standing> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", name, "--nocapture"])
            .env(MEANT, "1")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| ended(name))?;
        let lines = BufReader::new(output).lines();
        let mut standing = Standing { child, input, lines, said: String::new() };
        loop {
            // Skip the output of the test harness.
            let line = standing.lines.next().ok_or_else(|| ended(name))??;
            if let Some(said) = line.strip_prefix(WORD) {
                standing.said = said.trim().to_owned();
                return Ok(standing);
            }
        }
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the words that the process passed to [`stands`].
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Sends a line, and waits for the answer line.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn ask(&mut self, line: &str) -> io::Result<String> {
        let input = self.input.as_mut().ok_or_else(|| ended(line))?;
        writeln!(input, "{line}")?;
        self.lines.next().ok_or_else(|| ended(line))?
    }

    /// Kills the process, and waits for its end.
    ///
    /// # Errors
    /// None are known for a child process.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Closes its input, and waits for its end.
    ///
    /// # Errors
    /// None are known for a child process.
    pub fn end(&mut self) -> io::Result<()> {
        self.input = None;
        self.child.wait().map(drop)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // Ignore errors: it may already have ended.
        let _ = self.kill();
    }
}

fn ended(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{what}: the process has ended"))
}

/// Runs in the process: reports readiness with `words`. Returns the received lines, until the input
/// is closed.
pub fn stands(words: &str) -> impl Iterator<Item = String> {
    // Start a new line, because the test harness has printed the name without one.
    println!("\n{WORD} {words}");
    io::stdin().lines().map_while(io::Result::ok)
}
