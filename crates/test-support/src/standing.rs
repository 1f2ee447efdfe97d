//! A test of a test program as a process of its own, to be killed.
//!
//! The process runs one test of the same program by its name. That test asks [`is_meant`]
//! first, builds what is to be killed, calls [`stands`], and stays in its loop.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What [`stands`] begins its line with.
const WORD: &str = "stands";
/// Set in the environment of the process.
const MEANT: &str = "OVERLANE_TEST_STANDS";

/// Whether this process was started by [`Standing::start`]: the test is then to build what
/// is to be killed, and to test nothing.
pub fn is_meant() -> bool {
    std::env::var_os(MEANT).is_some()
}

/// A running one; killed when dropped.
#[derive(Debug)]
pub struct Standing {
    child: Child,
    /// Closed, it is told to end.
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    said: String,
}

impl Standing {
    /// Runs the test `name` of the calling program, with these variables in its
    /// environment besides, and waits until it stands.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it stands.
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
            let line = standing.lines.next().ok_or_else(|| ended(name))??;
            if let Some(said) = line.strip_prefix(WORD) {
                standing.said = said.trim().to_owned();
                return Ok(standing);
            }
        }
    }

    /// Process ID of the standing process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it told [`stands`] to say.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// Asks it a line, and waits for the line with which it answers.
    ///
    /// # Errors
    /// When it has ended.
    pub fn ask(&mut self, line: &str) -> io::Result<String> {
        let input = self.input.as_mut().ok_or_else(|| ended(line))?;
        writeln!(input, "{line}")?;
        self.lines.next().ok_or_else(|| ended(line))?
    }

    /// Kills it, and waits for its end.
    ///
    /// # Errors
    /// None that a child is known to give.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Tells it to end, and waits for that.
    ///
    /// # Errors
    /// None that a child is known to give.
    pub fn end(&mut self) -> io::Result<()> {
        self.input = None;
        self.child.wait().map(drop)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.kill();
    }
}

fn ended(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{what}: the process has ended"))
}

/// In that process: says that it stands, and `words` besides; gives the lines that it is
/// asked, until it is told to end, or whoever started it is gone.
pub fn stands(words: &str) -> impl Iterator<Item = String> {
    // The test harness has printed the test's name without a line end.
    println!("\n{WORD} {words}");
    io::stdin().lines().map_while(io::Result::ok)
}
