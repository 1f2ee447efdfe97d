//! Sessions: runs of `lab run`, `measure run` and `try`, from the checked request to the results.
//!
//! - [`request`], [`variation`]: what to measure, and how.
//! - [`lab_run`], [`in_guest`], [`remote_run`], [`trial`]: one file per kind of session.
//! - [`testbeds`], [`remote_paths`]: paths to measure. [`fault_runs`]: faults after the blocks.
//! - `path_probes`: no figure comes from a path that damages packets.
//! - [`survey`], [`execute`], [`progress`]: other load on the machine, the run, its progress bar.
//! - [`keeping`]: samples in a file as they come.
//! - [`assembly`], [`missing_cells`], [`finished`]: the results.
//!
//! A session prints only its progress, on standard error.

#![forbid(unsafe_code)]

pub mod assembly;
pub mod execute;
pub mod fault_runs;
pub mod finished;
pub mod in_guest;
pub mod keeping;
pub mod lab_run;
mod live;
pub mod missing_cells;
mod path_probes;
pub mod progress;
pub mod remote_paths;
pub mod remote_run;
pub mod request;
pub mod survey;
pub mod testbeds;
pub mod trial;
pub mod usage;
pub mod variation;
