//! Full disks and read-only disks.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use settings::journal::{Journal, JournalError, Undone};
use test_support::{need, require};

use super::bench::{Space, undo_all, value};

/// Enters a private mount namespace.
fn mounts_of_its_own() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount_at("/", None, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
}

fn mount_at(at: impl AsRef<Path>, size: Option<&str>, flags: MsFlags) {
    let kind = size.map(|_| "tmpfs");
    mount(Some("none"), at.as_ref(), kind, flags, size).unwrap();
}

/// Unmounts a directory when dropped, so that it can be removed.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        umount2(self.0, MntFlags::MNT_DETACH).unwrap();
    }
}

/// Fills a file system to its last byte.
fn fill(directory: &Path) {
    let full = std::fs::write(directory.join("filling"), vec![0; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn a_full_disk_refuses_a_change_and_takes_one_back() {
    require!(need::root());
    mounts_of_its_own();
    let space = Space::new();
    let change = space.forwarding();
    let place = tempfile::tempdir().unwrap();
    mount_at(place.path(), Some("size=64k,mode=0700"), MsFlags::empty());
    let _mounted = Mounted(place.path());
    let directory = place.path().join("journal");
    let _ = Journal::open(&directory).unwrap().trial_runs().unwrap();
    fill(place.path());

    let journal = Journal::open(&directory).unwrap();
    let error = journal.make("try", &change, None).unwrap_err();
    assert!(matches!(error, JournalError::File { .. }), "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
    assert_eq!((value(&change), journal.entries().unwrap()), (change.from.clone(), vec![]));
    drop(journal);

    // Space for the entry, and then for nothing else: setting a mark needs none.
    std::fs::remove_file(place.path().join("filling")).unwrap();
    let filling = place.path().to_owned();
    let step = move |step: &str| {
        if step == "change" {
            fill(&filling);
        }
        Ok(())
    };
    let journal = Journal::open_with(&directory, Box::new(step)).unwrap();
    let entry = journal.make("try", &change, None).unwrap();
    assert_eq!(value(&change), change.to);
    assert!(journal.overdue().unwrap().is_empty(), "it is marked as made");
    assert_eq!(journal.undo(&entry).unwrap(), Undone::Restored);
    assert_eq!((value(&change), journal.entries().unwrap()), (change.from.clone(), vec![]));
}

#[test]
fn a_disk_that_cannot_be_written_to_refuses_a_change_and_takes_one_back() {
    require!(need::root());
    mounts_of_its_own();
    let space = Space::new();
    let change = space.forwarding();
    let other = space.change("sysctl -w net.ipv4.ip_no_pmtu_disc=1");
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("journal");
    let entry = Journal::open(&directory).unwrap().make("try", &change, None).unwrap();
    assert!(!Journal::open(&directory).unwrap().trial_runs().unwrap());
    let bind = MsFlags::MS_BIND;
    mount(Some(place.path()), place.path(), None::<&str>, bind, None::<&str>).unwrap();
    let _mounted = Mounted(place.path());
    mount_at(place.path(), None, bind | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);

    let journal = Journal::open(&directory).unwrap();
    let error = journal.make("try", &other, None).unwrap_err().to_string();
    assert!(error.contains("Read-only file system"), "{error}");
    assert_eq!(value(&other), other.from);
    assert_eq!(journal.entries().unwrap(), std::slice::from_ref(&entry));
    let error = journal.undo(&entry).unwrap_err();
    assert!(matches!(error, JournalError::Stays { .. }), "{error}");
    assert_eq!(value(&change), change.from, "it is taken back all the same");
    drop(journal);

    mount_at(place.path(), None, bind | MsFlags::MS_REMOUNT);
    undo_all(&directory);
}
