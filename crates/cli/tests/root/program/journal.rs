//! `overlane undo` with a journal that is damaged, belongs to another user, or names removed
//! objects.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use test_support::{inconclusive, need, require};

use super::launch::{Ended, OVERLANE, overlane, run};

/// A named namespace with a veth pair whose ends differ in MTU; gone when dropped.
struct Space {
    name: String,
    place: tempfile::TempDir,
}

impl Space {
    fn new(part: &str) -> Space {
        let name = format!("overlane-test-{}-{part}", std::process::id());
        let space = Space { name, place: tempfile::tempdir().unwrap() };
        space.make();
        space
    }

    fn make(&self) {
        ip(&["netns", "add", &self.name]);
        self.ip("link add left type veth peer name right");
        self.ip("link set left mtu 1400 up");
        self.ip("link set right up");
    }

    fn ip(&self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        ip(&[&["-n", &self.name], &words[..]].concat());
    }

    fn journal(&self) -> PathBuf {
        self.place.path().join("journal")
    }

    fn run(&self, words: &[&str]) -> Ended {
        run([words, &["--journal", self.journal().to_str().unwrap()]].concat())
    }

    /// Lowers the MTU of the right end, as its check proposes.
    fn fix(&self) -> Ended {
        self.run(&["doctor", "fix", "OV015", "--yes", "--netns", &self.name, "--watch", "0"])
    }

    fn mtu(&self) -> String {
        let words = ["-n", &self.name, "-o", "link", "show", "right"];
        let shown = Command::new("ip").args(words).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        text.split(" mtu ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(words: &[&str]) {
    assert!(Command::new("ip").args(words).status().unwrap().success(), "ip {words:?}");
}

/// An entry of the first format whose inverse leaves a trace.
fn command(journal: &Path, id: u64, inverse: &str) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let change = serde_json::json!(
        { "place": null, "setting": "command", "from": inverse, "to": "true" });
    let entry = serde_json::json!({
        "format": 1, "id": id, "code": "try", "change": change, "made_s": 1,
        "boot": boot.trim(), "made": true, "confirm_until_s": null, "trial": false,
    });
    fs::create_dir_all(journal).unwrap();
    fs::set_permissions(journal, Permissions::from_mode(0o700)).unwrap();
    let file = journal.join(format!("{id:08}.json"));
    fs::write(&file, entry.to_string()).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn invalid_entries_are_reported_and_block_nothing() {
    require!(need::root(), need::tool("ip"));
    let space = Space::new("damaged");
    fs::create_dir(space.journal()).unwrap();
    fs::set_permissions(space.journal(), Permissions::from_mode(0o700)).unwrap();
    fs::write(space.journal().join("00000004.json"), "").unwrap();
    fs::write(space.journal().join("00000005.json"), "{\"format\": 77}").unwrap();
    // The change is made. A message and the exit code report the remaining change.
    let fixed = space.fix().expect(1);
    assert_eq!(space.mtu(), "1400", "{fixed:#?}");
    assert!(fixed.stdout.contains("(overlane undo 6)"), "{fixed:#?}");
    let assert_reported = |ended: &Ended| {
        for text in ["00000004.json: empty", "00000005.json: format 77", "a later version"] {
            assert!(ended.stderr.contains(text), "{text}: {ended:#?}");
        }
    };
    assert_reported(&fixed);
    let list = space.run(&["undo", "--list"]).expect(1);
    assert_reported(&list);
    assert!(list.stdout.contains("1400 was 1500"), "{list:#?}");
    assert_reported(&space.run(&["undo", "4"]).expect(1));
    assert_reported(&space.run(&["undo", "--all"]).expect(1));
    assert_eq!(space.mtu(), "1500");
    fs::remove_file(space.journal().join("00000004.json")).unwrap();
    fs::remove_file(space.journal().join("00000005.json")).unwrap();
    space.run(&["undo", "--all"]).expect(0);
}

#[test]
fn a_namespace_that_took_the_place_of_another_is_left_alone() {
    require!(need::root(), need::tool("ip"));
    let space = Space::new("again");
    let path = format!("/run/netns/{}", space.name);
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    let first = inode();
    space.fix().expect(0);
    let mut again = false;
    for _ in 0..2000 {
        ip(&["netns", "del", &space.name]);
        ip(&["netns", "add", &space.name]);
        again = inode() == first;
        if again {
            break;
        }
    }
    if !again {
        inconclusive!("no inode number came again");
    }
    ip(&["netns", "del", &space.name]);
    space.make();
    if inode() != first {
        inconclusive!("the inode number did not stay");
    }
    space.ip("link set right mtu 1400");
    let undone = space.run(&["undo", "--all"]).expect(0);
    assert!(undone.stdout.contains("is gone: nothing to undo"), "{undone:#?}");
    assert_eq!(space.mtu(), "1400", "the other namespace: {undone:#?}");
}

#[test]
fn a_change_can_be_forgotten() {
    require!(need::root(), need::tool("ip"));
    let space = Space::new("forget");
    space.fix().expect(0);
    space.ip("link set right mtu 1300");
    let refused = space.run(&["undo", "1"]).expect(1);
    assert!(refused.stdout.contains("another process has changed it"), "{refused:#?}");
    assert!(refused.stdout.contains("overlane undo 1 --forget"), "{refused:#?}");
    space.run(&["undo", "1", "--forget"]).expect(0);
    assert_eq!(space.mtu(), "1300");
    assert!(space.run(&["undo", "--list"]).expect(0).stdout.contains("nothing to undo"));
    space.run(&["undo", "1", "--forget"]).expect(2);
    run(["undo", "--forget"]).expect(2);
}

#[test]
fn no_command_of_somebody_else_is_run() {
    require!(need::root());
    let place = tempfile::tempdir().unwrap();
    let (journal, trace) = (place.path().join("journal"), place.path().join("trace"));
    let mode = |mode| fs::set_permissions(&journal, Permissions::from_mode(mode)).unwrap();
    let undo = || run(["undo", "--all", "--journal", journal.to_str().unwrap()]);
    command(&journal, 1, &format!("id -un > {}", trace.display()));
    mode(0o777);
    let refused = undo().expect(1);
    assert!(refused.stderr.contains("mode 0777"), "{refused:#?}");
    mode(0o700);
    let file = journal.join("00000001.json");
    let owner = |uid| nix::unistd::chown(&file, Some(nix::unistd::Uid::from_raw(uid)), None);
    owner(54321).unwrap();
    let skipped = undo().expect(1);
    assert!(skipped.stderr.contains("belongs to user 54321"), "{skipped:#?}");
    assert!(!trace.exists());
    owner(0).unwrap();
    undo().expect(0);
    assert!(trace.exists());
}

#[test]
fn two_at_once_take_each_change_back_once() {
    const CHANGES: u64 = 40;
    let place = tempfile::tempdir().unwrap();
    let (journal, trace) = (place.path().join("journal"), place.path().join("trace"));
    for id in 1..=CHANGES {
        command(&journal, id, &format!("echo {id} >> {}", trace.display()));
    }
    let words = ["undo", "--all", "--journal", journal.to_str().unwrap()];
    let start = || overlane(words).stdout(Stdio::null()).spawn().unwrap();
    for mut child in [start(), start(), start()] {
        assert!(child.wait().unwrap().success());
    }
    let back: Vec<String> =
        fs::read_to_string(&trace).unwrap().lines().map(str::to_owned).collect();
    let expected: Vec<String> = (1..=CHANGES).rev().map(|id| id.to_string()).collect();
    assert_eq!(back, expected);
}

#[test]
fn a_missing_listener_is_no_reason_to_stop() {
    const CHANGES: u64 = 5;
    let place = tempfile::tempdir().unwrap();
    let (journal, trace) = (place.path().join("journal"), place.path().join("trace"));
    for id in 1..=CHANGES {
        command(&journal, id, &format!("echo {id} >> {}", trace.display()));
    }
    let script = format!("\"{OVERLANE}\" undo --all --journal {} | true", journal.display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    // The reader of its output has ended, but the process may not have.
    super::launch::eventually("all is taken back", || {
        match fs::read_to_string(&trace).unwrap_or_default().lines().count() as u64 {
            CHANGES => Ok(()),
            other => Err(other.to_string()),
        }
    });
}

#[test]
fn without_a_journal_nothing_is_created() {
    let place = tempfile::tempdir().unwrap();
    let journal = place.path().join("journal");
    let list = run(["undo", "--list", "--journal", journal.to_str().unwrap()]).expect(0);
    assert!(list.stdout.contains("nothing to undo"));
    assert!(!journal.exists());
}
