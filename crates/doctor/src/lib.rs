//! What slows or breaks a host's virtual networks.
//!
//! [`collect()`] reads a [`Host`]: everything that the checks need, twice, so that
//! it shows what moves. [`diagnose`] runs every check on it, and finds the paths
//! of packets by the way. A host can be saved ([`dump`]) and diagnosed elsewhere.
//! Nothing here prints, or changes anything: changes are those of the crate `settings`.

#![forbid(unsafe_code)]

pub mod check;
pub mod collect;
mod defects;
pub mod diagnosis;
pub mod dump;
pub mod finding;
pub mod host;
pub mod path;
pub mod scrub;
pub mod view;

pub use check::{CHECKS, Check};
pub use collect::{Scope, collect};
pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Confidence, Cost, Evidence, Finding, Fix, Severity, Skipped};
pub use host::Host;
