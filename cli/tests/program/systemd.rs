//! The units under `examples/systemd`: systemd takes them, and the program takes
//! what they start.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::launch::run;

fn units() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd");
    let entries = std::fs::read_dir(directory).unwrap();
    let units: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(units.len() >= 3, "{units:?}");
    units
}

#[test]
fn what_a_unit_starts_is_a_command_of_the_program() {
    for unit in units() {
        let text = std::fs::read_to_string(&unit).unwrap();
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/overlane "));
        let start = start.unwrap_or_else(|| panic!("{}: no ExecStart", unit.display()));
        // An option that is none is refused before help is given.
        let words = start.split(' ').chain(["--help"]);
        assert!(run(words).expect(0).stdout.contains("Usage: overlane"), "{start}");
    }
}

#[test]
fn systemd_takes_the_units() {
    let directory = tempfile::tempdir().unwrap();
    for unit in units() {
        let text = std::fs::read_to_string(&unit).unwrap();
        // The program need not be installed for its unit to be right.
        let text = text.replace("/usr/bin/overlane", env!("CARGO_BIN_EXE_overlane"));
        let name = unit.file_name().unwrap().to_str().unwrap().replace("@.", "@vxlan0.");
        let copy = directory.path().join(name);
        std::fs::write(&copy, text).unwrap();
        let verified = Command::new("systemd-analyze").arg("verify").arg(&copy).output();
        let Ok(verified) = verified else {
            eprintln!("systemd_takes_the_units: skipped: systemd-analyze is not installed");
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr);
        // Of the machine's own units it may say what it likes.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("overlane")).collect();
        assert!(ours.is_empty(), "{}: {ours:#?}", unit.display());
    }
}
