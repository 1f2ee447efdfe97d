//! Tests that need no rights.

mod dump;
mod fuzz_bounded;
mod hostile_dump;
mod hosts;
mod limits;
mod scrub;
