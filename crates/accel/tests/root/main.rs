//! Tests that need root, each in namespaces of its own.

#[path = "../../../packet/tests/it/build/mod.rs"]
mod build;
mod fastpath;
mod policy;
