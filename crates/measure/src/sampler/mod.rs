//! What a measurement cost and what it lost: CPU time of the whole machine, counters of the
//! network softirq and of each namespace, and where lost datagrams went.
//!
//! Three samplers are read before and after the measured interval:
//! - [`Machine`]: all CPUs;
//! - [`Namespace`]: one per network namespace;
//! - [`Drops`], where BPF is allowed: the kernel's own reason of every drop.
//!
//! [`Survey`] is what else runs before a run, [`Fare`] how others' traffic fares.
//!
//! None needs a thread of its own while traffic runs. What they find is judged by:
//! - [`Disturbance`]: was the machine ours?
//! - [`service_demand`]: what did a unit of work cost?
//! - [`loss`](mod@loss): where did datagrams go?

mod demand;
mod disturbance;
mod exact;
mod fare;
pub mod loss;
mod machine;
mod namespace;
mod split;
mod survey;
mod timeline;

pub use demand::service_demand;
pub use disturbance::{Disturbance, Limits, Rule};
pub use fare::Fare;
pub(crate) use fare::{HostCounters, Rates, link_speed, suffers};
pub use machine::{Machine, MachineSample, MachineSnapshot};
pub use namespace::{Namespace, NamespaceSample, NamespaceSnapshot};
pub use observe::{Dropped, Drops, DropsReading};
pub use results::CpuClock;
pub use survey::{Consumer, CpuBusy, Survey};
pub use timeline::Recorder;

/// A sampler that could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// A file of `/proc`.
    #[error(transparent)]
    Proc(#[from] netstate::proc::ProcError),
    /// The packet sockets of a namespace.
    #[error("packet sockets of {namespace}: {error}")]
    PacketDiag {
        /// Label of the namespace (`a`, `tenant-b`).
        namespace: String,
        /// What the kernel answered.
        error: Box<netstate::packet_diag::PacketDiagError>,
    },
    /// The exact CPU clock, after it was opened.
    #[error("exact CPU clock: {reason}")]
    CpuClock {
        /// What was attempted, and what came.
        reason: String,
    },
    /// The counts of drops, after they were opened.
    #[error(transparent)]
    Drops(#[from] observe::DropsError),
}

impl From<sys::Error> for SamplerError {
    fn from(error: sys::Error) -> Self {
        SamplerError::Proc(error.into())
    }
}

/// Result with [`SamplerError`].
pub type Result<T> = std::result::Result<T, SamplerError>;
