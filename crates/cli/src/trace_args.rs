//! The arguments of the verb `trace`.

use std::path::PathBuf;

use clap::Args;

use crate::packet_filter::PacketFilter;

/// `overlane trace`
#[derive(Debug, Args)]
#[command(
    after_help = "Packets are told when their journey has ended. Needs CAP_BPF and CAP_PERFMON (root), and a kernel with BTF.\n\nEXAMPLES\n  overlane trace --flow '10.1.0.11 -> 10.1.0.12:80/tcp' --count 10\n  overlane trace --drops-only\n  overlane trace --flow 10.1.0.0/24 --slower-than 1ms --json\n  overlane trace --flow 10.1.0.11 --pcapng journeys.pcapng"
)]
pub struct Trace {
    /// Which packets.
    #[command(flatten)]
    pub filter: PacketFilter,
    /// Only packets that are dropped, where they are dropped: 4096 at once and 5000 a second at
    /// most, all others are counted by reason and function
    #[arg(long)]
    pub drops_only: bool,
    /// Only packets that took longer than this from their first place to their last
    #[arg(long, value_name = "TIME", conflicts_with = "drops_only")]
    pub slower_than: Option<humantime::Duration>,
    /// One packet in so many, by chance, of those that begin here or come in; without it all, and
    /// fewer, which is said, while more come than can be told
    #[arg(long, value_name = "1/N")]
    pub sample: Option<String>,
    /// End after so many packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "TIME")]
    pub duration: Option<humantime::Duration>,
    /// At the end, let `doctor` look for the causes of the drops that were told
    #[arg(long, conflicts_with = "json")]
    pub explain: bool,
    /// Write the headers at every step to this new file, with the journeys as comments
    #[arg(long, value_name = "FILE")]
    pub pcapng: Option<PathBuf>,
    /// With the headers, so many bytes of what is behind them
    #[arg(long, value_name = "BYTES", requires = "pcapng", default_value_t = 0)]
    pub payload: u16,
    /// A line of JSON a packet
    #[arg(long)]
    pub json: bool,
}
