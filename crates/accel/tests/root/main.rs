//! Tests that need root, each in namespaces of its own.

#[path = "../../../packet/tests/it/build/mod.rs"]
mod build;
mod fastpath;
mod guest;
mod policy;
#[path = "../../../lab/tests/guest/qemu.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod qemu;
