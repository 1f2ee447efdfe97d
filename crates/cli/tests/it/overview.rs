//! `overlane` without arguments.

use std::process::Command;

#[test]
fn a_first_command_lists_abilities_and_what_to_run_next() {
    let ended = Command::new(env!("CARGO_BIN_EXE_overlane")).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let shown = String::from_utf8(ended.stdout).unwrap();
    let first = concat!("overlane ", env!("CARGO_PKG_VERSION"), ", Linux ");
    assert!(shown.starts_with(first), "{shown}");
    for wanted in ["lab ", "doctor ", "watch, trace ", "accel ", "overlane lab run --quick"] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    // Other words are still parsed: an unknown one is a usage error.
    let ended = Command::new(env!("CARGO_BIN_EXE_overlane")).arg("").output().unwrap();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
}
