//! Tests that need no privileges.

mod build;
mod fuzz_bounded;
mod golden;
mod limits;
mod properties;
mod refusals;
mod sample;
mod seeds;
mod tunnel;
