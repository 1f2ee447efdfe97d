//! The arguments of the verb `watch`.

use std::path::PathBuf;

use clap::Args;

use crate::metrics::ListenAddress;
use crate::packet_filter::PacketFilter;

/// `overlane watch`
#[derive(Debug, Args)]
#[command(
    after_help = "Devices and drops are counted exactly, by the kernel. Where packets are cut, merged and delayed is told by packets that are followed by chance, on a busy host in windows: as many as --budget allows. On a terminal they are shown as a list to look into (? shows the keys); elsewhere, and with --once, --count or --text, as text. Needs CAP_BPF and CAP_PERFMON (root), and a kernel with BTF.\n\nEXAMPLES\n  overlane watch\n  overlane watch --once --interval 5s\n  overlane watch --flow 10.1.0.0/24 --record night.jsonl\n  overlane watch night.jsonl\n  overlane watch --metrics 127.0.0.1:9474\n  overlane watch --serve 192.0.2.2 --token FILE\n  overlane watch --vni 42 --peer 192.0.2.2 --token FILE"
)]
pub struct Watch {
    /// Play a recording back
    #[arg(value_name = "FILE", conflicts_with_all = ["flow", "expression", "netns", "device", "vni", "budget", "record", "metrics", "serve", "peer", "token"])]
    pub from: Option<PathBuf>,
    /// Which packets.
    #[command(flatten)]
    pub filter: PacketFilter,
    /// How long an interval is
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub interval: humantime::Duration,
    /// One interval
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// End after so many intervals
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// CPU time that watching may take, in the kernel too, of one CPU; above it packets are followed
    /// in less of the time, and fewer
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    pub budget: String,
    /// Write every interval to this new file, a line of JSON each
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Tell everything since the start to Prometheus at this Unix socket or address:
    /// unix:/run/watch.metrics, 127.0.0.1:9474. Intervals are printed with --text or --json only
    #[arg(long, value_name = "PLACE")]
    pub metrics: Option<ListenAddress>,
    /// Tell another host's `watch --peer` what leaves here and comes in, by flow, at this address,
    /// port 5212 by default. Intervals are printed with --text or --json only
    #[arg(long, value_name = "IP[:PORT]", conflicts_with = "peer")]
    pub serve: Option<String>,
    /// Ask another host's `watch --serve` for the far half of the flows of --flow or --vni,
    /// port 5212 by default. Shows what was lost between the hosts, and how far its clock is ahead
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Option<String>,
    /// File with the secret that --serve and --peer share: 16 bytes at least, mode 0640 at most
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// A line of JSON an interval
    #[arg(long)]
    pub json: bool,
    /// Text, on a terminal too
    #[arg(long, conflicts_with = "json")]
    pub text: bool,
}
