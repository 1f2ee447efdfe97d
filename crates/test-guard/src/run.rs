//! One test: its start, its signals, its end, and its leftovers.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, mkdtemp};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::overlap::Overlap;
use crate::state::{self, Objects};
use crate::{LEFT, MARK, PATIENCE, RUN, TICK, processes};

/// File of the run: objects that may be a test's, each with the test.
pub const SUSPECTS: &str = "suspects";
/// File of the run: directories of temporary files.
pub const DIRECTORIES: &str = "directories";

/// File of the run: per test, the seconds and the CPU seconds it took.
const COSTS: &str = "costs";

/// Runs a test and returns the exit status of its guard.
pub fn run(program: &OsStr, arguments: &[OsString]) -> Result<u8> {
    let test = name(program, arguments);
    nix::sys::prctl::set_child_subreaper(true)?;
    let place = mkdtemp(&std::env::temp_dir().join("ol-XXXXXX"))?;
    // Like /tmp: tests start programs of other users.
    fs::set_permissions(&place, Permissions::from_mode(0o1777))?;
    // If this guard is killed, --finish removes the directory.
    record(DIRECTORIES, &format!("{}\n", place.display()))?;
    // Before the first look, so that a test which begins after it is noticed.
    let overlap = Overlap::begin(&test)?;
    let before = state::now();

    // Before the test starts: a signal in between must not end the guard alone.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let mut command = Command::new(program);
    let started = command.args(arguments).env("TMPDIR", &place).env(MARK, &test).spawn();
    let begun = Instant::now();
    let child = started.inspect_err(|_| drop(fs::remove_dir_all(&place)))?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let ended = Arc::new(AtomicBool::new(false));
    forward(signals, pid, &ended);
    let status = wait(pid)?;
    ended.store(true, Ordering::Relaxed);

    let left = settle(&place, &before, &overlap);
    processes::kill_all(processes::descendants);
    // All descendants count, because the guard has reaped the orphans too.
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let cpu = (used.user_time() + used.system_time()).num_milliseconds();
    let seconds = begun.elapsed().as_secs();
    record(COSTS, &format!("{seconds} {}.{} {test}\n", cpu / 1000, cpu % 1000 / 100))?;
    remove(&place);
    Ok(if report(&test, left)? && status == 0 { LEFT } else { status })
}

/// The test as cargo-nextest names it, or by the program and the name that it is asked to run.
fn name(program: &OsStr, arguments: &[OsString]) -> String {
    let variable = |name| std::env::var(name).ok();
    let binary = variable("NEXTEST_BINARY_ID").unwrap_or_else(|| {
        Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    let of_arguments =
        || arguments.iter().find_map(|it| it.to_str().filter(|it| !it.starts_with('-')));
    let test = variable("NEXTEST_TEST_NAME").or_else(|| of_arguments().map(str::to_owned));
    let name = format!("{binary} {}", test.unwrap_or_default());
    // One field of one line of the run's record.
    name.trim_end().replace(['\n', '\t'], " ")
}

/// Gives each signal to the test, and kills the test if it does not end.
///
/// The test's own descendants get no signal here: helpers of overlane clean up when their parent
/// ends, and have time for that until [`settle`] gives up.
fn forward(mut signals: Signals, pid: Pid, ended: &Arc<AtomicBool>) {
    let ended = Arc::clone(ended);
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let signal = Signal::try_from(signal).unwrap_or(Signal::SIGTERM);
            let begun = Instant::now();
            if !ended.load(Ordering::Relaxed) {
                let _ = kill(pid, signal);
            }
            while !ended.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
                std::thread::sleep(TICK);
            }
            if !ended.load(Ordering::Relaxed) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
    });
}

/// Waits for the test, and for its orphans meanwhile.
fn wait(test: Pid) -> Result<u8> {
    loop {
        match waitpid(None, None)? {
            // The kernel has exit statuses of eight bits.
            WaitStatus::Exited(pid, status) if pid == test => return Ok(status.to_le_bytes()[0]),
            WaitStatus::Signaled(pid, signal, _) if pid == test => {
                return Ok(128 + (signal as i32).to_le_bytes()[0]);
            }
            _ => {}
        }
    }
}

/// Objects that a test left.
struct Left {
    /// Objects that are this test's.
    own: Objects,
    /// Objects of the machine that are this test's or another's.
    suspects: Objects,
    /// Whether no other test has run meanwhile, so that the suspects are this test's.
    alone: bool,
}

/// Polls until nothing is left or the time limit is reached.
fn settle(place: &Path, before: &Objects, overlap: &Overlap) -> Left {
    let begun = Instant::now();
    loop {
        let running = processes::reap();
        let mut suspects: Objects = state::now().difference(before).cloned().collect();
        let alone = overlap.alone();
        // Objects of tests that still run would be waited for in vain: --finish judges them.
        let clean = !running && (suspects.is_empty() || !alone);
        if clean || begun.elapsed() >= PATIENCE {
            let mut own = Objects::new();
            if running {
                own.extend(processes::descendants().into_iter().map(processes::shown));
                if own.is_empty() {
                    // The last processes ended during the search, or a process forks all the time.
                    if begun.elapsed() < PATIENCE * 10 {
                        std::thread::sleep(TICK);
                        continue;
                    }
                    own.insert("a process that forks all the time".to_owned());
                }
            }
            // Suspects of tests that overlapped are judged by --finish, which looks for holders, too.
            if alone {
                state::drop_held(&mut suspects);
            }
            own.extend(contents(place));
            return Left { own, suspects, alone };
        }
        std::thread::sleep(TICK);
    }
}

/// Files and directories in the test's directory of temporary files.
fn contents(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries.map(|entry| format!("file {}", entry.path().to_string_lossy().escape_debug())).collect()
}

/// Removes the test's directory, unless something is mounted in it: then the files are not the
/// test's.
pub fn remove(place: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !mounts.contains(&*place.to_string_lossy()) {
        // Files that cannot be removed have been listed.
        let _ = fs::remove_dir_all(place);
    }
}

/// Reports leftovers, and records them for the end of the run; returns whether they are a failure.
fn report(test: &str, left: Left) -> Result<bool> {
    let Left { mut own, suspects, alone } = left;
    let lines: String = suspects.iter().map(|object| format!("{object}\t{test}\n")).collect();
    if !suspects.is_empty() && !record(SUSPECTS, &lines)? && !alone {
        eprintln!("left behind by {test} or a test beside it: {}", list(&suspects));
    }
    if alone {
        own.extend(suspects);
    }
    if own.is_empty() {
        return Ok(false);
    }
    eprintln!("left behind by {test}: {}", list(&own));
    Ok(true)
}

/// Appends to a file in the directory of the run; whether there is one.
fn record(name: &str, lines: &str) -> Result<bool> {
    let Some(run) = std::env::var_os(RUN) else { return Ok(false) };
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).open(Path::new(&run).join(name))?;
    // One write, so that lines of guards that write at once stay whole.
    file.write_all(lines.as_bytes())?;
    Ok(true)
}

fn list(objects: &Objects) -> String {
    objects.iter().map(String::as_str).collect::<Vec<_>>().join("; ")
}
