//! Cost and loss of a measurement: CPU time of the whole machine, counters of the network softirq
//! and of each namespace, and the places of lost datagrams.
//!
//! Three samplers are read before and after the measured interval:
//! - [`Machine`]: all CPUs;
//! - [`Namespace`]: one per network namespace;
//! - [`Drops`], if BPF is allowed: the kernel's reason for every drop.
//!
//! [`Survey`] describes other load before a run, [`HostLoad`] the state of other traffic.
//!
//! None needs a thread of its own while traffic runs. Their readings are interpreted by:
//! - [`Disturbance`]: other load on the machine;
//! - [`Attributed`]: the part of the CPU time that the load took;
//! - [`service_demand`]: the CPU cost of a unit of work;
//! - [`loss`](mod@loss): the places of lost datagrams.

mod attributed;
mod demand;
mod disturbance;
mod exact;
mod host_load;
pub mod loss;
mod machine;
mod namespace;
mod split;
mod survey;
mod timeline;

pub use attributed::Attributed;
pub use demand::service_demand;
pub use disturbance::{Disturbance, Limits, Rule};
pub use host_load::HostLoad;
pub(crate) use host_load::{HostCounters, Rates, link_speed, suffers};
pub use machine::{Machine, MachineSample, MachineSnapshot};
pub use namespace::{Namespace, NamespaceSample, NamespaceSnapshot};
pub use observe::{Dropped, Drops, DropsReading};
pub use results::CpuClock;
pub use survey::{Consumer, CpuBusy, Survey};
pub use timeline::Recorder;

/// A sampler that could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// A file of `/proc` could not be read.
    #[error(transparent)]
    Proc(#[from] netstate::proc::ProcError),
    /// The packet sockets of a namespace could not be read.
    #[error("packet sockets of {namespace}: {error}")]
    PacketDiag {
        /// Label of the namespace (`a`, `tenant-b`).
        namespace: String,
        /// Error of the kernel.
        error: Box<netstate::sock_diag::SockDiagError>,
    },
    /// The exact CPU clock failed after it was opened.
    #[error("exact CPU clock: {reason}")]
    CpuClock {
        /// Operation and error.
        reason: String,
    },
    /// The drop counters failed after they were opened.
    #[error(transparent)]
    Drops(#[from] observe::DropsError),
}

impl From<sys::Error> for SamplerError {
    fn from(error: sys::Error) -> Self {
        SamplerError::Proc(error.into())
    }
}

pub type Result<T> = std::result::Result<T, SamplerError>;
