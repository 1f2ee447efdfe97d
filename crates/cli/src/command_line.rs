//! The command line for clap. Help, completions and man pages derive from it. Each verb's
//! arguments have their own module.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

use crate::accel_args::AccelVerb;
use crate::args::{LabVerb, MeasureVerb, Tour};
use crate::doctor_args::{Doctor, Undo};
use crate::help;
use crate::probe_args::Probe;
use crate::report_args::Report;
use crate::tapbridge_args::TapBridge;
use crate::trace_args::Trace;
use crate::try_args::Try;
use crate::vtep_args::Vtep;
use crate::watch_args::Watch;

/// Overlay networks at host speed: measured, explained, repaired.
#[derive(Debug, Parser)]
#[command(name = "overlane", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed in whole or in part, 2 wrong usage or bad input, 10 a proven \
regression exceeds its limit (report compare), findings at or above --fail-on (doctor), a \
path damages or loses packets (probe), or the change is not proven better (try), 130 ended by Ctrl-C.
Colour is used only on a terminal; NO_COLOR disables it. OVERLANE_LOG=debug logs to standard error.

EXAMPLES
  overlane lab run --quick --out results.json
  overlane doctor")]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
}

/// Returns the command line, with the program's own `--help` and `--help-all`.
pub fn command() -> clap::Command {
    help::on_a_screen(with_all_help())
}

/// Returns the command line with everything in its help, as man pages need it.
pub fn with_all_help() -> clap::Command {
    help::with_flags(Arguments::command())
}

/// The first word of the command line.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Build network modes from temporary test hosts and measure them against the bare host
    #[command(after_help = "\
EXAMPLES
  overlane lab list
  overlane lab run --quick --out results.json")]
    Lab {
        #[command(subcommand)]
        verb: LabVerb,
    },
    /// Measure the path to another machine, as a ratio to a second path
    #[command(after_help = "\
EXAMPLES
  overlane measure serve --bind 0.0.0.0 --token token
  overlane measure run 10.244.1.7 --baseline 192.0.2.7 --token token")]
    Measure {
        #[command(subcommand)]
        verb: MeasureVerb,
    },
    /// Accelerate kernel VXLAN devices with an eBPF fast path (Linux 6.6)
    #[command(after_help = "\
EXAMPLES
  overlane accel check --all
  overlane accel on --all")]
    Accel {
        #[command(subcommand)]
        verb: AccelVerb,
    },
    /// Find problems in this host's virtual networks, with evidence and fixes
    Doctor(Box<Doctor>),
    /// Test whether offloads damage, drop or black-hole packets on the path to a peer
    Probe(Box<Probe>),
    /// Measure a change against a peer, and keep it if it is proven better
    Try(Box<Try>),
    /// Undo changes made by `doctor fix` and `try`
    Undo(Undo),
    /// Show live where packets are segmented, merged, delayed and dropped
    Watch(Box<Watch>),
    /// Trace single packets through devices, tunnels and namespaces
    Trace(Box<Trace>),
    /// Show results as tables or charts, or compare two runs
    Report(Report),
    /// Bridge two TAP devices in user space, without segmenting GSO packets
    Tapbridge(TapBridge),
    /// Run a VXLAN tunnel endpoint in user space, for tenants behind TAP devices
    Vtep(Box<Vtep>),
    /// Show measuring, diagnosis, repair and acceleration in a throw-away testbed
    #[command(after_help = "\
EXAMPLES
  overlane tour
  overlane tour --yes")]
    Tour(Tour),
    /// Print shell completions
    #[command(after_help = "\
EXAMPLES
  overlane completions bash > /etc/bash_completion.d/overlane
  overlane completions zsh > _overlane")]
    Completions { shell: clap_complete::Shell },
    /// Write man pages, one per verb
    #[command(after_help = "\
EXAMPLES
  overlane man .
  overlane man /usr/local/share/man/man1")]
    Man {
        /// Existing directory to write to
        directory: PathBuf,
    },
}
