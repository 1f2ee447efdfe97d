//! The guest's network, and the means to make and undo a fault in it.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doctor::{Scope, Severity, collect, diagnose};
use sys::netns::NetNs;
use testbed::Host;

/// Time limit of a step in software emulation.
pub const LIMIT: Duration = Duration::from_secs(30);
pub const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The other end of the tunnel, within it.
pub const TUNNELLED: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

/// The guest's two ends of the virtual network.
pub struct Bench {
    pub own: Host,
    pub peer: Host,
}

/// Undone on drop, in reverse order.
pub struct Made(Vec<Box<dyn FnOnce()>>);

/// The severity in an output of `Bench::found`.
pub fn severity(found: &str) -> Severity {
    match found.split(' ').nth(1) {
        Some("Info") => Severity::Info,
        Some("Warn") => Severity::Warn,
        _ => Severity::Error,
    }
}

/// File in which the guest saves a host.
pub fn saved(name: &str) -> String {
    format!("/tmp/{name}")
}

/// Runs a command line of plain words.
pub fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{line}: {} {text}", output.status);
    text
}

/// The name of the device whose MAC address ends with this byte.
fn device(last: u8) -> Option<String> {
    let wanted = format!("02:00:00:00:00:{last:02x}");
    let found = std::fs::read_dir("/sys/class/net").unwrap().flatten().find(|entry| {
        std::fs::read_to_string(entry.path().join("address"))
            .is_ok_and(|address| address.trim() == wanted)
    });
    Some(found?.file_name().into_string().unwrap())
}

impl Bench {
    pub fn set_up() -> Bench {
        // Keeps the other CPU free for the traffic of faults.
        sys::affinity::pin(0).unwrap();
        for module in ["virtio_pci", "virtio_net", "vmxnet3", "nf_conntrack", "openvswitch"] {
            run(&format!("modprobe {module}"));
        }
        for (last, name) in [(0x10, "nic0"), (0x11, "nic1"), (0x12, "vmx0"), (0x13, "stuck0")] {
            let there = || Ok(device(last).ok_or_else(|| run("ip link")));
            let found = testbed::poll(name, LIMIT, there).unwrap();
            run(&format!("ip link set dev {found} name {name}"));
        }
        run("ip link set dev lo up");
        run("ip netns add peer");
        run("ip link set dev nic1 netns peer");
        let peer = NetNs::open("/run/netns/peer".as_ref()).unwrap();
        let bench = Bench {
            own: Host::found("own", NetNs::current().unwrap()).unwrap(),
            peer: Host::found("peer", peer).unwrap(),
        };
        // One queue for each CPU, with its own interrupt.
        run("ethtool -L nic0 combined 2");
        // Otherwise the driver does not tell QEMU which fields to hash.
        run("ethtool -K nic0 rxhash on");
        for (host, nic, own, other, tunnelled) in
            [(&bench.own, "nic0", OWN, PEER, 1), (&bench.peer, "nic1", PEER, OWN, 2)]
        {
            let ip = |line: &str| host.run(Command::new("ip").args(line.split(' '))).unwrap();
            ip(&format!("address add {own}/24 dev {nic}"));
            ip(&format!("link set dev {nic} up"));
            ip(&format!(
                "link add vxlan0 type vxlan id 42 dstport 4789 local {own} remote {other} dev {nic}"
            ));
            ip(&format!("address add 10.1.0.{tunnelled}/24 dev vxlan0"));
            ip("link set dev vxlan0 up");
        }
        // The second NUMA node's CPU takes its NIC's interrupts.
        bench.interrupts("nic1", "1");
        bench.interrupts_by_queue();
        bench.reach(TUNNELLED);
        bench
    }

    /// A datagram from here arrives at the peer's socket.
    fn reach(&self, address: Ipv4Addr) {
        let bind = || {
            let socket = UdpSocket::bind((address, 9)).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            socket
        };
        let server = self.peer.netns().run(bind).unwrap();
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        testbed::poll("the first datagram", LIMIT, || {
            let _ = client.send_to(b"overlay", (address, 9));
            Ok(server.recv(&mut [0; 16]).map(drop).map_err(|error| error.to_string()))
        })
        .unwrap();
    }

    /// Findings as code, severity, namespace and object; saves the data read without addresses.
    pub fn found(&self, name: &str, interval: Duration) -> Vec<String> {
        let host = collect(Scope::All, interval).unwrap();
        let file = std::fs::File::create(saved(name)).unwrap();
        doctor::dump::write(&doctor::scrub::scrub(&host).unwrap(), file).unwrap();
        let diagnosis = diagnose(&host);
        for finding in &diagnosis.findings {
            eprintln!("  {} {} {:?}", finding.code, finding.object, finding.evidence);
        }
        for skipped in diagnosis.skipped {
            eprintln!("  not checked: {skipped:?}");
        }
        let findings = diagnosis.findings.into_iter();
        let said =
            findings.map(|f| format!("{} {:?} {} {}", f.code, f.severity, f.namespace, f.object));
        said.collect()
    }

    /// Numbers of a NIC's interrupts for received packets, queue by queue.
    fn receive_interrupts(&self, nic: &str) -> Vec<u32> {
        let host = if nic == "nic1" { &self.peer } else { &self.own };
        let info = host.run(Command::new("ethtool").args(["-i", nic])).unwrap();
        let bus = info.lines().find_map(|line| line.strip_prefix("bus-info: ")).unwrap();
        let directory = format!("/sys/bus/pci/devices/{bus}/msi_irqs");
        let mut numbers: Vec<u32> = std::fs::read_dir(directory)
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().to_str().unwrap().parse().unwrap())
            .collect();
        numbers.sort_unstable();
        numbers.retain(|number| {
            let entries = std::fs::read_dir(format!("/proc/irq/{number}")).unwrap().flatten();
            entries.into_iter().any(|e| e.file_name().to_string_lossy().contains("-input."))
        });
        numbers
    }

    /// The files that set the CPUs of these interrupts.
    pub fn interrupt_files(&self, nic: &str) -> Vec<String> {
        let file = |number| format!("/proc/irq/{number}/smp_affinity_list");
        self.receive_interrupts(nic).into_iter().map(file).collect()
    }

    /// Assigns all of them to a CPU.
    pub fn interrupts(&self, nic: &str, cpu: &str) {
        for file in self.interrupt_files(nic) {
            std::fs::write(file, cpu).unwrap();
        }
    }

    /// Assigns each queue of `nic0` to another CPU.
    fn interrupts_by_queue(&self) {
        for (cpu, file) in self.interrupt_files("nic0").into_iter().enumerate() {
            std::fs::write(file, cpu.to_string()).unwrap();
        }
    }
}

impl Made {
    pub fn nothing() -> Made {
        Made(Vec::new())
    }

    /// Adds an action for undo.
    pub fn and(mut self, undo: impl FnOnce() + 'static) -> Made {
        self.0.push(Box::new(undo));
        self
    }

    /// Runs a command, and adds its inverse for undo.
    pub fn by(self, line: &str, undo: &str) -> Made {
        run(line);
        let undo = undo.to_owned();
        self.and(move || drop(run(&undo)))
    }

    /// Writes a file below `/proc` or `/sys`, to be restored later.
    pub fn set(self, path: &str, value: &str) -> Made {
        let before = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
        std::fs::write(path, value).unwrap_or_else(|e| panic!("{path}: {value}: {e}"));
        let path = path.to_owned();
        self.and(move || std::fs::write(path, before.trim()).unwrap())
    }

    /// Sends datagrams from a host on a CPU until the end, from `ports` ports in turn and with a
    /// pause after each.
    pub fn datagrams(
        self,
        host: &Host,
        (cpu, ports): (usize, usize),
        to: impl Into<SocketAddr>,
        pause: Duration,
    ) -> Made {
        let to = to.into();
        let bind = || {
            let open = |_| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                // A stalled device keeps queued packets.
                socket.set_nonblocking(true).unwrap();
                socket
            };
            (0..ports).map(open).collect::<Vec<_>>()
        };
        let sockets = host.netns().run(bind).unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let sender = std::thread::spawn(move || {
            sys::affinity::pin(cpu).unwrap();
            for socket in sockets.iter().cycle() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let _ = socket.send_to(&[7; 64], to);
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
        });
        self.and(move || {
            end.store(true, Ordering::Relaxed);
            sender.join().unwrap();
        })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        while let Some(undo) = self.0.pop() {
            undo();
        }
    }
}
