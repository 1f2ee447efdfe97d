//! The command line of `overlane try`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::{Asking, Measuring};
use crate::doctor_args::Journal;

/// `overlane try`
#[derive(Debug, Args)]
#[command(
    after_help = "The inverse of ethtool -K, -G, -L and -C, sysctl -w, ip link set (mtu, txqueuelen, gso_max_size, gso_max_segs, up, down) and echo VALUE > /sys/…, and of settings by name as `lab run --vary` has them (ring@eth0=4096), is taken from the value before; any other command needs --undo-with, and both must take being run twice. Every making and taking back goes through the journal. The change is taken back on Ctrl-C, when the connection to the peer is lost, and when this process is killed (by a process that waits for that, or else by whichever command opens the journal next). The confidence is that of all workloads together. A trial ends early, at one of a few looks, once a workload is proven worse, or one is proven better and none of the others can lose more than a quarter of that gain, or every workload is proven better or known to change by less than 5%: --blocks is the most it takes. Exit codes: 0 proven better (and kept, unless --keep never), 10 not proven better, 1 failed, 2 wrong usage or a command whose inverse is not known, 130 ended by Ctrl-C; in all but the first it was taken back."
)]
pub struct Try {
    /// Command that makes the change, as typed to a shell
    #[arg(required_unless_present = "finding", value_name = "COMMAND")]
    pub command: Option<String>,
    /// Try what `doctor fix` would change for this check, as OV013
    #[arg(long, conflicts_with = "command", value_name = "CODE")]
    pub finding: Option<String>,
    /// Command that takes COMMAND back
    #[arg(long, requires = "command", value_name = "COMMAND")]
    pub undo_with: Option<String>,
    /// Address of the path to measure, where `measure serve` listens
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub against: String,
    /// Secret shared with the server, in a file that others cannot read
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// When the change stays; `overlane undo` takes it back later
    #[arg(long, value_enum, default_value_t = Keep::Proven)]
    pub keep: Keep,
    /// With --finding: network namespaces to look at, `all` that can be found, or some by
    /// name, process id or path, comma-separated
    #[arg(long, default_value = "all", value_name = "NETNS")]
    pub netns: String,
    /// With --finding: seconds between the two readings that show what moves
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub watch: f64,
    /// What is asked of the path.
    #[command(flatten)]
    pub asking: Asking,
    /// How to measure it.
    #[command(flatten)]
    pub measuring: Measuring,
    /// Write the samples here (JSON, see schema/results.schema.json)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print JSON (see schema/try.schema.json)
    #[arg(long)]
    pub json: bool,
    /// Where changes are kept.
    #[command(flatten)]
    pub journal: Journal,
}

/// `--keep`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// Never: it is measured only
    Never,
    /// When a workload is proven better, by what is carried or else by its CPU time, and
    /// none worse
    Proven,
}
