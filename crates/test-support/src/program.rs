//! Starts programs, with a time limit on everything.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest that anything here may take; far more than it does, on any machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// In the environment of every program that a test starts, and inherited by its children. It
/// identifies leftovers on a machine that other people use, too.
pub const MARK: &str = "OVERLANE_TEST_MARK";

/// Exit status and output of a program.
#[derive(Debug)]
pub struct Ended {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Ended {
    /// Checks the exit code, and shows everything when it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs a program to its end; panics when it fails.
#[track_caller]
pub fn sh(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    Running::start(command).wait().expect(0).stdout
}

/// A program under way; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    mark: String,
    started: Instant,
    out: Stream,
    err: Stream,
}

impl Running {
    /// Spawns the command in a marked environment, with its output read by threads.
    pub fn start(mut command: Command) -> Running {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{count}", std::process::id());
        let mut child = command
            .env(MARK, &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let out = Stream::collect(child.stdout.take().unwrap());
        let err = Stream::collect(child.stderr.take().unwrap());
        Running { child, mark, started: Instant::now(), out, err }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The mark in its environment.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Waits until it has written `text` to standard error.
    #[track_caller]
    pub fn await_stderr(&mut self, text: &str) {
        eventually(&format!("{text:?} on standard error"), || {
            let said = self.err.so_far();
            if said.contains(text) {
                return Ok(());
            }
            let ended = self.child.try_wait().unwrap();
            // It may have been written just before the end.
            assert!(ended.is_none() || self.err.so_far().contains(text), "{ended:?}: {said}");
            Err(said)
        });
    }

    /// Waits until it has written `text` to standard output.
    #[track_caller]
    pub fn await_stdout(&mut self, text: &str) {
        eventually(&format!("{text:?} on standard output"), || {
            let said = self.out.so_far();
            if said.contains(text) {
                return Ok(());
            }
            assert!(self.runs(), "ended: {said}: {}", self.err.so_far());
            Err(said)
        });
    }

    /// Waits until it has taken `count` samples of a run, as its log shows.
    #[track_caller]
    pub fn await_samples(&mut self, count: usize) {
        eventually(&format!("{count} samples"), || {
            let said = self.err.so_far();
            assert!(self.runs(), "ended: {said}");
            if said.matches("sampling ").count() > count { Ok(()) } else { Err(said) }
        });
    }

    /// Its standard output up to now.
    pub fn stdout_so_far(&self) -> String {
        self.out.so_far()
    }

    /// Its standard error up to now.
    pub fn stderr_so_far(&self) -> String {
        self.err.so_far()
    }

    /// Waits until it writes `text` to standard error once more than before.
    #[track_caller]
    pub fn await_next_stderr(&mut self, text: &str) {
        let before = self.err.so_far().matches(text).count();
        eventually(&format!("{text:?} on standard error"), || {
            let said = self.err.so_far();
            assert!(self.runs(), "ended: {said}");
            if said.matches(text).count() > before { Ok(()) } else { Err(said) }
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    #[track_caller]
    pub fn wait(self) -> Ended {
        self.wait_at_most(LIMIT)
    }

    /// Waits for its end, which must come within `limit`.
    #[track_caller]
    pub fn wait_at_most(mut self, limit: Duration) -> Ended {
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if begun.elapsed() > limit => {
                    panic!("did not end within {limit:?}: {}", self.err.so_far())
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let took = self.started.elapsed();
        Ended {
            code: status.code(),
            signal: status.signal(),
            stdout: self.out.all(),
            stderr: self.err.all(),
            took,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program's output, read as it arrives.
#[derive(Debug)]
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    fn collect(mut from: impl Read + Send + 'static) -> Stream {
        let text = Arc::new(Mutex::new(Vec::new()));
        let into = text.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Stream { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// To the end, which comes when every process that has it open has ended.
    fn all(&mut self) -> String {
        let reader = self.reader.take().unwrap();
        eventually("the end of the output", || {
            if reader.is_finished() { Ok(()) } else { Err("still open in some process".into()) }
        });
        reader.join().unwrap();
        self.so_far()
    }
}

/// Asks again and again until the answer is `Ok`.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(seen) if begun.elapsed() > LIMIT => panic!("{what}: not within {LIMIT:?}: {seen}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Polls until the condition holds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || if holds() { Ok(()) } else { Err("not yet".to_owned()) });
}

/// Names of the entries of a directory, hidden ones included.
pub fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
