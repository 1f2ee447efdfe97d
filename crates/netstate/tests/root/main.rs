//! Tests that need root, each in namespaces of its own.

mod guest;
#[path = "../../../lab/tests/guest/qemu.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod qemu;
mod untrusted;
