//! The fast path against a real kernel: traffic, bytes on the wire, refusals,
//! staleness.

mod change;
mod pair;
mod refusals;
mod stale;
mod traffic;
mod wire;
