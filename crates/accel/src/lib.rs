//! The fast path: an eBPF short cut beside a kernel bridge or routes with VXLAN devices.
//!
//! The kernel's own path stays as it is and is the truth. A packet is forwarded
//! here only where the outcome is the same; everything else goes on untouched.
//!
//! The parts, each using only those before it:
//!
//! | module | what it has |
//! | --- | --- |
//! | `model` | data: the kernel's state, the plan, refusals, counted packets |
//! | `eligibility` | the rules that keep something slow, each by itself, in lists |
//! | `planning` | from a snapshot to a plan: a function, it reads nothing |
//! | `status` | what the fast path says of itself |
//! | `programs` | the BPF programs, their maps and the header shared with them |
//! | `admission` | the thread that gives verdicts on flows through packet filters |
//! | `vitals` | whether and how the thread goes on |
//! | `events` | what has changed from one status to the next |
//! | `metrics` | status and vitals for Prometheus |
//! | `mirroring` | the thread that keeps maps and hooks in step with the kernel |
//! | `check` | what would be accelerated, and what traffic passes meanwhile |
//! | `daemon` | all that as its user sees it |
//!
//! Programs are attached by links that the kernel removes with the process, however that
//! ends.

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

pub use daemon::{Accel, DEFAULT_MAX_ENTRIES, DEFAULT_MAX_FLOWS, Options, probe};
pub use error::{Error, Result};
pub use metrics::exposition;
pub use mirroring::{Finder, left_behind, remove_left_behind};
pub use model::{Counted, EXPLANATIONS, Explanation, Path, RETIRED, Reason, Refusal, Wanted};
pub use status::Status;
pub use vitals::Vitals;
