//! What slows or breaks a host's virtual networks.
//!
//! [`collect()`] reads a [`Host`]: everything that the checks need, twice, so that
//! it shows what moves. [`diagnose`] runs every check on it, and finds the paths
//! of packets by the way. A host can be saved ([`dump`]) and diagnosed elsewhere.
//! Only [`journal`] changes anything, one setting at a time, so that it can be taken
//! back, for good or on [`trial`]; nothing here prints.

#![forbid(unsafe_code)]

pub mod apply;
pub mod change;
pub mod check;
pub mod collect;
pub mod command;
mod defects;
pub mod diagnosis;
pub mod dump;
pub mod finding;
pub mod host;
pub mod journal;
pub mod path;
pub mod proposal;
pub mod scrub;
mod shell;
pub mod trial;
pub mod view;

pub use check::{CHECKS, Check};
pub use collect::{Scope, collect};
pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Confidence, Cost, Evidence, Finding, Fix, Severity, Skipped};
pub use host::Host;
