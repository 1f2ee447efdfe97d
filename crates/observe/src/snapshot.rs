//! One interval of `overlane watch`: a line of its recordings.

use serde::{Deserialize, Serialize};

use crate::event::Encapsulation;
use crate::peer_seen::PeerSeen;
use crate::record::Addresses;

/// Version of these types. Recordings of other versions are refused.
pub const FORMAT: u32 = 1;

/// An interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Version of this format: 1.
    pub format: u32,
    /// When the interval ended, seconds since 1970.
    pub time_s: f64,
    /// Length of the interval, seconds.
    pub seconds: f64,
    /// One packet in this many was followed, at the end of the interval.
    pub sample: u32,
    /// Share of the interval in which packets were selected to be followed, 0 to 1.
    #[serde(default = "always")]
    pub looked: f64,
    /// Packets followed to their end.
    pub followed: u64,
    /// Events that the kernel reported for followed packets.
    pub events: u64,
    /// Events lost because the ring was full.
    pub events_lost: u64,
    /// CPU time of this program and of its BPF programs, percent of one CPU.
    pub own_cpu: f64,
    /// The part of `own_cpu` used by the BPF programs, estimated from the runs that are timed.
    #[serde(default)]
    pub kernel_cpu: f64,
    /// Limit for `own_cpu`. Above it, fewer packets are followed, for less of the time.
    pub budget: f64,
    /// Paths of followed packets, the one with most packets first.
    #[serde(rename = "ways")]
    pub paths: Vec<PathSeen>,
    /// Followed packets of further paths, for which there was no room.
    #[serde(rename = "other_ways")]
    pub other_paths: u64,
    /// All packets that the kernel dropped, by place and reason.
    pub drops: Vec<DropSeen>,
    /// The dropped packets among them that the filter of `watch` matches; absent without a filter of
    /// flows, tunnels or headers, and in older recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_drops: Option<Vec<DropSeen>>,
    /// Events that cannot be observed on this kernel or with this process's privileges.
    pub not_seen: Vec<String>,
    /// CPUs, the one with most time in softirqs first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<CpuSeen>,
    /// Comparison with another host, if one is asked (`--peer`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerSeen>,
}

/// The default for recordings from before this field existed.
fn always() -> f64 {
    1.0
}

/// Network work of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuSeen {
    /// CPU number.
    pub cpu: u32,
    /// Time in softirqs, percent of this CPU's time, by the kernel's ticks.
    pub softirq: f64,
    /// Packets in its backlog at the end; `null`: unknown (before Linux 5.10).
    pub backlog: Option<u32>,
    /// Packets dropped because the backlog was full, or one flow exceeded its share.
    pub dropped: u64,
    /// Times that the softirq stopped early with work left.
    pub squeezed: u64,
}

/// A path that packets took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PathSeen {
    /// Followed packets that took it.
    pub packets: u64,
    /// Flow of one of them.
    pub example: Option<Addresses>,
    /// Their most frequent ending.
    pub ending: String,
    /// Places on the path, in order.
    pub hops: Vec<HopSeen>,
    /// Time from the first place to the last.
    pub took: Latency,
}

/// Which side of a device, or a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The device received.
    Rx,
    /// The device sent.
    Tx,
    /// A socket.
    Socket,
    /// The kernel dropped the packet.
    Drop,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Rx => "rx",
            Side::Tx => "tx",
            Side::Socket => "socket",
            Side::Drop => "drop",
        }
    }
}

/// A place on a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HopSeen {
    /// Name of the network namespace.
    pub namespace: String,
    /// Name of the device; `null`: the packets are at no device.
    pub device: Option<String>,
    /// Side of the device.
    pub side: Side,
    /// Mean length of packets at this place in bytes; a GSO packet is one.
    pub bytes: f64,
    /// Mean number of packets that a packet stands for (GSO); 1: no GSO.
    pub gso_packets: f64,
    /// Share of the followed packets that the CPU segmented there.
    pub cut: f64,
    /// Share that left merged with others.
    pub merged: f64,
    /// Share whose checksum the CPU computed there.
    pub checksummed: f64,
    /// Kind of the tunnel that they were in.
    pub encapsulation: Option<Encapsulation>,
    /// VNI of that tunnel, or key of GRE.
    pub vni: Option<u32>,
    /// Time since the previous hop.
    pub since_before: Latency,
    /// Waiting time there, in the device's queue or a CPU's backlog.
    pub waited: Latency,
    /// Packets in the device's queue at the end of the interval; `null`: it has no queue, or this
    /// is not the sending side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u32>,
    /// Counts of the device on this side in the interval, over all packets; `null` if there is
    /// no device.
    pub counted: Option<Rates>,
}

/// Counters of a device as rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Packets per second. Most virtual devices count a GSO packet as one.
    pub packets_per_s: f64,
    /// Bytes per second, including the Ethernet header.
    pub bytes_per_s: f64,
    /// Dropped packets per second, as the device counts them.
    pub dropped_per_s: f64,
}

/// Latency of the followed packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Number of samples.
    pub count: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
}

impl Latency {
    /// Computes percentiles of times in ns, in any order.
    pub(crate) fn of(mut times: Vec<u64>) -> Latency {
        times.sort_unstable();
        // Nearest rank.
        let at = |per_mille: usize| {
            // Nearest rank.
            let rank = (times.len() * per_mille).div_ceil(1000);
            times.get(rank.max(1) - 1).copied().unwrap_or(0)
        };
        let count = times.len() as u64;
        Latency { count, p50_ns: at(500), p99_ns: at(990), p999_ns: at(999) }
    }
}

/// Packets that the kernel dropped at one place for one reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DropSeen {
    /// Name of the network namespace.
    pub namespace: String,
    /// Name of the device; `null`: the packet was at no device.
    pub device: Option<String>,
    /// The kernel's reason.
    pub reason: String,
    /// The kernel function that dropped them; `null` if unknown.
    pub function: Option<String>,
    /// Number of packets; a GSO packet counts as the packets it stands for.
    pub packets: u64,
    /// Meaning of the reason for an overlay.
    pub meaning: Option<String>,
    /// The `doctor` check that looks for the cause.
    pub check: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        assert_eq!(Latency::of(Vec::new()), Latency::default());
        let one = Latency { count: 1, p50_ns: 7, p99_ns: 7, p999_ns: 7 };
        assert_eq!(Latency::of(vec![7]), one);
        let latency = Latency::of((1..=1000).rev().collect());
        assert_eq!((latency.p50_ns, latency.p99_ns, latency.p999_ns), (500, 990, 999));
    }
}
