//! The results file: measurements, machine and plan, with every raw sample. `make schemas` derives
//! `schema/results.schema.json` from these types (feature `schema`); tests keep the two consistent.
//!
//! Bytes on hops are layer-3 bytes: the device's counter minus 14 bytes of Ethernet header per
//! packet, so that a mean can be compared with an MTU directly.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod background;
mod beside;
mod cell;
mod check;
mod fault;
mod file;
mod interval;
mod machine;
pub mod names;
mod plan;
mod read;
mod sample;
#[cfg(feature = "schema")]
mod schema;
mod shares;
pub mod stats;
mod timeline;
pub mod verdict;
pub mod workload;

pub use background::{Background, Disturbance, MachineBackground, Usual};
pub use beside::BesideRates;
pub use cell::{Cell, Offered, ServiceDemand, Tool};
pub use check::{FieldError, MOST_SAMPLES};
pub use fault::{FaultCost, FaultRecord, FaultTrial};
pub use file::{MOST_CELLS, Results, SCHEMA};
pub use interval::Interval;
pub use machine::{
    Alternative, DeviceRecord, GuestRecord, Machine, ModeRecord, PathProbe, TapRecord,
    TestbedRecord,
};
pub use names::{
    Beside, CpuClock, DemandUnit, Direction, EndedBy, Engine, JudgedBy, Named, PlacementPolicy,
    Privileges, Profile, RecordKind, Role, Status, Steering, Unit,
};
pub use plan::{ConfidenceGoal, Placement, Plan};
pub use read::{LIMITS, ReadError};
pub use sample::{
    Arrivals, Bin, CpuSeconds, DropGoal, DropPoint, EcnCounts, GuestSample, HopRecord, Latency,
    Loss, Pacing, Sample, TcpState,
};
pub use shares::FlowShares;
pub use timeline::{CpuTimeline, InterruptTimeline, Mark, Timeline};
pub use workload::{Task, Workload};
