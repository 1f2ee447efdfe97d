//! Starts QEMU and waits until its guests are up.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use datapath::vhost_user::GuestPort;
use netstate::Hop;
use testbed::{Host, Process, Processes, mac, poll};

use super::console::{Console, words};
use super::inside::NIC;
use super::kernel::Kernel;
use super::{CONTROL, CONTROL_PORT, FAILED, READY, TCG, initramfs, not_started, port};
use crate::guest_ends::GuestEnds;
use crate::guest_files::Besides;
use crate::guest_in_force::{self as in_force, InForce, Said, TAP};
use crate::guest_options::{GuestOptions, QEMU};
use crate::unsupported::Supported;
use crate::{Capabilities, Network, Result, Unsupported};

const PACKAGE: &str = "qemu-system-x86";
/// Time limit for QEMU to create its sockets and its TAP device.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a guest to boot in software emulation. It takes about 3 s on an idle machine.
pub(super) const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Time limit for the trial boot under KVM.
const TRIAL_LIMIT: Duration = Duration::from_secs(20);
/// Maximum length of the line that reports a guest's state, bytes.
const LINE: usize = 1024;
/// Memory of a guest, MiB, besides its file system, which takes up to three times its size
/// while it is unpacked.
const MEMORY: usize = 160;

/// Checks whether guests can run here: QEMU, and a kernel for them.
pub(crate) fn supported(machine: &Capabilities) -> Supported {
    // The guests' kernel, modules and program are this machine's.
    if !cfg!(target_arch = "x86_64") {
        return Err(Unsupported::new("guests need an x86-64 machine", "use an x86-64 machine"));
    }
    machine.program(QEMU, PACKAGE)?;
    Kernel::find().map(drop)
}

/// Properties of a virtio-net device without checksum and segmentation offload.
const FINISHED: &str = ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";

/// Accelerator of the guests' CPUs.
#[derive(Debug, Clone)]
pub(super) enum Accelerator {
    Kvm,
    /// Software emulation, with the reason why not KVM.
    Tcg(String),
}

impl Accelerator {
    fn arguments(&self) -> [&'static str; 4] {
        match self {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Accelerator::Tcg(_) => ["-accel", "tcg", "-cpu", "max"],
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Accelerator::Kvm => write!(f, "guests run under KVM"),
            Accelerator::Tcg(reason) => {
                write!(f, "{TCG} (guests run in software emulation; KVM: {reason})")
            }
        }
    }
}

pub(crate) struct Guest<'a> {
    pub name: &'static str,
    /// Host whose namespace QEMU runs in.
    pub host: &'a Host,
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub mtu: u32,
    pub nic: Nic,
}

/// Backend of the guest's virtio-net device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nic {
    /// A TAP device in its host, [`TAP`]. With `finished`, the guest sends complete checksums and
    /// no GSO packets.
    Tap { finished: bool },
    /// QEMU's own stack (libslirp), with these ports of the host's address forwarded to the guest.
    User { gateway: Ipv4Addr, published: Vec<(Ipv4Addr, u16)> },
    /// A user-space program that accesses the guest's virtqueues; see [`Pair::take_ports`].
    VhostUser,
}

/// Two guests, client and server, with QEMU running.
pub(crate) struct Pair {
    guests: [Running; 2],
    ports: Vec<GuestPort>,
    program: Option<(&'static str, Dropped)>,
    addresses: [Ipv4Addr; 2],
    options: GuestOptions,
    tree: Processes,
    accelerator: Accelerator,
}

/// Returns the number of frames that a program has dropped.
type Dropped = Box<dyn Fn() -> u64 + Send + Sync>;

pub(super) struct Running {
    name: String,
    /// Whether it is behind a TAP device.
    taps: bool,
    pub process: Process,
    pub control: UnixStream,
    pub console: Console,
}

impl Pair {
    /// Starts both guests with these options. On return their TAP devices exist; they are down and
    /// in no bridge.
    ///
    /// # Errors
    /// If QEMU does not start, with its output.
    pub fn start(guests: [Guest<'_>; 2], options: GuestOptions) -> Result<Pair> {
        let kernel = Kernel::find().map_err(|missing| not_started("a guest", missing.reason))?;
        let initrd = initramfs::build(&kernel, &Besides::default())?;
        let accelerator = accelerator(&kernel)?;
        let tree = Processes::new()?;
        let boot = Boot { options, ..Boot::new(&tree, guests[0].host, &kernel, &initrd)? };
        let addresses = [guests[0].address, guests[1].address];
        let ports = guests.iter().filter(|guest| guest.nic == Nic::VhostUser);
        let ports = ports
            .map(|guest| {
                port::listen(&tree, guest.name, guest.host, options.queue_count() as usize)
            })
            .collect::<Result<_>>()?;
        let [client, server] = guests;
        let client = boot.start(&accelerator, client.name, client.host, Some(&client))?;
        let server = boot.start(&accelerator, server.name, server.host, Some(&server))?;
        let guests = [client, server];
        Ok(Pair { guests, ports, program: None, addresses, options, tree, accelerator })
    }

    /// Returns the ports of guests with [`Nic::VhostUser`], in order. QEMU waits until a program
    /// serves them.
    ///
    /// # Errors
    /// If a guest has none.
    pub fn take_ports(&mut self) -> Result<[GuestPort; 2]> {
        let ports: std::result::Result<[GuestPort; 2], _> =
            std::mem::take(&mut self.ports).try_into();
        ports.map_err(|_| not_started("guests' ports", "expected one for each guest"))
    }

    /// Adds the program `name` behind the client's NIC. `dropped` returns its total number of
    /// dropped packets.
    pub fn before(
        mut self,
        name: &'static str,
        dropped: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Pair {
        self.program = Some((name, Box::new(dropped)));
        self
    }

    /// Waits until both guests are up and returns the network of `hosts`, whose first two run the
    /// guests. `middle` holds the hops between the guests' NICs. `target` is the address that the
    /// client connects to, if it is not the server guest's own.
    ///
    /// # Errors
    /// If a guest does not boot, with the last lines of its console.
    pub fn network(
        self,
        hosts: Vec<Host>,
        tenant_mtu: u32,
        middle: Vec<Hop>,
        target: Option<Ipv4Addr>,
    ) -> Result<Network> {
        let Pair { mut guests, program, addresses, options, tree, accelerator, .. } = self;
        let mut at = |number: usize| guests[number].in_force(&hosts[number], &options);
        let in_force = [at(0)?, at(1)?];
        forget_files(&tree, &hosts[0])?;
        let [client, server] = guests;
        let first = Hop::tx(&client.name, NIC);
        let mut hops = vec![match program {
            Some((name, dropped)) => first.before(name, dropped),
            None => first,
        }];
        hops.extend(middle);
        hops.push(Hop::rx(&server.name, NIC));
        let own = addresses[1];
        let at = |address: Ipv4Addr| SocketAddr::new(IpAddr::V4(address), CONTROL_PORT);
        let links = GuestEnds {
            client: (client.name, client.control),
            server: (server.name, server.control),
            listen: at(own),
            target: at(target.unwrap_or(own)),
            in_force,
        };
        let note = format!(
            "{accelerator}; guest kernel {}; QEMU may run on any CPU, CPU time includes it",
            links.in_force[0].kernel
        );
        let mut network = Network::new(hosts, 0, 1, own, tenant_mtu, hops)
            .with_processes(tree, vec![client.process, server.process])
            .keeping(Box::new((client.console, server.console)))
            .with_guests(links)
            .noting(note);
        if let Some(target) = target {
            network = network.published_at(target);
        }
        Ok(network)
    }
}

const KERNEL_FILE: &str = "/tmp/kernel";
const INITRD_FILE: &str = "/tmp/initrd";

/// Removes the boot files of a tree's guests. QEMU has read them, and they take most of the
/// memory.
pub(super) fn forget_files(tree: &Processes, host: &Host) -> Result<()> {
    tree.inside(host, || {
        for file in [KERNEL_FILE, INITRD_FILE] {
            // The files are in the tree's own /tmp, which ends with it.
            let _ = std::fs::remove_file(file);
        }
    })
}

/// Boot files and options of the guests of one process tree.
pub(super) struct Boot<'a> {
    tree: &'a Processes,
    /// Memory of a guest, MiB.
    pub memory: usize,
    pub options: GuestOptions,
    /// Arguments of its first process besides name and address.
    pub arguments: &'static str,
}

impl Boot<'_> {
    /// Writes kernel and file system to the tree's private `/tmp`, which is memory.
    pub fn new<'a>(
        tree: &'a Processes,
        host: &Host,
        kernel: &Kernel,
        initrd: &[u8],
    ) -> Result<Boot<'a>> {
        let image = std::fs::read(kernel.image());
        let image =
            image.map_err(|e| sys::Error::io("read", kernel.image().display().to_string(), &e))?;
        tree.inside(host, || {
            std::fs::write(KERNEL_FILE, image)?;
            std::fs::write(INITRD_FILE, initrd)
        })?
        .map_err(|e| sys::Error::io("write", "the guests' file system in memory", &e))?;
        let memory = MEMORY + 3 * initrd.len().div_ceil(1 << 20);
        Ok(Boot { tree, memory, options: GuestOptions::AS_FOUND, arguments: "" })
    }

    pub fn start(
        &self,
        accelerator: &Accelerator,
        name: &str,
        host: &Host,
        guest: Option<&Guest<'_>>,
    ) -> Result<Running> {
        let socket = |what: &str| format!("/run/{name}.{what}");
        let chardev =
            |what: &str| format!("socket,id={what},path={},server=on,wait=on", socket(what));
        // The kernel passes arguments after `--` to the first process.
        let mut append = format!(
            "console=ttyS0 panic=-1 quiet loglevel=4 rdinit={} -- lab guest {name}{}",
            initramfs::PROGRAM,
            self.arguments
        );
        let mut command = Command::new(QEMU);
        command
            .args(accelerator.arguments())
            .args(["-smp", &self.options.cpu_count().to_string()])
            .args(["-m", &self.memory.to_string()])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-chardev", &chardev("console"), "-serial", "chardev:console"])
            .args(["-chardev", &chardev("control"), "-device", "virtio-serial-pci"])
            .args(["-device", &format!("virtserialport,chardev=control,name={CONTROL}")]);
        if let Some(guest) = guest {
            append += &format!(" --address {}/{} --mtu {}", guest.address, guest.prefix, guest.mtu);
            // Without KVM, QEMU 7.2 crashes with SIGSEGV when a vhost-user guest masks an MSI-X
            // vector (`kvm_virtio_pci_irqfd_use`, without irqfd).
            let msi_x = guest.nic != Nic::VhostUser || matches!(accelerator, Accelerator::Kvm);
            let mut device = self.options.device(msi_x);
            let backend = match &guest.nic {
                Nic::Tap { finished } => {
                    if *finished {
                        device += FINISHED;
                    }
                    let more = self.options.netdev();
                    format!("tap,id=net,ifname={TAP},script=no,downscript=no{more}")
                }
                Nic::User { gateway, published } => {
                    append += &format!(" --gateway {gateway}");
                    let network = Ipv4Addr::from_bits(gateway.to_bits() & (u32::MAX << 8));
                    let mut backend = format!(
                        "user,id=net,restrict=off,ipv6=off,net={network}/24,host={gateway},\
                         dhcpstart={}",
                        guest.address
                    );
                    for (address, port) in published {
                        for protocol in ["tcp", "udp"] {
                            backend += &format!(
                                ",hostfwd={protocol}:{address}:{port}-{}:{port}",
                                guest.address
                            );
                        }
                    }
                    backend
                }
                Nic::VhostUser => {
                    command.args(port::arguments(name, self.memory));
                    format!("vhost-user,id=net,chardev=port{}", self.options.netdev_queues())
                }
            };
            // Empty romfile: the guest does not boot from the NIC.
            let mac = mac(name, NIC);
            let device = format!("virtio-net-pci,netdev=net,mac={mac},romfile={device}");
            command.args(["-netdev", &backend, "-device", &device]);
        } else {
            command.args(["-nic", "none"]);
        }
        command.args(["-kernel", KERNEL_FILE, "-initrd", INITRD_FILE, "-append", &append]);
        let mut process = self.tree.start_as(&format!("QEMU of {name}"), host, &mut command)?;
        // Connect in the order in which QEMU waits.
        let console = self.connect(host, &mut process, &socket("console"))?;
        let console = Console::follow(console)?;
        let control = self.connect(host, &mut process, &socket("control"))?;
        // Drop QEMU's messages about waiting: they do not explain a later exit.
        process.forget_output();
        let taps = guest.is_some_and(|guest| matches!(guest.nic, Nic::Tap { .. }));
        // QEMU creates the device itself: wait for it.
        if taps {
            poll(&format!("TAP device of {name}"), START_LIMIT, || {
                process.check()?;
                Ok(host.netlink().link(TAP).map(drop).map_err(|error| error.to_string()))
            })?;
            // QEMU has no option for it.
            if let Some(packets) = self.options.txqueuelen {
                host.netlink().set_tx_queue_len(TAP, packets)?;
            }
        }
        Ok(Running { name: name.to_owned(), taps, process, control, console })
    }

    fn connect(&self, host: &Host, process: &mut Process, path: &str) -> Result<UnixStream> {
        poll(path, START_LIMIT, || {
            process.check()?;
            let connected = self.tree.inside(host, || UnixStream::connect(path))?;
            Ok(connected.map_err(|error| error.to_string()))
        })
    }
}

impl Running {
    /// Waits until the guest is up and returns the settings in force.
    ///
    /// # Errors
    /// If a requested setting is not in force.
    fn in_force(&mut self, host: &Host, asked: &GuestOptions) -> Result<InForce> {
        let said = self.up(BOOT_LIMIT)?;
        let tap = self.taps.then(|| in_force::tap(host, self.process.pid())).transpose()?;
        let in_force = said.in_force(&self.name, tap);
        match in_force.differs(asked) {
            Some(problem) => Err(not_started(&format!("guest {}", self.name), problem)),
            None => Ok(in_force),
        }
    }

    /// Waits until the guest is up and returns its report.
    pub fn up(&mut self, limit: Duration) -> Result<Said> {
        let io = |e: &std::io::Error| sys::Error::io("read", "control port of a guest", e);
        self.control.set_nonblocking(true).map_err(|e| io(&e))?;
        let mut line = Vec::new();
        let (control, process, console) = (&mut self.control, &mut self.process, &self.console);
        let part = format!("guest {}", self.name);
        let waited = poll(&part, limit, || {
            loop {
                let mut byte = [0];
                match control.read(&mut byte) {
                    Ok(1) if byte[0] == b'\n' => return Ok(Ok(())),
                    Ok(1) if line.len() < LINE => line.push(byte[0]),
                    // The guest is not trusted: bound its line.
                    Ok(1) => return Err(not_started(&part, "its report is too long")),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        process.check().map_err(|error| ended(&part, &error, console))?;
                        return Ok(Err(console.words()));
                    }
                    // QEMU closes the port when it ends, also after a panic of the guest.
                    _ => {
                        let error = last_words(process);
                        return Err(not_started(&part, format!("{error}{}", console.words())));
                    }
                }
            }
        });
        waited?;
        let said = String::from_utf8_lossy(&line).into_owned();
        match said.split_once(' ') {
            Some((READY, said)) => Ok(Said::parse(&words(said.as_bytes()))),
            Some((FAILED, reason)) => Err(not_started(&part, words(reason.as_bytes()))),
            _ => Err(not_started(&part, format!("unexpected report {:?}", words(&line)))),
        }
    }
}

/// Returns the reason why QEMU ended, once it is known.
pub(super) fn last_words(process: &mut Process) -> testbed::Error {
    let ended = poll("QEMU's end", Duration::from_secs(5), || {
        Ok(match process.check() {
            Ok(()) => Err(String::new()),
            Err(error) => Ok(error),
        })
    });
    ended.unwrap_or_else(|error| error)
}

/// Returns the error for QEMU's end, with the last lines of the console.
pub(super) fn ended(part: &str, error: &testbed::Error, console: &Console) -> testbed::Error {
    not_started(part, format!("{error}{}", console.words()))
}

/// Returns the accelerator of guests. KVM is tried once.
pub(super) fn accelerator(kernel: &Kernel) -> Result<Accelerator> {
    static KNOWN: OnceLock<Accelerator> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let found = match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        Err(error) => Accelerator::Tcg(format!("/dev/kvm: {error}")),
        // KVM may exist and still not run a guest: nested, or without privileges.
        Ok(_) => match trial(kernel) {
            Ok(()) => Accelerator::Kvm,
            // An interrupt says nothing about KVM, so do not remember it.
            Err(error @ testbed::Error::Interrupted { .. }) => return Err(error),
            Err(error) => Accelerator::Tcg(first_line(&error)),
        },
    };
    Ok(KNOWN.get_or_init(|| found).clone())
}

fn first_line(error: &testbed::Error) -> String {
    words(error.to_string().lines().next().unwrap_or_default().as_bytes())
}

/// Boots a guest without a NIC under KVM.
fn trial(kernel: &Kernel) -> Result<()> {
    let host = Host::new("trial")?;
    let tree = Processes::new()?;
    let initrd = initramfs::build(kernel, &Besides::default())?;
    let boot = Boot::new(&tree, &host, kernel, &initrd)?;
    boot.start(&Accelerator::Kvm, "trial", &host, None)?.up(TRIAL_LIMIT).map(drop)
}
