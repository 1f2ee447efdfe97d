//! Finds faults that slow or break a host's virtual networks.
//!
//! [`collect()`] reads a [`Host`]: all state that the checks need, twice, to see which counters
//! increase. [`diagnose`] runs every check on it and finds packet paths. A host can be saved
//! ([`dump`]) and diagnosed elsewhere. Nothing here prints or changes anything; the crate
//! `settings` makes changes.

#![forbid(unsafe_code)]

pub mod check;
pub mod collect;
pub mod diagnosis;
pub mod dump;
pub mod finding;
pub mod host;
pub mod path;
pub mod probed;
pub mod record;
pub mod scrub;
pub mod view;

pub use check::{CHECKS, Check};
pub use collect::{Scope, collect};
pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Confidence, Cost, Evidence, Finding, Fix, Severity, Skipped};
pub use host::Host;
