//! In the guest: the program is run with the words that come, and what came of it is told.

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

/// Where the programs of the guest are.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec";
/// Longest line of the program that is told.
const LINE: u64 = 1024;
/// How often the program is asked whether it has ended.
const TICK: Duration = Duration::from_millis(100);

/// Runs this program once, as the other end of `port` says. Its `--out` is added here.
///
/// # Errors
/// When the port cannot be read or written. What else failed was said on it.
pub fn run(port: File) -> Result<(), String> {
    let io = |error: std::io::Error| format!("control port: {error}");
    let mut incoming = port.try_clone().map_err(io)?;
    let outgoing = Outgoing(Arc::new(Mutex::new(port)));
    let (kind, words) = frame::read(&mut incoming).map_err(io)?;
    if kind != Kind::Arguments {
        return Err(format!("control port: a frame of kind {kind:?}: expected Arguments"));
    }
    let (received, all) = channel();
    match carry_out(&words, incoming, received, &outgoing) {
        Ok(status) => outgoing.say(Kind::Ended, &status.to_le_bytes())?,
        Err(reason) => outgoing.say(Kind::Failed, reason.as_bytes())?,
    }
    // The guest powers off after this, and QEMU ends with what it still holds of the port's
    // bytes. Who listens has a time of its own after which QEMU is ended.
    let _ = all.recv();
    Ok(())
}

/// The port, for whoever has something to say.
#[derive(Clone)]
struct Outgoing(Arc<Mutex<File>>);

impl Outgoing {
    fn say(&self, kind: Kind, payload: &[u8]) -> Result<(), String> {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *port, kind, payload).map_err(|error| format!("control port: {error}"))
    }
}

/// [`PATH`], and where the programs themselves are that have links there: process trees show
/// what of it is below their private `/tmp`.
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
        // What it says of its progress (cli/src/progress.rs).
        .env("OVERLANE_LOG", "warn,overlane=debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("run {PROGRAM}: {error}"))?;
    let thread = |error: std::io::Error| format!("no thread: {error}");
    let (listening, pid) = (std::thread::Builder::new().name("listen".into()), child.id());
    listening.spawn(move || listen(incoming, pid, &received)).map_err(thread)?;
    let stderr = child.stderr.take().ok_or("no standard error")?;
    let (telling, to) = (std::thread::Builder::new().name("lines".into()), outgoing.clone());
    let telling = telling.spawn(move || tell(stderr, &to)).map_err(thread)?;
    let status = wait(&mut child, outgoing)?;
    // It ends with the program, and says no more then.
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
        // It ended before there was anything to write: its lines say why.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("open {RESULTS}: {error}")),
    }
    Ok(status)
}

/// The program's exit status, when it has ended; until then says that the guest is alive.
fn wait(child: &mut Child, outgoing: &Outgoing) -> Result<i32, String> {
    let mut ticks = 0;
    loop {
        match child.try_wait().map_err(|error| format!("wait for {PROGRAM}: {error}"))? {
            Some(status) => {
                // As a shell has it.
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

/// Until the other end is closed: QEMU has ended then, and this with it.
fn listen(mut incoming: File, pid: u32, received: &Sender<()>) {
    while let Ok((kind, _)) = frame::read(&mut incoming) {
        match kind {
            // It may have ended by itself meanwhile.
            Kind::Stop => drop(kill(Pid::from_raw(pid as i32), Signal::SIGINT)),
            Kind::Received => drop(received.send(())),
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
                if outgoing.say(Kind::Line, line.trim_ascii_end()).is_err() {
                    return;
                }
            }
            Ok(0) | Err(_) => return,
        }
    }
}
