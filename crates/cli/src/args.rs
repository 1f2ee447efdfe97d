//! The arguments of the verbs `lab` and `measure`, and their shared options.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use load::Workload;
use measure::plan::PlacementPolicy;

use crate::doctor_args::Journal;

/// `overlane lab …`
#[derive(Debug, Subcommand)]
pub enum LabVerb {
    /// List all modes, and whether this machine can build them
    #[command(after_help = "\
EXAMPLES
  overlane lab list
  overlane lab list vxlan swarm")]
    List(List),
    /// Measure modes, workloads and offload profiles as ratios to the bare host
    Run(Box<Run>),
    /// Measure with two kernels in guests, and fail on a proven regression
    Kernels(Kernels),
    /// List the plans, or print one to copy and edit
    Plans(Plans),
    /// Build a mode and keep it running
    Up(Up),
    /// Own a testbed (started by `up`)
    #[command(hide = true)]
    Hold(Hold),
    /// Run as the first process of a guest (started by its kernel)
    #[command(hide = true)]
    Guest(Guest),
    /// Run a command in a host or tenant of a running testbed
    Exec(Exec),
    /// Show the running testbeds
    Status(LabStatus),
    /// Remove running testbeds
    Down(Down),
}

/// `overlane measure …`
#[derive(Debug, Subcommand)]
pub enum MeasureVerb {
    /// Serve loads to clients that have the token
    Serve(Serve),
    /// Measure the path to a machine that runs `measure serve`
    Run(Box<MeasureRun>),
}

/// `overlane measure serve`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs in the foreground until Ctrl-C or SIGTERM, then exits with 0. When ready, it prints a line on \
standard output and notifies systemd (sd_notify). It logs one line per session on standard error.

With --allow-settings, a client's `probe --yes` may switch offload features of this device off while \
it searches for the cause of a fault. They go through the journal, and are restored after each step, \
after 60 s, when the client disconnects, and when the server ends for any reason.

EXAMPLES
  overlane measure serve
  overlane measure serve --bind 0.0.0.0 --token token
  overlane measure serve --bind 0.0.0.0 --token token --allow-settings eth1")]
pub struct Serve {
    /// Address and control port to listen on; all but loopback need --token
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDR[:PORT]")]
    pub bind: String,
    /// File with the secret shared with the clients
    ///
    /// At least 128 random bits (head -c 32 /dev/urandom | base64), with mode 0640 or stricter.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// TCP and UDP port for the measured traffic [default: control port + 1]
    #[arg(long, value_name = "PORT")]
    pub data_port: Option<u16>,
    /// Maximum number of concurrent clients; one load runs at a time
    #[arg(long, default_value_t = measure::remote::Limits::DEFAULT.sessions, value_name = "N")]
    pub max_sessions: u32,
    /// Maximum number of flows per load
    #[arg(long, default_value_t = measure::remote::Limits::DEFAULT.flows, value_name = "N")]
    pub max_flows: u32,
    /// Maximum duration of a load in seconds, warm-up included
    #[arg(long, default_value_t = measure::remote::Limits::DEFAULT.load_s, value_name = "SEC", value_parser = crate::quantity::whole_seconds)]
    pub max_seconds: u32,
    /// Let clients' probes switch offload features of this device off and on; repeatable
    #[arg(long, value_name = "DEV")]
    pub allow_settings: Vec<String>,
    /// Allow it also for a device that carries an SSH connection of this machine
    #[arg(long, requires = "allow_settings")]
    pub yes: bool,
    #[command(flatten)]
    pub journal: Journal,
}

/// `overlane measure run`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --baseline, the path is compared with itself (A/A): absolute values, and the noise floor of \
ratios.

EXAMPLES
  overlane measure run 10.244.1.7 --token token --quick
  overlane measure run 10.244.1.7 --baseline 192.0.2.7 --token token --out r.json
  overlane measure run 10.244.1.7 --token token --workloads tcp_rr --beside tcp_stream,tcp_maerts")]
pub struct MeasureRun {
    /// Overlay address of the other machine, where `measure serve` listens
    #[arg(value_name = "ADDR[:PORT]")]
    pub address: String,
    /// Underlay address of the same machine; ratios compare with this path
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub baseline: Option<String>,
    /// Use the IPv4 address of a host name
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Use the IPv6 address of a host name
    #[arg(short = '6')]
    pub ipv6: bool,
    /// Name of the path in the results
    #[arg(long, default_value = "path", value_name = "LABEL")]
    pub name: String,
    /// Name of the baseline in the results
    #[arg(long, default_value = "baseline", value_name = "LABEL")]
    pub baseline_name: String,
    /// File with the secret shared with the server
    ///
    /// Other users must not be able to read it.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    #[command(flatten)]
    pub asking: Asking,
    #[command(flatten)]
    pub measuring: Measuring,
    #[command(flatten)]
    pub output: Output,
}

/// `overlane lab list`
#[derive(Debug, Args)]
pub struct List {
    /// List only modes and groups whose name contains one of these words
    #[arg(value_name = "MODE")]
    pub words: Vec<String>,
    /// Print JSON: an array of {mode, path, supported, reason, remedy}
    #[arg(long)]
    pub json: bool,
}

/// `overlane lab guest`
#[derive(Debug, Args)]
pub struct Guest {
    /// Name of the tenant
    pub name: String,
    /// Address of its NIC, with the prefix length [default: none]
    #[arg(long, value_name = "ADDR/LENGTH")]
    pub address: Option<String>,
    /// MTU of its NIC in bytes
    #[arg(long, default_value_t = 1500)]
    pub mtu: u32,
    /// Next hop of its default route
    #[arg(long)]
    pub gateway: Option<std::net::Ipv4Addr>,
    /// Run this program once with the arguments received, instead of loads
    #[arg(long)]
    pub exec: bool,
}

/// `overlane lab run`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane lab run --quick --out results.json
  overlane lab run --modes vxlan,vxlan+accel --workloads udp_stream --sizes 64,1400
  overlane lab run --modes vxlan --workloads tcp_rr --beside tcp_stream,tcp_maerts
  overlane lab run --modes vxlan --try offload:none")]
pub struct Run {
    /// Plan to run: a name (see `overlane lab plans`) or a TOML file
    ///
    /// A file name contains `.` or `/`. Options on the command line override the plan's.
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// Modes or groups to measure, comma-separated (see `overlane lab list`)
    ///
    /// `all` stands for the modes that join two endpoints and are not a variant of another mode.
    /// Modes …@guest are measured inside one guest, in a separate run.
    #[arg(long, visible_alias = "mode", default_value = "all", value_name = "MODES")]
    pub modes: String,
    /// Mode to compare with
    ///
    /// For modes …@guest, the default is host@guest.
    #[arg(long, default_value = "host", value_name = "MODE")]
    pub baseline: String,
    /// Use IPv4 between client and server (the default)
    ///
    /// With -6, IPv6 is measured in addition, as the setting ip=6.
    #[arg(short = '4')]
    pub ipv4: bool,
    /// Use IPv6 between client and server
    ///
    /// For modes whose ends share one layer 2. To compare with IPv4, use --vary ip=6, or -4 -6.
    #[arg(short = '6')]
    pub ipv6: bool,
    /// Kernel image for guests [default: this machine's, else last in /boot]
    ///
    /// Guests of modes vm-… and …@guest boot this bzImage. lib/modules must be beside its
    /// directory.
    #[arg(long, value_name = "FILE")]
    pub guest_kernel: Option<PathBuf>,
    /// Offload profiles: full, no-tunnel, none [default: full,none]
    ///
    /// They apply to the wire between the hosts. With --try, the default is full.
    #[arg(long, value_name = "PROFILES")]
    pub offload: Option<String>,
    /// Underlay MTUs in bytes, 576 to 65535
    ///
    /// Overlay MTUs derive from them.
    #[arg(long, default_value = "1500", value_name = "MTUS")]
    pub mtu: String,
    /// How NICs spread received packets over CPUs
    ///
    /// [default: rss if threads are pinned]
    #[arg(long, value_enum)]
    pub steering: Option<Steering>,
    /// Also measure with values of a setting, such as ring=64,4096
    ///
    /// May be repeated. Each mode is measured once more with each value.
    ///
    /// Settings of the wire's NICs, or of a device as KIND@DEVICE=…: sysctl:KEY=V,…, ring=N,…,
    /// queues=N,…, txqueuelen=N,…, rps=CPUS,…, offload=PROFILE,…, mtu=N,…, gso_max_size=N,…,
    /// gso_max_segs=N,…, feature:NAME=on|off, coalesce:NAME=N,…, sysfs:FILE=V,….
    ///
    /// ip=6: IPv6 between client and server, compared with IPv4.
    ///
    /// Settings of guests (modes vm-…), which are restarted for each value: vm:cpus=N,…,
    /// vm:queues=N,…, vm:vhost=on|off, vm:mrg_rxbuf=on|off, vm:tunnel-gso=on|off,
    /// tap:txqueuelen=N,…, tap:sndbuf=BYTES,….
    ///
    /// Settings joined with + change together. All settings are restored afterwards.
    #[arg(long, value_name = "SETTING")]
    pub vary: Vec<String>,
    /// Also measure with a change, such as offload:none
    ///
    /// May be repeated. Each mode is measured once more with the change.
    ///
    /// A change is offload:PROFILE, a setting as for --vary, or HOST:CHANGE. HOST is a test host
    /// (a, b, tenant-a, tenant-b), CHANGE a setting or a command. The inverse of a command is
    /// derived from the current values (see `overlane try`).
    #[arg(long = "try", value_name = "CHANGE")]
    pub tries: Vec<String>,
    /// Inject each supported fault this many times, 0 to 1000 [default: 0]
    ///
    /// Each trial uses a fresh testbed, after the blocks: a session ends, a daemon is killed, a
    /// tenant moves. One datagram per millisecond shows the loss and the outage. Testbeds have no
    /// settings of --vary and --try; --quick does not reduce the trials. Not for modes …@guest.
    #[arg(long, value_name = "TRIALS", default_value_t = 0, hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(..=1000))]
    pub faults: u32,
    /// Do not probe the paths for damaged packets before the first sample
    ///
    /// By default, a few classes of packets are sent over each path and compared byte for byte. A
    /// path that damages or loses them because of an offload gets the reason instead of figures.
    #[arg(long)]
    pub no_probe: bool,
    #[command(flatten)]
    pub asking: Asking,
    #[command(flatten)]
    pub measuring: Measuring,
    #[command(flatten)]
    pub output: Output,
}

/// Returns the help of `--workloads`, which lists every workload.
fn workloads_help() -> String {
    let names = Workload::ALL.map(Workload::name).join(", ");
    format!(
        "Workloads, comma-separated: {names}, and drop_point (NDR and PDR of udp_stream, \
         RFC 2544)"
    )
}

/// Returns the long help of `--sizes`, with the default of every workload.
fn sizes_help() -> String {
    let own = Workload::ALL.into_iter().filter(|workload| workload.default_message_bytes() != 1);
    let own: Vec<_> =
        own.map(|workload| format!("{workload} {}", workload.default_message_bytes())).collect();
    format!(
        "Message sizes, such as 64,1400 or 1:4096:*2 [default: per workload]\n\nIn bytes, 1 to \
         65507. Defaults by workload: {}, all others 1.",
        own.join(", ")
    )
}

/// The workload options. Each combination of their values is one cell per path.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workload")]
pub struct Asking {
    #[arg(long, help = workloads_help(), default_value = "tcp_stream,tcp_rr,udp_stream", value_name = "WORKLOADS")]
    pub workloads: String,
    /// Message sizes, such as 64,1400 or 1:4096:*2 [default: per workload]
    #[arg(long, value_name = "SIZES", long_help = sizes_help())]
    pub sizes: Option<String>,
    /// Parallel flows, comma-separated
    #[arg(long, default_value = "1", value_name = "N")]
    pub flows: String,
    /// Requests in flight per flow of tcp_rr and udp_rr
    #[arg(long, default_value = "1", value_name = "N")]
    pub outstanding: String,
    /// Measure latency of tcp_rr and udp_rr at these loads, in percent
    ///
    /// Percentages of each path's own maximum rate. Requests follow a schedule; latency counts from
    /// the scheduled time. 0 sends one request at a time.
    #[arg(long, value_name = "PERCENT")]
    pub load: Option<String>,
    /// Rates of udp_stream, such as 100M,1G [default: as fast as possible]
    ///
    /// Payload in bit/s over all flows. The receiver reports loss, jitter (RFC 3550) and reordering.
    /// Messages need at least 16 bytes.
    #[arg(long, value_name = "BITS")]
    pub rate: Option<String>,
    /// Also measure tcp_rr and udp_rr beside bulk traffic: tcp_stream, tcp_maerts, both
    ///
    /// Latency alone, and beside a connection that sends from the client (tcp_stream), from the
    /// server (tcp_maerts), or one of each at once (both, also if tcp_stream and tcp_maerts are
    /// listed).
    #[arg(long, value_name = "WORKLOADS")]
    pub beside: Option<String>,
    /// Socket buffer sizes of both ends, bytes [default: kernel default]
    #[arg(long, value_name = "BYTES")]
    pub socket_buffers: Option<String>,
    /// Load generators: overlane (built in), iperf3, netperf, qperf, sockperf, nuttcp
    #[arg(long, default_value = "overlane", value_name = "ENGINES")]
    pub engine: String,
    /// Use GSO packets for udp_stream (UDP_SEGMENT, UDP_GRO)
    #[arg(long)]
    pub gso: bool,
    /// Mark all packets of both ends with this DSCP: 0 to 63, or a name such as EF, AF11, CS1
    #[arg(long, value_name = "DSCP", value_parser = crate::quantity::dscp)]
    pub dscp: Option<u8>,
    /// Use ECN: ECT(0) on datagrams, TCP connections that negotiate it; count packets with CE
    ///
    /// The lab's clients ask for ECN (net.ipv4.tcp_ecn=1). Elsewhere that setting must be in force in
    /// the client's namespace. A TCP connection without ECN is an error.
    #[arg(long)]
    pub ecn: bool,
}

/// Default of `--workloads`.
pub const WORKLOADS: &str = "tcp_stream,tcp_rr,udp_stream";

/// The sampling options.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct Measuring {
    /// How to pin client and server threads to CPUs [default: split]
    ///
    /// For `try` and `measure run` the default is none if both endpoints are on this machine and
    /// other programs use the CPUs of one of them.
    #[arg(long, value_enum)]
    pub placement: Option<Placement>,
    /// Number of blocks [default: 20, with --quick 9]
    ///
    /// Each block measures every cell once, in random order. For `try`, the defaults are 30 and 13.
    #[arg(long, value_name = "N", conflicts_with = "confidence")]
    pub blocks: Option<u32>,
    /// Seconds per sample [default: 0.5, with --quick 0.15]
    ///
    /// For `try`, the default is 0.25 if other load is steady.
    #[arg(long, value_name = "SEC", value_parser = crate::quantity::seconds)]
    pub duration: Option<f64>,
    /// Seconds of warm-up per sample [default: 0.1, --quick 0.05]
    #[arg(long, value_name = "SEC", value_parser = crate::quantity::seconds)]
    pub warmup: Option<f64>,
    /// Confidence level in percent, and optional goal [default: 95]
    ///
    /// With a goal, the run stops once every interval is narrow enough: 95,5 means 95% intervals
    /// within ±5%.
    #[arg(long, value_name = "LEVEL[,PERCENT]")]
    pub confidence: Option<String>,
    /// Maximum blocks if --confidence sets a goal
    #[arg(long, default_value_t = 100, value_name = "N", requires = "confidence")]
    pub max_blocks: u32,
    /// Seed of the random order [default: random, printed]
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Take fewer, shorter samples: an overview within five minutes
    #[arg(long)]
    pub quick: bool,
    /// Discard samples if other programs use more CPU time than this
    ///
    /// A limit in percent of all CPUs. Without it, each sample is compared with the background load
    /// of the run.
    #[arg(long, value_name = "PERCENT")]
    pub disturbance: Option<f64>,
    /// Limit the test's share of link and idle CPUs, such as 5%
    ///
    /// For hosts that carry production traffic: sends short pulses of tcp_rr and udp_rr, with
    /// pauses between them.
    #[arg(long, value_name = "PERCENT")]
    pub impact: Option<String>,
}

/// The output options.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Write the results to a file (JSON, see schema/results.schema.json)
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the results as JSON instead of the table
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Format of the printed results
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Write each sample as a JSON line to a new file as it comes; -: to standard error
    ///
    /// The first line describes the run and its cells. Further lines have the index of a cell and a
    /// sample, valid or not. A later sample of the same cell and block replaces an earlier one.
    /// `overlane report` reads the file.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
}

impl Measuring {
    /// Returns the placement, or the default. The survey may still change the default.
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
    /// Not pinned to CPUs
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
    /// On the sending CPU, as veth does; a flow sent from two CPUs is reordered
    None,
    /// Each flow on one CPU of the receiving host's threads, as with NIC queues
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
    /// CSV, one line per cell
    Csv,
    /// CSV, one line per sample
    CsvSamples,
    /// The results file as is
    Json,
    /// OpenMetrics, for Prometheus' textfile collector
    Openmetrics,
}

/// `overlane lab plans`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane lab plans
  overlane lab plans docker-modes > my-plan.toml")]
pub struct Plans {
    /// Plan to print
    pub name: Option<String>,
    /// Print JSON: an array of {name, description}
    #[arg(long, conflicts_with = "name")]
    pub json: bool,
    /// Print the JSON schema of plan files (schema/plan.schema.json)
    #[arg(long, conflicts_with_all = ["name", "json"])]
    pub schema: bool,
}

/// `overlane lab kernels`
#[derive(Debug, Args)]
#[command(after_help = "\
Boots a guest with each kernel, measures the same modes …@guest in both, and compares the results. \
An image is a bzImage; lib/modules must be beside its directory.
Exit codes: 0 no proven regression exceeds --fail-on, 10 one does, 1 a run failed or a mode cannot \
be built, 2 wrong usage.

EXAMPLES
  overlane lab kernels old/boot/vmlinuz-6.18.0 new/boot/vmlinuz-6.18.0+
  overlane lab kernels old/boot/vmlinuz new/boot/vmlinuz --fail-on 2% -- --confidence 95,3")]
pub struct Kernels {
    /// Kernel image to compare with
    pub old: PathBuf,
    /// Kernel image to test
    pub new: PathBuf,
    /// Exit with 10 if a proven regression is larger
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    pub fail_on: String,
    /// Keep the results in this directory, as old.json and new.json
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Options of `lab run`, by default --modes host@guest,vxlan@guest
    #[arg(last = true)]
    pub options: Vec<std::ffi::OsString>,
}

/// `overlane lab up`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane lab up vxlan
  overlane lab up bridge --name my-bridge --mtu 9000")]
pub struct Up {
    /// Mode (see `overlane lab list`)
    pub mode: String,
    /// Name of the testbed [default: name of the mode]
    #[arg(long)]
    pub name: Option<String>,
    /// Offload profile of the wire: full, no-tunnel or none
    #[arg(long, default_value = "full", value_name = "PROFILE")]
    pub offload: String,
    /// Underlay MTU in bytes, 576 to 65535
    #[arg(long, default_value_t = 1500, value_name = "MTU")]
    pub mtu: u32,
    /// Print JSON (see schema/lab-testbed.schema.json)
    #[arg(long)]
    pub json: bool,
}

/// `overlane lab hold`
#[derive(Debug, Args)]
pub struct Hold {
    /// Mode, by name.
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
#[command(after_help = "\
Exits with the exit code of the command.

EXAMPLES
  overlane lab exec tenant-a -- ping -c 1 10.1.0.12
  overlane lab exec vxlan/a -- ip -d link")]
pub struct Exec {
    /// Host or tenant (`a`, `tenant-b`); TESTBED/HOST if several testbeds run
    pub host: String,
    /// Command and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// `overlane lab status`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane lab status
  overlane lab status --json")]
pub struct LabStatus {
    /// Print JSON (see schema/lab-status.schema.json)
    #[arg(long)]
    pub json: bool,
}

/// `overlane lab down`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane lab down vxlan
  overlane lab down --all")]
pub struct Down {
    /// Testbeds to remove, by name
    #[arg(required_unless_present = "all")]
    pub names: Vec<String>,
    /// Remove every testbed of this user
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Print JSON: an array of the removed names
    #[arg(long)]
    pub json: bool,
}

/// `overlane tour`
#[derive(Debug, Args)]
pub struct Tour {
    /// Do not wait for Enter before each step
    #[arg(long)]
    pub yes: bool,
}
