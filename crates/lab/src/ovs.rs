//! Open vSwitch in a test host: a private `ovsdb-server` and `ovs-vswitchd`, in the foreground.
//!
//! The daemons run in the testbed's process tree, whose `/run` is a private tmpfs. Database,
//! sockets and bridges vanish with the processes.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testbed::{Host, Process, Processes, Tenant, mac};

use crate::guest_files::Besides;
use crate::unsupported::{Unsupported, find_program};
use crate::{Error, Result};

/// Debian package with the daemons, named in the remedy.
const PACKAGE: &str = "openvswitch-switch";
/// Programs used. All are in that package or in its dependency `openvswitch-common`.
const PROGRAMS: [&str; 7] = [
    "ovsdb-tool",
    "ovsdb-server",
    "ovs-vsctl",
    "ovs-vswitchd",
    "ovs-appctl",
    "ovs-dpctl",
    "ovs-ofctl",
];
/// Paths of the database schema: from packages, from `make install`.
const SCHEMAS: [&str; 2] =
    ["/usr/share/openvswitch/vswitch.ovsschema", "/usr/local/share/openvswitch/vswitch.ovsschema"];
/// Time limit for a daemon to become ready or to finish a request.
const LIMIT: Duration = Duration::from_secs(60);

/// The datapath of Open vSwitch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Datapath {
    /// The kernel's openvswitch module.
    Kernel,
    /// `ovs-vswitchd` itself, by packet sockets.
    UserSpace {
        /// Reason why the kernel datapath is not used.
        reason: String,
    },
}

impl Datapath {
    /// Creates and removes a datapath in `scratch`, which loads the module if it exists.
    pub(crate) fn find(scratch: &Host) -> Result<Datapath> {
        const NAME: &str = "system@probe";
        match scratch.run(tool("ovs-dpctl").args(["add-dp", NAME])) {
            Ok(_) => {
                scratch.run(tool("ovs-dpctl").args(["del-dp", NAME]))?;
                Ok(Datapath::Kernel)
            }
            // Fall back to user space: it works whatever the kernel datapath lacks.
            Err(Error::Program { output, .. }) => Ok(Datapath::UserSpace {
                reason: if output.contains("'ovs_datapath' does not exist") {
                    "kernel has no openvswitch".to_owned()
                } else {
                    // The last line is the error; log lines may come before it.
                    output.lines().next_back().unwrap_or_default().trim().to_owned()
                },
            }),
            Err(error) => Err(error),
        }
    }

    /// Returns the value of `Bridge.datapath_type` (ovs-vswitchd.conf.db(5)).
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Datapath::Kernel => "system",
            Datapath::UserSpace { .. } => "netdev",
        }
    }

    /// Returns the note printed with the figures.
    pub(crate) fn note(&self) -> String {
        match self {
            Datapath::Kernel => "kernel datapath (datapath_type=system)".to_owned(),
            Datapath::UserSpace { reason } => {
                format!("user-space datapath (datapath_type=netdev): {reason}")
            }
        }
    }
}

/// Checks whether the package is installed.
///
/// # Errors
/// The reason and the remedy.
pub(crate) fn installed() -> std::result::Result<(), Unsupported> {
    let missing = PROGRAMS.iter().any(|program| find_program(program).is_none());
    // Without the schema no database can be created.
    if missing || schema().is_none() {
        return Err(Unsupported::new(
            format!("{PACKAGE} is not installed"),
            format!("apt install {PACKAGE}"),
        ));
    }
    Ok(())
}

/// Returns the programs and files that a switch needs, if they are installed.
pub(crate) fn files() -> Besides {
    let programs = PROGRAMS.iter().filter_map(|program| find_program(program)).collect();
    Besides { programs, files: schema().map(PathBuf::from).into_iter().collect() }
}

fn schema() -> Option<&'static str> {
    SCHEMAS.into_iter().find(|path| std::path::Path::new(path).is_file())
}

fn tool(program: &str) -> Command {
    // If it was removed since the probe, starting it fails with its name.
    Command::new(find_program(program).unwrap_or_else(|| program.into()))
}

/// Open vSwitch in one test host. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Switch<'a> {
    tree: &'a Processes,
    host: &'a Host,
    directory: PathBuf,
    server: Process,
    daemon: Process,
}

impl<'a> Switch<'a> {
    /// Starts the daemons of `host` and waits until the database accepts requests. `tso` enables
    /// segmentation offload in the user-space datapath.
    ///
    /// # Errors
    /// The program that failed, with its output.
    pub(crate) fn start(tree: &'a Processes, host: &'a Host, tso: bool) -> Result<Switch<'a>> {
        let directory = PathBuf::from(format!("/run/openvswitch-{}", host.name()));
        let inside = Inside { tree, host, directory: &directory };
        tree.inside(host, || std::fs::create_dir(&directory))?
            .map_err(|e| sys::Error::io("mkdir", directory.display().to_string(), &e))?;
        tree.run(
            host,
            inside
                .command("ovsdb-tool")
                .arg("create")
                .arg(directory.join("conf.db"))
                .args(schema()),
        )?;
        let mut server = tree.start(
            host,
            inside
                .command("ovsdb-server")
                .args(QUIET)
                .arg(directory.join("conf.db"))
                .arg(format!("--remote=p{}", inside.database()))
                .arg(format!("--unixctl={}", directory.join("ovsdb.ctl").display())),
        )?;
        let socket = directory.join("db.sock");
        testbed::poll(&format!("ovsdb-server in {}", host.name()), LIMIT, || {
            server.check()?;
            let connected =
                tree.inside(host, || std::os::unix::net::UnixStream::connect(&socket).map(drop))?;
            Ok(connected.map_err(|error| format!("connect {}: {error}", socket.display())))
        })?;
        // Set before the daemon starts, which reads userspace-tso-enable only once. One handler,
        // one revalidator and rare statistics keep an idle switch quiet; a testbed has few
        // flows.
        let settings = [
            format!("userspace-tso-enable={tso}"),
            "n-handler-threads=1".to_owned(),
            "n-revalidator-threads=1".to_owned(),
            "stats-update-interval=60000".to_owned(),
        ]
        .map(|setting| format!("other_config:{setting}"));
        inside.ask(
            inside
                .command("ovs-vsctl")
                .arg(format!("--db={}", inside.database()))
                .args(["--no-wait", "init", "--", "set", "Open_vSwitch", "."])
                .args(settings),
            &mut [&mut server],
        )?;
        after_boot()?;
        let daemon = tree.start(
            host,
            inside
                .command("ovs-vswitchd")
                .args(QUIET)
                .arg(inside.database())
                .arg(format!("--unixctl={}", directory.join("vswitchd.ctl").display())),
        )?;
        Ok(Switch { tree, host, server, daemon, directory })
    }

    /// Runs `ovs-vsctl`, which waits until the daemon has applied the configuration.
    ///
    /// # Errors
    /// Output of `ovs-vsctl`, or of a daemon that ended; a device that the daemon could not set
    /// up.
    pub(crate) fn configure(&mut self, orders: &[&str]) -> Result<()> {
        let inside = Inside { tree: self.tree, host: self.host, directory: &self.directory };
        let mut command = inside.command("ovs-vsctl");
        command.arg(format!("--db={}", inside.database())).args(orders);
        let output = inside.ask(&mut command, &mut [&mut self.server, &mut self.daemon])?;
        // ovs-vsctl exits with status 0 even if the daemon could not open a device
        // (ovs-vsctl(8), "--no-wait").
        if output.contains("Error detected") {
            return Err(Error::Program {
                program: format!("ovs-vsctl {}", orders.join(" ")),
                status: "a device could not be set up".to_owned(),
                output: output + &self.daemon.last_lines(),
            });
        }
        Ok(())
    }

    /// Adds OpenFlow flows to a bridge (`ovs-ofctl add-flows`). OpenFlow 1.0, since later
    /// versions refuse to strip a tag if the flow does not match one.
    ///
    /// # Errors
    /// Output of `ovs-ofctl`, or of a daemon that ended.
    pub(crate) fn flows(&mut self, bridge: &str, flows: &[String]) -> Result<()> {
        let inside = Inside { tree: self.tree, host: self.host, directory: &self.directory };
        let path = self.directory.join(format!("{bridge}.flows"));
        let text = flows.join("\n");
        self.tree
            .inside(self.host, || std::fs::write(&path, text))?
            .map_err(|e| sys::Error::io("write", path.display().to_string(), &e))?;
        let mut command = inside.command("ovs-ofctl");
        command.args(["add-flows", bridge]).arg(&path);
        inside.ask(&mut command, &mut [&mut self.server, &mut self.daemon]).map(drop)
    }

    /// Sends a request to the daemon (`ovs-appctl`) and returns the answer.
    ///
    /// # Errors
    /// Output of `ovs-appctl`, or of a daemon that ended.
    pub(crate) fn control(&mut self, words: &[&str]) -> Result<String> {
        let inside = Inside { tree: self.tree, host: self.host, directory: &self.directory };
        let mut command = inside.command("ovs-appctl");
        command.arg("-t").arg(self.directory.join("vswitchd.ctl")).args(words);
        inside.ask(&mut command, &mut [&mut self.server, &mut self.daemon])
    }

    /// Waits until the answer to [`Switch::control`] contains `wanted`.
    ///
    /// # Errors
    /// As [`Switch::control`]; the last answer after the time limit.
    pub(crate) fn wait_for(&mut self, words: &[&str], wanted: &str) -> Result<()> {
        let what = format!("{wanted:?} in Open vSwitch's {} in {}", words[0], self.host.name());
        testbed::poll(&what, LIMIT, || {
            let answer = self.control(words)?;
            Ok(if answer.contains(wanted) { Ok(()) } else { Err(answer) })
        })
    }

    pub(crate) fn host(&self) -> &'a Host {
        self.host
    }

    /// Returns the daemons; the caller keeps them.
    pub(crate) fn programs(self) -> [Process; 2] {
        [self.server, self.daemon]
    }
}

/// Waits until the machine has been up for 10 s, which matters in guests.
///
/// Open vSwitch 3.1.0 (Debian 12; fixed in 3.1.1) counts CPUs at most once in 10 s. In the first
/// 10 s of uptime it mistakes the missing count for a recent one. It then starts no handler
/// thread, and the kernel datapath forwards no packet (`count_cpu_cores` in
/// `lib/ovs-thread.c`).
fn after_boot() -> Result<()> {
    const UPTIME: &str = "/proc/uptime";
    testbed::poll("the machine's first 10 s", LIMIT, || {
        let text =
            std::fs::read_to_string(UPTIME).map_err(|e| sys::Error::io("read", UPTIME, &e))?;
        let up = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        // One second more: uptime is rounded and includes suspended time.
        Ok(if up.is_some_and(|seconds| seconds > 11.0) { Ok(()) } else { Err(text) })
    })
}

/// Starts the daemons of both hosts in parallel and configures each.
///
/// # Errors
/// The first failure.
pub(crate) fn start_both<'a>(
    tree: &'a Processes,
    hosts: [&'a Host; 2],
    tso: bool,
    configure: impl Fn(&mut Switch<'a>) -> Result<()> + Sync,
) -> Result<Vec<Process>> {
    start_all(tree, &hosts, tso, configure)
}

/// Starts the daemons of all hosts in parallel and configures each.
///
/// # Errors
/// The first failure.
pub(crate) fn start_all<'a>(
    tree: &'a Processes,
    hosts: &[&'a Host],
    tso: bool,
    configure: impl Fn(&mut Switch<'a>) -> Result<()> + Sync,
) -> Result<Vec<Process>> {
    let one = |host| {
        let mut switch = Switch::start(tree, host, tso)?;
        configure(&mut switch)?;
        Result::Ok(switch.programs())
    };
    let started = std::thread::scope(|scope| {
        let one = &one;
        let starting: Vec<_> = hosts.iter().map(|&host| scope.spawn(move || one(host))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        starting.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(started.into_iter().flatten().collect())
}

/// Switches off offloads of a tenant that the user-space datapath cannot forward.
///
/// The datapath reads frames from packet sockets. With TSO enabled it accepts TCP GSO packets
/// and partial TCP and UDP checksums, by their virtio header. It does not support:
/// - UDP segmentation: it forwards such a frame whole, and the NIC refuses it (`EMSGSIZE`);
/// - the ECN flag of TCP segmentation, which it loses;
/// - SCTP's CRC.
///
/// Source: `netdev_linux_parse_vnet_hdr` in Open vSwitch's `lib/netdev-linux.c`. Without TSO it
/// accepts only complete packets. A device without checksum offload has no segmentation offload
/// either.
///
/// # Errors
/// If the device does not have the feature.
pub(crate) fn limit_offloads(tenant: &Tenant, device: &str, tso: bool) -> Result<()> {
    let off: &[&str] = if tso {
        &["tx-udp-segmentation", "tx-tcp-ecn-segmentation", "tx-checksum-sctp"]
    } else {
        &["tx-checksum-ip-generic", "tx-checksum-sctp"]
    };
    let off: Vec<_> = off.iter().map(|feature| (*feature, false)).collect();
    tenant.set_features(device, &off)
}

/// Returns the `Bridge.other_config` with a bridge's MAC address, the same in every run.
pub(crate) fn hwaddr(host: &Host, bridge: &str) -> String {
    format!("other_config:hwaddr=\"{}\"", mac(host.name(), bridge))
}

/// Log to the console only, from level warning on. [`Process`] captures it.
const QUIET: [&str; 3] = ["-vsyslog:off", "-vfile:off", "-vconsole:warn"];

/// Context of the programs of one host.
struct Inside<'a> {
    tree: &'a Processes,
    host: &'a Host,
    directory: &'a PathBuf,
}

impl Inside<'_> {
    fn command(&self, program: &str) -> Command {
        let mut command = tool(program);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.directory);
        }
        command
    }

    fn database(&self) -> String {
        format!("unix:{}", self.directory.join("db.sock").display())
    }

    /// Runs a program to completion. Fails if a daemon ends or the time limit passes.
    fn ask(&self, command: &mut Command, daemons: &mut [&mut Process]) -> Result<String> {
        self.tree.ask(self.host, command, LIMIT, daemons)
    }
}
