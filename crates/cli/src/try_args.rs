//! The arguments of the verb `try`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::args::{Asking, Measuring};
use crate::doctor_args::Journal;

/// `overlane try`
#[derive(Debug, Args)]
#[command(after_help = "\
Known commands need no --undo-with: ethtool -K, -G, -L and -C, sysctl -w, ip link set (mtu, \
txqueuelen, gso_max_size, gso_max_segs, up, down), echo VALUE > /sys/…, and named settings as in \
`lab run --vary` (ring@eth0=4096). Their inverse is derived from the current value. Any other \
command needs --undo-with, and both commands must be safe to run twice.

The journal records every change. The change is undone on Ctrl-C, when the connection to the peer \
is lost, and when this process is killed. In the last case a guard process undoes it; if the guard \
is gone too, the next command that opens the journal does.

The confidence level covers all workloads together. An interim analysis ends the trial early in \
three cases: a workload is proven worse; one is proven better, and no other can lose more than a \
quarter of that gain; or every workload is proven better or known to change by less than 5%. \
--blocks is the upper limit.

Exit codes: 0 proven better (and kept, unless --keep never), 10 not proven better, 1 failed, 2 \
wrong usage or a command whose inverse is unknown, 130 ended by Ctrl-C. With every code but 0, the \
change was undone.

EXAMPLES
  overlane try 'ethtool -K eth0 gro off' --against 10.244.1.7 --token FILE
  overlane try --finding OV013 --against 10.244.1.7 --token FILE --quick")]
pub struct Try {
    /// Command that makes the change, as a shell command line
    #[arg(required_unless_present = "finding", value_name = "COMMAND")]
    pub command: Option<String>,
    /// Try the change of `doctor fix` for this check, such as OV013
    #[arg(long, conflicts_with = "command", value_name = "CODE")]
    pub finding: Option<String>,
    /// Command that undoes COMMAND
    #[arg(long, requires = "command", value_name = "COMMAND")]
    pub undo_with: Option<String>,
    /// Address of the path to measure, where `measure serve` listens
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub against: String,
    /// File with the secret shared with the server
    ///
    /// Other users must not be able to read it.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// When to keep the change; `overlane undo` undoes it later
    #[arg(long, value_enum, default_value_t = Keep::Proven)]
    pub keep: Keep,
    /// With --finding: network namespaces to read, as for `doctor`
    #[arg(long, default_value = "all", value_name = "NETNS")]
    pub netns: String,
    /// With --finding: seconds between the two readings
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = crate::quantity::seconds)]
    pub watch: f64,
    #[command(flatten)]
    pub asking: Asking,
    #[command(flatten)]
    pub measuring: Measuring,
    /// Write the samples to a file (JSON, see schema/results.schema.json)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print JSON (see schema/try.schema.json)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub journal: Journal,
}

/// `--keep`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// Measure only
    Never,
    /// If a workload is proven better, in throughput, latency or else CPU time, and none worse
    Proven,
}
