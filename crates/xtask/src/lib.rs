//! Maintenance tasks of the source tree. `cargo xtask` lists them.

#![forbid(unsafe_code)]

pub mod corpus;
pub mod plans;
pub mod schema;
