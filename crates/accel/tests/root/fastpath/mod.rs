//! The fast path against a real kernel: traffic, bytes on the wire, refusals,
//! staleness.

mod address_types;
mod big;
mod bridged;
mod budget;
use crate::build;
mod change;
mod datagrams;
mod differential;
mod exchange;
mod filters;
mod half;
mod invalid;
mod killed;
mod listeners;
mod outer;
mod page;
pub(crate) mod pair;
mod paths;
pub(crate) mod refusals;
mod room;
mod routed;
mod sandbox;
mod sandboxed;
mod socket;
mod stale;
mod traffic;
mod underlay;
mod underlay6;
mod untrusted;
mod verdicts;
mod wire;
