//! One end of a path between two machines: its process, its network namespace and its device.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use netstate::Netlink;
use netstate::proc::read_value;
use sys::netns::NetNs;

use results::DeviceRecord;

/// Returns the boot ID of this kernel. Containers of one machine share it.
pub(super) fn boot() -> Result<String, String> {
    let path = "/proc/sys/kernel/random/boot_id";
    read_value(path).map(|id| id.trim().to_owned()).map_err(|e| e.to_string())
}

/// Returns this process's PID in `/proc`, and the inode of its PID namespace.
pub(super) fn process() -> Result<(u32, u64), String> {
    let failed = |path: &str, e: std::io::Error| format!("{path}: {e}");
    let link = std::fs::read_link("/proc/self").map_err(|e| failed("/proc/self", e))?;
    let pid = link
        .to_str()
        .and_then(|pid| pid.parse().ok())
        .ok_or_else(|| format!("/proc/self: expected a number, got {}", link.display()))?;
    let path = "/proc/self/ns/pid";
    let namespace = std::fs::metadata(path).map_err(|e| failed(path, e))?.ino();
    Ok((pid, namespace))
}

/// Returns the device that routes to `address` in this namespace, and its active features. `host`
/// names this end in the results.
pub(crate) fn device_to(
    netns: &NetNs,
    address: IpAddr,
    host: &str,
) -> Result<DeviceRecord, String> {
    let netlink = Netlink::open_in(netns).map_err(|e| e.to_string())?;
    let device = netlink.device_to(address).map_err(|e| e.to_string())?;
    let mtu = netlink.link(&device).map_err(|e| e.to_string())?.mtu;
    let features = netns
        .run(|| sys::ethtool::Ethtool::open()?.features(&device))
        .and_then(|features| features)
        .map_err(|e| e.to_string())?;
    Ok(DeviceRecord {
        host: host.to_owned(),
        device,
        mtu,
        features: features.into_iter().map(|(name, f)| (name, f.active)).collect(),
    })
}
