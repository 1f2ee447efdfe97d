//! A QEMU guest with a stock Debian kernel, in software emulation and by default without a network:
//! runs one program to its end. It tests functions that this machine's kernel lacks; its timings
//! mean nothing.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::netns::NetNs;

#[path = "archive.rs"]
mod archive;

use archive::Archive;

/// Directory in which `fetch-kernel` puts the release's own kernel.
const FETCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-kernel");
/// Directory in which `fetch-arm64` puts a kernel and programs of arm64.
const FETCHED_ARM64: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/guest-arm64");
/// Names a directory with `boot/` and `lib/modules/`.
const KERNEL_VARIABLE: &str = "OVERLANE_GUEST_KERNEL";
/// Modules selected by their directory below `kernel/`, ...
const MODULE_DIRECTORIES: [&str; 4] =
    ["kernel/net/", "kernel/drivers/net/ipvlan/", "kernel/drivers/net/vxlan/", "kernel/lib/"];
/// ... and by name. CRC32c is loaded by its algorithm, not by a symbol.
const MODULES: [&str; 14] = [
    "veth",
    "geneve",
    "macvlan",
    "macvtap",
    "tun",
    "tap",
    "dummy",
    "ifb",
    "crc32c_generic",
    "crc32c-intel",
    "virtio_net",
    "virtio_pci",
    "vmxnet3",
    "vrf",
];
/// Programs of modes, copied into the guest if this machine has them.
const PROGRAMS: [&str; 10] = [
    "nft",
    "iptables-restore",
    "docker-proxy",
    "ovsdb-tool",
    "ovsdb-server",
    "ovs-vsctl",
    "ovs-vswitchd",
    "ovs-appctl",
    "ovs-dpctl",
    "ovs-ofctl",
];
/// Data files of those programs.
const DATA: [&str; 1] = ["/usr/share/openvswitch/vswitch.ovsschema"];
/// Directory of the libraries that Debian's iptables loads for matches and targets, and the used
/// ones.
const XTABLES: &str = "/usr/lib/x86_64-linux-gnu/xtables";
/// Directories of shared libraries in a tree of arm64.
const ARM64_LIBRARIES: [&str; 3] =
    ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu/xtables"];
const EXTENSIONS: [&str; 14] = [
    "CONNMARK",
    "DNAT",
    "MARK",
    "MASQUERADE",
    "NAT",
    "REDIRECT",
    "SNAT",
    "comment",
    "connmark",
    "conntrack",
    "mark",
    "physdev",
    "standard",
    "tcp",
];
/// Default time limit of a program: far more than the minute that it takes on an idle machine.
/// Beside six busy threads it took five.
const LIMIT: Duration = Duration::from_secs(1800);
/// Time in addition to the program's: boot and power-off, in software emulation.
const BOOT: Duration = Duration::from_secs(600);

/// Whether this process runs inside a guest.
pub fn is_inside() -> bool {
    std::env::var_os("OVERLANE_TEST_GUEST").is_some()
}

#[derive(Debug)]
pub struct Guest {
    /// The tree with the programs of a guest of arm64. None: the machine's own programs are used.
    arm64: Option<PathBuf>,
    qemu: PathBuf,
    busybox: PathBuf,
    modprobe: PathBuf,
    image: PathBuf,
    modules: PathBuf,
    fetch: Vec<String>,
    limit: Duration,
    programs: Vec<String>,
    files: Vec<(String, Vec<u8>)>,
    boot: String,
    devices: Vec<String>,
    two_nodes: bool,
    shared_memory: bool,
    /// QEMU emulates all CPUs by one thread.
    one_thread: bool,
    netns: Option<Arc<NetNs>>,
}

/// Result of the program.
#[derive(Debug)]
pub struct Output {
    /// Its exit status; none if the guest ended without reporting it.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Output of QEMU and of the guest's kernel console.
    pub console: String,
    /// Existing files among those requested by [`Guest::fetching`].
    pub files: Vec<(String, Vec<u8>)>,
}

impl Guest {
    /// Finds QEMU, a kernel and the programs of a first process.
    ///
    /// # Errors
    /// The reason and the remedy.
    pub fn find() -> Result<Guest, String> {
        Guest::of_kernel(find_kernel()?)
    }

    /// A guest with a kernel of this series, for example 6.12, if it has been fetched.
    ///
    /// # Errors
    /// The missing part, and how to get it.
    pub fn of_series(series: &str) -> Result<Guest, String> {
        let fetched = PathBuf::from(format!("{FETCHED}-{series}"));
        Guest::of_kernel(newest_kernel(&fetched).ok_or_else(|| {
            format!(
                "no kernel in {}; run crates/lab/tests/guest/fetch-kernel {series}",
                fetched.display()
            )
        })?)
    }

    /// A guest of arm64 with Debian's kernel and programs, if they have been fetched.
    ///
    /// # Errors
    /// The missing part, and how to get it.
    pub fn of_arm64() -> Result<Guest, String> {
        let tree = PathBuf::from(FETCHED_ARM64);
        let kernel = newest_kernel(&tree).ok_or_else(|| {
            format!("no kernel in {}; run crates/lab/tests/guest/fetch-arm64", tree.display())
        })?;
        let qemu = installed("qemu-system-aarch64", "qemu-system-arm")?;
        let [busybox, modprobe] = ["bin/busybox", "bin/kmod"].map(|path| tree.join(path));
        Ok(Guest::with(Some(tree), qemu, busybox, modprobe, kernel))
    }

    fn of_kernel(kernel: (PathBuf, PathBuf)) -> Result<Guest, String> {
        Ok(Guest::with(
            None,
            installed("qemu-system-x86_64", "qemu-system-x86")?,
            installed("busybox", "busybox-static")?,
            installed("modprobe", "kmod")?,
            kernel,
        ))
    }

    fn with(
        arm64: Option<PathBuf>,
        qemu: PathBuf,
        busybox: PathBuf,
        modprobe: PathBuf,
        (image, modules): (PathBuf, PathBuf),
    ) -> Guest {
        Guest {
            arm64,
            qemu,
            busybox,
            modprobe,
            image,
            modules,
            fetch: Vec::new(),
            limit: LIMIT,
            programs: Vec::new(),
            files: Vec::new(),
            boot: String::new(),
            devices: Vec::new(),
            two_nodes: false,
            shared_memory: false,
            one_thread: false,
            netns: None,
        }
    }

    /// Copies a file out of the guest after the program's end.
    pub fn fetching(mut self, path: &str) -> Guest {
        self.fetch.push(path.to_owned());
        self
    }

    /// Kills the program after `limit` (default: [`LIMIT`]), counted in the guest from its start;
    /// its status is then that of SIGKILL, 137.
    pub fn within(mut self, limit: Duration) -> Guest {
        self.limit = limit;
        self
    }

    /// Copies more programs into the guest, if this machine has them.
    pub fn with_programs(mut self, names: &[&str]) -> Guest {
        self.programs.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Adds a file.
    pub fn containing(mut self, path: &str, contents: Vec<u8>) -> Guest {
        self.files.push((path.to_owned(), contents));
        self
    }

    /// Adds kernel parameters.
    pub fn booting_with(mut self, parameters: &str) -> Guest {
        self.boot = format!(" {parameters}");
        self
    }

    /// Adds devices: QEMU's arguments, separated by blanks.
    pub fn with_devices(mut self, arguments: &str) -> Guest {
        self.devices.extend(arguments.split_whitespace().map(str::to_owned));
        self
    }

    /// Puts each of its two CPUs on its own NUMA node, with half of the memory.
    pub fn with_two_nodes(mut self) -> Guest {
        self.two_nodes = true;
        self
    }

    /// Keeps its memory in a file that others can map, as vhost-user requires.
    pub fn with_shared_memory(mut self) -> Guest {
        self.shared_memory = true;
        self
    }

    /// Emulates all CPUs by one thread of QEMU. With a thread for each, a CPU can execute the trap
    /// that the kernel puts in front of an instruction while it patches it, after the patch: Linux
    /// 6.8 stops with "int3" (QEMU 7.2).
    pub fn with_one_thread(mut self) -> Guest {
        self.one_thread = true;
        self
    }

    /// Starts QEMU in a network namespace with its TAP devices.
    pub fn inside(mut self, netns: Arc<NetNs>) -> Guest {
        self.netns = Some(netns);
        self
    }

    /// Runs a program of this machine in the guest, as root.
    ///
    /// # Panics
    /// When the guest cannot be started or does not end in time.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| directory.path().join(name);
        let initrd = self.archive(program, arguments);
        std::fs::write(at("initrd"), &initrd).expect("write the initial RAM disk");
        // Unpacking holds the archive twice in memory.
        let memory = (768 + 3 * initrd.len().div_ceil(1 << 20)).next_multiple_of(2);
        let mut command = Command::new(&self.qemu);
        command
            .args(["-accel", if self.one_thread { "tcg,thread=single" } else { "tcg" }])
            .args(["-smp", "2", "-m", &memory.to_string()])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
                "-nic",
                "none",
            ])
            .arg("-kernel")
            .arg(&self.image)
            .arg("-initrd")
            .arg(at("initrd"))
            .arg("-append")
            .arg(format!("console={} panic=-1 quiet loglevel=4{}", self.console(), self.boot))
            .stdin(Stdio::null());
        for node in (0..2).filter(|_| self.two_nodes) {
            let size = memory / 2;
            command
                .args(["-object", &format!("memory-backend-ram,id=node{node},size={size}M")])
                .args(["-numa", &format!("node,cpus={node},memdev=node{node}")]);
        }
        if self.shared_memory {
            let file = format!("memory-backend-memfd,id=memory,share=on,size={memory}M");
            command.args(["-object", &file, "-machine", "memory-backend=memory"]);
        }
        command.args(&self.devices);
        let ports = ["console", "stdout", "stderr", "status"];
        if self.arm64.is_some() {
            // Emulating pointer authentication as the architecture defines it is slow. The card has
            // /dev/ttyS0 to /dev/ttyS3; the console is a port of the board.
            command.args(["-machine", "virt", "-cpu", "max,pauth-impdef=on"]);
            command.arg("-serial").arg(format!("file:{}", at("console").display()));
            let mut card = "pci-serial-4x".to_owned();
            for (number, port) in
                ["unused"].into_iter().chain(ports.into_iter().skip(1)).enumerate()
            {
                let file = format!("file,id=port{number},path={}", at(port).display());
                command.args(["-chardev", &file]);
                write!(card, ",chardev{}=port{number}", number + 1).expect("write to a String");
            }
            command.args(["-device", &card]);
        } else {
            command.args(["-cpu", "max"]);
            for port in ports {
                command.arg("-serial").arg(format!("file:{}", at(port).display()));
            }
        }
        let log = std::fs::File::create(at("qemu")).expect("a file for QEMU's messages");
        command.stdout(log.try_clone().expect("dup")).stderr(log);
        let mut spawn = || command.spawn().expect("start QEMU");
        let qemu = Running(match &self.netns {
            Some(netns) => netns.run(spawn).expect("enter the namespace"),
            None => spawn(),
        });
        let ended = qemu.wait(self.limit + BOOT);
        let read = |name: &str| std::fs::read(at(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        let [console, stdout, stderr, qemu] = ["console", "stdout", "stderr", "qemu"].map(text);
        assert!(
            ended,
            "the guest did not end within {:?}\n{qemu}\n{console}\n{stdout}\n{stderr}",
            self.limit + BOOT
        );
        let (status, files) = reports(&read("status"));
        Output { status, stdout, stderr, console: qemu + &console, files }
    }

    fn console(&self) -> &'static str {
        if self.arm64.is_some() { "ttyAMA0" } else { "ttyS0" }
    }

    fn archive(&self, program: &Path, arguments: &[&str]) -> Vec<u8> {
        let mut archive = Archive::new();
        archive.file("init", include_bytes!("init"));
        let more = self.programs.iter().map(String::as_str);
        if let Some(tree) = &self.arm64 {
            // Without ldd for foreign programs, all libraries are copied.
            for directory in ARM64_LIBRARIES {
                archive.libraries(&tree.join(directory), Path::new(directory));
            }
            let loader = "lib/ld-linux-aarch64.so.1";
            archive.file(loader, &archive::read(&tree.join(loader)));
            archive.file("bin/busybox", &archive::read(&self.busybox));
            archive.file("sbin/modprobe", &archive::read(&self.modprobe));
            for name in PROGRAMS.into_iter().chain(more) {
                if let Some(found) = find_in_tree(tree, name) {
                    let at = Path::new("/bin").join(name);
                    archive.file(
                        if name.starts_with('/') { Path::new(name) } else { &at },
                        &archive::read(&found),
                    );
                }
            }
        } else {
            archive.program(&self.busybox, "bin/busybox");
            // The kernel's path of modprobe (CONFIG_MODPROBE_PATH).
            archive.program(&self.modprobe, "sbin/modprobe");
            for path in PROGRAMS.into_iter().chain(more).filter_map(find_program) {
                archive.program(&path, &path);
            }
            Guest::add_data(&mut archive);
        }
        archive.link("usr/bin/sh", "busybox");
        for (path, contents) in &self.files {
            archive.file(path, contents);
        }
        match &self.arm64 {
            Some(tree) => {
                let program = program.to_str().and_then(|name| find_in_tree(tree, name));
                archive.file("program", &archive::read(&program.expect("a program of arm64")));
            }
            None => archive.program(program, "program"),
        }
        let mut line = "#!/bin/sh\nexec /program".to_owned();
        for argument in arguments {
            write!(line, " '{}'", argument.replace('\'', "'\\''")).expect("write to a String");
        }
        archive.file("command", line.as_bytes());
        archive.file("limit", self.limit.as_secs().to_string().as_bytes());
        archive.file(
            "fetch",
            self.fetch.iter().map(|path| path.clone() + "\n").collect::<String>().as_bytes(),
        );
        self.add_modules(&mut archive);
        archive.finish()
    }

    /// Adds data files of the machine's programs.
    fn add_data(archive: &mut Archive) {
        for path in DATA.map(Path::new).into_iter().filter(|path| path.exists()) {
            archive.copy(path);
        }
        for name in EXTENSIONS {
            let path = Path::new(XTABLES).join(format!("libxt_{name}.so"));
            if path.exists() {
                archive.program(&path, &path);
            }
        }
    }

    /// Adds the requested modules, their dependencies, and the indices of `depmod`, by which the
    /// kernel finds them.
    fn add_modules(&self, archive: &mut Archive) {
        let version = self.modules.file_name().expect("lib/modules/VERSION");
        let inside = Path::new("lib/modules").join(version);
        let mut add = |name: &str| {
            archive.file(inside.join(name), &std::fs::read(self.modules.join(name)).expect(name));
        };
        for entry in std::fs::read_dir(&self.modules).expect("modules").flatten() {
            let name = entry.file_name().into_string().expect("UTF-8");
            if name.starts_with("modules.") {
                add(&name);
            }
        }
        let dependencies =
            std::fs::read_to_string(self.modules.join("modules.dep")).expect("modules.dep");
        for line in dependencies.lines() {
            let (module, needed) = line.split_once(':').expect("MODULE: NEEDED");
            let name = Path::new(module).file_name().and_then(|name| name.to_str());
            let name = name.and_then(|name| name.split(".ko").next()).expect("a file name");
            let wanted = MODULE_DIRECTORIES.iter().any(|directory| module.starts_with(directory));
            if wanted || MODULES.contains(&name) {
                add(module);
                needed.split_whitespace().for_each(&mut add);
            }
        }
    }
}

/// QEMU, killed when dropped.
struct Running(Child);

impl Running {
    /// Whether it ended in time.
    fn wait(mut self, limit: Duration) -> bool {
        let start = Instant::now();
        loop {
            if self.0.try_wait().expect("wait for QEMU").is_some() {
                return true;
            }
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads `status N`, then for each file `file LENGTH PATH` and its bytes.
fn reports(mut bytes: &[u8]) -> (Option<i32>, Vec<(String, Vec<u8>)>) {
    let (mut status, mut files) = (None, Vec::new());
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 1..];
        match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["status", number] => status = number.parse().ok(),
            ["file", length, path] => {
                let length = length.parse().unwrap_or(usize::MAX).min(bytes.len());
                files.push((path.to_owned(), bytes[..length].to_vec()));
                bytes = &bytes[length..];
            }
            _ => panic!("the guest's report has the line {line:?}"),
        }
    }
    (status, files)
}

/// Image and modules of the newest kernel below a directory that has the modules of the tests.
fn newest_kernel(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut images: Vec<_> = std::fs::read_dir(root.join("boot"))
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()))
        .map(|version| {
            let modules = root.join("lib/modules").join(&version);
            (root.join(format!("boot/vmlinuz-{version}")), modules)
        })
        .filter(|(_, modules)| {
            std::fs::read_to_string(modules.join("modules.dep"))
                .is_ok_and(|text| text.contains("/8021q.ko") && text.contains("/ipvlan.ko"))
        })
        .collect();
    images.sort();
    images.pop()
}

/// A kernel image and its modules, 8021q and ipvlan among them.
fn find_kernel() -> Result<(PathBuf, PathBuf), String> {
    const REMEDY: &str =
        "run crates/lab/tests/guest/fetch-kernel, or apt install linux-image-cloud-amd64";
    let named = std::env::var_os(KERNEL_VARIABLE).map(PathBuf::from);
    let roots = match named {
        Some(root) => vec![root],
        None => vec![PathBuf::from(FETCHED), PathBuf::from("/")],
    };
    roots.iter().find_map(|root| newest_kernel(root)).ok_or_else(|| {
        let looked: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
        format!(
            "no kernel image with the modules 8021q and ipvlan (boot/vmlinuz-*, lib/modules/*/modules.dep) in {}; {REMEDY}",
            looked.join(" or ")
        )
    })
}

/// Finds an installed program.
///
/// # Errors
/// The package that has it.
fn installed(name: &str, package: &str) -> Result<PathBuf, String> {
    find_program(name).ok_or_else(|| format!("{name} is not installed; apt install {package}"))
}

/// Finds a program in a tree of another architecture. An absolute path that the tree lacks is a
/// program of this architecture outside the tree.
fn find_in_tree(tree: &Path, name: &str) -> Option<PathBuf> {
    if name.starts_with('/') {
        let inside = tree.join(name.trim_start_matches('/'));
        return [inside, PathBuf::from(name)].into_iter().find(|path| path.is_file());
    }
    ["bin", "sbin", "usr/bin", "usr/sbin"]
        .iter()
        .map(|directory| tree.join(directory).join(name))
        .find_map(|path| match path.read_link() {
            // A link of the tree leads to a path of the tree.
            Ok(target) if target.is_absolute() => find_in_tree(tree, target.to_str()?),
            _ => path.is_file().then_some(path),
        })
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/libexec/docker"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| {
            candidate
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}
