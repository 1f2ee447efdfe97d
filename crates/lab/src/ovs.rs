//! Open vSwitch in a test host: its own `ovsdb-server` and `ovs-vswitchd`, with
//! private directories, in the foreground.
//!
//! The daemons run in the testbed's process tree, whose `/run` is a tmpfs of its own.
//! Database, sockets and bridges go with the processes.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testbed::{Host, Process, Processes, Tenant, mac};

use crate::guest_files::Besides;
use crate::unsupported::{Unsupported, find_program};
use crate::{Error, Result};

/// Debian's package with the daemons, named in the remedy.
const PACKAGE: &str = "openvswitch-switch";
/// The programs used, all from that package (or `openvswitch-common`, which it
/// depends on).
const PROGRAMS: [&str; 7] = [
    "ovsdb-tool",
    "ovsdb-server",
    "ovs-vsctl",
    "ovs-vswitchd",
    "ovs-appctl",
    "ovs-dpctl",
    "ovs-ofctl",
];
/// Where the database's schema is installed: by packages, by `make install`.
const SCHEMAS: [&str; 2] =
    ["/usr/share/openvswitch/vswitch.ovsschema", "/usr/local/share/openvswitch/vswitch.ovsschema"];
/// How long a daemon may take to become ready or to do what it is told.
const LIMIT: Duration = Duration::from_secs(60);

/// Where Open vSwitch moves packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Datapath {
    /// The kernel's openvswitch module.
    Kernel,
    /// `ovs-vswitchd` itself, through packet sockets.
    UserSpace {
        /// Why it is not the kernel's.
        reason: String,
    },
}

impl Datapath {
    /// Finds out by making a datapath in `scratch`, which loads the module where
    /// there is one, and removing it.
    ///
    /// # Errors
    /// When a made datapath cannot be removed.
    pub(crate) fn find(scratch: &Host) -> Result<Datapath> {
        const NAME: &str = "system@probe";
        match scratch.run(tool("ovs-dpctl").args(["add-dp", NAME])) {
            Ok(_) => {
                scratch.run(tool("ovs-dpctl").args(["del-dp", NAME]))?;
                Ok(Datapath::Kernel)
            }
            // Whatever keeps the kernel's datapath away, that in user space does not need it.
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

    /// The word for it in `Bridge.datapath_type` (ovs-vswitchd.conf.db(5)).
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Datapath::Kernel => "system",
            Datapath::UserSpace { .. } => "netdev",
        }
    }

    /// A remark for the reader of the results.
    pub(crate) fn note(&self) -> String {
        match self {
            Datapath::Kernel => "kernel datapath (datapath_type=system)".to_owned(),
            Datapath::UserSpace { reason } => {
                format!("user-space datapath (datapath_type=netdev): {reason}")
            }
        }
    }
}

/// Whether the package is installed.
///
/// # Errors
/// The reason and the remedy.
pub(crate) fn installed() -> std::result::Result<(), Unsupported> {
    let missing = PROGRAMS.iter().any(|program| find_program(program).is_none());
    if missing || schema().is_none() {
        return Err(Unsupported::new(
            format!("{PACKAGE} is not installed"),
            format!("apt install {PACKAGE}"),
        ));
    }
    Ok(())
}

/// Programs and files of the package that a switch needs, where they are here.
pub(crate) fn files() -> Besides {
    let programs = PROGRAMS.iter().filter_map(|program| find_program(program)).collect();
    Besides { programs, files: schema().map(PathBuf::from).into_iter().collect() }
}

fn schema() -> Option<&'static str> {
    SCHEMAS.into_iter().find(|path| std::path::Path::new(path).is_file())
}

fn tool(program: &str) -> Command {
    // Removed since it was probed: starting it fails, and names it.
    Command::new(find_program(program).unwrap_or_else(|| program.into()))
}

/// Open vSwitch running in one test host. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Switch<'a> {
    tree: &'a Processes,
    host: &'a Host,
    directory: PathBuf,
    server: Process,
    daemon: Process,
}

impl<'a> Switch<'a> {
    /// Starts the daemons of `host`, with segmentation offload in the user-space
    /// datapath or without, and returns when the database takes orders.
    ///
    /// # Errors
    /// The program that failed, with what it printed.
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
        // Before the daemon starts: it reads userspace-tso-enable only then. One
        // handler and one revalidator, and rare statistics, keep an idle switch
        // quiet; a testbed has few flows.
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

    /// Runs `ovs-vsctl`, which waits until the daemon has done what it says.
    ///
    /// # Errors
    /// What `ovs-vsctl` or a daemon that ended printed; a device that the daemon
    /// could not set up.
    pub(crate) fn configure(&mut self, orders: &[&str]) -> Result<()> {
        let inside = Inside { tree: self.tree, host: self.host, directory: &self.directory };
        let mut command = inside.command("ovs-vsctl");
        command.arg(format!("--db={}", inside.database())).args(orders);
        let output = inside.ask(&mut command, &mut [&mut self.server, &mut self.daemon])?;
        // ovs-vsctl exits with success when the daemon could not open a device
        // that it was given (ovs-vsctl(8), "--no-wait").
        if output.contains("Error detected") {
            return Err(Error::Program {
                program: format!("ovs-vsctl {}", orders.join(" ")),
                status: "a device could not be set up".to_owned(),
                output: output + &self.daemon.last_lines(),
            });
        }
        Ok(())
    }

    /// Adds OpenFlow flows to a bridge (`ovs-ofctl add-flows`), by OpenFlow 1.0: later versions
    /// refuse to take a tag off where the flow does not match one.
    ///
    /// # Errors
    /// What `ovs-ofctl` or a daemon that ended printed.
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

    /// Asks the daemon itself (`ovs-appctl`), once it answers.
    ///
    /// # Errors
    /// What `ovs-appctl` or a daemon that ended printed.
    pub(crate) fn control(&mut self, words: &[&str]) -> Result<String> {
        let inside = Inside { tree: self.tree, host: self.host, directory: &self.directory };
        let mut command = inside.command("ovs-appctl");
        command.arg("-t").arg(self.directory.join("vswitchd.ctl")).args(words);
        inside.ask(&mut command, &mut [&mut self.server, &mut self.daemon])
    }

    /// Waits until the answer to [`Switch::control`] has `wanted` in it.
    ///
    /// # Errors
    /// As [`Switch::control`]; the last answer when the time is over.
    pub(crate) fn wait_for(&mut self, words: &[&str], wanted: &str) -> Result<()> {
        let what = format!("{wanted:?} in Open vSwitch's {} in {}", words[0], self.host.name());
        testbed::poll(&what, LIMIT, || {
            let answer = self.control(words)?;
            Ok(if answer.contains(wanted) { Ok(()) } else { Err(answer) })
        })
    }

    /// The host that it runs in.
    pub(crate) fn host(&self) -> &'a Host {
        self.host
    }

    /// The daemons, to be kept.
    pub(crate) fn programs(self) -> [Process; 2] {
        [self.server, self.daemon]
    }
}

/// Waits until the machine has run for 10 s. A guest comes here sooner.
///
/// Open vSwitch 3.1.0 (Debian 12's; 3.1.1 is right) counts CPUs at most once in 10 s. Before
/// that it takes the count that it never made for a recent one. It then starts no thread
/// to answer the kernel's datapath, and no packet is forwarded (`count_cpu_cores` in
/// `lib/ovs-thread.c`).
fn after_boot() -> Result<()> {
    const UPTIME: &str = "/proc/uptime";
    testbed::poll("the machine's first 10 s", LIMIT, || {
        let text =
            std::fs::read_to_string(UPTIME).map_err(|e| sys::Error::io("read", UPTIME, &e))?;
        let up = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        // A full second more: uptime counts suspended time, and is rounded.
        Ok(if up.is_some_and(|seconds| seconds > 11.0) { Ok(()) } else { Err(text) })
    })
}

/// Starts the daemons of both hosts at once and configures each.
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

/// Starts the daemons of all hosts at once and configures each.
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

/// Switches off, at a tenant, what the user-space datapath cannot carry.
///
/// It reads frames from packet sockets. With TSO enabled it takes TCP GSO packets, and
/// unfinished TCP and UDP checksums, by their virtio header. It does not know:
/// - UDP segmentation: such a frame is sent on uncut, and the NIC refuses it (`EMSGSIZE`);
/// - the ECN bit of TCP segmentation, which it loses;
/// - SCTP's CRC.
///
/// Source: `netdev_linux_parse_vnet_hdr` in Open vSwitch's `lib/netdev-linux.c`. Without
/// TSO it takes finished packets only. A device without checksum offload has no
/// segmentation offload either.
///
/// # Errors
/// When the device does not know the feature.
pub(crate) fn limit_offloads(tenant: &Tenant, device: &str, tso: bool) -> Result<()> {
    let off: &[&str] = if tso {
        &["tx-udp-segmentation", "tx-tcp-ecn-segmentation", "tx-checksum-sctp"]
    } else {
        &["tx-checksum-ip-generic", "tx-checksum-sctp"]
    };
    let off: Vec<_> = off.iter().map(|feature| (*feature, false)).collect();
    tenant.set_features(device, &off)
}

/// `Bridge.other_config` that gives a bridge its address, the same in every run.
pub(crate) fn hwaddr(host: &Host, bridge: &str) -> String {
    format!("other_config:hwaddr=\"{}\"", mac(host.name(), bridge))
}

/// Messages: to the console only, where [`Process`] keeps them, from warnings on.
const QUIET: [&str; 3] = ["-vsyslog:off", "-vfile:off", "-vconsole:warn"];

/// Where the programs of one host run.
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

    /// Runs a program to its end, for as long as the daemons stay and the limit
    /// is not over.
    fn ask(&self, command: &mut Command, daemons: &mut [&mut Process]) -> Result<String> {
        self.tree.ask(self.host, command, LIMIT, daemons)
    }
}
