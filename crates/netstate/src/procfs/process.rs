//! CPU time of processes from `/proc/<pid>/stat`, to detect other load on the machine.
//!
//! Source: `fs/proc/array.c`, proc_pid_stat(5). A process's time includes children that ended and
//! were waited for, so the sum over a set of processes survives the end of any of them. Times are
//! in ticks of [`crate::cpu::user_hz`], scaled by the scheduler's exact run time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;

use crate::proc::{ParseError, Result, decimal, read_value};

/// A process as reported by `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
    /// Process ID of the parent; 0 if it has none in this PID namespace.
    pub parent: u32,
    /// Whether it is a kernel thread (`PF_KTHREAD`).
    pub kernel_thread: bool,
    /// Ticks of user and kernel mode, waited-for children included.
    pub ticks: u64,
    /// Ticks of children that ended and were waited for; part of `ticks`.
    pub children_ticks: u64,
    /// CPU on which its first thread last ran; `None` if the kernel does not report it.
    pub processor: Option<u32>,
}

/// Errors of reading a process that has ended.
const ENDED: [i32; 2] = [nix::libc::ENOENT, nix::libc::ESRCH];
/// `PF_KTHREAD` of `include/linux/sched.h`.
const PF_KTHREAD: u64 = 0x0020_0000;

impl Process {
    /// Parses the text of `/proc/<pid>/stat`.
    ///
    /// # Errors
    /// A format other than documented. The command may contain blanks, parentheses and line ends;
    /// it ends at the last `)`.
    pub fn parse(file: &str, text: &str) -> std::result::Result<Process, ParseError> {
        let error =
            |field: &str, expected, got: &str| ParseError::new(file, 1, field, expected, got);
        let (pid, rest) =
            text.split_once(" (").ok_or_else(|| error("comm", "a pid and \" (\"", text))?;
        let (command, rest) =
            rest.rsplit_once(')').ok_or_else(|| error("comm", "a closing parenthesis", text))?;
        let pid = pid_of(file, "pid", Some(pid))?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        // words[0] is the state, field 3 in the manual page.
        let field = |number: usize| words.get(number - 3).copied();
        let sum = |fields: [(usize, &str); 2]| {
            fields.into_iter().try_fold(0_u64, |ticks, (number, name)| {
                Ok(ticks.saturating_add(decimal(file, 1, name, field(number))?))
            })
        };
        let own = sum([(14, "utime"), (15, "stime")])?;
        let children_ticks = sum([(16, "cutime"), (17, "cstime")])?;
        Ok(Process {
            pid,
            command: command.to_owned(),
            parent: pid_of(file, "ppid", field(4))?,
            kernel_thread: decimal(file, 1, "flags", field(9))? & PF_KTHREAD != 0,
            ticks: own.saturating_add(children_ticks),
            children_ticks,
            processor: field(39).and_then(|word| word.parse().ok()),
        })
    }
}

fn pid_of(file: &str, name: &str, word: Option<&str>) -> std::result::Result<u32, ParseError> {
    let value = decimal(file, 1, name, word)?;
    u32::try_from(value)
        .map_err(|_| ParseError::new(file, 1, name, "a process ID", word.unwrap_or_default()))
}

/// All processes visible in this process's PID namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processes {
    /// Processes by their ID.
    pub by_pid: BTreeMap<u32, Process>,
}

impl Processes {
    /// Reads every `/proc/<pid>/stat`. A process that ends meanwhile is left out.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or a file has another format.
    pub fn read() -> Result<Processes> {
        Processes::read_all_but(&BTreeSet::new())
    }

    fn read_all_but(known: &BTreeSet<u32>) -> Result<Processes> {
        let entries =
            std::fs::read_dir("/proc").map_err(|e| sys::Error::io("readdir", "/proc", &e))?;
        let mut by_pid = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|e| sys::Error::io("readdir", "/proc", &e))?;
            let name = entry.file_name();
            // Other entries of /proc are no processes.
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // Kernel threads that were read before.
            if known.contains(&pid) {
                continue;
            }
            let path = format!("/proc/{pid}/stat");
            match read_line(&path) {
                Ok(text) => {
                    by_pid.insert(pid, Process::parse(&path, text.trim_end())?);
                }
                // Ended between readdir and open, or between open and read.
                Err(e) if e.raw_os_error().is_some_and(|code| ENDED.contains(&code)) => {}
                Err(e) => return Err(sys::Error::io("read", path, &e).into()),
            }
        }
        Ok(Processes { by_pid })
    }

    /// Returns the ticks of all processes except kernel threads, the processes of `roots` and their
    /// descendants.
    ///
    /// Ancestors of a root count as foreign, with the time of children they waited for.
    pub fn foreign_ticks(&self, roots: &[u32]) -> u64 {
        self.foreign(roots).fold(0, |sum, process| sum.saturating_add(process.ticks))
    }

    /// Returns the processes that [`Processes::foreign_ticks`] sums up.
    pub fn foreign<'a>(&'a self, roots: &'a [u32]) -> impl Iterator<Item = &'a Process> {
        let is_foreign =
            |process: &&Process| !process.kernel_thread && !self.descends(process.pid, roots);
        self.by_pid.values().filter(is_foreign)
    }

    fn descends(&self, pid: u32, roots: &[u32]) -> bool {
        let mut pid = pid;
        // A parent chain is never longer than the table. The limit matters if the table, read over
        // some milliseconds, has a cycle because of a reused PID.
        for _ in 0..=self.by_pid.len() {
            if roots.contains(&pid) {
                return true;
            }
            match self.by_pid.get(&pid) {
                Some(process) if process.parent != 0 => pid = process.parent,
                // The process has ended, or its ancestors have.
                _ => return false,
            }
        }
        false
    }
}

/// Limit of bytes of a `/proc/<pid>/stat`: 52 numbers of 20 digits, and a command.
const LONGEST: usize = 2048;

/// Reads a line that the kernel renders completely at the first read: one system call instead of
/// five.
fn read_line(path: &str) -> std::io::Result<String> {
    let mut line = [0; LONGEST];
    let length = File::open(path)?.read(&mut line)?;
    // A process may choose any bytes as its command.
    Ok(String::from_utf8_lossy(&line[..length]).into_owned())
}

/// Reads processes repeatedly, but each kernel thread only once. On a small machine most processes
/// are kernel threads.
#[derive(Debug, Default)]
pub struct ProcessReader {
    kernel_threads: BTreeSet<u32>,
    /// Last assigned process ID at the last read.
    last_pid: u32,
}

impl ProcessReader {
    /// As [`Processes::read`], without kernel threads that were read before.
    ///
    /// # Errors
    /// As [`Processes::read`].
    pub fn read(&mut self) -> Result<Processes> {
        match last_pid() {
            Ok(last) => self.forget(last),
            // The kernel or container does not report it: read every process.
            Err(_) => self.kernel_threads.clear(),
        }
        let processes = Processes::read_all_but(&self.kernel_threads)?;
        let new = processes.by_pid.values().filter(|process| process.kernel_thread);
        self.kernel_threads.extend(new.map(|process| process.pid));
        Ok(processes)
    }

    /// Process IDs are assigned in order, so IDs assigned since the last read may now belong to
    /// other processes. A complete wrap-around cannot be detected: a process that reuses a kernel
    /// thread's ID is left out then.
    fn forget(&mut self, last: u32) {
        let (before, now) = (self.last_pid, last);
        let given = |pid: u32| match before <= now {
            true => before < pid && pid <= now,
            false => before < pid || pid <= now,
        };
        self.kernel_threads.retain(|pid| !given(*pid));
        self.last_pid = last;
    }
}

/// Returns the last assigned process ID, the fifth word of `/proc/loadavg`.
fn last_pid() -> Result<u32> {
    const FILE: &str = "/proc/loadavg";
    let text = read_value(FILE)?;
    Ok(pid_of(FILE, "last pid", text.split_ascii_whitespace().nth(4))?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18; the command changed to the worst that prctl(PR_SET_NAME) allows.
    const GOLDEN: &str = "12881 (a) R 1 (cat) R 12878 12878 8053 0 -1 4194304 101 0 0 0 100 20 3 4 \
        20 0 1 0 171660 3133440 381 18446744073709551615 94648947769344 94648947789225 \
        140729181566160 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";
    const KTHREADD: &str = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 7 0 0 20 0 1 0 25 0 0";

    fn process(pid: u32, parent: u32, ticks: u64) -> (u32, Process) {
        let command = String::new();
        (
            pid,
            Process {
                pid,
                command,
                parent,
                kernel_thread: false,
                ticks,
                children_ticks: 0,
                processor: None,
            },
        )
    }

    #[test]
    fn the_kernels_line_is_parsed() {
        let process = Process::parse("stat", GOLDEN).unwrap();
        let expected = Process {
            pid: 12881,
            command: "a) R 1 (cat".to_owned(),
            parent: 12878,
            kernel_thread: false,
            ticks: 127,
            children_ticks: 7,
            processor: Some(1),
        };
        assert_eq!(process, expected);
        let kthreadd = Process::parse("stat", KTHREADD).unwrap();
        assert!(kthreadd.kernel_thread);
        assert_eq!(kthreadd.ticks, 7);
    }

    #[test]
    fn errors_name_the_field() {
        let field = |text: &str| Process::parse("stat", text).unwrap_err().field;
        assert_eq!(field("1"), "comm");
        assert_eq!(field("1 (x R 1"), "comm");
        assert_eq!(field("x (x) R 1"), "pid");
        assert_eq!(field("4294967296 (x) R 1"), "pid");
        assert_eq!(field("1 (x) R 1 2 3"), "utime");
        assert_eq!(field(&KTHREADD.replace("2129984", "-1")), "flags");
    }

    #[test]
    fn foreign_is_what_neither_descends_from_a_root_nor_belongs_to_the_kernel() {
        let mut processes = Processes {
            by_pid: [
                process(1, 0, 1),
                process(10, 1, 2),
                process(11, 10, 4),
                process(12, 11, 8),
                process(20, 1, 16),
                // A cycle, as a reused PID could cause.
                process(30, 31, 32),
                process(31, 30, 64),
            ]
            .into(),
        };
        assert_eq!(processes.foreign_ticks(&[]), 127);
        assert_eq!(processes.foreign_ticks(&[10]), 1 + 16 + 32 + 64);
        assert_eq!(processes.foreign_ticks(&[11, 20]), 1 + 2 + 32 + 64);
        processes.by_pid.get_mut(&31).unwrap().kernel_thread = true;
        assert_eq!(processes.foreign_ticks(&[10]), 1 + 16 + 32);
    }

    #[test]
    fn this_process_and_its_parent_are_listed() {
        let processes = Processes::read().unwrap();
        let own = &processes.by_pid[&std::process::id()];
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(processes.descends(own.pid, &[own.parent]));
    }

    #[test]
    fn a_second_reading_has_the_same_but_for_kernel_threads() {
        let mut reader = ProcessReader::default();
        let first = reader.read().unwrap();
        let own = std::process::id();
        assert!(first.by_pid.contains_key(&own));
        // Only the initial PID namespace shows them.
        let threads: Vec<u32> =
            first.by_pid.values().filter(|one| one.kernel_thread).map(|one| one.pid).collect();
        assert_eq!(reader.kernel_threads, threads.iter().copied().collect());
        let second = reader.read().unwrap();
        assert!(second.by_pid.contains_key(&own));
        // Other processes may start meanwhile.
        let again = threads.iter().filter(|pid| second.by_pid.contains_key(pid)).count();
        assert!(again <= threads.len() / 2, "{again} of {}", threads.len());
    }

    #[test]
    fn ids_assigned_during_the_read_are_read_again() {
        let kept = |before, now| {
            let kernel_threads = [2, 300, 500, 900].into();
            let mut reader = ProcessReader { kernel_threads, last_pid: before };
            reader.forget(now);
            reader.kernel_threads.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(kept(400, 400), [2, 300, 500, 900]);
        assert_eq!(kept(299, 500), [2, 900]);
        // Wrap-around.
        assert_eq!(kept(899, 300), [500]);
        assert_eq!(kept(901, 301), [500, 900]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "[0-9]{0,12} ?\\(?[a-z() ]{0,6}\\)?( [0-9A-Z-]{0,22}){0,20}") {
            let _ = Process::parse("stat", &text);
        }
    }
}
