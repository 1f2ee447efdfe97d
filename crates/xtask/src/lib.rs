//! Chores of the tree that are neither product nor test: `cargo xtask` lists them.

#![forbid(unsafe_code)]

pub mod corpus;
pub mod plans;
pub mod schema;
