//! Docker Engine in a test host: a private `dockerd` with `containerd`, in its own process
//! tree.
//!
//! Everything that they write vanishes with the tree: it is in the tree's private `/run`, or in
//! private mounts over fixed paths (`/etc/docker`, `/opt/containerd`, control groups).

mod image;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use sys::netns::NetNs;
use testbed::{Host, Process, Processes};

use crate::unsupported::{Unsupported, find_program};
use crate::{Error, Result};

/// Debian package that contains or depends on all of the programs.
const PACKAGE: &str = "docker.io";
/// Programs used, directly or by `dockerd`.
const PROGRAMS: [&str; 6] =
    ["dockerd", "docker", "containerd", "containerd-shim-runc-v2", "runc", "iptables"];
/// The engine's directory, in each tree.
const DIRECTORY: &str = "/run/docker";
/// Time limit for the engine to become ready or to finish a request.
const LIMIT: Duration = Duration::from_secs(60);
/// `PATH` of Docker's programs. The rest of this process's environment, proxies included, is
/// dropped.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Name of the image with the program from `image`.
pub(crate) const IMAGE: &str = "overlane-pause";

/// Checks whether Docker is installed and the kernel has what it needs.
///
/// # Errors
/// The reason and the remedy.
pub(crate) fn installed() -> std::result::Result<(), Unsupported> {
    if let Some(missing) = PROGRAMS.iter().find(|program| find_program(program).is_none()) {
        return Err(Unsupported::new(
            format!("Docker is not installed: no {missing}"),
            format!("apt install {PACKAGE}"),
        ));
    }
    // The image's program is machine code.
    if !image::is_known() {
        return Err(Unsupported::new(
            format!("no container image for {}", std::env::consts::ARCH),
            "use x86-64 or ARM64",
        ));
    }
    let kinds = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    // The tree's control group is of version 2.
    if !kinds.lines().any(|kind| kind.ends_with("\tcgroup2")) {
        return Err(Unsupported::new(
            "kernel has no cgroup2",
            "use a kernel with CONFIG_CGROUPS and CONFIG_CGROUP_BPF",
        ));
    }
    Ok(())
}

/// Docker in one test host. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    host: &'a Host,
    // Dropped before the tree that it runs in.
    daemon: Process,
    tree: Processes,
}

impl<'a> Engine<'a> {
    /// Starts `dockerd` in `host`, and returns when it accepts requests and has the image
    /// [`IMAGE`].
    ///
    /// # Errors
    /// The step or program that failed, with its output.
    pub(crate) fn start(host: &'a Host) -> Result<Engine<'a>> {
        let tree = Processes::with_cgroup()?;
        tree.inside(host, private_places)??;
        let at = |name: &str| format!("{DIRECTORY}/{name}");
        let mut command = program("dockerd");
        command
            .args(["--config-file", &at("daemon.json"), "--pidfile", &at("pid")])
            .args(["--data-root", &at("data"), "--exec-root", &at("exec")])
            .args(["--host", &format!("unix://{}", at("sock"))])
            // vfs: overlayfs does not work on the tree's tmpfs on all kernels.
            .args(["--storage-driver", "vfs", "--log-level", "warn"]);
        let mut daemon =
            tree.start_as(&format!("dockerd in {}", host.name()), host, &mut command)?;
        let socket = at("sock");
        testbed::poll(&format!("dockerd in {}", host.name()), LIMIT, || {
            daemon.check()?;
            let connected =
                tree.inside(host, || std::os::unix::net::UnixStream::connect(&socket).map(drop))?;
            Ok(connected.map_err(|error| format!("connect {socket}: {error}")))
        })?;
        let mut engine = Engine { host, daemon, tree };
        let run = format!("CMD [\"/{}\"]", image::PROGRAM);
        engine.ask(&["import", "--change", &run, &at("image.tar"), IMAGE])?;
        Ok(engine)
    }

    /// Runs the Docker client and returns its output.
    ///
    /// # Errors
    /// Output of the client, or of a daemon that ended.
    pub(crate) fn ask(&mut self, arguments: &[&str]) -> Result<String> {
        let mut command = program("docker");
        command
            .args(["--config", &format!("{DIRECTORY}/client")])
            .args(["--host", &format!("unix://{DIRECTORY}/sock")])
            .args(arguments);
        let answer = self.tree.ask(self.host, &mut command, LIMIT, &mut [&mut self.daemon])?;
        Ok(answer.trim().to_owned())
    }

    /// Returns the sandbox namespace with the bridge and the VXLAN device of the overlay network
    /// with this id.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn sandbox(&self, network: &str) -> Result<NetNs> {
        // The name is a number and the first digits of the id (Docker 20.10: "1-" and ten).
        let named = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.split_once('-').is_some_and(|(_, id)| !id.is_empty() && network.starts_with(id))
        };
        let directory = Path::new(DIRECTORY).join("exec/netns");
        let found = self.tree.inside(self.host, || {
            let entries = std::fs::read_dir(&directory)?;
            let mut paths = entries.flatten().map(|entry| entry.path());
            paths.find(named).ok_or_else(|| std::io::ErrorKind::NotFound.into())
        })?;
        let object = || format!("sandbox of network {network} in {}", directory.display());
        self.namespace(&found.map_err(|e| sys::Error::io("find", object(), &e))?)
    }

    /// Returns a container's network namespace.
    ///
    /// # Errors
    /// If there is no such container, or it is not running.
    pub(crate) fn container(&mut self, name: &str) -> Result<NetNs> {
        let path = self.ask(&["inspect", "--format", "{{.NetworkSettings.SandboxKey}}", name])?;
        self.namespace(Path::new(&path))
    }

    fn namespace(&self, path: &Path) -> Result<NetNs> {
        // Resolve by device and inode: the tree's `/proc` does not show this process.
        let place = self.tree.inside(self.host, || NetNs::place(path))??;
        Ok(NetNs::from_place(&place, || path.display().to_string())?)
    }

    /// Returns the tree and the daemon; the caller keeps them.
    pub(crate) fn into_parts(self) -> (Processes, Process) {
        (self.tree, self.daemon)
    }
}

fn program(name: &str) -> Command {
    // If it was removed since the probe, starting it fails with its name.
    let mut command = Command::new(find_program(name).unwrap_or_else(|| name.into()));
    command.env_clear().env("PATH", PATH).env("HOME", DIRECTORY);
    command
}

/// Prepares the mount namespace of the calling thread, which is the tree's: private
/// `/etc/docker` and `/opt`, and Docker's directory.
fn private_places() -> Result<()> {
    const ETC: &str = "/etc";
    const MACHINES: &str = "/run/etc-of-the-machine";
    const PRIVATE: &str = "/run/etc";
    let file = |operation, path: &Path, error: &std::io::Error| {
        Error::from(sys::Error::io(operation, path.display().to_string(), error))
    };
    let make =
        |path: &str| std::fs::create_dir_all(path).map_err(|e| file("mkdir", Path::new(path), &e));
    let bound = |from: Option<&str>, to: &str, kind: Option<&str>, flags| {
        mount(from, to, kind, flags, None::<&str>)
            .map_err(|e: Errno| Error::from(sys::Error::new("mount", to.to_owned(), e)))
    };
    for path in [MACHINES, PRIVATE, DIRECTORY] {
        make(path)?;
    }
    // Keep the machine's /etc except /etc/docker, which dockerd writes to and which may not
    // exist.
    let recursively = MsFlags::MS_BIND | MsFlags::MS_REC;
    bound(Some(ETC), MACHINES, None, recursively)?;
    let entries = std::fs::read_dir(MACHINES).map_err(|e| file("list", Path::new(ETC), &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| file("list", Path::new(ETC), &e))?;
        let link = PathBuf::from(PRIVATE).join(entry.file_name());
        if entry.file_name() != "docker" {
            std::os::unix::fs::symlink(entry.path(), &link).map_err(|e| file("link", &link, &e))?;
        }
    }
    make(&format!("{PRIVATE}/docker"))?;
    bound(Some(PRIVATE), ETC, None, MsFlags::MS_BIND)?;
    if Path::new("/opt").is_dir() {
        bound(Some("tmpfs"), "/opt", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
    }
    // Empty, so that the machine's /etc/docker/daemon.json does not apply.
    let write = |name: &str, bytes: &[u8]| {
        let path = Path::new(DIRECTORY).join(name);
        std::fs::write(&path, bytes).map_err(|e| file("write", &path, &e))
    };
    write("daemon.json", b"{}")?;
    let archive = image::archive().map_err(|e| file("make", Path::new("image.tar"), &e))?;
    write("image.tar", &archive)
}
