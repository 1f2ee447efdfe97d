//! The arguments of the verb `trace`.

use std::path::PathBuf;

use clap::Args;

use crate::packet_filter::PacketFilter;

/// `overlane trace`
#[derive(Debug, Args)]
#[command(after_help = "\
Each packet is printed when its journey has ended. Requires CAP_BPF and CAP_PERFMON (root), and a \
kernel with BTF.

EXAMPLES
  overlane trace --flow '10.1.0.11 -> 10.1.0.12:80/tcp' --count 10
  overlane trace --drops-only
  overlane trace --flow 10.1.0.0/24 --slower-than 1ms --json
  overlane trace --flow 10.1.0.11 --pcapng journeys.pcapng")]
pub struct Trace {
    #[command(flatten)]
    pub filter: PacketFilter,
    /// Report only dropped packets, each at the place of the drop
    ///
    /// Reports at most 4096 drops in a burst and 5000 per second. Further drops are only counted,
    /// by reason and function.
    #[arg(long)]
    pub drops_only: bool,
    /// With --drops-only, also report harmless drops
    ///
    /// Answers to pings, and the last packet of a connection, are dropped after they were used;
    /// multicast that nobody joined, messages to routers (ff02::2, ff02::16) and frames of unknown
    /// protocols have no receiver.
    #[arg(long, requires = "drops_only")]
    pub all_drops: bool,
    /// Report only packets that took longer than TIME, first to last step
    #[arg(long, value_name = "TIME", conflicts_with = "drops_only", value_parser = crate::quantity::duration)]
    pub slower_than: Option<humantime::Duration>,
    /// Trace a random 1 in N packets [default: every packet]
    ///
    /// Without this option, the tracer samples under overload and reports the rate.
    #[arg(long, value_name = "1/N")]
    pub sample: Option<String>,
    /// Stop after N packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Stop after TIME
    #[arg(long, value_name = "TIME", value_parser = crate::quantity::duration)]
    pub duration: Option<humantime::Duration>,
    /// At the end, run the `doctor` checks that explain the reported drops
    #[arg(long, conflicts_with = "json")]
    pub explain: bool,
    /// Write the packet headers at every step to a new pcapng file
    ///
    /// The journeys are comments of the packets.
    #[arg(long, value_name = "FILE")]
    pub pcapng: Option<PathBuf>,
    /// Bytes of payload to write after the headers
    #[arg(long, value_name = "BYTES", requires = "pcapng", default_value_t = 0)]
    pub payload: u16,
    /// Print one JSON object per packet
    #[arg(long)]
    pub json: bool,
}
