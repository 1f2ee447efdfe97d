//! Tests that need root, each in namespaces of its own.

mod cases;
mod clamps;
mod faults;
mod flannel;
mod guest;
mod holders;
mod printed;
#[path = "../../../lab/tests/guest/qemu.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod qemu;
mod undo;
