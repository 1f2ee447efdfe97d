//! The command line of `overlane doctor`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `overlane doctor`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Nothing is changed. Without root it looks at what it may; what it could not look at is listed with the reason. Exit codes: 0 nothing at or above --fail-on, 10 findings at or above it, 1 failed, 2 wrong usage."
)]
pub struct Doctor {
    /// What else to do.
    #[command(subcommand)]
    pub verb: Option<DoctorVerb>,
    /// What to look at.
    #[command(flatten)]
    pub reading: Reading,
    /// Look at a host saved by `doctor dump` instead of this one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["netns", "watch"])]
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
    /// Network namespaces to look at: `all` that can be found, or one by name, process id
    /// or path
    #[arg(long, default_value = "all", value_name = "NETNS")]
    pub netns: String,
    /// Seconds between the two readings that show what moves
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub watch: f64,
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
