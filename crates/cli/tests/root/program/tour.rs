//! `overlane tour`: from a broken overlay to a repaired and accelerated one, without a trace. The
//! recorded session of a new user, from the download on.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::launch::run;
use test_support::{need, require};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_tour_finds_the_fault_fixes_it_and_removes_everything() {
    let btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
    require!(need::root(), need::that(btf, "BTF of the kernel"), need::tools(&["ip", "ping"]));
    let tour = run(["tour", "--yes"]).expect(0);
    let shown = &tour.stdout;
    let order = [
        "$ overlane lab up vxlan --name tour",
        "tcp_stream",
        "100% packet loss",
        "OV015",
        "$ overlane doctor fix OV015",
        " 0% packet loss",
        "$ overlane accel on --all --netns a",
        "$ overlane undo --all",
        "$ overlane lab down tour",
    ];
    let mut rest = shown.as_str();
    for words in order {
        let at = rest.find(words);
        let at = at.unwrap_or_else(|| panic!("{words:?} is not in:\n{rest}\n{}", tour.stderr));
        rest = &rest[at..];
    }
}

/// Writes an archive and its checksum as those of a release, with this program.
fn release(directory: &Path) {
    let name = format!("overlane-{}-linux-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let bin = directory.join(&name).join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_overlane"), bin.join("overlane")).unwrap();
    let archive = format!("{name}.tar.gz");
    let script =
        format!("tar -ch '{name}' | gzip -1 >'{archive}' && sha256sum '{archive}' >SHA256SUMS");
    let ended = Command::new("sh").args(["-c", &script]).current_dir(directory).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

/// The typed commands of a session, with any version in the name of the archive.
fn typed(session: &str) -> Vec<String> {
    let commands = session.lines().filter_map(|line| line.trim_end().strip_prefix("$ "));
    let any = |command: &str| match command.split_once("overlane-") {
        Some((before, rest)) => {
            let at = rest.find("-linux-").unwrap();
            format!("{before}overlane-VERSION{}", &rest[at..])
        }
        None => command.to_owned(),
    };
    commands.map(any).collect()
}

/// Download, checksum, diagnosis and repair take the same commands as in the recorded session.
#[test]
fn the_recorded_session_of_a_new_user_can_be_replayed() {
    let tools = ["curl", "gzip", "ip", "mount", "ping", "python3", "sha256sum", "tar", "unshare"];
    require!(need::root(), need::tools(&tools));
    let directory = tempfile::tempdir().unwrap();
    release(directory.path());
    let script = PathBuf::from(TOP).join("bench/first-minutes");
    let ended = Command::new(script).arg(directory.path()).output().unwrap();
    let shown = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{shown}\n{}", String::from_utf8_lossy(&ended.stderr));
    let order = [
        "100% packet loss",
        "$ curl ",
        ".tar.gz: OK",
        concat!("overlane ", env!("CARGO_PKG_VERSION")),
        "$ bin/overlane doctor\n",
        "OV015",
        "$ bin/overlane doctor fix OV015",
        " 0% packet loss",
    ];
    let mut rest = shown.as_str();
    for words in order {
        let at = rest.find(words);
        let at = at.unwrap_or_else(|| panic!("{words:?} is not in:\n{rest}\nof:\n{shown}"));
        rest = &rest[at..];
    }
    let cast = std::fs::read_to_string(PathBuf::from(TOP).join("docs/first-minutes.cast")).unwrap();
    let events = cast.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let events: Vec<_> = events.skip(1).collect();
    let recorded: String = events.iter().map(|event| event[2].as_str().unwrap()).collect();
    assert_eq!(typed(&recorded), typed(&shown), "bench/cast docs/first-minutes.cast records it");
    let last = events.last().unwrap()[0].as_f64().unwrap();
    assert!(last < 300.0, "the session took {last} s");
}
