//! Tests that need no privileges.

mod dump;
mod fuzz_bounded;
mod hostile_dump;
mod hosts;
mod limits;
mod scrub;
