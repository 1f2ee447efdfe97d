//! Data types: the kernel's state, the plan made from it, and the terms of the status report. This
//! module reads and writes nothing.

mod accounting;
mod basis;
mod counted;
mod entry;
mod evidence;
mod explanation;
mod foreign;
mod passes;
mod plan;
mod reason;
mod refusal;
mod selinux;
mod snapshot;
mod view;
mod wanted;

pub use accounting::Accounting;
pub(crate) use basis::{Basis, Port};
pub use counted::Counted;
pub use entry::{DeviceId, Domain, EntryKey, Fdb, TunnelGso, UnderlayRoute, Vtep, VtepKey};
pub use evidence::{Family, RuleEffect};
pub use explanation::Explanation;
pub use foreign::{Foreign, Links};
pub use passes::Passes;
pub use plan::{DevicePlan, Plan, PortPlan, RemotePlan};
pub use reason::{Path, Reason};
pub use refusal::{EXPLANATIONS, RETIRED, Refusal};
pub use selinux::{Labelling, SelinuxReason};
pub use snapshot::{Forwarding, MachineSnapshot, NetnsSnapshot, OtherFilter, SandboxSnapshot};
pub(crate) use view::NetnsView;
pub use wanted::Wanted;
