//! A verb in the foreground, as a child process of the test.

use std::io::{BufRead, BufReader, Lines};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::Host;

pub const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");
/// Time limit of a step.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The path of a host's namespace.
pub fn path(host: &Host) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd())
}

/// Three pings that must be answered.
pub fn ping(host: &Host, target: &str) {
    let mut command = Command::new("ping");
    command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5", target]);
    host.run(&mut command).unwrap();
}

/// A program that runs in a test host until it is dropped, which kills it.
pub struct Foreground {
    pub child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Foreground {
    /// Starts it in a host and waits until it reports that it is ready; keeps the line.
    pub fn start(host: &Host, command: Command, notify: Option<&Notify>) -> (Foreground, String) {
        let (foreground, ready) = Foreground::attempt(host, command, notify);
        (foreground, ready.unwrap())
    }

    /// Like `start`, for a program that may end without output.
    pub fn attempt(
        host: &Host,
        mut command: Command,
        notify: Option<&Notify>,
    ) -> (Foreground, Option<String>) {
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify.directory.path().join("notify"));
        }
        let spawn = || command.stdout(Stdio::piped()).spawn().unwrap();
        let mut child = host.netns().run(spawn).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut foreground = Foreground { child, lines };
        let ready = foreground.lines.next().map(Result::unwrap);
        (foreground, ready)
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// The next printed line.
    pub fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Its exit code, after no further output; `None` if it was killed.
    pub fn end(&mut self) -> Option<i32> {
        assert!(self.lines.next().is_none());
        self.child.wait().unwrap().code()
    }

    /// Checks that each thread has no capability, no root id, no new privileges and a seccomp
    /// filter.
    pub fn expect_no_rights(&self, threads: usize) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let mut count = 0;
        for task in tasks {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
            }
            assert!(!status.contains("Uid:\t0\t") && !status.contains("Gid:\t0\t"), "{status}");
            assert!(status.contains("Groups:\t \n") || !status.contains("Groups:\t0"), "{status}");
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
            assert!(status.contains("Seccomp:\t2"), "{status}");
            count += 1;
        }
        assert_eq!(count, threads, "a thread a queue, the first, who watches paths, who answers");
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service manager's end of sd_notify.
pub struct Notify {
    directory: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Notify {
    pub fn new() -> Notify {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Notify { directory, socket }
    }

    pub fn expect(&self, state: &str) {
        let mut message = [0; 64];
        let length = self.socket.recv(&mut message).unwrap();
        assert_eq!(String::from_utf8_lossy(&message[..length]), state);
    }
}
