//! What a test needs of the machine, said in one way.
//!
//! A test that cannot run here says so by [`require!`], and ends:
//!
//! ```no_run
//! # use test_support::{require, need};
//! # fn a_test() {
//! require!(need::root(), need::tool("nft"), need::device("vxlan"));
//! let file = require!(std::fs::File::open("/dev/net/tun"));
//! # drop(file); }
//! ```
//!
//! | the test says by | it means | counted as |
//! | --- | --- | --- |
//! | [`require!`], [`skip!`] | this machine lacks what the whole test needs | skipped |
//! | [`left_out`] | this machine lacks what one case needs; the others run | passed, and listed |
//! | [`inconclusive!`] | the measurement could not decide | inconclusive |
//!
//! Each is one line, `KIND: TEST: REASON`, on the standard error stream and in the file
//! that `OVERLANE_TEST_RECORD` names, from which `scripts/run-tests` counts. With
//! `OVERLANE_STRICT=1` a skip or a case left out fails the test, unless
//! `scripts/expected-skips` names the test and a part of the reason.
//!
//! The crate uses nothing of the workspace: unit tests of every crate can use it.

#![deny(unsafe_code)]

// `GlobalAlloc` is unsafe to implement.
#[allow(unsafe_code)]
pub mod allocations;
pub mod standing;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub mod inject;
pub mod need;

/// The skips that a strict run accepts, relative to the top of the repository.
const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/expected-skips");

/// Goes on with the values of its arguments, `Result`s with a displayable error, or says
/// that this test is skipped, and why, and returns from it.
#[macro_export]
macro_rules! require {
    ($need:expr $(,)?) => {
        match $need {
            Ok(value) => value,
            Err(missing) => {
                $crate::skipped(&missing);
                return;
            }
        }
    };
    ($need:expr, $($more:expr),+ $(,)?) => {
        $crate::require!($need);
        $crate::require!($($more),+);
    };
}

/// Says that this test is skipped, and why, and returns from it.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skipped(&format!($($reason)*));
        return;
    }};
}

/// Says that this test measured and could not decide, and returns from it. What does not
/// depend on the measurement is asserted before.
#[macro_export]
macro_rules! inconclusive {
    ($($reason:tt)*) => {{
        $crate::undecided(&format!($($reason)*));
        return;
    }};
}

/// Says that this test is skipped; [`require!`] and [`skip!`] also return from it.
///
/// # Panics
/// In a strict run, if the skip is not on the list.
pub fn skipped(reason: &dyn Display) {
    say("skipped", &accepted(reason));
}

/// Says that a case of this test cannot run here. The test goes on with its other cases.
///
/// # Panics
/// In a strict run, if the case is not on the list.
pub fn left_out(reason: &dyn Display) {
    say("left out", &accepted(reason));
}

/// What `work` makes of each item, in their order. Some are at work at once: most of a testbed's
/// building is waiting.
///
/// # Panics
/// If `work` does, once the others have ended.
pub fn some_at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const AT_ONCE: usize = 4;
    let next = AtomicUsize::new(0);
    let worker = || {
        let numbered = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            Some((at, work(items.get(at)?)))
        };
        std::iter::from_fn(numbered).collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        let whole = |result: std::thread::Result<Vec<_>>| {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        results.into_iter().flat_map(whole).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// What `bind` makes of an address, once it is free: a child that another thread forks has a
/// copy of the last socket there until it executes its program.
///
/// # Panics
/// If it is in use for a minute, or cannot be had for another reason.
#[track_caller]
pub fn bound<T>(bind: impl Fn() -> std::io::Result<T>) -> T {
    const LIMIT: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < LIMIT => {}
            result => return result.unwrap(),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes a program that every user may run at once. What this process writes itself cannot be
/// run (ETXTBSY) for as long as a child of another thread has a copy of the descriptor.
///
/// # Panics
/// If it cannot be written, as of a place where there is none.
#[track_caller]
pub fn install(program: &[u8], to: &Path) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(to).stdin(Stdio::piped());
    let mut child = command.spawn().expect("run install(1)");
    child.stdin.take().expect("a pipe").write_all(program).expect("write to install(1)");
    let status = child.wait().expect("wait for install(1)");
    assert!(status.success(), "install {}: {status}", to.display());
}

/// Sets a flag when it goes, also in a test that fails: threads that look at the flag end, and
/// whoever waits for them goes on.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Says that this test measured and could not decide; [`inconclusive!`] also returns.
pub fn undecided(reason: &dyn Display) {
    say("inconclusive", &reason.to_string());
}

/// The reason as text.
///
/// # Panics
/// In a strict run, if the list has no such test and reason.
fn accepted(reason: &dyn Display) -> String {
    let reason = reason.to_string();
    if std::env::var_os("OVERLANE_STRICT").is_some_and(|value| value == "1") {
        let list = std::fs::read_to_string(EXPECTED).expect("read scripts/expected-skips");
        let name = test();
        assert!(
            expected(&list, &name, &reason),
            "{name} cannot run here: {reason} (a strict run; scripts/expected-skips does not list it)"
        );
    }
    reason
}

/// One line about the test that runs: `KIND: TEST: REASON`.
fn say(kind: &str, reason: &str) {
    let line = format!("{kind}: {}: {}", test(), reason.replace('\n', " "));
    eprintln!("{line}");
    if let Some(file) = std::env::var_os("OVERLANE_TEST_RECORD") {
        // One write of a whole line, so that lines of tests beside each other stay whole.
        let written = std::fs::OpenOptions::new().append(true).open(&file).and_then(|mut file| {
            file.write_all(format!("{} {line}\n", std::process::id()).as_bytes())
        });
        if let Err(error) = written {
            panic!("OVERLANE_TEST_RECORD: append to {}: {error}", file.display());
        }
    }
}

/// The binary and the name of the test that runs.
fn test() -> String {
    let binary = std::env::current_exe().unwrap_or_default();
    let stem = binary.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // cargo appends a hash to the name of a test binary.
    let binary = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name);
    let thread = std::thread::current();
    format!("{binary}::{}", thread.name().unwrap_or("unnamed thread"))
}

/// Whether `list` has a line `TEST: PART OF THE REASON` for this skip. `#` starts a comment.
fn expected(list: &str, test: &str, reason: &str) -> bool {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).any(
        |line| {
            line.split_once(": ")
                .is_some_and(|(name, part)| name == test && reason.contains(part.trim()))
        },
    )
}

/// Where a program is, in `PATH` or where daemons are kept.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file: &PathBuf| Path::is_file(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_items() {
        let items: Vec<u32> = (0..50).collect();
        assert_eq!(some_at_once(&items, |item| item * 2), (0..100).step_by(2).collect::<Vec<_>>());
        let panics = || some_at_once(&items, |item| assert!(*item != 7));
        assert!(std::panic::catch_unwind(panics).is_err());
    }

    #[test]
    fn a_skip_is_expected_by_test_and_reason() {
        let list = "# comment\n\nmodes::vlan: 8021q\n";
        assert!(expected(list, "modes::vlan", "the kernel lacks 8021q"));
        assert!(!expected(list, "modes::vlan", "not root"));
        assert!(!expected(list, "modes::vlan_too", "the kernel lacks 8021q"));
        assert!(!expected("", "modes::vlan", "the kernel lacks 8021q"));
    }

    #[test]
    fn a_need_that_is_met_goes_on() {
        let value = require!(Ok::<_, String>(7));
        assert_eq!(value, 7);
        require!(need::tool("sh"), need::tool("ls"));
    }

    #[test]
    fn the_test_is_named() {
        assert!(test().ends_with("::tests::the_test_is_named"), "{}", test());
    }

    #[test]
    fn a_missing_tool_is_named() {
        let missing = need::tool("no-such-program").unwrap_err();
        assert_eq!(missing, "no-such-program is not installed");
    }
}
