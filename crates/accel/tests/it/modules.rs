//! The modules of this crate use each other in one direction, at every level.

use std::process::Command;

use test_support::{need, require};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/module-circles");

#[test]
fn no_module_uses_one_that_uses_it() {
    require!(need::tool("python3"));
    let output =
        Command::new(SCRIPT).args(["--deep", env!("CARGO_MANIFEST_DIR")]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
