//! On what a run was made: the machine, the modes, the testbeds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names::{CpuClock, Privileges, Profile, Status};

/// The machine a run was made on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// `model name` of `/proc/cpuinfo`.
    pub cpu_model: String,
    /// CPUs that were online.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub cpus: usize,
    /// MemTotal of /proc/meminfo, bytes.
    pub memory_bytes: u64,
    /// `uname -r`.
    pub kernel: String,
    /// `PRETTY_NAME` of `/etc/os-release`.
    pub os: String,
    /// Hypervisor vendor when the CPU says that there is one.
    pub hypervisor: Option<String>,
    /// How CPU time was counted: exact (scheduler and softirq trace points) or tick
    /// (/proc/stat, sampled by the timer interrupt).
    pub cpu_clock: CpuClock,
    /// Why the exact clock was not used, when it was not.
    pub cpu_clock_reason: Option<String>,
    /// `root`; run by an ordinary user `user-namespace` in the lab, else `user`.
    pub privileges: Privileges,
    /// Share of all CPUs busy before the run, 0..1; subtracted from CPU figures.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub idle_load: f64,
}

/// A mode asked for: what it is, and whether this machine could build it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(extend("allOf" = crate::schema::mode_rules())))]
pub struct ModeRecord {
    /// Name of the mode (`vxlan`).
    pub mode: String,
    /// Its path in words.
    pub path: String,
    /// ok: built; failed: tried and not built; unsupported: this kernel or machine cannot build
    /// it.
    pub status: Status,
    /// Why not, where status is not ok.
    pub reason: Option<String>,
    /// What to do about it, where something can be done.
    pub remedy: Option<String>,
    /// What the mode says of itself (`user-space datapath`).
    pub notes: Vec<String>,
    /// Other modes that serve the same purpose; absent: none, or written before this was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
}

/// Another mode that serves the same purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Name of that mode (`vxlan`).
    pub mode: String,
    /// What to change to get there, as a clause: `route to the tenants' own addresses …`.
    pub advice: String,
}

/// One testbed and what its devices had switched on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TestbedRecord {
    /// Name of the mode that was built (`vxlan`).
    pub mode: String,
    /// Offload profile of the wire; as-found: of real NICs, as testbeds list them.
    pub offload: Profile,
    /// Underlay MTU, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub mtu: u32,
    /// MTU of the tenants' devices, bytes.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 68)))]
    pub tenant_mtu: u32,
    /// The setting that its guests were started with (`vm:queues=2`); absent: as found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// Devices of all hops of the path, each with its features.
    pub devices: Vec<DeviceRecord>,
    /// Virtual machines, client and server; absent: the mode has none, or it was written before
    /// this was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestRecord>,
}

/// What was in force at a virtual machine, read back when it was up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GuestRecord {
    /// Name of the guest (`tenant-a`).
    pub name: String,
    /// Its kernel (`uname -r`).
    pub kernel: String,
    /// CPUs that it had online.
    pub cpus: u32,
    /// Queue pairs that its NIC used.
    pub queues: u32,
    /// Whether a packet may take several of its receive buffers.
    pub mrg_rxbuf: bool,
    /// Whether GSO packets in UDP tunnels crossed its NIC uncut.
    pub tunnel_gso: bool,
    /// Its TAP device in the host; null behind QEMU's own network stack.
    pub tap: Option<TapRecord>,
}

/// The TAP device of a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TapRecord {
    /// Device name inside its namespace.
    pub device: String,
    /// Queues that QEMU had attached to it.
    pub queues: u32,
    /// Packets that each queue held for QEMU.
    pub txqueuelen: u32,
    /// Bytes of QEMU's that might be under way behind it.
    pub sndbuf: u32,
    /// Whether the kernel moved the packets (`/dev/vhost-net`), not QEMU.
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
    /// Feature name as the kernel has it → on.
    pub features: BTreeMap<String, bool>,
}
