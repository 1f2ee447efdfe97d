//! Files that the program writes: their permissions, and links of other users.

use std::os::unix::fs::{PermissionsExt, symlink};

use test_support::{need, require};

use crate::launch::{run, sh};

#[test]
fn the_umask_is_obeyed() {
    let directory = tempfile::tempdir().unwrap();
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/watch.jsonl");
    for (umask, mode) in [("022", 0o644), ("077", 0o600), ("007", 0o660)] {
        let page = directory.path().join(umask);
        let command = format!("umask {umask}; exec \"$0\" report {recording} --html \"$1\"");
        sh("sh", &["-c", &command, crate::launch::OVERLANE, page.to_str().unwrap()]);
        assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, mode, "umask {umask}");
    }
}

#[test]
fn a_link_in_the_place_of_a_man_page_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (other, pages) = (directory.path().join("other"), directory.path().join("pages"));
    std::fs::write(&other, "kept").unwrap();
    std::fs::create_dir(&pages).unwrap();
    symlink(&other, pages.join("overlane.1")).unwrap();
    run(["man", pages.to_str().unwrap()]).expect(0);
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
    let page = pages.join("overlane.1");
    assert!(!page.symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::read_to_string(page).unwrap().contains(".TH overlane"));
}

/// Root's output goes through links of root only: another user's may lead to a device.
#[test]
fn a_link_of_another_user_to_a_device_is_not_followed() {
    require!(need::root());
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/watch.jsonl");
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    symlink("/dev/null", &link).unwrap();
    let report = ["report", recording, "--html", link.to_str().unwrap()];
    run(report).expect(0);
    std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
    let error = run(report).expect(2).stderr;
    assert!(error.contains("--html: ") && error.contains("link of another user"), "{error}");
    let events = ["lab", "run", "--modes", "host", "--events", link.to_str().unwrap()];
    let error = run(events).expect(2).stderr;
    assert!(error.contains("--events: cannot create"), "{error}");
}
