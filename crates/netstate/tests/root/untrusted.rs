//! Obstacles that other users can create for a search for namespaces.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use netstate::namespace::{MOST_OF_A_USER, MachineNamespaces, discover};
use sys::netns::NetNs;
use test_support::{need, require};

/// Time limit of the search on a machine under load.
const LIMIT: Duration = Duration::from_secs(20);
const NOBODY: u32 = 65_534;

/// A shell that has reported that it is ready, killed when dropped.
struct Shell(Child);

impl Shell {
    fn start(command: &mut Command) -> Shell {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Shell(child)
    }

    /// In mount and network namespaces of its own; as `user`, with a user namespace too.
    fn in_namespaces(user: Option<u32>, script: &str) -> Shell {
        let mut command = Command::new("unshare");
        command.arg(if user.is_some() { "-Urmn" } else { "-mn" }).args(["sh", "-ec", script]);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        Shell::start(&mut command)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.0.wait();
        // Other processes of the group are reaped by the guard, their adoptive parent. On a busy
        // machine two hundred of them take seconds to end.
        let begun = Instant::now();
        while nix::sys::signal::killpg(group, None).is_ok() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The namespaces found; panics if the search hangs.
fn found() -> MachineNamespaces {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(discover()));
    receiver.recv_timeout(LIMIT).expect("the search does not hang").unwrap()
}

/// A namespace that only a mount keeps, and a FIFO over the mount.
const FIFO: &str = "mount -t tmpfs none /mnt; cd /mnt; touch ns; mkfifo fifo
    unshare -n sh -c 'mount --bind /proc/self/ns/net ns'; mount --bind fifo ns
    echo ready; read wait";

#[test]
fn a_fifo_over_a_mounted_namespace_stops_nobody() {
    require!(need::root(), need::tool("unshare"));
    for user in [None, Some(NOBODY)] {
        let _shell = Shell::in_namespaces(user, FIFO);
        found();
    }
}

#[test]
fn other_files_are_not_opened_as_namespaces() {
    require!(need::root(), need::tool("mkfifo"));
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [&*fifo, "/dev/null".as_ref(), "/proc/self/ns/mnt".as_ref(), "/".as_ref()] {
        let path = path.to_owned();
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(NetNs::open(&path).unwrap_err()));
        let error = receiver.recv_timeout(LIMIT).expect("opening does not hang");
        assert_eq!(error.errno, nix::errno::Errno::EINVAL, "{error}");
    }
}

/// A namespace kept as Docker keeps those of its overlay networks.
#[test]
fn a_namespace_that_only_a_mount_keeps_is_found() {
    require!(need::root(), need::tool("unshare"));
    // The shell leaves its mounted namespace.
    let script = "mount -t tmpfs none /mnt; cd /mnt; touch kept
        unshare -n sh -c 'mount --bind /proc/self/ns/net kept; readlink /proc/self/ns/net >number'
        echo ready; read wait";
    let shell = Shell::in_namespaces(None, script);
    let number = std::fs::read_to_string(format!("/proc/{}/root/mnt/number", shell.0.id()));
    let number = number.unwrap().trim().trim_start_matches("net:[").trim_end_matches(']').parse();
    let inode: u64 = number.unwrap();
    let machine = found();
    let kept = machine.namespaces.get(&inode).expect("the namespace is found");
    assert!(kept.names.contains("kept"), "{kept:?}");
    assert_eq!(NetNs::open(&kept.path).unwrap().inode(), inode);
}

#[test]
fn many_namespaces_of_one_user_do_not_crowd_out_others() {
    require!(need::root(), need::tool("unshare"));
    let script = "for i in $(seq 200); do unshare -n sleep 1000 & done
        while [ $(pgrep -P $$ -x sleep | wc -l) -lt 200 ]; do sleep 0.1; done
        echo ready; wait";
    let mut command = Command::new("unshare");
    command.args(["-Ur", "sh", "-ec", script]).uid(NOBODY).gid(NOBODY);
    let _many = Shell::start(&mut command);
    let other = Shell::in_namespaces(Some(NOBODY - 1), "echo ready; read wait");
    let inode = std::os::unix::fs::MetadataExt::ino(
        &std::fs::metadata(format!("/proc/{}/ns/net", other.0.id())).unwrap(),
    );
    let machine = found();
    assert!(machine.namespaces.contains_key(&inode), "another user's is found");
    let wanted =
        format!("network namespaces of user {NOBODY}: only the first {MOST_OF_A_USER} are read");
    assert!(
        machine.left_out.iter().any(|text| text.starts_with(&wanted)),
        "{:?}",
        machine.left_out
    );
}

/// `prctl(PR_SET_NAME)` accepts any bytes.
#[test]
fn a_command_of_any_bytes_does_not_end_the_reading_of_processes() {
    require!(need::tool("bash"));
    let directory = tempfile::tempdir().unwrap();
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff) R 1 (\n");
    let path = directory.path().join::<&std::ffi::OsStr>(name);
    std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
    let mut child = Command::new(&path).arg("1000").spawn().unwrap();
    let begun = Instant::now();
    let answer = loop {
        let answer = netstate::process::Processes::read();
        let seen = |all: &netstate::process::Processes| {
            all.by_pid.get(&child.id()).is_some_and(|one| one.command.contains('\u{fffd}'))
        };
        if answer.as_ref().map_or(true, seen) || begun.elapsed() > LIMIT {
            break answer;
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.unwrap().by_pid[&child.id()].command.starts_with('\u{fffd}'));
}

/// Links are added and removed during listing: each list contains all permanent ones.
#[test]
fn a_list_of_links_is_whole_while_links_change() {
    require!(need::root());
    let netns = NetNs::new().unwrap();
    let netlink = netstate::Netlink::open_in(&netns).unwrap();
    let mac = packet::ethernet::MacAddr;
    let pair = |name: &str, number: u8| {
        let (a, b) = (format!("{name}a"), format!("{name}b"));
        netlink.add_veth(
            &a,
            mac([2, 0, 0, 0, 1, number]),
            &b,
            mac([2, 0, 0, 0, 2, number]),
            &netns,
            1500,
        )
    };
    for number in 0..60 {
        pair(&format!("s{number}"), number).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let netlink = netstate::Netlink::open_in(&netns).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for name in ["s0a", "s1a", "s2a"] {
                    let _ = netlink.delete_link(name);
                }
                for number in 0..3 {
                    let (a, b) = (format!("s{number}a"), format!("s{number}b"));
                    let (one, other) = (mac([2, 0, 0, 0, 1, number]), mac([2, 0, 0, 0, 2, number]));
                    let _ = netlink.add_veth(&a, one, &b, other, &netns, 1500);
                }
            }
        });
        for _ in 0..200 {
            match netlink.links() {
                Ok(links) => {
                    let stay =
                        |number: u8| links.iter().any(|link| link.name == format!("s{number}a"));
                    let missing: Vec<u8> = (3..60).filter(|number| !stay(*number)).collect();
                    assert!(missing.is_empty(), "missing: {missing:?}");
                }
                // After too many changes, the reader reports its failed attempts.
                Err(error) => assert!(error.to_string().contains("attempts"), "{error}"),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
