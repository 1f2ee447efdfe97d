//! The units under `examples/systemd`: systemd accepts them, and the program accepts their
//! commands.

use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::{need, require};

use super::launch::run;

fn units() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/systemd");
    let entries = std::fs::read_dir(directory).unwrap();
    let units: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(units.len() >= 3, "{units:?}");
    units
}

#[test]
fn a_unit_starts_a_command_of_the_program() {
    for unit in units() {
        let text = std::fs::read_to_string(&unit).unwrap();
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/overlane "));
        let start = start.unwrap_or_else(|| panic!("{}: no ExecStart", unit.display()));
        // An unknown option is refused before help is printed.
        let words = start.split(' ').chain(["--help"]);
        assert!(run(words).expect(0).stdout.contains("Usage: overlane"), "{start}");
    }
}

/// A copy of a unit that systemd can check where the program is not installed.
fn copy(unit: &Path, directory: &Path) -> PathBuf {
    // A unit's program path may not contain blanks, but the build path may.
    let program = directory.join("overlane");
    if !program.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_overlane"), &program).unwrap();
    }
    let text = std::fs::read_to_string(unit).unwrap();
    // The check must not depend on an installed program.
    let text = text.replace("/usr/bin/overlane", program.to_str().unwrap());
    let name = unit.file_name().unwrap().to_str().unwrap().replace("@.", "@vxlan0.");
    let copy = directory.join(name);
    std::fs::write(&copy, text).unwrap();
    copy
}

/// `docs/src/design/confinement.md` explains the remaining exposure.
#[test]
fn units_are_exposed_no_more_than_their_work_needs() {
    require!(need::tool("systemd-analyze"));
    let directory = tempfile::tempdir().unwrap();
    for (name, most) in [
        ("overlane-vtep.service", 2.5),
        ("overlane-measure.service", 2.1),
        ("overlane-accel@.service", 3.4),
        ("overlane-accel.service", 3.6),
    ] {
        let unit = units().into_iter().find(|unit| unit.ends_with(name)).unwrap();
        let copy = copy(&unit, directory.path());
        let mut analyze = Command::new("systemd-analyze");
        let said = analyze.args(["security", "--offline=true"]).arg(&copy).output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout);
        let level = said.lines().find_map(|line| line.split_once("exposure level for "));
        let level = level.and_then(|(_, rest)| rest.split_once(": ")).unwrap_or_else(|| {
            panic!("{name}: systemd-analyze does not say an exposure level: {said}")
        });
        let level: f64 = level.1.split(' ').next().unwrap().parse().unwrap();
        assert!(level <= most, "{name}: {level} is more than {most}\n{said}");
    }
}

#[test]
fn systemd_takes_the_units() {
    require!(need::tool("systemd-analyze"));
    let directory = tempfile::tempdir().unwrap();
    for unit in units() {
        let copy = copy(&unit, directory.path());
        let verified = Command::new("systemd-analyze").arg("verify").arg(&copy).output().unwrap();
        let said = String::from_utf8_lossy(&verified.stderr);
        // Messages about the machine's own units do not matter.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("overlane")).collect();
        assert!(ours.is_empty(), "{}: {ours:#?}", unit.display());
    }
}
