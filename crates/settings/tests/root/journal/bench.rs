//! A setting to change in a private namespace.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

use settings::Change;
use settings::journal::{Entry, Journal};
use settings::{apply, proposal};
use sys::netns::NetNs;

/// A namespace, and a path by which any process can open it.
pub struct Space {
    pub netns: NetNs,
    pub path: String,
}

impl Space {
    pub fn new() -> Space {
        let netns = NetNs::new().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
        Space { netns, path }
    }

    pub fn change(&self, command: &str) -> Change {
        let command = format!("nsenter --net={} {command}", self.path);
        let mut changes = proposal::changes(&command).unwrap();
        assert_eq!(changes.len(), 1);
        changes.remove(0)
    }

    pub fn forwarding(&self) -> Change {
        self.change("sysctl -w net.ipv4.ip_forward=1")
    }

    pub fn ip(&self, words: &str) {
        let path = format!("--net={}", self.path);
        let status = Command::new("nsenter").arg(path).arg("ip").args(words.split(' ')).status();
        assert!(status.unwrap().success(), "ip {words}");
    }
}

pub fn value(change: &Change) -> String {
    apply::read(change).unwrap().to_string()
}

/// Undoes every entry, as a process that finds the journal in its current state.
#[track_caller]
pub fn undo_all(directory: &Path) {
    let journal = Journal::open(directory).unwrap();
    let contents = journal.contents().unwrap();
    assert_eq!(contents.left, []);
    for entry in contents.entries.iter().rev() {
        journal.undo(entry).unwrap();
    }
    assert_eq!(journal.entries().unwrap(), []);
}

/// Rewrites an entry with another text, without its checksum, as in the first format.
pub fn as_first_form(directory: &Path, entry: &Entry, boot: Option<&str>) {
    let file = directory.join(format!("{:08}.json", entry.id));
    let text = std::fs::read_to_string(&file).unwrap();
    let mut kept = serde_json::from_str::<serde_json::Value>(&text).unwrap()["entry"].take();
    let first = kept.as_object_mut().unwrap();
    for key in ["confirm_until", "directory"] {
        first.remove(key);
    }
    first.insert("format".to_owned(), 1.into());
    first.insert("made".to_owned(), true.into());
    first.insert("confirm_until_s".to_owned(), serde_json::Value::Null);
    first.insert("trial".to_owned(), false.into());
    if let Some(boot) = boot {
        first.insert("boot".to_owned(), boot.into());
    }
    if let Some(place) = first["change"]["place"].as_object_mut() {
        place.remove("cookie");
        place.remove("first");
    }
    std::fs::write(&file, serde_json::to_vec(&kept).unwrap()).unwrap();
}
