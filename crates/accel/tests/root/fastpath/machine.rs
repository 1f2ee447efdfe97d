//! The machine as a whole. BPF programs at netfilter's hooks in any namespace are a reason in
//! all of them: tests that attach some run while no other test here does.

use std::cell::Cell;
use std::fs::File;

use nix::fcntl::{Flock, FlockArg};

thread_local! {
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Keeps others away until dropped.
pub struct Alone(#[expect(dead_code, reason = "the lock ends with it")] Flock<File>);

/// Keeps those away that want to be alone.
pub struct Among(#[expect(dead_code, reason = "the lock ends with it")] Option<Flock<File>>);

/// Of any file that is there.
fn lock(how: FlockArg) -> Flock<File> {
    let file = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    Flock::lock(file, how).map_err(|(_, errno)| errno).unwrap()
}

pub fn alone() -> Alone {
    let lock = lock(FlockArg::LockExclusive);
    IS_ALONE.set(true);
    Alone(lock)
}

/// As many as like; the thread that is alone may be here, too.
pub fn among() -> Among {
    if IS_ALONE.get() {
        return Among(None);
    }
    Among(Some(lock(FlockArg::LockShared)))
}

impl Drop for Alone {
    fn drop(&mut self) {
        IS_ALONE.set(false);
    }
}
