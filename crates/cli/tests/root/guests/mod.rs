//! Guests whose first process is the program under test.

pub mod kernel;
mod probe;
pub mod silent;
