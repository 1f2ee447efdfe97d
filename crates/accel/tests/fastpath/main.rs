//! The fast path against a real kernel: traffic, bytes on the wire, refusals,
//! staleness.

mod bridged;
#[path = "../../../packet/tests/build/mod.rs"]
mod build;
mod change;
mod datagrams;
mod differential;
mod exchange;
mod filters;
mod half;
mod killed;
mod listeners;
mod machine;
mod outer;
mod page;
mod pair;
mod refusals;
mod room;
mod routed;
mod sandbox;
mod sandboxed;
mod socket;
mod stale;
mod strangers;
mod traffic;
mod underlay;
mod underlay6;
mod verdicts;
mod ways;
mod wire;
