//! The arguments of the verb `watch`.

use std::path::PathBuf;

use clap::Args;
use daemon::metrics::ListenAddress;

use crate::packet_filter::PacketFilter;

/// `overlane watch`
#[derive(Debug, Args)]
#[command(after_help = "\
The kernel counts devices and drops exactly. Segmentation, merging and delays come from sampled \
packets; on a busy host, --budget limits how many. On a terminal, watch shows a list to browse (? \
shows the keys). Elsewhere, and with --once, --count or --text, it prints text. Requires CAP_BPF \
and CAP_PERFMON (root), and a kernel with BTF.

EXAMPLES
  overlane watch
  overlane watch --once --interval 5s
  overlane watch --flow 10.1.0.0/24 --record night.jsonl
  overlane watch night.jsonl
  overlane watch --metrics 127.0.0.1:9474
  overlane watch --serve 192.0.2.2 --token FILE
  overlane watch --vni 42 --peer 192.0.2.2 --token FILE")]
pub struct Watch {
    /// Play back a recording
    #[arg(value_name = "FILE", conflicts_with_all = ["flow", "expression", "netns", "device", "vni", "budget", "record", "metrics", "serve", "peer", "token"])]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub filter: PacketFilter,
    /// Length of an interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::quantity::duration)]
    pub interval: humantime::Duration,
    /// Print one interval and exit
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Exit after N intervals
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// CPU time limit of watch, in percent of one CPU
    ///
    /// Includes time in the kernel. Above it, watch samples fewer packets, for less of the time.
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    pub budget: String,
    /// Write every interval to a new file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Serve Prometheus metrics at unix:PATH or ADDRESS:PORT
    ///
    /// Metrics are totals since the start. Intervals are printed only with --text or --json.
    #[arg(long, value_name = "PLACE")]
    pub metrics: Option<ListenAddress>,
    /// Serve flow counters to another host's `watch --peer` [default port: 5212]
    ///
    /// Intervals are printed only with --text or --json.
    #[arg(long, value_name = "IP[:PORT]", conflicts_with = "peer")]
    pub serve: Option<String>,
    /// Compare with another host's `watch --serve` [default port: 5212]
    ///
    /// For the flows of --flow or --vni, shows packets lost between the hosts, and the clock
    /// offset.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Option<String>,
    /// File with the secret for --serve and --peer
    ///
    /// At least 128 random bits, with mode 0640 or stricter.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// Print one JSON object per interval
    #[arg(long)]
    pub json: bool,
    /// Print text, even on a terminal
    #[arg(long, conflicts_with = "json")]
    pub text: bool,
}
