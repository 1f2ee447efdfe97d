//! A process tree that ends with its creator.
//!
//! [`Init`] is the first process of a new PID namespace. Its mount namespace has its own `/run` and
//! `/tmp`, except for directories with programs below them. It only waits on a socket. When the
//! creator ends for any reason, the kernel closes the other end. `Init` then ends too, and the
//! kernel kills all processes of the namespace.
//!
//! # Panics
//! rograms for a testbed (`ovs-vswitchd`, `docker-proxy`) are started inside. Neither they nor
//! their files can be left behind.
//!
//! Control groups do not end with a namespace. A tree created [with one](Init::with_cgroup) has its
//! own group on `/sys/fs/cgroup`; its first process removes the group before it exits.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::netns::NetNs;
use crate::{Error, Result, cgroup};

/// The first process of a PID namespace; dropping it kills all processes of the namespace.
#[derive(Debug)]
pub struct Init {
    pid: Pid,
    pid_ns: File,
    mount_ns: File,
    cgroup: Option<String>,
    // Closing it ends the namespace, also when this process dies.
    lifeline: Option<OwnedFd>,
}

/// Maximum number of program directories that stay visible.
const MOST_SHOWN: usize = 16;

/// Steps of the child, in order; a failure is reported as (step, errno).
const STEPS: [&str; 5] = [
    "mount / private",
    "mount tmpfs on /run",
    "mount tmpfs on /tmp",
    "mount proc on /proc",
    "create a cgroup and mount it on /sys/fs/cgroup",
];

impl Init {
    /// Starts the process.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the user namespace; a failed mount with its name. `/proc`
    /// is remounted if the kernel allows it.
    pub fn start() -> Result<Init> {
        Init::make(None)
    }

    /// Starts a process tree whose programs see a new control group (version 2) as the root group,
    /// with the version 2 controllers that this machine has.
    ///
    /// # Errors
    /// As [`Init::start`]; if the kernel has no cgroup version 2.
    pub fn with_cgroup() -> Result<Init> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Init::make(Some(format!("overlane-{}-{number}", std::process::id())))
    }

    fn make(cgroup: Option<String>) -> Result<Init> {
        Init::showing(cgroup, &hidden_programs(&program_directories()))
    }

    /// Starts a process tree in which these directories stay visible. Each is one level below
    /// `/run` or `/tmp`.
    fn showing(cgroup: Option<String>, shown: &[CString]) -> Result<Init> {
        let name = cgroup.as_deref().map(CString::new).transpose();
        let name = name.map_err(|_| Error::new("init", "cgroup's name", Errno::EINVAL))?;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|e| Error::new("socketpair", "init lifeline", e))?;
        let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::SIGCHLD;
        // SAFETY: clone without CLONE_VM and with a null stack is fork: the child
        // runs on a copy of this stack. It calls only `child_main`, which makes
        // async-signal-safe system calls on data that exists already (no
        // allocation, no locks), and never returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_long, 0, 0, 0, 0) };
        if pid == 0 {
            child_main(theirs.as_raw_fd(), name.as_deref(), shown);
        }
        if pid < 0 {
            return Err(Error::last("clone(CLONE_NEWPID|CLONE_NEWNS)", "init process"));
        }
        drop(theirs);
        let pid = Pid::from_raw(pid as libc::pid_t);
        let init = Init::attach(pid, ours, cgroup);
        if init.is_err() {
            // Only after the error is known; the incomplete child must not stay.
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
        init
    }

    fn attach(pid: Pid, lifeline: OwnedFd, cgroup: Option<String>) -> Result<Init> {
        let mut lifeline = File::from(lifeline);
        let mut report = [0u8; 5];
        lifeline
            .read_exact(&mut report)
            .map_err(|e| Error::io("read", "init's report of readiness", &e))?;
        let errno = i32::from_ne_bytes([report[1], report[2], report[3], report[4]]);
        if errno != 0 {
            let step = STEPS.get(usize::from(report[0])).copied().unwrap_or("set-up");
            return Err(Error::new("init", step, Errno::from_raw(errno)));
        }
        let namespace = |kind: &str| {
            let path = format!("/proc/{pid}/ns/{kind}");
            File::open(&path).map_err(|e| Error::io("open", path, &e))
        };
        Ok(Init {
            pid,
            pid_ns: namespace("pid")?,
            mount_ns: namespace("mnt")?,
            cgroup,
            lifeline: Some(lifeline.into()),
        })
    }

    /// Name of the control group of the tree, below the group that this process sees as root.
    pub fn cgroup(&self) -> Option<&str> {
        self.cgroup.as_deref()
    }

    /// The process ID in the PID namespace of the creator.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Starts a program inside the PID and mount namespaces and `net`.
    ///
    /// # Errors
    /// If a namespace cannot be entered (`ESRCH`/`EPERM`: the init process was killed) or the
    /// program cannot be executed.
    pub fn spawn(&self, command: &mut Command, net: &NetNs) -> Result<Child> {
        self.run_inside(net, || {
            let program = command.get_program().to_string_lossy().into_owned();
            // The private /tmp hides the caller's directory, and iperf3 fails without one.
            command.env("TMPDIR", "/tmp");
            command.spawn().map_err(|e| Error::io("exec", program, &e))
        })
    }

    /// Runs `f` in a thread that is in `net` and has the private mounts. Its children start in the
    /// PID namespace.
    pub fn run_inside<T: Send>(
        &self,
        net: &NetNs,
        f: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // setns(2): only a thread that shares its root and working directory with no other
                // thread can join a mount namespace.
                unshare(CloneFlags::CLONE_FS)
                    .map_err(|e| Error::new("unshare(CLONE_FS)", "thread", e))?;
                setns(&self.pid_ns, CloneFlags::CLONE_NEWPID)
                    .map_err(|e| Error::new("setns(CLONE_NEWPID)", self.describe(), e))?;
                net.enter_for_good()?;
                setns(&self.mount_ns, CloneFlags::CLONE_NEWNS)
                    .map_err(|e| Error::new("setns(CLONE_NEWNS)", self.describe(), e))?;
                f()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn describe(&self) -> String {
        format!("init {}", self.pid)
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        // Killing the first process of a PID namespace kills all its processes (pid_namespaces(7)).
        // It remains until all children of this process in the namespace have been reaped, which
        // the caller may do only later, so the wait must not block the caller. If a control group
        // must be removed first, the process is notified through the socket instead of being
        // killed.
        let pid = self.pid;
        drop(self.lifeline.take());
        if self.cgroup.is_none() {
            // Without a control group nothing has to be removed: end the tree at once.
            let _ = kill(pid, Signal::SIGKILL);
        }
        std::thread::spawn(move || waitpid(pid, None));
    }
}

/// Variable with a further directory of programs.
const FURTHER: &str = "OVERLANE_CLUSTER";

/// Returns the directories in which programs are found: `PATH`, the directory of this program, and
/// [`FURTHER`].
fn program_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let further = std::env::var_os(FURTHER).map(PathBuf::from);
    let all = std::env::split_paths(&path).chain(own).chain(further);
    all.filter(|directory| directory.is_absolute()).collect()
}

/// Returns the entries of `/run` and `/tmp` that contain these directories and that the private
/// mounts would hide, or programs that symbolic links in them lead to. Whole entries are shown,
/// because programs need their libraries. NixOS has its programs below `/run`, and a clone may be
/// built below `/tmp`.
fn hidden_programs(directories: &[PathBuf]) -> Vec<CString> {
    let mut hidden = BTreeSet::new();
    let real = directories.iter().filter_map(|directory| directory.canonicalize().ok());
    let linked = directories.iter().flat_map(|directory| linked(directory));
    for directory in real.chain(directories.iter().cloned()).chain(linked) {
        for private in ["/run", "/tmp"] {
            let Ok(below) = directory.strip_prefix(private) else { continue };
            // A program directly in /tmp stays hidden, like all other files there.
            if let Some(Component::Normal(first)) = below.components().next() {
                hidden.insert(Path::new(private).join(first));
            }
        }
    }
    let path = |path: PathBuf| CString::new(path.into_os_string().into_vec()).ok();
    hidden.into_iter().filter_map(path).take(MOST_SHOWN).collect()
}

/// Returns the directories of files that symbolic links in a directory lead to.
fn linked(directory: &Path) -> Vec<PathBuf> {
    // A directory of PATH need not exist.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    // A link that leads nowhere starts nothing.
    let targets = links.filter_map(|link| link.path().canonicalize().ok());
    targets.filter_map(|target| Some(target.parent()?.to_owned())).collect()
}

/// The child process: sets up, reports and waits until the parent ends. Makes only
/// async-signal-safe calls.
fn child_main(lifeline: i32, cgroup: Option<&CStr>, shown: &[CString]) -> ! {
    const NAME: &CStr = c"overlane-init";
    const NONE: &CStr = c"none";
    // SAFETY: all calls are plain system calls on constants, on `lifeline`, which is open in this
    // process, and on stack buffers of the passed length.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGCHLD] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Descriptors inherited from the creator would keep its namespaces, sockets and pipes open
        // after it has ended.
        if lifeline > 0 {
            libc::syscall(libc::SYS_close_range, 0, lifeline - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, lifeline + 1, u32::MAX, 0);

        let mounts: [(&CStr, &CStr, libc::c_ulong); 4] = [
            (c"/", NONE, libc::MS_REC | libc::MS_PRIVATE),
            (c"/run", c"tmpfs", libc::MS_NOSUID | libc::MS_NODEV),
            (c"/tmp", c"tmpfs", libc::MS_NOSUID | libc::MS_NODEV),
            (c"/proc", c"proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC),
        ];
        let mut open = [-1; MOST_SHOWN];
        for (step, (target, kind, flags)) in mounts.iter().enumerate() {
            // After the mounts are private and before they are hidden.
            if step == 1 {
                for (fd, path) in open.iter_mut().zip(shown) {
                    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
                    *fd = libc::open(path.as_ptr(), flags);
                }
            }
            let done = libc::mount(
                kind.as_ptr(),
                target.as_ptr(),
                kind.as_ptr(),
                *flags,
                std::ptr::null(),
            );
            // Mounting a new /proc may be forbidden in a user namespace (if /proc is masked
            // outside). It is not required.
            if done != 0 && step < 3 {
                report(lifeline, step as u8, *libc::__errno_location());
                libc::_exit(1);
            }
            if step == 2 {
                for (fd, path) in open.into_iter().zip(shown).filter(|(fd, _)| *fd >= 0) {
                    // If a directory cannot be shown, only programs that need it fail.
                    libc::mkdir(path.as_ptr(), 0o755);
                    if libc::fchdir(fd) == 0 {
                        let flags = libc::MS_BIND | libc::MS_REC;
                        let nothing = std::ptr::null();
                        libc::mount(c".".as_ptr(), path.as_ptr(), nothing, flags, nothing.cast());
                    }
                    libc::close(fd);
                }
                libc::chdir(c"/".as_ptr());
            }
        }
        let own = cgroup.map(|name| (name, cgroup::mount(name)));
        if let Some((_, Err(errno))) = own {
            report(lifeline, 4, errno as i32);
            libc::_exit(1);
        }
        report(lifeline, 0, 0);
        let mut byte = 0u8;
        loop {
            let got = libc::read(lifeline, (&raw mut byte).cast(), 1);
            if got == 0 || (got < 0 && *libc::__errno_location() != libc::EINTR) {
                if let Some((name, Ok(parent))) = own {
                    // Kills all processes except this one.
                    libc::kill(-1, libc::SIGKILL);
                    cgroup::remove(parent, name);
                }
                libc::_exit(0);
            }
        }
    }
}

/// # Safety
/// Must be called only in the forked child, with an open descriptor.
unsafe fn report(lifeline: i32, step: u8, errno: i32) {
    let mut message = [step, 0, 0, 0, 0];
    message[1..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: the buffer is 5 bytes long and lives across the call.
    unsafe { libc::write(lifeline, message.as_ptr().cast(), message.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn directories_of_programs_are_seen() {
        let directories = ["/tmp/a/bin", "/usr/bin", "/run/current-system/sw/bin", "/tmp/a/sbin"];
        let hidden = hidden_programs(&directories.map(PathBuf::from));
        assert_eq!(hidden, [c"/run/current-system".to_owned(), c"/tmp/a".to_owned()]);
        assert!(hidden_programs(&["/tmp".into(), "/tmpfiles".into()]).is_empty());
        test_support::require!(test_support::need::networks());
        let place = tempfile::Builder::new().prefix("a tool ").tempdir_in("/tmp").unwrap();
        let bin = place.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let tool = bin.join("tool");
        let script = "#!/bin/sh\ntouch /tmp/own; cat \"$(dirname \"$0\")/../lib\"";
        test_support::install(script.as_bytes(), &tool);
        std::fs::write(place.path().join("lib"), "beside").unwrap();
        // A link from a directory that is shown anyway.
        let own = std::env::current_exe().unwrap();
        let links = tempfile::tempdir_in(own.parent().unwrap()).unwrap();
        let link = links.path().join("tool");
        std::os::unix::fs::symlink(&tool, &link).unwrap();
        std::os::unix::fs::symlink("/tmp/nowhere/tool", links.path().join("broken")).unwrap();
        let by_link = hidden_programs(&[links.path().to_owned()]);
        assert!(by_link.iter().any(|shown| shown.to_str().ok() == place.path().to_str()));
        let init = Init::showing(None, &by_link).unwrap();
        let mut command = Command::new(&tool);
        let output = init.spawn(command.stdout(Stdio::piped()), &NetNs::new().unwrap());
        assert_eq!(output.unwrap().wait_with_output().unwrap().stdout, b"beside");
        let init = Init::showing(None, &hidden_programs(&[bin])).unwrap();
        let mut command = Command::new(&tool);
        let command = command.stdout(std::process::Stdio::piped());
        let output = init.spawn(command, &NetNs::new().unwrap()).unwrap().wait_with_output();
        assert_eq!(output.unwrap().stdout, b"beside");
        assert!(!std::path::Path::new("/tmp/own").exists());
    }

    #[test]
    fn processes_and_files_go_with_init() {
        test_support::require!(test_support::need::networks());
        let net = NetNs::new().unwrap();
        let init = Init::start().unwrap();
        let mut child = init
            .spawn(
                Command::new("sh")
                    .args(["-c", "touch /run/mark /tmp/overlane-mark; echo $$; exec sleep 1000"])
                    .stdout(Stdio::piped()),
                &net,
            )
            .unwrap();
        let mut first = [0u8; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"2", "the second process of its PID namespace");
        assert!(!std::path::Path::new("/run/mark").exists());
        assert!(!std::path::Path::new("/tmp/overlane-mark").exists());
        drop(init);
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }

    /// Finds the machine's group of that name, wherever its file system is mounted.
    fn is_there(name: &str) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut roots = mounts
            .lines()
            .filter(|line| line.contains(" - cgroup2 "))
            .filter_map(|line| line.split(' ').nth(4))
            .peekable();
        assert!(roots.peek().is_some(), "no cgroup2 is mounted:\n{mounts}");
        roots.any(|root| std::path::Path::new(root).join(name).exists())
    }

    #[test]
    fn control_groups_go_with_init() {
        test_support::require!(test_support::need::root());
        let net = NetNs::new().unwrap();
        let init = Init::with_cgroup().unwrap();
        let name = init.cgroup().unwrap().to_owned();
        // Like a container runtime: a group that contains groups, one with a process, and an empty
        // one.
        let script = "cd /sys/fs/cgroup; mkdir -p docker/one docker/two; \
                      (echo 0 >docker/one/cgroup.procs; exec setsid sleep 1000) & \
                      until grep -q . docker/one/cgroup.procs; do :; done; echo made";
        let mut command = Command::new("sh");
        let child = command.args(["-c", script]).stdout(Stdio::piped());
        let mut child = init.spawn(child, &net).unwrap();
        let mut said = [0u8; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"made\n");
        assert!(is_there(&name) && is_there(&format!("{name}/docker/two")));
        child.wait().unwrap();
        drop(init);
        let begun = std::time::Instant::now();
        while is_there(&name) {
            assert!(begun.elapsed().as_secs() < 10, "{name} is left");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
