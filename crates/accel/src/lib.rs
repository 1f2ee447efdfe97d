//! The fast path: an eBPF bypass of kernel bridges, routes and VXLAN devices.
//!
//! The kernel's path stays in place and is authoritative. The fast path forwards a packet only if
//! the result is the same; every other packet takes the kernel's path.
//!
//! Modules, each depending only on those above it:
//!
//! | module | content |
//! | --- | --- |
//! | `model` | data: the kernel's state, the plan, refusals, counted packets |
//! | `eligibility` | the rules that refuse a device, port or VTEP, independent of each other |
//! | `planning` | computes a plan from a snapshot, without reading anything |
//! | `status` | the status report |
//! | `programs` | the BPF programs, their maps, the ABI header shared with them |
//! | `admission` | the thread that gives verdicts on flows through packet filters |
//! | `vitals` | liveness and counters of the reconciler thread |
//! | `events` | differences between two status reports |
//! | `metrics` | status and vitals for Prometheus |
//! | `mirroring` | the reconciler thread, which keeps maps and hooks in step with the kernel |
//! | `check` | a dry run that also counts traffic |
//! | `daemon` | the public interface of a running fast path |
//!
//! Programs are attached by BPF links, which the kernel removes however the process ends.

#![forbid(unsafe_code)]

mod admission;
pub mod check;
mod daemon;
mod eligibility;
mod error;
pub mod events;
mod lock;
mod metrics;
mod mirroring;
mod model;
mod planning;
mod programs;
pub mod status;
mod vitals;

pub use admission::{Caretaker, CaretakerWatch};
pub use daemon::{Accel, DEFAULT_MAX_ENTRIES, DEFAULT_MAX_FLOWS, Options, probe};
pub use error::{Error, Result};
pub use metrics::exposition;
pub use mirroring::{Finder, Security, left_behind, remove_left_behind};
pub use model::{
    Accounting, Counted, EXPLANATIONS, Explanation, Path, RETIRED, Reason, Refusal, Wanted,
};
pub use programs::DecapGso;
pub use status::Status;
pub use vitals::{Cause, Vitals};
