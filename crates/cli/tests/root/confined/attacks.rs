//! System calls that an attacker in control of a process would try.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command};

use nix::libc;
use test_support::inject::{Argument, CallOutcome, inject};

/// A call that must not succeed.
pub struct Attack {
    /// Effect of the call.
    pub what: &'static str,
    call: i64,
    arguments: Vec<Argument>,
}

/// Objects of root in a directory that anyone may enter: attacked, then checked.
pub struct Victim {
    directory: tempfile::TempDir,
    process: Child,
    _listener: UnixListener,
}

/// `BPF_PROG_LOAD`, `BPF_MAP_CREATE`, `BPF_MAP_UPDATE_ELEM`, `BPF_BTF_LOAD` of
/// `include/uapi/linux/bpf.h`.
const BPF_PROG_LOAD: i32 = 5;
const BPF_MAP_CREATE: i32 = 0;
/// `TUNSETIFF` of `include/uapi/linux/if_tun.h`.
const TUNSETIFF: i64 = 0x4004_54ca;

impl Victim {
    pub fn new() -> Victim {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(directory.path().join("file"), "root's").unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        Victim { directory, process, _listener: listener }
    }

    /// A file of root that anyone may read.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    pub fn expect_unharmed(&mut self, after: &str) {
        assert_eq!(std::fs::read(self.file()).unwrap(), b"root's", "{after}");
        let names = std::fs::read_dir(self.directory.path()).unwrap().count();
        assert_eq!(names, 2, "{after}: something was made or removed");
        assert!(self.process.try_wait().unwrap().is_none(), "{after}: it killed a process");
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(self.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644, "{after}");
    }

    /// Every attack, as a call that no program of this project needs.
    pub fn attacks(&self) -> Vec<Attack> {
        let file = self.file();
        let file = file.to_str().unwrap();
        let new = format!("{file}.new");
        let pid = self.process.id().cast_signed();
        let at = libc::AT_FDCWD;
        let here = || Argument::from(vec![0; 128]);
        let mut attacks = Vec::new();
        let mut add = |what, call, arguments: Vec<Argument>| {
            attacks.push(Attack { what, call, arguments });
        };
        let numbers = |numbers: &[i64]| -> Vec<Argument> {
            numbers.iter().map(|number| Argument::from(*number)).collect()
        };

        // Files.
        let shadow = || Argument::from("/etc/shadow");
        let read = libc::O_RDONLY;
        add("open /etc/shadow", libc::SYS_openat, vec![at.into(), shadow(), read.into()]);
        add("open /etc/shadow", libc::SYS_open, vec![shadow(), read.into()]);
        add("open /etc/passwd", libc::SYS_openat, vec![at.into(), "/etc/passwd".into(), 0.into()]);
        let how = Argument::from(vec![0; 24]);
        add("open by openat2", libc::SYS_openat2, vec![at.into(), file.into(), how, 24.into()]);
        add(
            "open a file of another directory",
            libc::SYS_openat,
            vec![at.into(), file.into(), read.into()],
        );
        for (what, flags) in [
            ("write a file", libc::O_WRONLY),
            ("truncate a file", libc::O_RDONLY | libc::O_TRUNC),
            ("append to a file", libc::O_RDWR | libc::O_APPEND),
        ] {
            add(what, libc::SYS_openat, vec![at.into(), file.into(), flags.into()]);
        }
        let create = libc::O_CREAT | libc::O_WRONLY;
        let mode = Argument::from(0o600);
        add("make a file", libc::SYS_openat, vec![at.into(), (&*new).into(), create.into(), mode]);
        add(
            "open own memory",
            libc::SYS_openat,
            vec![at.into(), "/proc/self/mem".into(), libc::O_RDWR.into()],
        );
        add("remove a file", libc::SYS_unlink, vec![file.into()]);
        add("remove a file", libc::SYS_unlinkat, vec![at.into(), file.into(), 0.into()]);
        add("rename a file", libc::SYS_rename, vec![file.into(), (&*new).into()]);
        add("link a file", libc::SYS_link, vec![file.into(), (&*new).into()]);
        add("link to a file", libc::SYS_symlink, vec![file.into(), (&*new).into()]);
        add("make a directory", libc::SYS_mkdir, vec![(&*new).into(), 0o700.into()]);
        add("make a node", libc::SYS_mknod, vec![(&*new).into(), 0o600.into(), 0.into()]);
        add("change a mode", libc::SYS_chmod, vec![file.into(), 0o666.into()]);
        add("change an owner", libc::SYS_chown, vec![file.into(), 1.into(), 1.into()]);
        add("truncate a file", libc::SYS_truncate, vec![file.into(), 0.into()]);
        add("set a time", libc::SYS_utimensat, vec![at.into(), file.into(), 0.into(), 0.into()]);
        add("change the root", libc::SYS_chroot, vec!["/tmp".into()]);
        let none = "none".into();
        add("mount", libc::SYS_mount, vec![none, "/tmp".into(), "tmpfs".into(), 0.into()]);
        add("unmount", libc::SYS_umount2, vec!["/proc".into(), 2.into()]);
        add("open a tree", libc::SYS_open_tree, vec![at.into(), "/".into(), 1.into()]);

        // Processes.
        add("kill a process", libc::SYS_kill, numbers(&[pid.into(), libc::SIGKILL.into()]));
        add("kill all", libc::SYS_kill, numbers(&[-1, 0]));
        let thread = numbers(&[pid.into(), pid.into(), libc::SIGKILL.into()]);
        add("kill a thread", libc::SYS_tgkill, thread);
        add("kill a thread", libc::SYS_tkill, numbers(&[pid.into(), libc::SIGKILL.into()]));
        add(
            "queue a signal",
            libc::SYS_rt_sigqueueinfo,
            vec![pid.into(), libc::SIGTERM.into(), here()],
        );
        add("open a process", libc::SYS_pidfd_open, numbers(&[pid.into(), 0]));
        add("attach to a process", libc::SYS_ptrace, numbers(&[16, pid.into(), 0, 0]));
        let vector = || Argument::from(vec![0; 16]);
        for (what, call) in [
            ("read a process's memory", libc::SYS_process_vm_readv),
            ("write a process's memory", libc::SYS_process_vm_writev),
        ] {
            add(what, call, vec![pid.into(), vector(), 1.into(), vector(), 1.into(), 0.into()]);
        }
        add("set a process's limits", libc::SYS_prlimit64, vec![pid.into(), 7.into(), vector()]);
        add(
            "set a process's CPUs",
            libc::SYS_sched_setaffinity,
            vec![pid.into(), 128.into(), Argument::from(vec![1; 128])],
        );
        add("set a process's priority", libc::SYS_setpriority, numbers(&[0, pid.into(), 19]));
        add("start a program", libc::SYS_execve, vec!["/bin/true".into(), 0.into(), 0.into()]);
        add(
            "start a program",
            libc::SYS_execveat,
            vec![at.into(), "/bin/true".into(), 0.into(), 0.into(), 0.into()],
        );
        add("fork", libc::SYS_fork, vec![]);
        add("fork", libc::SYS_clone, numbers(&[libc::SIGCHLD.into(), 0, 0, 0, 0]));

        // Privileges.
        add("become root", libc::SYS_setresuid, numbers(&[0, 0, 0]));
        add("become root", libc::SYS_setuid, numbers(&[0]));
        add("become root's group", libc::SYS_setresgid, numbers(&[0, 0, 0]));
        add("change groups", libc::SYS_setgroups, vec![1.into(), Argument::from(vec![0; 4])]);
        add("make namespaces", libc::SYS_unshare, numbers(&[libc::CLONE_NEWUSER.into()]));
        add("enter a namespace", libc::SYS_setns, numbers(&[0, 0]));
        add("be traced", libc::SYS_prctl, numbers(&[libc::PR_SET_DUMPABLE.into(), 1]));
        add("load a program", libc::SYS_bpf, vec![BPF_PROG_LOAD.into(), here(), 128.into()]);
        add("load a module", libc::SYS_init_module, vec![here(), 128.into(), "".into()]);
        add("reboot", libc::SYS_reboot, numbers(&[0, 0, 0, 0]));
        add("name the host", libc::SYS_sethostname, vec!["x".into(), 1.into()]);
        add("set the clock", libc::SYS_clock_settime, vec![0.into(), vector()]);
        add("open a counter", libc::SYS_perf_event_open, vec![here(), 0.into(), (-1).into()]);
        add("keep a key", libc::SYS_add_key, vec!["user".into(), "x".into(), here(), 8.into()]);
        add("handle page faults", libc::SYS_userfaultfd, numbers(&[0]));
        add("make a ring", libc::SYS_io_uring_setup, vec![8.into(), here()]);
        add("register with a ring", libc::SYS_io_uring_register, numbers(&[0, 0, 0, 0]));
        add("make a file in memory", libc::SYS_memfd_create, vec!["x".into(), 0.into()]);
        let exec = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = [0, 4096, exec.into(), private.into(), -1, 0];
        add("map code", libc::SYS_mmap, numbers(&mapping));

        // Descriptors that are already open.
        add(
            "type at a terminal",
            libc::SYS_ioctl,
            vec![0.into(), Argument::Number(libc::TIOCSTI), "x".into()],
        );
        // The kernel ignores the upper half.
        let high = Argument::Number(libc::TIOCSTI | 1 << 32);
        add("type at a terminal", libc::SYS_ioctl, vec![0.into(), high, "x".into()]);
        add(
            "take a terminal's text",
            libc::SYS_ioctl,
            vec![0.into(), Argument::Number(libc::TIOCLINUX), Argument::from(vec![3])],
        );
        add("signal who writes", libc::SYS_fcntl, numbers(&[1, libc::F_SETOWN.into(), 1]));
        let device = Argument::Number(TUNSETIFF.cast_unsigned());
        add("make a device", libc::SYS_ioctl, vec![0.into(), device, here()]);

        // Sockets.
        for (what, family, kind, protocol) in [
            ("a Unix socket", libc::AF_UNIX, libc::SOCK_STREAM, 0),
            ("a packet socket", libc::AF_PACKET, libc::SOCK_RAW, 0x0300),
            ("a raw socket", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
            ("a socket of the host's", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
            ("a cipher's socket", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
            ("an SCTP socket", libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP),
            ("an audit socket", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
            ("a Bluetooth socket", libc::AF_BLUETOOTH, libc::SOCK_RAW, 1),
        ] {
            add(what, libc::SYS_socket, numbers(&[family.into(), kind.into(), protocol.into()]));
        }
        let pair = vec![libc::AF_UNIX.into(), libc::SOCK_DGRAM.into(), 0.into(), vector()];
        add("a pair of sockets", libc::SYS_socketpair, pair);
        attacks
    }

    /// Further attacks for a program without any privileges that opens no file.
    pub fn attacks_without_rights(&self) -> Vec<Attack> {
        let mut attacks = Vec::new();
        let mut add = |what, call, arguments: Vec<Argument>| {
            attacks.push(Attack { what, call, arguments });
        };
        let numbers = |numbers: &[i64]| -> Vec<Argument> {
            numbers.iter().map(|number| Argument::from(*number)).collect()
        };
        for (what, family, kind, protocol) in [
            ("a UDP socket", libc::AF_INET, libc::SOCK_DGRAM, 0),
            ("a TCP socket", libc::AF_INET, libc::SOCK_STREAM, 0),
            ("a TCP socket", libc::AF_INET6, libc::SOCK_STREAM, 0),
            ("a netlink socket", libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
        ] {
            add(what, libc::SYS_socket, numbers(&[family.into(), kind.into(), protocol.into()]));
        }
        let here = || Argument::from(vec![0; 128]);
        add("make a map", libc::SYS_bpf, vec![BPF_MAP_CREATE.into(), here(), 128.into()]);
        add(
            "list a directory",
            libc::SYS_openat,
            vec![libc::AT_FDCWD.into(), "/".into(), (libc::O_RDONLY | libc::O_DIRECTORY).into()],
        );
        add(
            "look at a file",
            libc::SYS_newfstatat,
            vec![libc::AT_FDCWD.into(), "/etc/shadow".into(), here(), 0.into()],
        );
        add("read a link", libc::SYS_readlink, vec!["/proc/1/exe".into(), here(), 128.into()]);
        add("duplicate a descriptor", libc::SYS_dup, numbers(&[0]));
        add("duplicate a descriptor", libc::SYS_fcntl, numbers(&[0, libc::F_DUPFD.into(), 0]));
        // An AF_UNIX address, on every possible descriptor.
        attacks
    }

    /// The path of root's socket as connect(2) takes it.
    pub fn address(&self) -> Vec<u8> {
        let path = self.directory.path().join("socket");
        let mut address = libc::AF_UNIX.to_ne_bytes()[..2].to_vec();
        address.extend(path.to_str().unwrap().bytes());
        address.push(0);
        address
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Attack {
    /// Makes a thread of the process try it.
    pub fn by(&self, thread: i32) -> CallOutcome {
        inject(thread, self.call, &self.arguments).unwrap_or_else(|e| panic!("{}: {e}", self.what))
    }
}

/// `connect` to an address by a descriptor of the process.
pub fn connect(thread: i32, descriptor: i32, address: &[u8]) -> CallOutcome {
    let length = Argument::from(address.len() as i64);
    let arguments = [descriptor.into(), address.to_vec().into(), length];
    inject(thread, libc::SYS_connect, &arguments).unwrap()
}
