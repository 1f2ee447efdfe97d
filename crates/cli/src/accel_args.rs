//! The arguments of the verb `accel`.

use std::path::PathBuf;

use accel::Accounting;
use clap::{Args, Subcommand};
use daemon::metrics::ListenAddress;

/// `overlane accel …`
#[derive(Debug, Subcommand)]
pub enum AccelVerb {
    /// Accelerate VXLAN devices, in the background
    On(AccelOn),
    /// Stop accelerating VXLAN devices; all packets take the slow path
    #[command(after_help = "\
EXAMPLES
  overlane accel off --all
  overlane accel off vxlan0")]
    Off(AccelDevices),
    /// Accelerate VXLAN devices in the foreground, until Ctrl-C or SIGTERM
    Run(AccelServe),
    /// Show accelerated devices, reasons for the slow path, and packet counters
    Status(AccelStatus),
    /// Report what would be accelerated, and the share of the traffic; changes nothing
    Check(AccelCheck),
    /// Explain a code that `status` shows, and its remedy
    Explain(AccelExplain),
}

/// The devices of `overlane accel on`, `off`, `run` and `check`.
#[derive(Debug, Args)]
pub struct AccelDevices {
    /// VXLAN device; NETNS/DEV for a device in another namespace that uses this one's NICs
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "DEV")]
    pub device: Option<String>,
    /// All VXLAN devices of the namespace, present and future
    ///
    /// Includes devices in other namespaces that use the NICs of this one, such as Docker Swarm's.
    #[arg(long)]
    pub all: bool,
    /// Network namespace: name, process ID or path [default: current]
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,
}

/// `overlane accel on`
#[derive(Debug, Args)]
#[command(after_help = "\
Traffic that cannot be accelerated takes the slow path; `overlane accel status` gives the reasons. \
When the process ends for any reason, the kernel detaches the fast path.

With --probe, the path to ADDR is tested once the fast path is in force. If packets are damaged or \
lost, the devices return to the slow path, and the exit code is 10.

EXAMPLES
  overlane accel on --all
  overlane accel on vxlan0 --max-flows 200000
  overlane accel on vxlan0 --probe 10.244.1.7 --probe-from 4711 --token token")]
pub struct AccelOn {
    #[command(flatten)]
    pub run: AccelRun,
    /// Probe the path to this address, and switch off again if it damages packets
    ///
    /// `overlane measure serve` must listen there as root, in a tenant of the other machine.
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub probe: Option<String>,
    /// Namespace that the probe starts from, usually a tenant's [default: that of the devices]
    ///
    /// Name, process ID or path. Packets of the host itself do not use the fast path.
    #[arg(long, value_name = "NETNS", requires = "probe")]
    pub probe_from: Option<String>,
    /// File with the secret shared with the server of --probe
    #[arg(long, value_name = "FILE", requires = "probe")]
    pub token: Option<PathBuf>,
}

/// Options of `overlane accel on` and `run`.
#[derive(Debug, Args)]
pub struct AccelRun {
    #[command(flatten)]
    pub devices: AccelDevices,
    /// Maximum forwarding entries; the rest takes the slow path [default: 65536]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub max_entries: Option<u32>,
    /// Maximum filtered connections; evicts the oldest [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub max_flows: Option<u32>,
    /// Use the slow path if there are rules, to keep their counters exact
    ///
    /// Counters of rules and of conntrack then count every packet. Conntrack's are exact by default
    /// while the sysctl net.netfilter.nf_conntrack_acct is 1.
    #[arg(long)]
    pub accounting: bool,
    /// Use the fast path although conntrack counts packets (nf_conntrack_acct)
    ///
    /// Conntrack's counters then lack the packets on the fast path. A rule on them (`ct bytes`) that
    /// is added later lets more packets pass than without accel.
    #[arg(long, conflicts_with = "accounting")]
    pub no_accounting: bool,
}

impl AccelRun {
    /// Which counters stay exact.
    pub fn counters(&self) -> Accounting {
        match (self.accounting, self.no_accounting) {
            (true, _) => Accounting::Exact,
            (false, true) => Accounting::Never,
            (false, false) => Accounting::AsConntrack,
        }
    }
}

/// `overlane accel status`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane accel status
  overlane accel status --netns 4711 --json")]
pub struct AccelStatus {
    /// Network namespace: name, process ID or path [default: current]
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,
    /// Print JSON (see schema/accel-status.schema.json)
    #[arg(long)]
    pub json: bool,
}

/// `overlane accel explain`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane accel explain
  overlane accel explain AX201")]
pub struct AccelExplain {
    /// Code, such as AX201 [default: list all codes]
    #[arg(value_name = "CODE")]
    pub code: Option<String>,
    /// Print JSON (see schema/accel-explain.schema.json)
    #[arg(long)]
    pub json: bool,
}

/// `overlane accel run`
#[derive(Debug, Args)]
#[command(after_help = "\
Traffic that cannot be accelerated takes the slow path; `overlane accel status` gives the reasons. \
When the process ends for any reason, the kernel detaches the fast path. When ready, the process \
prints a line on standard output and notifies systemd (sd_notify).

EXAMPLES
  overlane accel run --all --metrics unix:/run/overlane/accel.metrics
  overlane accel run --all --events - --takeover")]
pub struct AccelServe {
    #[command(flatten)]
    pub run: AccelRun,
    /// Serve Prometheus metrics and health probes over HTTP
    ///
    /// PLACE is unix:PATH or ADDRESS:PORT. The paths are /metrics, /healthz and /readyz. There is
    /// no authentication.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    pub metrics: Option<ListenAddress>,
    /// Append events to a file, one JSON object per line; `-` for standard output
    ///
    /// On standard output, events replace the `ready` line. See schema/accel-event.schema.json.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Replace the process that serves this namespace, if any
    ///
    /// The old process ends once the new fast path is in force.
    #[arg(long)]
    pub takeover: bool,
    /// After a takeover by another process, wait for SIGTERM before exiting
    ///
    /// For supervisors that restart a process that exits, such as Kubernetes.
    #[arg(long)]
    pub linger: bool,
}

fn place(text: &str) -> Result<ListenAddress, String> {
    text.parse()
}

/// `overlane accel check`
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 all observed traffic could take the fast path, 1 some traffic or devices would take \
the slow path, 2 wrong usage or bad input.

EXAMPLES
  overlane accel check --all --seconds 30
  overlane accel check vxlan0 --json")]
pub struct AccelCheck {
    #[command(flatten)]
    pub devices: AccelDevices,
    /// Seconds to count traffic for; 0 counts none
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = counted_seconds)]
    pub seconds: u32,
    /// Print JSON (see schema/accel-check.schema.json)
    #[arg(long)]
    pub json: bool,
}

/// Parses the time for which `check` counts traffic: up to an hour.
fn counted_seconds(text: &str) -> Result<u32, String> {
    match crate::quantity::whole_seconds(text)? {
        seconds @ 0..=3600 => Ok(seconds),
        _ => Err(format!("{text:?}: expected 0 to 1h")),
    }
}
