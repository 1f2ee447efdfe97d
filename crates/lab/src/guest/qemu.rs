//! QEMU, and its guests until they are up.

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
/// How long QEMU may take to offer its sockets and its TAP device.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a guest may take to be up in software emulation: it takes some 3 s on an idle
/// machine.
pub(super) const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// The same under KVM, when it is tried whether that works.
const TRIAL_LIMIT: Duration = Duration::from_secs(20);
/// Longest line by which a guest says that it is up.
const LINE: usize = 1024;
/// MiB of a guest besides its file system, which is in memory up to three times while it is
/// unpacked.
const MEMORY: usize = 160;

/// Whether guests can be run here: QEMU, and a kernel for them.
pub(crate) fn supported(machine: &Capabilities) -> Supported {
    if !cfg!(target_arch = "x86_64") {
        return Err(Unsupported::new("guests need an x86-64 machine", "use one"));
    }
    machine.program(QEMU, PACKAGE)?;
    Kernel::find().map(drop)
}

/// Properties of a virtio-net whose guest does its own checksums and segmentation.
const FINISHED: &str = ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";

/// What runs the guests' CPUs.
#[derive(Debug, Clone)]
pub(super) enum Accelerator {
    Kvm,
    /// Software emulation, and why.
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

/// A guest to be started.
pub(crate) struct Guest<'a> {
    /// Name of the tenant.
    pub name: &'static str,
    /// Where QEMU runs.
    pub host: &'a Host,
    pub address: Ipv4Addr,
    pub prefix: u8,
    pub mtu: u32,
    pub nic: Nic,
}

/// What the guest's virtio-net is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nic {
    /// A TAP device in its host, [`TAP`]. What the guest sends is `finished`: it leaves no
    /// checksum to do, and no packet to cut.
    Tap { finished: bool },
    /// QEMU's own stack (libslirp), with these ports of the host's address led to the guest.
    User { gateway: Ipv4Addr, published: Vec<(Ipv4Addr, u16)> },
    /// A program in user space that reads and writes the guest's rings; see
    /// [`Pair::take_ports`].
    VhostUser,
}

/// Two guests, client and server, whose QEMU runs.
pub(crate) struct Pair {
    guests: [Running; 2],
    ports: Vec<GuestPort>,
    program: Option<(&'static str, Dropped)>,
    addresses: [Ipv4Addr; 2],
    options: GuestOptions,
    tree: Processes,
    accelerator: Accelerator,
}

/// Asks a program how many frames it has dropped.
type Dropped = Box<dyn Fn() -> u64 + Send + Sync>;

/// QEMU with a guest.
pub(super) struct Running {
    name: String,
    /// It is behind a TAP device.
    taps: bool,
    pub process: Process,
    pub control: UnixStream,
    pub console: Console,
}

impl Pair {
    /// Starts both, with these options. Their TAP devices are there when this returns, down and in no bridge.
    ///
    /// # Errors
    /// When QEMU does not start, with what it printed.
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

    /// The ports that guests with [`Nic::VhostUser`] are connected to, in their order. QEMU
    /// goes on when they are served.
    ///
    /// # Errors
    /// When a guest has none.
    pub fn take_ports(&mut self) -> Result<[GuestPort; 2]> {
        let ports: std::result::Result<[GuestPort; 2], _> =
            std::mem::take(&mut self.ports).try_into();
        ports.map_err(|_| not_started("guests' ports", "expected one for each guest"))
    }

    /// Packets cross the program `name` behind the client's NIC; `dropped` says how many it
    /// has dropped since it began.
    pub fn before(
        mut self,
        name: &'static str,
        dropped: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Pair {
        self.program = Some((name, Box::new(dropped)));
        self
    }

    /// The network of `hosts`, of which the first two have the guests, when both are up;
    /// `middle` are the hops from one guest's NIC to the other's. The client reaches the
    /// server at `target`, where that is not the guest's own address.
    ///
    /// # Errors
    /// When a guest does not come up, with its console's last lines.
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
            "{accelerator}; guest kernel {}; QEMU runs on any CPU, its time is in the CPU time",
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

/// Removes what guests of a tree have booted: QEMU has read it, and it is most of what the
/// guests take of memory.
pub(super) fn forget_files(tree: &Processes, host: &Host) -> Result<()> {
    tree.inside(host, || {
        for file in [KERNEL_FILE, INITRD_FILE] {
            let _ = std::fs::remove_file(file);
        }
    })
}

/// What guests of one process tree boot.
pub(super) struct Boot<'a> {
    tree: &'a Processes,
    /// MiB.
    pub memory: usize,
    pub options: GuestOptions,
    /// What its first process is told besides its name and address.
    pub arguments: &'static str,
}

impl Boot<'_> {
    /// Puts kernel and file system where the tree's programs see them: in its own `/tmp`,
    /// which is memory.
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
        // What the kernel does not know goes to the first process.
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
            // QEMU 7.2 without KVM ends by SIGSEGV when a guest under vhost-user masks a vector of
            // MSI-X (`kvm_virtio_pci_irqfd_use`, without irqfd).
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
            // Nothing is booted from it.
            let mac = mac(name, NIC);
            let device = format!("virtio-net-pci,netdev=net,mac={mac},romfile={device}");
            command.args(["-netdev", &backend, "-device", &device]);
        } else {
            command.args(["-nic", "none"]);
        }
        command.args(["-kernel", KERNEL_FILE, "-initrd", INITRD_FILE, "-append", &append]);
        let mut process = self.tree.start_as(&format!("QEMU of {name}"), host, &mut command)?;
        // In the order in which QEMU waits for them.
        let console = self.connect(host, &mut process, &socket("console"))?;
        let console = Console::follow(console)?;
        let control = self.connect(host, &mut process, &socket("control"))?;
        // That it waited for these says nothing of why it ends.
        process.forget_output();
        let taps = guest.is_some_and(|guest| matches!(guest.nic, Nic::Tap { .. }));
        if taps {
            poll(&format!("TAP device of {name}"), START_LIMIT, || {
                process.check()?;
                Ok(host.netlink().link(TAP).map(drop).map_err(|error| error.to_string()))
            })?;
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
    /// What is in force at the guest, when it is up.
    ///
    /// # Errors
    /// When something else than was asked for is.
    fn in_force(&mut self, host: &Host, asked: &GuestOptions) -> Result<InForce> {
        let said = self.up(BOOT_LIMIT)?;
        let tap = self.taps.then(|| in_force::tap(host, self.process.pid())).transpose()?;
        let in_force = said.in_force(&self.name, tap);
        match in_force.differs(asked) {
            Some(problem) => Err(not_started(&format!("guest {}", self.name), problem)),
            None => Ok(in_force),
        }
    }

    /// Waits until the guest says that it is up; what it says of itself.
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
                    Ok(1) => return Err(not_started(&part, "it says no word that is known")),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        process.check().map_err(|error| ended(&part, &error, console))?;
                        return Ok(Err(console.words()));
                    }
                    // QEMU closes it when it ends, which it does when the guest panics.
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
            _ => Err(not_started(&part, format!("it says {:?}", words(&line)))),
        }
    }
}

/// Why QEMU has ended, as soon as that can be told.
pub(super) fn last_words(process: &mut Process) -> testbed::Error {
    let ended = poll("QEMU's end", Duration::from_secs(5), || {
        Ok(match process.check() {
            Ok(()) => Err(String::new()),
            Err(error) => Ok(error),
        })
    });
    ended.unwrap_or_else(|error| error)
}

/// QEMU's end, with what the guest said last.
pub(super) fn ended(part: &str, error: &testbed::Error, console: &Console) -> testbed::Error {
    not_started(part, format!("{error}{}", console.words()))
}

/// Whether KVM runs the guests: it is tried, once.
pub(super) fn accelerator(kernel: &Kernel) -> Result<Accelerator> {
    static KNOWN: OnceLock<Accelerator> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let found = match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        Err(error) => Accelerator::Tcg(format!("/dev/kvm: {error}")),
        // It may be there and not run a guest: nested, or without rights to what it needs.
        Ok(_) => match trial(kernel) {
            Ok(()) => Accelerator::Kvm,
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
