//! In the guest: runs the program with the arguments received, and sends back its results.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::frame::{self, Kind, LONGEST};
use super::{ALIVE_EVERY, RESULTS};
use crate::guest::initramfs::{FOUND, PROGRAM};

/// `PATH` of the guest's programs.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec";
/// Maximum length of a forwarded line, bytes.
const LINE: u64 = 1024;
/// Interval at which the program's end is checked.
const TICK: Duration = Duration::from_millis(100);

/// Runs this program once with the arguments from `port`. `--out` is added here.
///
/// # Errors
/// If the port cannot be read or written. Other failures are reported on the port.
pub fn run(port: File) -> Result<(), String> {
    let io = |error: std::io::Error| format!("control port: {error}");
    let mut incoming = port.try_clone().map_err(io)?;
    let outgoing = Outgoing(Arc::new(Mutex::new(port)));
    let (kind, words) = frame::read(&mut incoming).map_err(io)?;
    // The host sends the arguments first; anything else is another version.
    if kind != Kind::Arguments {
        return Err(format!("control port: frame of kind {kind:?}: expected Arguments"));
    }
    let (received, all) = channel();
    match carry_out(&words, incoming, received, &outgoing) {
        Ok(status) => outgoing.say(Kind::Ended, &status.to_le_bytes())?,
        Err(reason) => outgoing.say(Kind::Failed, reason.as_bytes())?,
    }
    // Wait for the host: the guest powers off after this, and QEMU discards bytes that the host
    // has not read. The host ends QEMU after its own time limit.
    let _ = all.recv();
    Ok(())
}

/// The port, shared by the threads that send.
#[derive(Clone)]
struct Outgoing(Arc<Mutex<File>>);

impl Outgoing {
    fn say(&self, kind: Kind, payload: &[u8]) -> Result<(), String> {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *port, kind, payload).map_err(|error| format!("control port: {error}"))
    }
}

/// Returns [`PATH`] plus the directories of linked programs: process trees hide paths below
/// their private `/tmp`, except those in `PATH`.
fn path() -> String {
    let links = std::fs::read_dir(FOUND).into_iter().flatten().flatten();
    let programs = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let places = programs.filter_map(|program| program.parent().map(Path::to_owned));
    let places: BTreeSet<_> = places.map(|place| place.display().to_string()).collect();
    places.iter().fold(PATH.to_owned(), |path, place| path + ":" + place)
}

fn carry_out(
    words: &[u8],
    incoming: File,
    received: Sender<()>,
    outgoing: &Outgoing,
) -> Result<i32, String> {
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    let mut child = Command::new(PROGRAM)
        .args(words)
        .args(["--out", RESULTS])
        .env("PATH", path())
        // Its progress messages (session/src/progress.rs).
        .env("OVERLANE_LOG", "warn,overlane=debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("run {PROGRAM}: {error}"))?;
    let thread = |error: std::io::Error| format!("cannot start a thread: {error}");
    let (listening, pid) = (std::thread::Builder::new().name("listen".into()), child.id());
    listening.spawn(move || listen(incoming, pid, &received)).map_err(thread)?;
    let stderr = child.stderr.take().ok_or("no standard error")?;
    let (telling, to) = (std::thread::Builder::new().name("lines".into()), outgoing.clone());
    let telling = telling.spawn(move || tell(stderr, &to)).map_err(thread)?;
    let status = wait(&mut child, outgoing)?;
    // The thread ends with the program's standard error.
    let _ = telling.join();
    match File::open(RESULTS) {
        Ok(mut file) => {
            let mut part = vec![0; LONGEST];
            loop {
                let length = file.read(&mut part).map_err(|e| format!("read {RESULTS}: {e}"))?;
                if length == 0 {
                    break;
                }
                outgoing.say(Kind::Part, &part[..length])?;
            }
        }
        // It ended before it had results: its last lines give the reason.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("open {RESULTS}: {error}")),
    }
    Ok(status)
}

/// Waits for the program's exit status. Meanwhile reports that the guest is alive.
fn wait(child: &mut Child, outgoing: &Outgoing) -> Result<i32, String> {
    let mut ticks = 0;
    loop {
        match child.try_wait().map_err(|error| format!("wait for {PROGRAM}: {error}"))? {
            Some(status) => {
                // 128 + signal, as in a shell.
                return Ok(status.code().unwrap_or(128 + status.signal().unwrap_or_default()));
            }
            None => std::thread::sleep(TICK),
        }
        ticks += 1;
        if TICK * ticks >= ALIVE_EVERY {
            ticks = 0;
            outgoing.say(Kind::Alive, &[])?;
        }
    }
}

/// Handles requests until the port is closed, when QEMU and this guest end.
fn listen(mut incoming: File, pid: u32, received: &Sender<()>) {
    while let Ok((kind, _)) = frame::read(&mut incoming) {
        match kind {
            // The program may already have ended by itself.
            Kind::Stop => drop(kill(Pid::from_raw(pid as i32), Signal::SIGINT)),
            Kind::Received => drop(received.send(())),
            // Other frames are sent by the guest only.
            _ => {}
        }
    }
}

fn tell(stderr: ChildStderr, outgoing: &Outgoing) {
    let mut lines = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(LINE).read_until(b'\n', &mut line) {
            Ok(1..) => {
                // The host has closed the port: nobody reads the lines.
                if outgoing.say(Kind::Line, line.trim_ascii_end()).is_err() {
                    return;
                }
            }
            Ok(0) | Err(_) => return,
        }
    }
}
