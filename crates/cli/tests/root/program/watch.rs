//! `overlane watch`: recordings as text and JSON, and the interface on a pseudo-terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::{need, require};

use super::launch::{Ended, OVERLANE, entries, eventually, run};
use super::schema;

/// Four intervals of a testbed.
fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/watch.jsonl")
}

fn play(path: &Path, arguments: &[&str]) -> Ended {
    run([&["watch", path.to_str().unwrap()], arguments].concat())
}

#[test]
fn a_recording_is_played_as_text() {
    let played = play(&recording(), &[]).expect(0);
    assert_eq!(played.stdout.matches(" UTC, 1.0 s: 1 packet in ").count(), 4, "{played:#?}");
    for text in ["tenant-a     eth0       tx", "in VXLAN 42", "NO_SOCKET in __udp4_lib_rcv"] {
        assert!(played.stdout.contains(text), "{text}: {played:#?}");
    }
    assert!(!played.stdout.contains('\x1b'), "{played:#?}");
    for (arguments, intervals) in [(&["--once"][..], 1), (&["--count", "3", "--text"], 3)] {
        let played = play(&recording(), arguments).expect(0);
        assert_eq!(played.stdout.matches(" UTC, ").count(), intervals, "{arguments:?}");
    }
}

#[test]
fn a_recording_is_played_as_the_json_that_it_is() {
    let played = play(&recording(), &["--json"]).expect(0);
    let recorded = fs::read_to_string(recording()).unwrap();
    assert_eq!(played.stdout, recorded);
    for line in played.stdout.lines() {
        schema::validate("watch", &serde_json::from_str(line).unwrap());
    }
    assert!(played.stderr.contains("end of the recording"), "{played:#?}");
}

#[test]
fn invalid_recordings_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.jsonl");
    let recorded = fs::read_to_string(recording()).unwrap();
    let lines: Vec<&str> = recorded.lines().collect();
    let mut other: Value = serde_json::from_str(lines[0]).unwrap();
    other["format"] = 7.into();
    other["of_the_future"] = Value::Null;
    let endless = "[".repeat(20 << 20);
    for (text, shown, problem) in [
        (format!("{}\nnoise\n{}", lines[0], lines[1]), 1, "line 2: expected ident"),
        (format!("{}\n\n", lines[0]), 1, "line 2: EOF while parsing"),
        (format!("{other}\n"), 0, "line 1: format 7, this version reads 1"),
        (format!("{}\n{endless}", lines[0]), 1, "line 2: "),
        (format!("{{\"format\": 1, \"text\": \"{}", "x".repeat(5000)), 0, "line 1: "),
    ] {
        fs::write(&path, text).unwrap();
        let ended = play(&path, &[]).expect(2);
        assert_eq!(ended.stdout.matches(" UTC, ").count(), shown, "{problem}: {ended:?}");
        let named = format!("FILE: {}, ", path.display());
        assert!(ended.stderr.contains(&named) && ended.stderr.contains(problem), "{ended:?}");
        assert!(ended.stderr.len() < 500 && !ended.stderr.contains("panicked"), "{ended:?}");
    }
    let nowhere = play(&directory.path().join("nowhere"), &[]).expect(2);
    assert!(nowhere.stderr.contains("No such file"), "{nowhere:?}");
}

#[test]
fn a_recording_is_never_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.jsonl");
    fs::write(&path, "mine").unwrap();
    let ended = run(["watch", "--once", "--record", path.to_str().unwrap()]).expect(2);
    assert!(ended.stderr.contains("--record: ") && ended.stderr.contains("exists"), "{ended:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    assert_eq!(entries(directory.path()), ["r.jsonl"]);
}

#[test]
fn options_that_contradict_are_refused() {
    let file = recording();
    for arguments in [
        &["--json", "--text"][..],
        &["--once", "--count", "2"],
        &["--record", "x"],
        &["--budget", "5%"],
    ] {
        let ended = play(&file, arguments).expect(2);
        assert!(ended.stderr.contains("cannot be used with"), "{ended:?}");
    }
}

/// `overlane watch` on a pseudo-terminal of 80 columns and 24 lines.
struct OnTerminal {
    child: Child,
    keys: File,
    /// The slave end, held open so that its settings can be read.
    terminal: OwnedFd,
    before: Termios,
    written: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(arguments: &[&str]) -> OnTerminal {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).unwrap();
        let (keys, terminal) = (File::from(pair.master), pair.slave);
        let before = tcgetattr(&terminal).unwrap();
        let end = || Stdio::from(terminal.try_clone().unwrap());
        // Its controlling terminal, where the kernel reports a new size.
        let mut command = Command::new("setsid");
        command.args(["--ctty", OVERLANE, "watch"]).args(arguments);
        command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (into, mut from) = (written.clone(), keys.try_clone().unwrap());
        // Ends when no process has the slave end open.
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        OnTerminal { child, keys, terminal, before, written }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits for a word, because spaces are written as cursor movements.
    #[track_caller]
    fn awaits(&mut self, text: &str) {
        eventually(&format!("{text:?} on the terminal"), || {
            let so_far = self.so_far();
            if so_far.contains(text) {
                return Ok(());
            }
            assert!(self.child.try_wait().unwrap().is_none(), "ended: {so_far:?}");
            Err(format!("{so_far:?}"))
        });
    }

    /// Waits until it reads keys, and not lines.
    #[track_caller]
    fn is_up(&mut self) {
        self.awaits("\x1b[?1049h");
        self.awaits("help");
        let now = tcgetattr(&self.terminal).unwrap();
        assert!(!now.local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn resize(&self, columns: u16, lines: u16) {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let mut stty = Command::new("stty");
        stty.args(["cols", &columns, "rows", &lines]);
        assert!(stty.stdin(self.terminal.try_clone().unwrap()).status().unwrap().success());
    }

    fn wait(&mut self) -> Option<i32> {
        let status = eventually("the end", || {
            let status = self.child.try_wait().unwrap();
            status.ok_or_else(|| format!("{:?}", self.so_far()))
        });
        status.code()
    }

    /// Waits for its end, and asserts that it has written `text` and no escape sequences.
    #[track_caller]
    fn never_takes_it(mut self, code: i32, text: &str) {
        assert_eq!(self.wait(), Some(code), "{:?}", self.so_far());
        let so_far = || Some(self.so_far()).filter(|so_far| so_far.contains(text));
        let so_far = eventually(text, || so_far().ok_or_else(|| self.so_far()));
        assert!(!so_far.contains("\x1b[?1049h"), "{so_far:?}");
    }

    /// Waits for its end, and checks that the terminal is restored. Returns the output after the
    /// alternate screen was left.
    #[track_caller]
    fn ends(mut self, code: i32) -> String {
        // A marker after all output: when it arrives, the output has arrived, too.
        const BEHIND: &str = "\x05";
        let status = self.wait();
        File::from(self.terminal.try_clone().unwrap()).write_all(BEHIND.as_bytes()).unwrap();
        let end = "the alternate screen is left, the cursor shown";
        let (screen, after) = eventually(end, || {
            let so_far = self.so_far();
            let (so_far, _) = so_far.split_once(BEHIND).ok_or(so_far.as_str())?;
            let (screen, after) = so_far.rsplit_once("\x1b[?1049l").ok_or(so_far)?;
            let (_, after) = after.split_once("\x1b[?25h").ok_or(after)?;
            Ok((screen.to_owned(), after.replace("\x1b[?25h", "")))
        });
        assert_eq!(status, Some(code), "{after:?}");
        assert_eq!(tcgetattr(&self.terminal).unwrap(), self.before);
        assert_eq!(screen.matches("\x1b[?1049h").count(), 1);
        assert!(!screen.contains("\x1b[?1049l"), "left twice");
        after
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn playing() -> OnTerminal {
    let mut playing = OnTerminal::start(&[recording().to_str().unwrap()]);
    playing.is_up();
    playing
}

#[test]
fn keys_end_the_interface_and_the_terminal_is_as_it_was() {
    let mut playing = playing();
    playing.press("?");
    playing.awaits("Keys");
    playing.press("q");
    assert_eq!(playing.ends(0), "");
    let mut playing = self::playing();
    playing.press("\x03");
    assert_eq!(playing.ends(130), "");
}

#[test]
fn signals_end_the_interface_and_the_terminal_is_as_it_was() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let playing = playing();
        playing.signal(signal);
        // A sender that signals the group signals it twice.
        playing.signal(signal);
        playing.ends(130);
    }
}

#[test]
fn another_size_is_drawn_anew() {
    let mut playing = playing();
    playing.resize(40, 10);
    // The screen is cleared.
    playing.awaits("\x1b[2J");
    playing.resize(1, 1);
    playing.resize(300, 100);
    // The terminal is wide enough for words.
    playing.awaits("waited");
    playing.press("q");
    playing.ends(0);
}

#[test]
fn a_damaged_recording_is_reported_after_the_terminal_is_restored() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let recorded = fs::read_to_string(recording()).unwrap();
    writeln!(file, "{}\nnoise", recorded.lines().next().unwrap()).unwrap();
    let mut playing = OnTerminal::start(&[file.path().to_str().unwrap()]);
    playing.is_up();
    // The next line is damaged.
    playing.press("\x1b[C");
    playing.awaits("line 2");
    playing.press("q");
    let after = playing.ends(2);
    assert!(after.contains("error: FILE: ") && after.contains("line 2: "), "{after:?}");
}

#[test]
fn an_invalid_recording_leaves_the_terminal_alone() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "noise").unwrap();
    for path in [file.path(), Path::new("/dev/zero"), Path::new("/dev/urandom")] {
        let refused = OnTerminal::start(&[path.to_str().unwrap()]);
        refused.never_takes_it(2, "error: FILE: ");
    }
}

#[test]
fn text_is_printed_on_a_terminal_where_it_is_asked_for() {
    for arguments in [&["--text"][..], &["--once"], &["--count", "1"], &["--json"]] {
        let file = recording();
        let played = OnTerminal::start(&[&[file.to_str().unwrap()], arguments].concat());
        played.never_takes_it(0, "NO_SOCKET");
    }
}

/// Keys work during an interval: this one would take an hour.
#[test]
fn a_live_interface_ends_in_the_middle_of_an_interval() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.jsonl");
    for (keys, code) in [("?q", 0), ("\x03", 130)] {
        let record = ["--record", path.to_str().unwrap()];
        let here = ["--interval", "1h", "--netns", "/proc/self/ns/net"];
        let mut live = OnTerminal::start(&[&here[..], &["--flow", "192.0.2.1"], &record].concat());
        live.is_up();
        live.awaits("measuring");
        live.press(keys);
        live.ends(code);
        // Existing intervals have been recorded.
        let recorded = fs::read_to_string(&path).unwrap();
        schema::validate("watch", &serde_json::from_str(&recorded).unwrap());
        play(&path, &[]).expect(0);
        fs::remove_file(&path).unwrap();
    }
}
