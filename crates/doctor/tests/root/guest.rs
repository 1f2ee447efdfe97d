//! Makes faults of hardware, a hypervisor or the whole machine in a QEMU guest with a stock kernel,
//! all in one boot. Each must be found under the check's code, without other findings.
//!
//! A bridge of this machine forwards a virtual network to the guest's `nic0` (virtio, two queues,
//! RSS) and to `nic1` (virtio, one queue, on the second NUMA node), which is in a namespace of its
//! own. The other ends of `vmx0` (vmxnet3) and `stuck0` (virtio) are not read.

mod bench;
mod list;
use crate::qemu;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use doctor::Severity;
use qemu::Guest;
use test_support::{need, require};
use testbed::Host;

/// The test that the guest runs, in this program: it performs the part inside.
const INSIDE: &str = "guest::machine_wide_faults_are_found_in_a_guest";
/// Prefix of the guest's lines that report a fault's finding and other findings.
const REPORT: &str = "fault\t";
/// Names of the guest's saved state before any fault, and after all of them.
const BEFORE: &str = "healthy";
const AFTER: &str = "healthy again";
/// Names the directory in which the hosts are saved, except those whose fault other checks see,
/// too, as the library for `tests/hosts.rs`.
const SAVE: &str = "OVERLANE_SAVE_HOSTS";

/// Whether a fault that the check must find is made in a guest.
pub fn covers(code: &str) -> bool {
    list::FAULTS.iter().any(|fault| fault.code == code)
}

/// Makes every fault, one after the other, and prints a line for each: `fault`, its code, the
/// findings, separated by tabs.
fn make_every_fault() {
    /// A busy machine may take CPU time from the guest that a share is computed from: each try
    /// watches for longer.
    const TRIES: u32 = 4;
    let bench = bench::Bench::set_up();
    let say = |name: &str, found: &[String]| println!("{REPORT}{name}\t{}", found.join(","));
    let at_rest = |name: &str| say(name, &bench.found(name, Duration::from_millis(600)));
    at_rest(BEFORE);
    for fault in list::FAULTS {
        let begun = Instant::now();
        let made = (fault.make)(&bench);
        let mut found = Vec::new();
        for tried in 1..=TRIES {
            found = bench.found(fault.code, fault.interval * tried);
            if found.iter().any(|found| found.starts_with(fault.code)) {
                break;
            }
        }
        say(fault.code, &found);
        drop(made);
        eprintln!("{}: {:?}", fault.code, begun.elapsed());
    }
    at_rest(AFTER);
}

/// The machine's side: a bridge between the TAP devices of the guest's NICs.
fn outside() -> Host {
    let host = Host::new("outside").unwrap();
    let ip = |line: &str| host.run(Command::new("ip").args(line.split(' '))).unwrap();
    ip("link add br0 type bridge");
    ip("link set dev br0 up");
    for (tap, queues) in [("tap0", " multi_queue"), ("tap1", "")] {
        ip(&format!("tuntap add dev {tap} mode tap vnet_hdr{queues}"));
        ip(&format!("link set dev {tap} master br0"));
        ip(&format!("link set dev {tap} up"));
    }
    host
}

#[test]
fn machine_wide_faults_are_found_in_a_guest() {
    if qemu::is_inside() {
        return make_every_fault();
    }
    require!(need::networks());
    let guest = require!(Guest::find());
    let host = outside();
    let directory = tempfile::tempdir().unwrap();
    let unread = directory.path().join("unread");
    // Accepts the guest's packets until the socket's buffer is full.
    let _listener = UnixListener::bind(&unread).unwrap();
    let devices = format!(
        "-smbios type=1,manufacturer=VMware \
         -device pxb,id=far,bus_nr=64,numa_node=1 \
         -netdev tap,id=n0,ifname=tap0,queues=2,script=no,downscript=no,vhost=off \
         -device virtio-net-pci,netdev=n0,bus=pci.0,mq=on,rss=on,vectors=6,mac=02:00:00:00:00:10 \
         -netdev tap,id=n1,ifname=tap1,script=no,downscript=no,vhost=off \
         -device virtio-net-pci,netdev=n1,bus=far,addr=1,mac=02:00:00:00:00:11 \
         -netdev hubport,id=n2,hubid=0 -device vmxnet3,netdev=n2,bus=pci.0,mac=02:00:00:00:00:12 \
         -netdev stream,id=n3,server=off,addr.type=unix,addr.path={} \
         -device virtio-net-pci,netdev=n3,bus=pci.0,mac=02:00:00:00:00:13",
        unread.display()
    );
    let mut guest = guest
        .with_programs(&["ip", "bridge", "tc", "ethtool"])
        .with_devices(&devices)
        .with_two_nodes()
        .inside(host.netns().clone());
    let save = std::env::var_os(SAVE).map(PathBuf::from);
    let kept = list::FAULTS.iter().filter(|fault| fault.also.is_empty());
    for name in kept.map(|fault| fault.code).chain([BEFORE]).filter(|_| save.is_some()) {
        guest = guest.fetching(&bench::saved(name));
    }
    let here = std::env::current_exe().unwrap();
    let output = guest.run(&here, &["--exact", INSIDE, "--nocapture"]);
    for (path, bytes) in &output.files {
        let name = path.rsplit('/').next().unwrap();
        let name = if name == BEFORE { "guest".to_owned() } else { format!("{name}-guest") };
        std::fs::write(save.as_ref().unwrap().join(name + ".tar.zst"), bytes).unwrap();
    }
    let mut problems = Vec::new();
    let mut seen = 0;
    for line in output.stdout.lines().filter_map(|line| line.split_once(REPORT)) {
        let (code, found) = line.1.split_once('\t').unwrap();
        println!("{code}: {found}");
        let fault = list::FAULTS.iter().find(|fault| fault.code == code);
        seen += usize::from(fault.is_some());
        let found: Vec<&str> = found.split(',').filter(|found| !found.is_empty()).collect();
        if fault.is_some() && !found.iter().any(|found| found.starts_with(code)) {
            problems.push(format!("{code}: not found: {found:?}"));
        }
        let also = fault.map_or(&[][..], |fault| fault.also);
        for other in found {
            let expected = other.starts_with(code)
                || code == AFTER && other.starts_with(list::STAYS)
                || also.iter().any(|also| other.starts_with(also))
                || bench::severity(other) < Severity::Warn;
            if !expected {
                problems.push(format!("{code}: also {other}"));
            }
        }
    }
    let said = format!("{}\n{}\n{}", output.stdout, output.stderr, output.console);
    assert_eq!(output.status, Some(0), "{said}");
    assert_eq!(seen, list::FAULTS.len(), "{said}");
    assert!(problems.is_empty(), "{}\n{said}", problems.join("\n"));
}
