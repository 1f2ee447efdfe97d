//! The fast path against a real kernel: traffic, refusals, staleness.

mod pair;
mod traffic;
