//! A fault or a kill at every step of the journal's writing.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use settings::Change;
use settings::journal::{BeforeStep, Journal};
use test_support::{need, require};

use super::bench::{Space, undo_all, value};

/// Fault at the chosen step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Once(Errno),
    /// The step and all after it fail.
    Always(Errno),
    Kill,
}

/// A journal whose step number `at`, counted from one, fails; and the number of steps.
fn faulty(directory: &Path, at: u32, fault: Fault) -> (Journal, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let step: BeforeStep = Box::new(move |_| {
        let now = counted.fetch_add(1, Ordering::Relaxed) + 1;
        match fault {
            Fault::Once(errno) if now == at => Err(io::Error::from(errno)),
            Fault::Always(errno) if now >= at => Err(io::Error::from(errno)),
            Fault::Kill if now == at => {
                kill(Pid::this(), Signal::SIGKILL).unwrap();
                unreachable!("killed");
            }
            _ => Ok(()),
        }
    });
    (Journal::open_with(directory, step).unwrap(), count)
}

/// Invariant after any fault: a changed setting has a complete entry.
#[track_caller]
fn assert_known(directory: &Path, change: &Change, what: &str) {
    let contents = Journal::open(directory).unwrap().contents().unwrap();
    assert_eq!(contents.left, [], "{what}");
    let is = value(change);
    if is != change.from {
        let known: Vec<_> = contents.entries.iter().map(|entry| &entry.change.from).collect();
        assert_eq!(known, [&change.from], "{what}: changed to {is} without an entry");
    }
}

#[test]
fn a_fault_at_any_step_leaves_nothing_changed_without_an_entry() {
    require!(need::root());
    let space = Space::new();
    let change = space.forwarding();
    let mut tried = 0;
    for errno in [Errno::ENOSPC, Errno::EROFS, Errno::EIO, Errno::EDQUOT] {
        for fault in [Fault::Once(errno), Fault::Always(errno)] {
            for at in 1.. {
                let directory = tempfile::tempdir().unwrap();
                let (journal, count) = faulty(directory.path(), at, fault);
                let made = journal.make("try", &change, None);
                drop(journal);
                let what = format!("making, {fault:?} at {at}: {made:?}");
                assert_known(directory.path(), &change, &what);
                if made.is_err() {
                    assert_eq!(value(&change), change.from, "{what}");
                }
                undo_all(directory.path());
                assert_eq!(value(&change), change.from, "{what}");
                tried += 1;
                if count.load(Ordering::Relaxed) < at {
                    assert!(made.is_ok(), "{what}");
                    break;
                }
            }
            for at in 1.. {
                let directory = tempfile::tempdir().unwrap();
                Journal::open(directory.path()).unwrap().make("try", &change, None).unwrap();
                let (journal, count) = faulty(directory.path(), at, fault);
                let entry = journal.entries().unwrap().remove(0);
                let undone = journal.undo(&entry);
                drop(journal);
                let what = format!("taking back, {fault:?} at {at}: {undone:?}");
                assert_known(directory.path(), &change, &what);
                // Undoing a setting needs no disk.
                assert_eq!(value(&change), change.from, "{what}");
                undo_all(directory.path());
                tried += 1;
                if count.load(Ordering::Relaxed) < at {
                    assert!(undone.is_ok(), "{what}");
                    break;
                }
            }
        }
    }
    assert!(tried > 80, "{tried}");
}

/// The step at which a separate process is killed.
const AT: &str = "OVERLANE_TEST_KILL_AT";
const JOURNAL: &str = "OVERLANE_TEST_JOURNAL";
const SPACE: &str = "OVERLANE_TEST_SPACE";

#[test]
fn a_kill_at_any_step_leaves_nothing_changed_without_an_entry() {
    const TEST: &str = "journal::steps::a_kill_at_any_step_leaves_nothing_changed_without_an_entry";
    match std::env::var(AT) {
        Ok(at) => change_and_die(&at),
        Err(_) => kill_at_each_step(TEST),
    }
}

/// In a process of its own, which a step kills.
fn change_and_die(at: &str) {
    let command =
        format!("nsenter --net={} sysctl -w net.ipv4.ip_forward=1", std::env::var(SPACE).unwrap());
    let change = settings::proposal::changes(&command).unwrap().remove(0);
    let journal = std::env::var(JOURNAL).unwrap();
    let (journal, _) = faulty(journal.as_ref(), at.parse().unwrap(), Fault::Kill);
    let entry = journal.make("try", &change, None).unwrap();
    journal.undo(&entry).unwrap();
}

fn kill_at_each_step(test: &str) {
    require!(need::root());
    let space = Space::new();
    let change = space.forwarding();
    let directory = tempfile::tempdir().unwrap();
    let mut kills = 0;
    for at in 1_u32.. {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(AT, at.to_string())
            .env(JOURNAL, directory.path())
            .env(SPACE, &space.path)
            .output()
            .unwrap()
            .status;
        assert_known(directory.path(), &change, &format!("killed at {at}"));
        if status.success() {
            break;
        }
        kills += 1;
        // The next process repairs it.
        let journal = Journal::open(directory.path()).unwrap();
        for entry in journal.overdue().unwrap() {
            journal.undo(&entry).unwrap();
        }
        // A change marked as made stays until it is undone.
        drop(journal);
        undo_all(directory.path());
        assert_eq!(value(&change), change.from, "killed at {at}");
    }
    assert!(kills >= 10, "{kills}");
}

#[test]
fn entries_not_on_disk_are_not_relied_on() {
    require!(need::root());
    let space = Space::new();
    let change = space.forwarding();
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().join("00000001.new");
    let step: BeforeStep = Box::new(move |step| match step {
        // Like a network file system that reported success.
        "read back" => std::fs::OpenOptions::new().write(true).open(&written)?.set_len(10),
        _ => Ok(()),
    });
    let journal = Journal::open_with(directory.path(), step).unwrap();
    let error = journal.make("try", &change, None).unwrap_err().to_string();
    assert!(error.contains("content differs from what was written"), "{error}");
    assert_eq!(value(&change), change.from);
    assert_eq!(journal.contents().unwrap().entries, []);
}

#[test]
fn commands_are_taken_back_though_the_disk_fails() {
    require!(need::tool("sh"));
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("setting");
    std::fs::write(&file, "before\n").unwrap();
    let write = |text: &str| format!("echo {text} > {}", file.display());
    let change = Change::command_with_inverse(&write("after"), &write("before")).unwrap();
    let now = || std::fs::read_to_string(&file).unwrap();
    for fault in [Fault::Once(Errno::ENOSPC), Fault::Always(Errno::EROFS)] {
        for at in 1.. {
            let directory = tempfile::tempdir().unwrap();
            let (journal, count) = faulty(directory.path(), at, fault);
            let made = journal.make("try", &change, None);
            drop(journal);
            let journal = Journal::open(directory.path()).unwrap();
            let entries = journal.entries().unwrap();
            assert!(now() == "before\n" || entries.len() == 1, "{fault:?} at {at}: {made:?}");
            for entry in entries {
                journal.undo(&entry).unwrap();
            }
            assert_eq!(now(), "before\n", "{fault:?} at {at}: {made:?}");
            if count.load(Ordering::Relaxed) < at {
                break;
            }
        }
    }
}
