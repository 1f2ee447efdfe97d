//! The arguments of the verbs `doctor` and `undo`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `overlane doctor`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Only `doctor fix` changes anything. Without root, doctor reads only part of the host, and lists the \
parts that it could not read, with reasons. Exit codes: 0 no finding at or above --fail-on, 10 \
findings at or above it, 1 failed, 2 wrong usage.

EXAMPLES
  overlane doctor
  overlane doctor --netns all --fail-on error --json
  overlane doctor --from dump.tar.zst")]
pub struct Doctor {
    #[command(subcommand)]
    pub verb: Option<DoctorVerb>,
    #[command(flatten)]
    pub reading: Reading,
    /// Check a host saved by `doctor dump` instead of this one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["netns", "watch", "peer"])]
    pub from: Option<PathBuf>,
    /// Print JSON (see schema/doctor.schema.json)
    #[arg(long)]
    pub json: bool,
    /// Exit with 10 on findings of this severity or higher
    #[arg(long, value_enum, default_value_t = FailOn::Warn, value_name = "SEVERITY")]
    pub fail_on: FailOn,
    #[command(flatten)]
    pub journal: Journal,
}

/// The part of the host to read.
#[derive(Debug, Args)]
pub struct Reading {
    /// Network namespaces: `all`, or names, process IDs or paths
    #[arg(long, default_value = "all", value_name = "NETNS")]
    pub netns: String,
    /// Seconds between the two readings of the counters
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = crate::quantity::seconds)]
    pub watch: f64,
    /// Compare tunnels with a remote host that runs `measure serve` (OV063), and probe the offloads
    /// of the path to it (OV090)
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Vec<String>,
    /// File with the token for every --peer
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub token: Option<PathBuf>,
}

/// `overlane doctor …`
#[derive(Debug, Subcommand)]
pub enum DoctorVerb {
    /// List all checks
    #[command(after_help = "\
EXAMPLES
  overlane doctor list
  overlane doctor list --json")]
    List {
        /// Print JSON: an array of {code, severity, title, explanation}
        #[arg(long)]
        json: bool,
    },
    /// Explain a check
    #[command(after_help = "\
EXAMPLES
  overlane doctor explain OV013
  overlane doctor explain OV063")]
    Explain {
        /// Code of the check, such as OV013
        code: String,
    },
    /// Fix the findings of a check; `overlane undo` undoes the changes
    #[command(after_help = "\
Each change is written to the journal and synced before it is made. It is refused if the setting \
has changed since it was read. With --confirm-within, all changes are undone automatically unless \
`overlane doctor confirm` runs in time, even if this machine can no longer be reached.

EXAMPLES
  overlane doctor fix OV013
  overlane doctor fix OV013 --yes --confirm-within 60")]
    Fix {
        /// Code of the check, such as OV013
        code: String,
        #[command(flatten)]
        reading: Reading,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Undo the changes after SECONDS unless confirmed
        #[arg(long, value_name = "SECONDS", value_parser = confirm_within)]
        confirm_within: Option<u64>,
        #[command(flatten)]
        journal: Journal,
    },
    /// Keep changes made with --confirm-within
    #[command(after_help = "\
EXAMPLES
  overlane doctor fix OV013 --yes --confirm-within 60
  overlane doctor confirm")]
    Confirm {
        #[command(flatten)]
        journal: Journal,
    },
    /// Save the data that the checks read, for `doctor --from` elsewhere
    #[command(after_help = "\
EXAMPLES
  overlane doctor dump --out host.tar.zst
  overlane doctor dump --scrub")]
    Dump {
        #[command(flatten)]
        reading: Reading,
        /// File to write
        #[arg(long, default_value = "dump.tar.zst", value_name = "FILE")]
        out: PathBuf,
        /// Replace addresses and names by pseudonyms
        #[arg(long)]
        scrub: bool,
        #[command(flatten)]
        journal: Journal,
    },
}

/// The journal of changes.
#[derive(Debug, Args)]
pub struct Journal {
    /// Directory of the journal, and of the findings of `overlane probe`
    #[arg(long = "journal", default_value = settings::journal::DIRECTORY, value_name = "DIR")]
    pub directory: PathBuf,
}

/// `overlane undo`
#[derive(Debug, Args)]
#[command(after_help = "\
`doctor fix`, `try` and `undo` first undo changes of a process that was killed midway. Changes of a \
running `try` are left to it. A setting that another program has changed in the meantime is left \
alone, and its entry stays in the journal; the same applies if the namespace or device may have \
been replaced. Damaged files in the journal, and files of a later version, are skipped and reported \
(exit code 1). A journal that others can write is refused.

EXAMPLES
  overlane undo --list
  overlane undo 3
  overlane undo --all")]
pub struct Undo {
    /// Number of the change (see --list)
    #[arg(value_name = "ID", required_unless_present_any = ["all", "list", "when_due", "when_gone"])]
    pub id: Option<u64>,
    /// Undo every change, the latest first
    #[arg(long, conflicts_with_all = ["id", "list"])]
    pub all: bool,
    /// List the changes that can be undone
    #[arg(long, conflicts_with = "id")]
    pub list: bool,
    /// Delete the entry without changing the setting
    #[arg(long, requires = "id")]
    pub forget: bool,
    /// Wait this many seconds, then undo unconfirmed changes (started by `doctor fix`)
    #[arg(long, hide = true, value_name = "SECONDS", conflicts_with_all = ["id", "all", "list"])]
    pub when_due: Option<u64>,
    /// Wait until the `try` with this process ID ends, then undo its remaining changes (started
    /// by `try`)
    #[arg(long, hide = true, value_name = "PID", conflicts_with_all = ["id", "all", "list", "when_due"])]
    pub when_gone: Option<u32>,
    #[command(flatten)]
    pub journal: Journal,
}

/// `--fail-on`: the lowest severity that sets exit code 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Any finding
    Info,
    /// Findings that cost throughput, CPU time or packets
    Warn,
    /// Findings that keep packets from arriving
    Error,
    /// Never
    Never,
}

/// Parses the time to confirm: a second to a day.
fn confirm_within(text: &str) -> Result<u64, String> {
    let seconds = crate::quantity::whole_seconds(text)?;
    match seconds {
        1..=86_400 => Ok(seconds.into()),
        _ => Err(format!("{text:?}: expected 1s to 1day")),
    }
}
