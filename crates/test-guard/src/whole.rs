//! A whole run: the state at its beginning, and the judgement at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Result;
use std::path::Path;
use std::time::Instant;

use crate::overlap::Overlap;
use crate::run::{self, DIRECTORIES, SUSPECTS};
use crate::state::{self, Objects};
use crate::{PATIENCE, TICK, processes};

/// The state of the machine at the beginning.
const BEGIN: &str = "begin";
/// File with the number of network namespaces.
const NAMESPACES: &str = "namespaces";

/// Length of each CPU's queue of received packets. All namespaces of a machine share the queues, so
/// a flood of one test costs the others packets at the default of 1,000.
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
/// Its value during a run. 10,000 packets of 64 KiB are 640 MB, more than any test has in flight.
const LONG_BACKLOG: u32 = 10_000;
/// File with its value before the run.
const BACKLOG_BEFORE: &str = "backlog";

fn everything() -> Objects {
    let mut state = state::now();
    state.append(&mut state::tables());
    state
}

/// Records the state of the machine in a directory, which is made.
pub fn begin(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    for name in [SUSPECTS, DIRECTORIES] {
        // Remove the file of an earlier run.
        let _ = fs::remove_file(directory.join(name));
    }
    let lines: Vec<String> = everything().into_iter().collect();
    fs::write(directory.join(BEGIN), lines.join("\n"))?;
    let count = state::namespaces().map_or(String::new(), |count| count.to_string());
    fs::write(directory.join(NAMESPACES), count)?;
    lengthen_backlog(directory)
}

/// Returns the length of the CPUs' queues of received packets. `None` if it cannot be read.
fn backlog() -> Option<u32> {
    fs::read_to_string(BACKLOG).ok()?.trim().parse().ok()
}

/// Lengthens the queues until [`restore_backlog`]. A container may forbid that: tests run all the
/// same, and a flood may cost them packets.
fn lengthen_backlog(directory: &Path) -> Result<()> {
    if let Some(before) = backlog()
        && before < LONG_BACKLOG
        && fs::write(BACKLOG, LONG_BACKLOG.to_string()).is_ok()
    {
        fs::write(directory.join(BACKLOG_BEFORE), before.to_string())?;
    }
    Ok(())
}

/// Restores the queues, unless somebody has changed them since.
fn restore_backlog(directory: &Path) -> Result<()> {
    match fs::read_to_string(directory.join(BACKLOG_BEFORE)) {
        Ok(before) if backlog() == Some(LONG_BACKLOG) => fs::write(BACKLOG, before),
        // The run did not change them, or they are another's now.
        _ => Ok(()),
    }
}

/// Says which objects are left of the run, and which tests may have left them; the exit status.
pub fn finish(directory: &Path) -> Result<u8> {
    restore_backlog(directory)?;
    let before = fs::read_to_string(directory.join(BEGIN))?;
    let before: Objects = before.lines().map(str::to_owned).collect();
    // No guard has written a file that is missing.
    let recorded = |name| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let suspects = recorded(SUSPECTS);
    let mut tests = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (object, test) in suspects.lines().filter_map(|line| line.split_once('\t')) {
        tests.entry(object).or_default().insert(test);
    }
    // Tests of another clone may still run.
    let overlap = Overlap::begin("--finish")?;

    let run = directory.to_string_lossy();
    let mut orphans: Objects = processes::of_run(&run).into_iter().map(processes::shown).collect();
    processes::kill_all(|| processes::of_run(&run));
    for place in recorded(DIRECTORIES).lines().map(Path::new).filter(|place| place.exists()) {
        orphans.insert(format!("directory {}", place.display()));
        run::remove(place);
    }
    for object in &orphans {
        eprintln!("left behind: {object}: a test whose guard was killed");
    }

    let begun = Instant::now();
    let mut left = loop {
        let left: Objects = everything().difference(&before).cloned().collect();
        if left.is_empty() || begun.elapsed() >= PATIENCE {
            break left;
        }
        std::thread::sleep(TICK);
    };
    state::drop_held(&mut left);
    let judged = overlap.alone();
    for object in &left {
        let tests = tests.get(object.as_str()).cloned().unwrap_or_default();
        let tests: Vec<&str> = tests.into_iter().collect();
        let who = match *tests {
            [] => "a test whose guard was killed, or no test".to_owned(),
            [one] => one.to_owned(),
            _ => format!("one of the tests {}", tests.join(", ")),
        };
        let or = if judged { "" } else { ", or a test of another run, which has not ended" };
        eprintln!("left behind: {object}: {who}{or}");
    }
    // No failure: another program may have made one, or one is still being removed.
    match (recorded(NAMESPACES).parse::<u64>(), state::namespaces()) {
        (Ok(then), Some(now)) if now > then => {
            eprintln!("note: the kernel had {then} network namespaces, and has {now}");
        }
        _ => {}
    }
    Ok(u8::from(!orphans.is_empty() || (judged && !left.is_empty())))
}
