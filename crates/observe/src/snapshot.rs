//! What `overlane watch` knows of one interval: a line of its recordings.

use serde::{Deserialize, Serialize};

use crate::event::Encapsulation;
use crate::peer_seen::PeerSeen;
use crate::told::Addresses;

/// Version of these types; a recording of another is refused.
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
    /// How long it was, seconds.
    pub seconds: f64,
    /// One packet in so many was followed, at its end.
    pub sample: u32,
    /// Share of the interval in which packets began to be followed, 0 to 1.
    #[serde(default = "always")]
    pub looked: f64,
    /// Packets that were followed to their end.
    pub followed: u64,
    /// Events that the kernel told of them.
    pub events: u64,
    /// Events that found no room.
    pub events_lost: u64,
    /// CPU time of this program and of its programs in the kernel, percent of one CPU.
    pub own_cpu: f64,
    /// Of `own_cpu`, that of the programs in the kernel: some of their runs are timed.
    #[serde(default)]
    pub kernel_cpu: f64,
    /// What `own_cpu` may be; above it packets are followed in less of the time, and fewer.
    pub budget: f64,
    /// Ways that packets went, the one of most packets first.
    pub ways: Vec<WaySeen>,
    /// Followed packets of further ways, for which there was no room.
    pub other_ways: u64,
    /// Packets that the kernel dropped, all of them, by place and reason.
    pub drops: Vec<DropSeen>,
    /// What this kernel, or this process's rights, do not let it see.
    pub not_seen: Vec<String>,
    /// The CPUs, the one with most time in softirqs first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<CpuSeen>,
    /// The far half, where another host is asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerSeen>,
}

/// What recordings did before they told it.
fn always() -> f64 {
    1.0
}

/// What a CPU did for the network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuSeen {
    /// Its number.
    pub cpu: u32,
    /// Time in softirqs, percent of its own, by the kernel's ticks.
    pub softirq: f64,
    /// Packets in its backlog at the end; `null`: the kernel does not tell (before Linux 5.10).
    pub backlog: Option<u32>,
    /// Packets dropped since the backlog was full, or one flow had more than its share.
    pub dropped: u64,
    /// Times the softirq gave up with work left.
    pub squeezed: u64,
}

/// A way that packets went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaySeen {
    /// Followed packets that went it.
    pub packets: u64,
    /// Flow of one of them.
    pub example: Option<Addresses>,
    /// How they ended most often.
    pub ending: String,
    /// Where they were, in order.
    pub hops: Vec<HopSeen>,
    /// From the first place to the last.
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
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Side::Rx => "rx",
            Side::Tx => "tx",
            Side::Socket => "socket",
            Side::Drop => "drop",
        }
    }
}

/// A place on a way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HopSeen {
    /// Name of the network namespace.
    pub namespace: String,
    /// Name of the device; `null`: at none.
    pub device: Option<String>,
    /// Which side of it.
    pub side: Side,
    /// Mean bytes of what came there: a GSO packet is one.
    pub bytes: f64,
    /// Mean packets that one GSO packet stands for there; 1: none.
    pub gso_packets: f64,
    /// Share of the followed packets that were cut there by the CPU.
    pub cut: f64,
    /// Share that left merged with others.
    pub merged: f64,
    /// Share whose checksum the CPU computed there.
    pub checksummed: f64,
    /// What the tunnel is that they were in there.
    pub encapsulation: Option<Encapsulation>,
    /// Network identifier of that tunnel, or key of GRE.
    pub vni: Option<u32>,
    /// From the hop before to here.
    pub since_before: Latency,
    /// How long they waited there: in the device's queue, in a CPU's backlog.
    pub waited: Latency,
    /// Packets in the queue of the device at the interval's end; `null`: it has none, or this is not
    /// the side that sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u32>,
    /// What the device counted on this side in the interval, whoever's packets; `null` at none.
    pub counted: Option<Rates>,
}

/// What a device counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Packets a second: most virtual devices count a GSO packet as one.
    pub packets_per_s: f64,
    /// Bytes a second, Ethernet header included.
    pub bytes_per_s: f64,
    /// Dropped a second, as the device counts them.
    pub dropped_per_s: f64,
}

/// Times of the followed packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// How many there are.
    pub count: u64,
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
}

impl Latency {
    /// Of these times, ns, in any order.
    pub(crate) fn of(mut times: Vec<u64>) -> Latency {
        times.sort_unstable();
        // Nearest rank.
        let at = |per_mille: usize| {
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
    /// Name of the device; `null`: at none.
    pub device: Option<String>,
    /// The kernel's reason.
    pub reason: String,
    /// The kernel's function that did it; `null` where the kernel does not tell.
    pub function: Option<String>,
    /// Packets; a GSO packet counts as those it stands for.
    pub packets: u64,
    /// What the reason means to an overlay.
    pub meaning: Option<String>,
    /// The check of `doctor` that looks for its cause.
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
