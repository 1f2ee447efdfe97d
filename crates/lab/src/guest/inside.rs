//! First steps of a guest's first process: file systems, modules, address, control port.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netstate::Netlink;
use netstate::route::Route;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use sys::ethtool::Ethtool;

use super::initramfs::MODULES;
use super::{CONTROL, FAILED, READY};
use crate::guest_in_force::Said;

/// The guest's only NIC.
pub(crate) const NIC: &str = "eth0";
/// Time limit for a device to appear after its driver was loaded.
const DEVICE_LIMIT: Duration = Duration::from_secs(10);
/// `MODULE_INIT_COMPRESSED_FILE` (linux/module.h): the kernel unpacks it.
const COMPRESSED: i32 = 4;

/// Configuration of a guest.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Address and prefix length of its NIC; `None`: it has no NIC.
    pub address: Option<(Ipv4Addr, u8)>,
    /// MTU of its NIC, bytes.
    pub mtu: u32,
    /// Its default route.
    pub gateway: Option<Ipv4Addr>,
}

/// Returns whether this process is the first of a guest that is not set up yet. Nothing is
/// mounted there, so setting up cannot change this machine.
pub fn is_inside() -> bool {
    std::process::id() == 1 && !Path::new("/proc/self").exists()
}

/// Sets the guest up, reports that it is ready, and returns its control port.
///
/// # Errors
/// The first step that failed, also reported on the control port if that exists.
pub fn prepare(setup: &Setup) -> Result<File, String> {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>)
            .map_err(|error| format!("mount {kind} on {at}: {error}"))?;
    }
    let loaded = load_modules();
    let mut port = control_port()?;
    let done = loaded.and_then(|()| network(setup)).and_then(|()| said(setup));
    let line = match &done {
        Ok(said) => format!("{READY} {said}\n"),
        Err(reason) => format!("{FAILED} {}\n", reason.replace('\n', " ")),
    };
    port.write_all(line.as_bytes()).map_err(|error| format!("control port: {error}"))?;
    done.map(|_| port)
}

/// Collects the report of the guest from its own kernel.
fn said(setup: &Setup) -> Result<Said, String> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        Ok::<_, String>(text.trim().to_owned())
    };
    let kernel = read("/proc/sys/kernel/osrelease")?;
    let cpus = read("/sys/devices/system/cpu/online")?;
    let cpus = netstate::cpu::parse_list(&cpus).map_or(0, |cpus| cpus.len() as u32);
    let mut said = Said { kernel, cpus, queues: 0, features: 0 };
    // Without an address the guest has no NIC.
    if setup.address.is_some() {
        let channels = Ethtool::open().and_then(|ethtool| ethtool.channels(NIC));
        said.queues = channels.map_err(|error| error.to_string())?.combined.now;
        // One character per feature, bit 0 first (drivers/virtio/virtio.c).
        let features = read(&format!("/sys/class/net/{NIC}/device/features"))?;
        let agreed = features.bytes().take(128).enumerate().filter(|(_, bit)| *bit == b'1');
        said.features = agreed.fold(0, |features, (bit, _)| features | 1 << bit);
    }
    Ok(said)
}

pub fn power_off() {
    // On failure the first process ends, the guest panics, and QEMU ends, too.
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

fn load_modules() -> Result<(), String> {
    let entries = std::fs::read_dir(MODULES).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    for path in files {
        let file = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let plain = path.extension().is_some_and(|extension| extension == "ko");
        let flags = if plain { 0 } else { COMPRESSED };
        match finit_module(&file, c"", ModuleInitFlags::from_bits_retain(flags as u32)) {
            // EEXIST: the module is already loaded.
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(error) => return Err(format!("load {}: {error}", path.display())),
        }
    }
    Ok(())
}

/// Finds the control port by name, once its driver has created it.
fn control_port() -> Result<File, String> {
    const PORTS: &str = "/sys/class/virtio-ports";
    let begun = Instant::now();
    loop {
        for entry in std::fs::read_dir(PORTS).into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == CONTROL {
                let path = Path::new("/dev").join(entry.file_name());
                if let Ok(port) = File::options().read(true).write(true).open(&path) {
                    return Ok(port);
                }
            }
        }
        // The driver creates the device soon after it is loaded, or never.
        if begun.elapsed() > DEVICE_LIMIT {
            return Err(format!(
                "no virtio port {CONTROL} within {DEVICE_LIMIT:.0?}: the kernel lacks \
                 virtio_console or virtio_pci"
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn network(setup: &Setup) -> Result<(), String> {
    for which in ["default", "all"] {
        let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        // A kernel without IPv6 does not have this file.
        let _ = std::fs::write(path, "1");
    }
    let words = |error: netstate::Error| error.to_string();
    let netlink = Netlink::open().map_err(words)?;
    netlink.set_up("lo").map_err(words)?;
    // A guest without a NIC has no address.
    let Some((address, prefix)) = setup.address else { return Ok(()) };
    let begun = Instant::now();
    while let Err(error) = netlink.link(NIC) {
        // The kernel finds devices while this process runs already.
        if begun.elapsed() > DEVICE_LIMIT {
            return Err(format!("{error}: the kernel lacks virtio_net"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    netlink.set_mtu(NIC, setup.mtu).map_err(words)?;
    netlink.add_address(NIC, address.into(), prefix).map_err(words)?;
    netlink.set_up(NIC).map_err(words)?;
    if let Some(gateway) = setup.gateway {
        netlink.add_route(&Route::default_by(gateway, NIC)).map_err(words)?;
    }
    Ok(())
}
