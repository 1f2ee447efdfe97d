//! The command line of `overlane doctor`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `overlane doctor`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Looking changes nothing; only `doctor fix` does. Without root it looks at what it may; what it could not look at is listed with the reason. Exit codes: 0 nothing at or above --fail-on, 10 findings at or above it, 1 failed, 2 wrong usage."
)]
pub struct Doctor {
    /// What else to do.
    #[command(subcommand)]
    pub verb: Option<DoctorVerb>,
    /// What to look at.
    #[command(flatten)]
    pub reading: Reading,
    /// Look at a host saved by `doctor dump` instead of this one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["netns", "watch", "peer"])]
    pub from: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Exit with 10 if there are findings of this severity or worse
    #[arg(long, value_enum, default_value_t = FailOn::Warn, value_name = "SEVERITY")]
    pub fail_on: FailOn,
}

/// What to look at.
#[derive(Debug, Args)]
pub struct Reading {
    /// Network namespaces to look at: `all` that can be found, or some by name, process id
    /// or path, comma-separated
    #[arg(long, default_value = "all", value_name = "NETNS")]
    pub netns: String,
    /// Seconds between the two readings that show what moves
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub watch: f64,
    /// A host at the other end of a tunnel that runs `overlane measure serve`: what the
    /// two ends disagree on is found, too (OV063)
    #[arg(long, value_name = "HOST[:PORT]")]
    pub peer: Vec<String>,
    /// File with the token of every --peer
    #[arg(long, value_name = "FILE", requires = "peer")]
    pub token: Option<PathBuf>,
}

/// `overlane doctor …`
#[derive(Debug, Subcommand)]
pub enum DoctorVerb {
    /// List every check
    List {
        /// Print JSON: an array of {code, severity, title, explanation}
        #[arg(long)]
        json: bool,
    },
    /// Explain a check
    Explain {
        /// Its code, as OV013
        code: String,
    },
    /// Change the setting that a check has found wrong; `overlane undo` takes it back
    #[command(
        after_help = "Each change is written to the journal, and synced, before it is made; it is refused when the setting is no longer what was read. With --confirm-within all of it is taken back by itself unless `overlane doctor confirm` comes in time, also when this machine cannot be reached any more."
    )]
    Fix {
        /// Code of the check, as OV013
        code: String,
        /// What to read.
        #[command(flatten)]
        reading: Reading,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Take the changes back after so many seconds, unless confirmed
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
        confirm_within: Option<u64>,
        /// Where changes are kept.
        #[command(flatten)]
        journal: Journal,
    },
    /// Let changes stay that were made with --confirm-within
    Confirm {
        /// Where changes are kept.
        #[command(flatten)]
        journal: Journal,
    },
    /// Save everything that the checks read, to be looked at elsewhere (--from)
    Dump {
        /// What to read.
        #[command(flatten)]
        reading: Reading,
        /// Where to
        #[arg(long, default_value = "dump.tar.zst", value_name = "FILE")]
        out: PathBuf,
        /// Put other addresses in place of IP and hardware addresses; names stay
        #[arg(long)]
        scrub: bool,
    },
}

/// Where changes are kept.
#[derive(Debug, Args)]
pub struct Journal {
    /// Directory of the journal
    #[arg(long = "journal", default_value = settings::journal::DIRECTORY, value_name = "DIR")]
    pub directory: PathBuf,
}

/// `overlane undo`
#[derive(Debug, Args)]
#[command(
    after_help = "A change whose maker was killed in between is taken back first, by whichever of `doctor fix`, `try` and `undo` comes next. What a running `try` has changed is its own. A setting that somebody else has changed meanwhile is left alone, and its entry stays, as it does where the namespace or the device may be another one by now. A file in the journal that is damaged, or of a later version, is skipped and told of (exit code 1). Nothing is run from a directory or file that others can write."
)]
pub struct Undo {
    /// Number of the change (see --list)
    #[arg(value_name = "ID", required_unless_present_any = ["all", "list", "when_due", "when_gone"])]
    pub id: Option<u64>,
    /// Take back every change, the latest first
    #[arg(long, conflicts_with_all = ["id", "list"])]
    pub all: bool,
    /// List the changes that can be taken back
    #[arg(long, conflicts_with = "id")]
    pub list: bool,
    /// Leave the setting as it is, and forget the change
    #[arg(long, requires = "id")]
    pub forget: bool,
    /// Wait so many seconds, then take back what nobody has confirmed (started by
    /// `doctor fix`)
    #[arg(long, hide = true, value_name = "SECONDS", conflicts_with_all = ["id", "all", "list"])]
    pub when_due: Option<u64>,
    /// Wait for the end of the `try` whose process id this is, then take back what it has
    /// left (started by `try`)
    #[arg(long, hide = true, value_name = "PID", conflicts_with_all = ["id", "all", "list", "when_due"])]
    pub when_gone: Option<u32>,
    /// Where changes are kept.
    #[command(flatten)]
    pub journal: Journal,
}

/// From what severity on findings fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Anything at all
    Info,
    /// What costs throughput, CPU or packets
    Warn,
    /// What keeps packets from arriving
    Error,
    /// Never
    Never,
}
