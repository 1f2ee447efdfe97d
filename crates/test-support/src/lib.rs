//! Requirements of tests on the machine, with uniform reports.
//!
//! A test that cannot run on this machine reports it with [`require!`] and returns:
//!
//! ```no_run
//! # use test_support::{require, need};
//! # fn a_test() {
//! require!(need::root(), need::tool("nft"), need::device("vxlan"));
//! let file = require!(std::fs::File::open("/dev/net/tun"));
//! # drop(file); }
//! ```
//!
//! | macro or function | meaning | counted as |
//! | --- | --- | --- |
//! | [`require!`], [`skip!`] | the machine lacks a feature that the whole test needs | skipped |
//! | [`left_out`] | the machine lacks a feature that one case needs | passed, and listed |
//! | [`inconclusive!`] | the measurement gave no decision | inconclusive |
//!
//! Each report is one line, `KIND: TEST: REASON`, on standard error and in the file that
//! `OVERLANE_TEST_RECORD` names, which `scripts/test` evaluates. With `OVERLANE_STRICT=1`, a
//! skipped test or case fails the test, unless `scripts/expected-skips` lists the test and a part
//! of the reason.
//!
//! This crate depends on no other crate of the workspace, so that all of them can use it.

#![deny(unsafe_code)]

// `GlobalAlloc` is unsafe to implement.
#[allow(unsafe_code)]
pub mod allocations;
pub mod standing;
pub mod tiers;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub mod inject;
pub mod need;
pub mod program;

/// The list of skips that a strict run accepts.
const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/expected-skips");

/// Unwraps `Result`s with a displayable error. On an error, reports the test as skipped with this
/// reason and returns from it.
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

/// Reports this test as skipped with a reason, and returns from it.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skipped(&format!($($reason)*));
        return;
    }};
}

/// Reports that the measurement of this test gave no decision, and returns from it. Assert
/// everything that does not depend on the measurement before.
#[macro_export]
macro_rules! inconclusive {
    ($($reason:tt)*) => {{
        $crate::undecided(&format!($($reason)*));
        return;
    }};
}

/// Reports this test as skipped. [`require!`] and [`skip!`] also return from it.
///
/// # Panics
/// In a strict run, if the skip is not on the list.
pub fn skipped(reason: &dyn Display) {
    say("skipped", &accepted(reason));
}

/// Reports that a case of this test cannot run on this machine. The test continues.
///
/// # Panics
/// In a strict run, if the case is not on the list.
pub fn left_out(reason: &dyn Display) {
    say("left out", &accepted(reason));
}

/// Applies `work` to each item and returns the results in order. Runs some in parallel, because
/// building a testbed mostly means waiting.
///
/// # Panics
/// If `work` panics, after the other threads have ended.
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

/// Calls `bind` until its address is free. A child forked by another thread keeps a copy of the
/// previous socket until it executes its program.
///
/// # Panics
/// If the address is in use for a minute, or `bind` fails for another reason.
#[track_caller]
pub fn bound<T>(bind: impl Fn() -> std::io::Result<T>) -> T {
    const LIMIT: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    loop {
        match bind() {
            // Any other error would not go away.
            Err(error) if error.kind() == ErrorKind::AddrInUse && begun.elapsed() < LIMIT => {}
            result => return result.unwrap(),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes a program that every user may execute at once. Uses install(1), because a file that this
/// process writes itself cannot be executed (ETXTBSY) while a child of another thread has a copy of
/// the descriptor.
///
/// # Panics
/// If the file cannot be written.
#[track_caller]
pub fn install(program: &[u8], to: &Path) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(to).stdin(Stdio::piped());
    let mut child = command.spawn().expect("run install(1)");
    child.stdin.take().expect("a pipe").write_all(program).expect("write to install(1)");
    let status = child.wait().expect("wait for install(1)");
    assert!(status.success(), "install {}: {status}", to.display());
}

/// Sets a flag when dropped, also in a failing test, so that threads that check the flag end and
/// can be joined.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports that the measurement of this test is inconclusive. [`inconclusive!`] also returns.
pub fn undecided(reason: &dyn Display) {
    say("inconclusive", &reason.to_string());
}

/// Returns the reason as text.
///
/// # Panics
/// In a strict run, if the list does not have this test and reason.
fn accepted(reason: &dyn Display) -> String {
    let reason = reason.to_string();
    // Without strict mode, every skip is accepted.
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

/// Reports a line about the current test: `KIND: TEST: REASON`.
fn say(kind: &str, reason: &str) {
    let line = format!("{kind}: {}: {}", test(), reason.replace('\n', " "));
    eprintln!("{line}");
    if let Some(file) = std::env::var_os("OVERLANE_TEST_RECORD") {
        // One write per line, so that lines of parallel tests do not mix.
        let written = std::fs::OpenOptions::new().append(true).open(&file).and_then(|mut file| {
            file.write_all(format!("{} {line}\n", std::process::id()).as_bytes())
        });
        if let Err(error) = written {
            panic!("OVERLANE_TEST_RECORD: append to {}: {error}", file.display());
        }
    }
}

/// The crate and the name of the running test. The runner names the crate in the environment;
/// in a guest there is only the binary's name.
fn test() -> String {
    let of_crate = std::env::var("CARGO_PKG_NAME").ok();
    let crate_name = of_crate.unwrap_or_else(|| {
        let binary = std::env::current_exe().unwrap_or_default();
        binary.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    });
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed thread");
    format!("{}::{name}", crate_name.trim_start_matches("overlane-"))
}

/// Returns whether `list` has a line `TEST: PART OF THE REASON` for this skip. `#` starts a
/// comment.
fn expected(list: &str, test: &str, reason: &str) -> bool {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).any(
        |line| {
            line.split_once(": ")
                .is_some_and(|(name, part)| name == test && reason.contains(part.trim()))
        },
    )
}

/// Finds a program in `PATH` or the directories of daemons.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file: &PathBuf| Path::is_file(file))
}

/// Packets, in all namespaces, that were dropped at a full backlog of a CPU
/// (`Documentation/networking/scaling.rst`, `softnet_stat`).
///
/// # Panics
/// If the kernel's counters cannot be read.
#[must_use]
pub fn full_backlogs() -> u32 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let dropped = |line: &str| u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().map(|line| dropped(line).unwrap()).sum()
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
