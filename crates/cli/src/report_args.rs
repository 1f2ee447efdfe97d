//! The arguments of the verb `report`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::Format;

/// `overlane report`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
EXAMPLES
  overlane report results.json
  overlane report results.json --html report.html
  overlane report results.json --baseline vxlan")]
pub struct Report {
    #[command(subcommand)]
    pub verb: Option<ReportVerb>,
    /// Results file (from `overlane lab run --out`) or recording of `overlane watch`
    #[arg(required = true)]
    pub file: Option<PathBuf>,
    /// Output format [default: text, unless --html or --svg is given]
    #[arg(long, value_enum, group = "printed")]
    pub format: Option<Format>,
    /// Same as --format json
    #[arg(long, group = "printed")]
    pub json: bool,
    /// Same as --format markdown
    #[arg(long, group = "printed")]
    pub markdown: bool,
    /// Same as --format csv
    #[arg(long, group = "printed")]
    pub csv: bool,
    /// Write an HTML page with charts, as one self-contained file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show ratios to this mode instead of the run's baseline
    #[arg(long, value_name = "MODE")]
    pub baseline: Option<String>,
    /// Write one SVG file per chart to this directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}

/// `overlane report …`
#[derive(Debug, Subcommand)]
pub enum ReportVerb {
    /// Show proven differences between results files
    Compare(Compare),
}

/// `overlane report compare`
#[derive(Debug, Args)]
#[command(after_help = "\
Compares the ratio of each cell to the baseline of the same block, so that differences between the \
machine's state during the two runs cancel out. Absolute values of the baseline are shown, but not \
judged. A change is proven if the bootstrap interval of B ÷ A excludes 1 and the Mann-Whitney test \
rejects, both corrected for all comparisons.
Exit code 10: a proven regression exceeds --fail-on.

EXAMPLES
  overlane report compare before.json after.json
  overlane report compare before.json after.json --fail-on 5%
  overlane report compare 6.1.json 6.6.json 6.12.json --markdown
  overlane report compare 6.1.json 6.6.json 6.12.json --html kernels.html")]
pub struct Compare {
    /// Results of the earlier run
    pub a: PathBuf,
    /// Results of the later run; with several, each is compared with the first file
    #[arg(required = true, num_args = 1..=MOST_COMPARED)]
    pub b: Vec<PathBuf>,
    /// Exit with 10 if a proven regression is larger, such as 5%
    #[arg(long, value_name = "PERCENT")]
    pub fail_on: Option<String>,
    /// Print JSON (see schema/compare.schema.json); an array if there are several later runs
    #[arg(long)]
    pub json: bool,
    /// Print Markdown, a column per file
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print CSV, a row per figure and file
    #[arg(long, conflicts_with_all = ["json", "markdown"])]
    pub csv: bool,
    /// Write an HTML page with one chart of all changes, as one self-contained file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Maximum number of files that are compared with one.
const MOST_COMPARED: usize = 25;
