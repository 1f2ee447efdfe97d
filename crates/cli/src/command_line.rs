//! The command line, as clap has it: help, completions and man pages are made
//! from this. Each verb's arguments are in a module of their own.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::accel_args::AccelVerb;
use crate::args::{LabVerb, MeasureVerb, Report};
use crate::doctor_args::{Doctor, Undo};
use crate::tapbridge_args::TapBridge;
use crate::trace_args::Trace;
use crate::try_args::Try;
use crate::vtep_args::Vtep;
use crate::watch_args::Watch;

/// Overlay networks at host speed: measured, explained, repaired.
#[derive(Debug, Parser)]
#[command(name = "overlane", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed in whole or in part, 2 wrong usage or bad input, 10 a proven regression exceeds its limit (report compare), findings at or above --fail-on (doctor) or a change that is not proven better (try), 130 ended by Ctrl-C.\nColour is used on a terminal only; NO_COLOR switches it off. OVERLANE_LOG=debug logs to standard error."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What the program does: the first word of the command line.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Build every network mode from throw-away test hosts and measure it against the bare host
    Lab {
        /// What to do with it.
        #[command(subcommand)]
        verb: LabVerb,
    },
    /// Measure the path to another machine, as ratio to a second path to it
    Measure {
        /// Which end.
        #[command(subcommand)]
        verb: MeasureVerb,
    },
    /// Put an eBPF fast path beside kernel VXLAN devices (Linux 6.6)
    Accel {
        /// What to do with them.
        #[command(subcommand)]
        verb: AccelVerb,
    },
    /// Find what slows or breaks this host's virtual networks, with evidence and the fix
    Doctor(Box<Doctor>),
    /// Try a change against a peer: measure with and without it, keep it if proven better
    Try(Box<Try>),
    /// Take back what `doctor fix` and `try` have changed
    Undo(Undo),
    /// Watch where packets are cut, merged, delayed and dropped, live
    Watch(Box<Watch>),
    /// Follow packets through devices, tunnels and namespaces, to where they end
    Trace(Box<Trace>),
    /// Show results as tables, a page with charts, or against an earlier run
    Report(Report),
    /// Join two TAP devices in user space, GSO packets uncut
    Tapbridge(TapBridge),
    /// Be a VXLAN tunnel endpoint in user space, for tenants behind TAP devices
    Vtep(Box<Vtep>),
    /// Print shell completions
    Completions {
        /// Shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages, one a verb
    Man {
        /// Existing directory to write them to
        directory: PathBuf,
    },
}
