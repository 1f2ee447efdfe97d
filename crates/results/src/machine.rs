//! Environment of a run: the machine, the modes, the testbeds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{CpuClock, Privileges, Profile, Status};

/// The machine of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// `model name` of `/proc/cpuinfo`.
    pub cpu_model: String,
    /// Number of online CPUs.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub cpus: usize,
    /// MemTotal of /proc/meminfo, bytes.
    pub memory_bytes: u64,
    /// `uname -r`.
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os: String,
    /// Hypervisor vendor, if the CPU reports one.
    pub hypervisor: Option<String>,
    /// How CPU time was counted: exact (scheduler and softirq trace points) or tick
    /// (/proc/stat, sampled by the timer interrupt).
    pub cpu_clock: CpuClock,
    /// Why the exact clock was not used; null if it was.
    pub cpu_clock_reason: Option<String>,
    /// `root`; for an ordinary user `user-namespace` in the lab, else `user`.
    pub privileges: Privileges,
    /// Share of all CPUs busy before the run, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub idle_load: f64,
    /// Whether the service demand is the CPU time of the load. False in files of older versions:
    /// it is the time of the whole machine, `idle_load` subtracted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cpu_of_load: bool,
}

/// A requested mode: description, and whether this machine could build it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("allOf" = crate::schema::mode_rules())))]
pub struct ModeRecord {
    /// Name of the mode (`vxlan`).
    pub mode: String,
    /// Path of the mode in words.
    pub path: String,
    /// ok: built; failed: could not be built although supported; unsupported: this kernel or
    /// machine cannot build it.
    pub status: Status,
    /// Why it was not built, if status is not ok.
    pub reason: Option<String>,
    /// Remedy, if there is one.
    pub remedy: Option<String>,
    /// Notes of the mode (`user-space datapath`).
    pub notes: Vec<String>,
    /// Other modes for the same purpose; absent: none, or the file is from an older version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
}

/// Another mode for the same purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Name of that mode (`vxlan`).
    pub mode: String,
    /// Advice for switching to it, as a clause: `route to the tenants' own addresses …`.
    pub advice: String,
}

/// A testbed and the features of its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestbedRecord {
    /// Name of the mode that was built (`vxlan`).
    pub mode: String,
    /// Offload profile of the link; as-found: real NICs, with their features as testbeds list them.
    pub offload: Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// MTU of the tenants' devices, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub tenant_mtu: u32,
    /// Setting with which its guests were started (`vm:queues=2`); absent: as found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// Devices of all hops of the path, each with its features.
    pub devices: Vec<DeviceRecord>,
    /// Queueing discipline of each device of the path that has one (`tenant-a/eth0` → `noqueue`);
    /// absent in files of older versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub qdiscs: BTreeMap<String, String>,
    /// Virtual machines, client and server; absent: the mode has none, or the file is from an older
    /// version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestRecord>,
    /// Probe of the path before the first sample; absent: not asked for, or the file is from an
    /// older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<PathProbe>,
}

/// Probe of a path for damaged and lost packets. A path with damage has no figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PathProbe {
    /// Classes of packets, over both directions; 0: the path was not probed.
    pub classes: u32,
    /// Damage that was found twice, with the classes of packets and the likely cause.
    pub damage: Vec<String>,
    /// Parts of the path that were not tested, with the reason.
    pub untested: Vec<String>,
    /// Duration of the probe, s.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub seconds: f64,
}

/// Configuration of a virtual machine, read back after its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GuestRecord {
    /// Name of the guest (`tenant-a`).
    pub name: String,
    /// Its kernel (`uname -r`).
    pub kernel: String,
    /// Number of its online CPUs.
    pub cpus: u32,
    /// Queue pairs used by its NIC.
    pub queues: u32,
    /// Whether a packet may span several of its receive buffers.
    pub mrg_rxbuf: bool,
    /// Whether GSO packets in UDP tunnels crossed its NIC uncut.
    pub tunnel_gso: bool,
    /// TAP device in the host; null with QEMU's own network stack.
    pub tap: Option<TapRecord>,
}

/// The TAP device of a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TapRecord {
    /// Device name inside its namespace.
    pub device: String,
    /// Queues attached by QEMU.
    pub queues: u32,
    /// Length of each queue towards QEMU, packets.
    pub txqueuelen: u32,
    /// Send buffer of the TAP device (`sndbuf`), bytes.
    pub sndbuf: u32,
    /// Whether the kernel (`/dev/vhost-net`), not QEMU, moved the packets.
    pub vhost: bool,
}

/// A device and its offload features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceRecord {
    /// Test host or tenant (`a`, `b`, `tenant-a` …).
    pub host: String,
    /// Device name inside its namespace.
    pub device: String,
    /// MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// Kernel name of each feature → whether it is on.
    pub features: BTreeMap<String, bool>,
}
