//! Guests whose first process is the program under test.

pub mod kernel;
pub mod silent;
