//! The arguments of the verbs `lab`, `measure`, `report`, and what they share.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use load::Workload;
use measure::plan::PlacementPolicy;

/// `overlane lab …`
#[derive(Debug, Subcommand)]
pub enum LabVerb {
    /// List every mode, and whether this machine can build it now
    List(List),
    /// Measure modes, workloads and offload profiles, as ratios to the bare host
    Run(Box<Run>),
    /// List the plans, or print one to copy and change
    Plans(Plans),
    /// Build a mode and leave it standing
    Up(Up),
    /// Hold a testbed (started by `up`)
    #[command(hide = true)]
    Hold(Hold),
    /// Be a guest's first process (started by its kernel)
    #[command(hide = true)]
    Guest(Guest),
    /// Run a command in a host or tenant of a standing testbed
    Exec(Exec),
    /// Show the standing testbeds
    Status(LabStatus),
    /// Remove standing testbeds
    Down(Down),
}

/// `overlane measure …`
#[derive(Debug, Subcommand)]
pub enum MeasureVerb {
    /// Serve loads to clients that know the token
    Serve(Serve),
    /// Measure the path to a machine on which `measure serve` runs
    Run(Box<MeasureRun>),
}

/// `overlane measure serve`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground until Ctrl-C or SIGTERM, which are success. Readiness: a line on standard output, and sd_notify for systemd. A line a session on standard error."
)]
pub struct Serve {
    /// Address and control port to listen on; any other than loopback needs --token
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDR[:PORT]")]
    pub bind: String,
    /// Secret shared with the clients, 16 bytes or more, in a file that others cannot read
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// Port of the traffic itself, TCP and UDP [default: the control port + 1]
    #[arg(long, value_name = "PORT")]
    pub data_port: Option<u16>,
    /// Clients at a time; one load runs at a time
    #[arg(long, default_value_t = measure::remote::Limits::DEFAULT.sessions, value_name = "N")]
    pub max_sessions: u32,
    /// Flows of a load
    #[arg(long, default_value_t = measure::remote::Limits::DEFAULT.flows, value_name = "N")]
    pub max_flows: u32,
    /// Seconds of a load, warm-up included
    #[arg(long, default_value_t = measure::remote::Limits::DEFAULT.load_s, value_name = "SEC")]
    pub max_seconds: u32,
}

/// `overlane measure run`
#[derive(Debug, Args)]
#[command(
    after_help = "Without --baseline the path is measured against itself: values, and the noise floor of ratios (A/A)."
)]
pub struct MeasureRun {
    /// Address of the path to measure (the overlay's), where `measure serve` listens
    #[arg(value_name = "ADDR[:PORT]")]
    pub address: String,
    /// Second address of the same machine (the host's own), to which ratios are taken
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub baseline: Option<String>,
    /// What to call the path in the results
    #[arg(long, default_value = "path", value_name = "LABEL")]
    pub name: String,
    /// What to call the baseline
    #[arg(long, default_value = "baseline", value_name = "LABEL")]
    pub baseline_name: String,
    /// Secret shared with the server, in a file that others cannot read
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// What is asked of every path.
    #[command(flatten)]
    pub asking: Asking,
    /// How to measure it.
    #[command(flatten)]
    pub measuring: Measuring,
    /// Where the results go.
    #[command(flatten)]
    pub output: Output,
}

/// `overlane lab list`
#[derive(Debug, Args)]
pub struct List {
    /// Print JSON: an array of {mode, path, supported, reason, remedy}
    #[arg(long)]
    pub json: bool,
}

/// `overlane lab guest`
#[derive(Debug, Args)]
pub struct Guest {
    /// Name of the tenant that it is
    pub name: String,
    /// Address of its NIC, with the prefix length [default: it has none]
    #[arg(long, value_name = "ADDR/LENGTH")]
    pub address: Option<String>,
    /// MTU of its NIC, bytes
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
    /// Next hop of its default route
    #[arg(long)]
    pub gateway: Option<std::net::Ipv4Addr>,
    /// Run this program once, as it is told, in place of loads
    #[arg(long)]
    pub exec: bool,
}

/// `overlane lab run`
#[derive(Debug, Args)]
pub struct Run {
    /// A plan by name (see `overlane lab plans`), or a file (TOML) with . or / in its name;
    /// arguments given besides it go before its own
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// Modes to measure, comma-separated, and names of groups (see `overlane lab list`); `all`:
    /// those that join two ends and are no variant of another mode. Modes …@guest are measured
    /// inside one guest, in a run of their own
    #[arg(long, visible_alias = "mode", default_value = "all", value_name = "MODES")]
    pub modes: String,
    /// Mode that every ratio is taken to; host@guest for modes …@guest
    #[arg(long, default_value = "host", value_name = "MODE")]
    pub baseline: String,
    /// Kernel image (bzImage) that the guests of modes vm-… and …@guest boot, with lib/modules
    /// beside its directory [default: this machine's own, else the last in /boot]
    #[arg(long, value_name = "FILE")]
    pub guest_kernel: Option<PathBuf>,
    /// Offload profiles of the wire, comma-separated: full, no-tunnel, none [default:
    /// full,none; full with --try]
    #[arg(long, value_name = "PROFILES")]
    pub offload: Option<String>,
    /// Underlay MTUs in bytes, comma-separated, 576 to 65535; overlays get theirs from it
    #[arg(long, default_value = "1500", value_name = "MTUS")]
    pub mtu: String,
    /// How the wire's NICs spread received packets over CPUs [default: rss, where threads
    /// have CPUs]
    #[arg(long, value_enum)]
    pub steering: Option<Steering>,
    /// Measure every mode once more under each value of a setting: sysctl:KEY=V,…, ring=N,…,
    /// queues=N,…, txqueuelen=N,…, rps=CPUS,…, offload=PROFILE,…, mtu=N,…, gso_max_size=N,…,
    /// gso_max_segs=N,…, feature:NAME=on|off, coalesce:NAME=N,…, sysfs:FILE=V,…; of the
    /// wire's NICs, or KIND@DEVICE=…; of guests (modes vm-…), which are started for each value:
    /// vm:cpus=N,…, vm:queues=N,…, vm:vhost=on|off, vm:mrg_rxbuf=on|off, vm:tunnel-gso=on|off,
    /// tap:txqueuelen=N,…, tap:sndbuf=BYTES,…; joined with + they are one step. Given back
    /// afterwards, whatever happens. May be given several times
    #[arg(long, value_name = "SETTING")]
    pub vary: Vec<String>,
    /// Measure every mode once more with a change: offload:PROFILE, a setting as --vary has
    /// it, or HOST: and a setting or a command in a test host (a, b, tenant-a, tenant-b),
    /// whose inverse is taken from the values before (see `overlane try`). May be given
    /// several times
    #[arg(long = "try", value_name = "CHANGE")]
    pub tries: Vec<String>,
    /// After the blocks, have each fault that a mode knows (a session ends, a daemon is killed,
    /// a tenant moves) befall a testbed of its own, so many times, while a datagram is sent
    /// each millisecond: what is lost, and how long nothing arrives. Testbeds are as found,
    /// without settings of --vary and --try; --quick takes none of the trials away. Not for
    /// modes …@guest. 0 to 1000
    #[arg(long, value_name = "TRIALS", default_value_t = 0, hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(..=1000))]
    pub faults: u32,
    /// What is asked of every path.
    #[command(flatten)]
    pub asking: Asking,
    /// How to measure it.
    #[command(flatten)]
    pub measuring: Measuring,
    /// Where the results go.
    #[command(flatten)]
    pub output: Output,
}

/// The help of `--workloads`.
fn workloads_help() -> String {
    let names = Workload::ALL.map(Workload::name).join(", ");
    format!(
        "Workloads, comma-separated: {names}, and drop_point, NDR and PDR (RFC 2544) of \
         udp_stream"
    )
}

/// The long help of `--sizes`.
fn sizes_help() -> String {
    let own = Workload::ALL.into_iter().filter(|workload| workload.default_message_bytes() != 1);
    let own: Vec<_> =
        own.map(|workload| format!("{workload} {}", workload.default_message_bytes())).collect();
    format!(
        "Message sizes in bytes, 1 to 65507: `64,1400` or `1:4096:*2`\n\nWithout it each \
         workload has its own: {}, the others 1.",
        own.join(", ")
    )
}

/// What is asked of every path: each combination is a cell.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "What is asked of every path")]
pub struct Asking {
    // Its text names every workload of the table.
    #[arg(long, help = workloads_help(), default_value = "tcp_stream,tcp_rr,udp_stream", value_name = "WORKLOADS")]
    pub workloads: String,
    /// Message sizes in bytes, 1 to 65507: `64,1400` or `1:4096:*2`
    #[arg(long, value_name = "SIZES", long_help = sizes_help())]
    pub sizes: Option<String>,
    /// Parallel flows, comma-separated
    #[arg(long, default_value = "1", value_name = "N")]
    pub flows: String,
    /// Requests that each flow of tcp_rr and udp_rr keeps under way, comma-separated
    #[arg(long, default_value = "1", value_name = "N")]
    pub outstanding: String,
    /// Latency of tcp_rr and udp_rr under load: requests on a schedule, at these percentages
    /// of each path's own maximum, timed from when they were due; 0 is one at a time
    #[arg(long, value_name = "PERCENT")]
    pub load: Option<String>,
    /// Send and receive buffers of both ends' sockets in bytes, comma-separated
    /// [default: the kernel's own]
    #[arg(long, value_name = "BYTES")]
    pub socket_buffers: Option<String>,
    /// What makes the traffic, comma-separated: overlane (built in), iperf3, netperf, qperf,
    /// sockperf, nuttcp
    #[arg(long, default_value = "overlane", value_name = "ENGINES")]
    pub engine: String,
    /// udp_stream hands the kernel GSO packets (UDP_SEGMENT) and takes them whole (UDP_GRO)
    #[arg(long)]
    pub gso: bool,
}

/// `--workloads`, where nothing else is asked for.
pub const WORKLOADS: &str = "tcp_stream,tcp_rr,udp_stream";

/// How to measure it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How to measure")]
pub struct Measuring {
    /// CPUs of client and server threads [default: split; of `try` and `measure run` none
    /// where both ends are on this machine and other programs have the CPUs of one]
    #[arg(long, value_enum)]
    pub placement: Option<Placement>,
    /// Blocks: each measures every cell once, in random order [default: 20, with --quick
    /// 9; of `try` 30, with --quick 13]
    #[arg(long, value_name = "N", conflicts_with = "confidence")]
    pub blocks: Option<u32>,
    /// Seconds measured per sample [default: 0.5; 0.15 with --quick; of `try` 0.25 where other
    /// load does not come and go]
    #[arg(long, value_name = "SEC")]
    pub duration: Option<f64>,
    /// Seconds of traffic discarded before each sample [default: 0.1; 0.05 with --quick]
    #[arg(long, value_name = "SEC")]
    pub warmup: Option<f64>,
    /// Confidence of every interval in percent, and the goal: `95,5` stops when each
    /// ratio's 95% interval is within ±5%
    #[arg(long, value_name = "LEVEL[,PERCENT]")]
    pub confidence: Option<String>,
    /// Blocks at most, where --confidence sets a goal
    #[arg(long, default_value_t = 100, value_name = "N", requires = "confidence")]
    pub max_blocks: u32,
    /// Seed of the random order; printed, so that a run can be repeated
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Fewer and shorter samples: an overview within five minutes
    #[arg(long)]
    pub quick: bool,
    /// Strict limit: share of CPU time, in percent, that other programs may take before a
    /// sample is void. Without it, samples are judged against the run's own background
    #[arg(long, value_name = "PERCENT")]
    pub disturbance: Option<f64>,
    /// Bound on the test's own share of the link, and of the CPU time that others leave, as
    /// `5%`, on a host that carries others' traffic: short pulses of tcp_rr and udp_rr, and
    /// rests between them
    #[arg(long, value_name = "PERCENT")]
    pub impact: Option<String>,
}

/// Where the results go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Write the results here (JSON, see schema/results.schema.json)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the results as JSON instead of the table
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// How to print the results
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

impl Measuring {
    /// Where threads run, unless the survey finds others there.
    pub fn placement(&self) -> Placement {
        self.placement.unwrap_or(Placement::Split)
    }
}

/// `--placement`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Clients on the first half of the CPUs, servers on the second
    Split,
    /// Both on one CPU
    Same,
    /// Not pinned
    None,
}

impl From<Placement> for PlacementPolicy {
    fn from(asked: Placement) -> PlacementPolicy {
        match asked {
            Placement::Split => PlacementPolicy::Split,
            Placement::Same => PlacementPolicy::Same,
            Placement::None => PlacementPolicy::None,
        }
    }
}

/// `--steering`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Steering {
    /// As veth does: on the CPU that sent them; a flow sent from two CPUs is reordered
    None,
    /// A flow to one CPU of the receiving host's threads, as a NIC's queues do
    Rss,
}

impl From<Steering> for results::Steering {
    fn from(asked: Steering) -> Self {
        match asked {
            Steering::None => results::Steering::None,
            Steering::Rss => results::Steering::Rss,
        }
    }
}

/// `--format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Table for a terminal
    Text,
    /// Markdown
    Markdown,
    /// One line a cell, comma-separated
    Csv,
    /// The results file itself
    Json,
}

/// `overlane lab plans`
#[derive(Debug, Args)]
pub struct Plans {
    /// Plan to print
    pub name: Option<String>,
    /// Print JSON: an array of {name, description}
    #[arg(long, conflicts_with = "name")]
    pub json: bool,
    /// Print the JSON schema of plan files (schema/plan.schema.json), for an editor
    #[arg(long, conflicts_with_all = ["name", "json"])]
    pub schema: bool,
}

/// `overlane lab up`
#[derive(Debug, Args)]
pub struct Up {
    /// Mode (see `overlane lab list`)
    pub mode: String,
    /// Name of the testbed [default: the mode's]
    #[arg(long)]
    pub name: Option<String>,
    /// Offload profile of the wire: full, no-tunnel, none
    #[arg(long, default_value = "full", value_name = "PROFILE")]
    pub offload: String,
    /// Underlay MTU in bytes, 576 to 65535
    #[arg(long, default_value_t = 1500, value_name = "MTU")]
    pub mtu: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `overlane lab hold`
#[derive(Debug, Args)]
pub struct Hold {
    /// Mode, by name: one testbed is of one mode.
    pub mode: String,
    /// Name of the testbed.
    pub name: String,
    /// Offload profile.
    pub offload: String,
    /// Underlay MTU, bytes.
    pub mtu: u32,
}

/// `overlane lab exec`
#[derive(Debug, Args)]
pub struct Exec {
    /// Host or tenant (`a`, `tenant-b`), or TESTBED/HOST where several stand
    pub host: String,
    /// Command and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// `overlane lab status`
#[derive(Debug, Args)]
pub struct LabStatus {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `overlane lab down`
#[derive(Debug, Args)]
pub struct Down {
    /// Testbeds to remove, by name
    #[arg(required_unless_present = "all")]
    pub names: Vec<String>,
    /// Remove every testbed of this user
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Print JSON: an array of the names removed
    #[arg(long)]
    pub json: bool,
}

/// `overlane report`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Report {
    /// Instead of showing one file.
    #[command(subcommand)]
    pub verb: Option<ReportVerb>,
    /// Results file, as `overlane lab run --out` writes it, or a recording of `overlane watch`
    #[arg(required = true)]
    pub file: Option<PathBuf>,
    /// How to print it [default: text, unless --html or --svg is given]
    #[arg(long, value_enum, group = "printed")]
    pub format: Option<Format>,
    /// The same as --format json
    #[arg(long, group = "printed")]
    pub json: bool,
    /// The same as --format markdown
    #[arg(long, group = "printed")]
    pub markdown: bool,
    /// The same as --format csv
    #[arg(long, group = "printed")]
    pub csv: bool,
    /// Write a page with charts here: one file, no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write each chart here, an SVG file each; the directory is made if need be
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}

/// `overlane report …`
#[derive(Debug, Subcommand)]
pub enum ReportVerb {
    /// Show what changed for certain from one results file to another
    Compare(Compare),
}

/// `overlane report compare`
#[derive(Debug, Args)]
#[command(
    after_help = "Cells are compared by their ratios to the baseline of the same block, so that what the machine did during either run cancels; absolute values of the baseline are shown, never judged. A change is proven where the bootstrap interval of B ÷ A leaves out 1 and the Mann-Whitney test rejects, corrected for all comparisons.\nExit code 10: a proven regression exceeds --fail-on."
)]
pub struct Compare {
    /// Results of the run before
    pub a: PathBuf,
    /// Results of the run after
    pub b: PathBuf,
    /// End with code 10 where a proven regression is larger: 5%
    #[arg(long, value_name = "PERCENT")]
    pub fail_on: Option<String>,
    /// Print JSON (see schema/compare.schema.json)
    #[arg(long)]
    pub json: bool,
}
