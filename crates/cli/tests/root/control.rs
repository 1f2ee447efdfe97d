//! Control sockets and other users: silent, slow and greedy clients, names and directories that
//! another user has taken, and files of killed processes.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::netns::NetNs;
use test_support::program::eventually;
use test_support::{need, require};

const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");
const VARIABLE: &str = "OVERLANE_RUNTIME_DIR";
/// Time limit on a machine under load.
const LIMIT: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65_534;

/// A socket directory of the test.
struct SocketDirectory {
    parent: tempfile::TempDir,
}

impl SocketDirectory {
    fn new() -> SocketDirectory {
        let parent = tempfile::tempdir().unwrap();
        // Other users can enter the parent directory only.
        std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        SocketDirectory { parent }
    }

    fn path(&self) -> PathBuf {
        self.parent.path().join("overlane")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(OVERLANE);
        command.args(arguments).env(VARIABLE, self.path()).stdin(Stdio::null());
        let begun = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        loop {
            if child.try_wait().unwrap().is_some() {
                return child.wait_with_output().unwrap();
            }
            if begun.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("{arguments:?} hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect()
    }

    fn socket(&self) -> PathBuf {
        let [socket] = &self.sockets()[..] else { panic!("{:?}", self.sockets()) };
        socket.clone()
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `overlane accel run --all` of a namespace without devices; killed when dropped.
struct Accel {
    child: Child,
    netns: Arc<NetNs>,
}

impl Accel {
    fn begin(place: &SocketDirectory, netns: &Arc<NetNs>) -> Accel {
        let mut command = Command::new(OVERLANE);
        command.args(["accel", "run", "--all", "--netns", &path(netns)]);
        command.env(VARIABLE, place.path()).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Accel { child, netns: netns.clone() }
    }

    fn start(place: &SocketDirectory) -> Accel {
        let mut accel = Accel::begin(place, &Arc::new(NetNs::new().unwrap()));
        accel.expect_ready();
        accel
    }

    fn expect_ready(&mut self) {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if !line.starts_with("ready") {
            let mut said = String::new();
            self.child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
            panic!("{line}{said}");
        }
    }

    fn status(&self, place: &SocketDirectory) -> Output {
        place.run(&["accel", "status", "--json", "--netns", &path(&self.netns)])
    }

    fn expect_answers(&self, place: &SocketDirectory) {
        let output = self.status(place);
        assert!(output.status.success(), "{}", error(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("\"pid\": {}", self.child.id())), "{text}");
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Resident memory, KiB.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn expect_ends(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        eventually("the end", || self.child.try_wait().unwrap().ok_or("runs".to_owned()));
    }
}

impl Drop for Accel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path(netns: &NetNs) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

/// Runs a Python program as user nobody, with the path of the socket as its argument.
fn as_nobody(program: &str, socket: &Path) -> Output {
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(socket).uid(NOBODY).gid(NOBODY);
    command.output().unwrap()
}

#[test]
fn other_users_cannot_connect() {
    require!(need::root(), need::tool("python3"));
    let place = SocketDirectory::new();
    let accel = Accel::start(&place);
    let connect = "import socket, sys
s = socket.socket(socket.AF_UNIX)
try: s.connect(sys.argv[1])
except PermissionError: print('refused')";
    let output = as_nobody(connect, &place.socket());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\n", "{}", error(&output));
    accel.expect_answers(&place);
}

/// If someone has opened the directory, the client's user is still checked before a byte is read.
#[test]
fn a_foreign_client_with_an_endless_line_is_disconnected() {
    require!(need::root(), need::tool("python3"));
    let place = SocketDirectory::new();
    let mut accel = Accel::start(&place);
    let socket = place.socket();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).unwrap();
    let before = accel.memory();
    let endless = "import socket, sys, time
end, sent, over = time.time() + 1, 0, 0
while time.time() < end:
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    try:
        while time.time() < end: sent += s.send(b'x' * 65536)
    except OSError: over += 1
print(over)";
    let output = as_nobody(endless, &socket);
    let over: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a count");
    assert!(over > 0, "nobody hung up: {}", error(&output));
    let grown = accel.memory().saturating_sub(before);
    assert!(grown < 8 << 10, "grown by {grown} KiB");
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    accel.expect_answers(&place);
    accel.expect_ends();
}

/// Sets the flag when dropped.
struct EndOfClients<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for EndOfClients<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn silent_slow_and_greedy_clients_hold_up_nobody() {
    require!(need::root());
    let place = SocketDirectory::new();
    let mut accel = Accel::start(&place);
    let socket = place.socket();
    let mut clients: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for client in &mut clients {
                    if client.write_all(b"s").is_err()
                        && let Ok(again) = UnixStream::connect(&socket)
                    {
                        *client = again;
                    }
                }
                // A request without end.
                if let Ok(mut greedy) = UnixStream::connect(&socket) {
                    greedy.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
                    while greedy.write_all(&[b'x'; 65_536]).is_ok() {}
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        // A panic ends the thread, too.
        let ending = EndOfClients(&stop);
        for _ in 0..5 {
            accel.expect_answers(&place);
        }
        // With all clients connected.
        accel.expect_ends();
        drop(ending);
    });
}

#[test]
fn a_full_queue_does_not_hang_who_asks() {
    require!(need::root());
    let place = SocketDirectory::new();
    let accel = Accel::start(&place);
    accel.signal(nix::sys::signal::Signal::SIGSTOP);
    let address = nix::sys::socket::UnixAddr::new(&place.socket()).unwrap();
    let mut waiting = Vec::new();
    loop {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, connect, socket};
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let client = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        if connect(client.as_raw_fd(), &address).is_err() {
            break;
        }
        waiting.push(client);
    }
    let output = accel.status(&place);
    assert!(!output.status.success());
    assert!(error(&output).contains("does not answer"), "{}", error(&output));
    // A second process is not blocked either.
    let mut other = Accel::begin(&place, &accel.netns);
    assert_eq!(other.child.wait().unwrap().code(), Some(1));
    accel.signal(nix::sys::signal::Signal::SIGCONT);
    drop(waiting);
    accel.expect_answers(&place);
}

/// Any user can take any abstract name, so the program uses none.
#[test]
fn names_that_others_have_taken_keep_nobody_from_starting() {
    require!(need::root(), need::tool("ip"));
    let place = SocketDirectory::new();
    let netns = Arc::new(NetNs::new().unwrap());
    let squat = |name: &[u8]| {
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()) {
            // Taken by this test in another clone.
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            bound => Some(bound.unwrap()),
        }
    };
    let _here = squat(format!("overlane-accel/{}", netns.inode()).as_bytes());
    let _user = squat(b"overlane/0/\xff");
    let _vtep = squat(b"overlane-vtep/\xff");
    let _lock = squat(b"overlane-machine-settings");
    let mut accel = Accel::begin(&place, &netns);
    accel.expect_ready();
    std::fs::write(place.path().join(std::ffi::OsString::from("vtep.\u{202e}.sock")), "").unwrap();
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"testbed.\xff.sock");
    std::fs::write(place.path().join(odd), "").unwrap();
    for verb in [&["vtep", "status"][..], &["lab", "status"], &["lab", "down", "--all"]] {
        let output = place.run(verb);
        assert!(output.status.success(), "{verb:?}: {}", error(&output));
    }
    accel.expect_answers(&place);
}

#[test]
fn leftovers_of_a_killed_process_are_replaced() {
    require!(need::root());
    let place = SocketDirectory::new();
    let mut accel = Accel::start(&place);
    let netns = accel.netns.clone();
    for _ in 0..2 {
        accel.child.kill().unwrap();
        accel.child.wait().unwrap();
        assert_eq!(place.sockets().len(), 1, "the file stays");
        accel = Accel::begin(&place, &netns);
        accel.expect_ready();
        accel.expect_answers(&place);
    }
    accel.child.kill().unwrap();
    accel.child.wait().unwrap();
    // In another namespace: the stale socket is removed, too.
    let mut other = Accel::start(&place);
    assert_eq!(place.sockets().len(), 1);
    other.expect_ends();
    // A stale socket of a process that has ended is removed by the next look-up.
    let output = other.status(&place);
    assert!(output.status.success(), "{}", error(&output));
    assert!(place.sockets().is_empty());
}

#[test]
fn one_of_two_concurrent_starts_gets_the_name() {
    require!(need::root());
    let place = SocketDirectory::new();
    let netns = Arc::new(NetNs::new().unwrap());
    let mut both = [Accel::begin(&place, &netns), Accel::begin(&place, &netns)];
    let ended = eventually("one is refused", || {
        let ended = both.iter_mut().position(|accel| accel.child.try_wait().unwrap().is_some());
        ended.ok_or("both run".to_owned())
    });
    let mut said = String::new();
    both[ended].child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("is already accelerated"), "{said}");
    both[1 - ended].expect_ready();
    both[1 - ended].expect_answers(&place);
}

#[test]
fn a_directory_that_somebody_else_has_made_is_a_clear_error() {
    require!(need::root());
    const RUN: &[&str] = &["accel", "run", "--all"];
    let refused = |make: &dyn Fn(&SocketDirectory), verbs: &[&[&str]], why: &str| {
        let place = SocketDirectory::new();
        make(&place);
        for verb in verbs {
            let output = place.run(verb);
            assert_eq!(output.status.code(), Some(1), "{verb:?}: {}", error(&output));
            let said = error(&output);
            assert!(said.contains(why) && said.contains("overlane"), "{verb:?}: {said}");
        }
    };
    let plain = |place: &SocketDirectory, mode: u32| {
        std::fs::create_dir(place.path()).unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let elsewhere = |place: &SocketDirectory| symlink("/tmp", place.path()).unwrap();
    let all = [RUN, &["lab", "status"], &["vtep", "status"]];
    refused(&elsewhere, &all, "it is a symbolic link, expected a directory");
    refused(&|place| plain(place, 0o777), &all, "its mode is 0777, expected 0700");
    let of_another = |place: &SocketDirectory| {
        plain(place, 0o700);
        chown(place.path(), Some(NOBODY), None).unwrap();
    };
    // Root may query a service with a user of its own, but not one with any other user.
    refused(&of_another, &[RUN], "it belongs to user 65534, expected 0");
}

/// A status request inside a namespace finds the process that serves it, wherever that was started.
#[test]
fn status_inside_a_namespace_finds_its_own() {
    require!(need::root());
    let place = SocketDirectory::new();
    let [one, other] = [Accel::start(&place), Accel::start(&place)];
    for accel in [&one, &other] {
        let output = accel.netns.run(|| place.run(&["accel", "status", "--json"])).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("\"pid\": {}", accel.child.id())), "{text}");
    }
}
