//! Tests that need root, each in namespaces of its own.

mod accel;
mod at_guest;
mod confined;
mod control;
mod foreground;
mod guests;
#[path = "../../../probe/tests/root/bed.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod mangler;
mod program;
#[path = "../common/promtool.rs"]
mod promtool;
#[path = "../../../lab/tests/guest/qemu.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod qemu;
mod soak;
mod tapbridge;
#[path = "../../../datapath/tests/root/traffic/mod.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod traffic;
mod vhost_user;
mod virtual_machines;
mod vtep;
mod watch_metrics;
