//! Files and directories that the journal did not write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{Uid, chown, mkfifo};
use settings::Change;
use settings::journal::{Journal, JournalError, Undone, seconds_from_now};
use test_support::{need, require};

use super::bench::as_first_form;

/// A user without an account.
const OTHER: u32 = 54321;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A change that leaves a trace in a file, with its inverse.
fn traced(trace: &Path) -> Change {
    let trace = trace.display();
    Change::command_with_inverse(&format!("echo made >> {trace}"), &format!("echo back >> {trace}"))
        .unwrap()
}

#[test]
fn invalid_entries_are_skipped_and_reported() {
    let place = tempfile::tempdir().unwrap();
    let (directory, trace) = (place.path().join("journal"), place.path().join("trace"));
    let journal = Journal::open(&directory).unwrap();
    let change = traced(&trace);
    let entry = journal.make("try", &change, None).unwrap();
    let at = |name: &str| directory.join(name);
    let whole = fs::read(at("00000001.json")).unwrap();
    let write = |name: &str, text: &[u8]| {
        fs::write(at(name), text).unwrap();
        mode(&at(name), 0o600);
    };
    write("00000002.json", b"");
    write("00000003.json", br#"{"format":9,"what":"ever"}"#);
    write("00000004.json", &whole[..whole.len() / 50]);
    write("00000005.json", &whole);
    fs::create_dir(at("00000006.json")).unwrap();
    mkfifo(&at("00000007.json"), Mode::S_IRWXU).unwrap();
    symlink(at("00000001.json"), at("00000008.json")).unwrap();
    symlink("/dev/zero", at("00000009.json")).unwrap();
    write("00000010.json", &vec![b' '; 1 << 20]);
    write("00000011.json", &[0xff; 100]);
    write("00000012.json", b"[[[[[[");
    write("\u{1b}[2J.json", b"{}");
    write("00000013.json", &whole);
    mode(&at("00000013.json"), 0o622);
    let sparse = fs::File::create(at("00000014.json")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("00000015.json")).unwrap();

    let contents = journal.contents().unwrap();
    assert_eq!(contents.entries, [entry]);
    let lines: Vec<String> = contents.left.iter().map(ToString::to_string).collect();
    for (name, problem) in [
        ("00000002", "empty"),
        ("00000003", "format 9, this program reads 1 and 2: written by a later version"),
        ("00000004", "no JSON"),
        ("00000005", "its number is 1"),
        ("00000006", "a directory"),
        ("00000007", "a FIFO"),
        ("00000008", "a symbolic link"),
        ("00000009", "a symbolic link"),
        ("00000010", "1048576 bytes"),
        ("00000011", "no JSON"),
        ("00000012", "no JSON"),
        ("00000013", "mode 0622"),
        ("00000014", "1099511627776 bytes"),
        ("00000015", "a socket"),
        ("u{1b}[2J", "no format"),
    ] {
        let found = lines.iter().any(|line| line.contains(name) && line.contains(problem));
        assert!(found, "{name}: {problem}: {lines:#?}");
    }
    assert_eq!(lines.len(), 15, "{lines:#?}");

    // None of them blocks the journal, and none is overwritten.
    let later = journal.make("try", &change, None).unwrap();
    assert_eq!(later.id, 16);
    assert!(journal.overdue().unwrap().is_empty());
    for entry in journal.entries().unwrap().iter().rev() {
        assert_eq!(journal.undo(entry).unwrap(), Undone::Restored);
    }
    assert_eq!(fs::read_to_string(&trace).unwrap(), "made\nmade\nback\nback\n");
    assert_eq!(journal.contents().unwrap().left.len(), 15);
}

#[test]
fn entries_of_another_user_are_not_run() {
    require!(need::root());
    let place = tempfile::tempdir().unwrap();
    let (directory, trace) = (place.path().join("journal"), place.path().join("trace"));
    let journal = Journal::open(&directory).unwrap();
    journal.make("try", &traced(&trace), None).unwrap();
    chown(&directory.join("00000001.json"), Some(Uid::from_raw(OTHER)), None).unwrap();
    let contents = journal.contents().unwrap();
    assert_eq!(contents.entries, []);
    assert!(contents.left[0].problem.contains("belongs to user 54321"), "{contents:?}");
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    require!(need::root());
    let place = tempfile::tempdir().unwrap();
    mode(place.path(), 0o755);
    let other = Uid::from_raw(OTHER);
    let refused = |path: &Path, named: &str| {
        let error = Journal::open(path).unwrap_err();
        assert!(matches!(error, JournalError::Untrusted { .. }), "{error}");
        assert!(error.to_string().contains(named), "{named}: {error}");
    };
    let directory = place.path().join("a/journal");
    drop(Journal::open(&directory).unwrap());
    for bad in [0o777, 0o1777, 0o770, 0o702] {
        mode(&directory, bad);
        refused(&directory, &format!("mode {bad:04o}"));
    }
    mode(&directory, 0o700);
    chown(&directory, Some(other), None).unwrap();
    refused(&directory, "belongs to user 54321, expected root");
    chown(&directory, Some(Uid::from_raw(0)), None).unwrap();

    // A parent.
    let parent = place.path().join("a");
    mode(&parent, 0o777);
    refused(&directory, "mode 0777");
    // In a sticky directory, no user can remove another user's files.
    mode(&parent, 0o1777);
    drop(Journal::open(&directory).unwrap());
    mode(&parent, 0o755);
    chown(&parent, Some(other), None).unwrap();
    refused(&directory, "belongs to user 54321");
    chown(&parent, Some(Uid::from_raw(0)), None).unwrap();

    // A symbolic link: root's is followed, another user's is not, nor one to an unsafe place.
    let link = place.path().join("link");
    symlink("a", &link).unwrap();
    drop(Journal::open(&link.join("journal")).unwrap());
    let owner = nix::unistd::fchownat(
        nix::fcntl::AT_FDCWD,
        &link,
        Some(other),
        None,
        nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
    );
    owner.unwrap();
    refused(&link.join("journal"), "belongs to user 54321");
    let around = place.path().join("around");
    symlink(&around, &around).unwrap();
    let error = Journal::open(&around).unwrap_err().to_string();
    assert!(error.contains("symbolic links"), "{error}");
    let bad = place.path().join("bad");
    fs::create_dir(&bad).unwrap();
    mode(&bad, 0o777);
    let to = place.path().join("to");
    symlink(bad.join("x"), &to).unwrap();
    refused(&to, "mode 0777");
    assert!(!bad.join("x").exists(), "nothing is made there");
}

#[test]
fn commands_are_run_where_their_maker_was() {
    let place = tempfile::tempdir().unwrap();
    let trace = place.path().join("trace");
    let inverse = format!("pwd > {}", trace.display());
    let change = Change::command_with_inverse("true", &inverse).unwrap();
    let journal = Journal::open(&place.path().join("journal")).unwrap();
    let entry = journal.make("try", &change, None).unwrap();
    assert_eq!(journal.undo(&entry).unwrap(), Undone::Restored);
    let here = std::env::current_dir().unwrap();
    let there = fs::read_to_string(&trace).unwrap();
    // Programs in a directory that others can write to must not be run.
    assert!([here.to_str().unwrap(), "/"].contains(&there.trim()), "{there}");
}

#[test]
fn commands_of_an_earlier_boot_are_run_where_their_namespace_is_known() {
    let place = tempfile::tempdir().unwrap();
    let (directory, trace) = (place.path().join("journal"), place.path().join("trace"));
    let journal = Journal::open(&directory).unwrap();
    let entry = journal.make("try", &traced(&trace), None).unwrap();
    as_first_form(&directory, &entry, Some("another"));
    let old = journal.entries().unwrap().remove(0);
    let error = journal.undo(&old).unwrap_err().to_string();
    assert!(error.contains("from an earlier version"), "{error}");
    assert_eq!(fs::read_to_string(&trace).unwrap(), "made\n");
    // The machine's first namespace, which survives a reboot.
    let file = directory.join("00000001.json");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    text["change"]["place"] = serde_json::Value::Null;
    fs::write(&file, text.to_string()).unwrap();
    let old = journal.entries().unwrap().remove(0);
    assert_eq!(journal.undo(&old).unwrap(), Undone::Restored);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "made\nback\n");
}

#[test]
fn a_lock_that_another_has_is_waited_for_and_not_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let held = Journal::open(directory.path()).unwrap();
    let second = Journal::open_within(directory.path(), Duration::from_millis(100));
    assert!(matches!(second.unwrap_err(), JournalError::Locked { .. }));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Journal::open(directory.path()).map(drop));
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    // An invalid lock file does not block.
    fs::remove_file(directory.path().join("lock")).unwrap();
    mkfifo(&directory.path().join("lock"), Mode::S_IRWXU).unwrap();
    let error = Journal::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("lock"), "{error}");
}

#[test]
fn thousands_of_entries_are_read() {
    const MANY: u64 = 3000;
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("journal");
    let journal = Journal::open(&directory).unwrap();
    let change = Change::command_with_inverse("true", "true").unwrap();
    let entry = journal.make("try", &change, None).unwrap();
    as_first_form(&directory, &entry, None);
    let text = fs::read_to_string(directory.join("00000001.json")).unwrap();
    for id in 2..=MANY {
        let file = directory.join(format!("{id:08}.json"));
        fs::write(&file, text.replace("\"id\":1,", &format!("\"id\":{id},"))).unwrap();
        mode(&file, 0o600);
    }
    let entries = journal.entries().unwrap();
    assert_eq!(entries.len() as u64, MANY);
    assert!(entries.is_sorted_by_key(|entry| entry.id));
    assert_eq!(journal.make("try", &change, None).unwrap().id, MANY + 1);
}

#[test]
fn deadlines_are_no_clocks_that_somebody_sets() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("journal");
    let journal = Journal::open(&directory).unwrap();
    let change = Change::command_with_inverse("true", "true").unwrap();
    let make = |until| journal.make("try", &change, Some(until)).unwrap();
    let (now, later) = (make(seconds_from_now(0)), make(seconds_from_now(3600)));
    assert_eq!(journal.overdue().unwrap(), std::slice::from_ref(&now));
    journal.confirm(&later).unwrap();
    assert!(!journal.entries().unwrap()[1].waits());
    journal.undo(&now).unwrap();

    // Entries of the first format have the time of day: after the clock is set back, they are due.
    let file = directory.join(format!("{:08}.json", later.id));
    as_first_form(&directory, &later, None);
    let text = fs::read_to_string(&file).unwrap();
    let with = |made_s: u64, until: u64| {
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        (value["made_s"], value["confirm_until_s"]) = (made_s.into(), until.into());
        fs::write(&file, value.to_string()).unwrap();
        journal.overdue().unwrap().len()
    };
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let clock = clock.as_secs();
    assert_eq!(with(clock, clock + 3600), 0);
    assert_eq!(with(clock - 10, clock - 1), 1);
    assert_eq!(with(clock + 3600, clock + 7200), 1);
    // An entry of an earlier boot.
    as_first_form_text(&file, &text, clock);
    assert_eq!(journal.overdue().unwrap().len(), 1);
}

fn as_first_form_text(file: &Path, text: &str, clock: u64) {
    let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
    value["boot"] = "another".into();
    (value["made_s"], value["confirm_until_s"]) = (clock.into(), (clock + 3600).into());
    fs::write(file, value.to_string()).unwrap();
}
