//! Keeps maps and hooks in step with the kernel.
//!
//! The reconciler thread reads whole snapshots with `gather` and single entries with `incremental`.

mod budget;
mod crossing_veth;
mod gather;
mod home_watch;
mod incremental;
mod listeners;
mod netns_state;
mod reconciler;
mod sandbox;
mod search;
mod security;
mod shared;
mod spares;
mod survey;

pub use crossing_veth::{left_behind, remove_left_behind};
pub(crate) use home_watch::HomeWatch;
pub(crate) use reconciler::Reconciler;
pub use search::Finder;
pub(crate) use search::Source;
pub use security::Security;
pub(crate) use shared::Shared;
pub(crate) use survey::Surveyed;
