//! Output to the terminal, and to files that are written completely or not at all.

use std::io::{IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use measure::run::Ended;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc;
use nix::unistd::linkat;
use results::{Results, Status};
use session::keeping::Keeping;

use crate::args::{Format, Output};
use crate::by_name::ByName;
use crate::exit::{Exit, usage};

/// Prints to standard output. Control characters are escaped, except for the program's own colours.
///
/// # Errors
/// If standard output cannot be written. For a closed pipe, `main` exits quietly.
pub fn print(text: &str) -> anyhow::Result<()> {
    put(&foreign::lines(text, style().colour))
}

fn put(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// Like [`print()`], with lines broken at blanks that are longer than the terminal.
pub fn print_folded(text: &str) -> anyhow::Result<()> {
    let columns = columns();
    print(&text.lines().map(|line| folded(line, columns, None) + "\n").collect::<String>())
}

/// Breaks a line at blanks into lines of at most `columns`, if its words allow. The later ones are
/// indented by `indent`; by default, by four more than the first.
pub fn folded(line: &str, columns: usize, indent: Option<usize>) -> String {
    let blank = |characters: &[char]| characters.iter().take_while(|c| **c == ' ').count();
    let mut left: Vec<char> = line.chars().collect();
    // Half of the columns remain for words.
    let indent = indent.unwrap_or(blank(&left) + 4).min(columns / 2);
    let mut text = String::new();
    while left.len() > columns {
        let begin = blank(&left);
        let breaks = |at: &usize| *at > begin && left[*at] == ' ';
        // A word longer than the line still gets a line.
        let at = (0..=columns).rev().find(breaks).or_else(|| (columns..left.len()).find(breaks));
        let Some(at) = at else { break };
        text.extend(&left[..at]);
        text.push('\n');
        let rest = left.split_off(at);
        left = vec![' '; indent];
        left.extend(&rest[blank(&rest)..]);
    }
    text.extend(left);
    text
}

/// Prints text whose control characters are already escaped.
pub fn print_raw(text: &str) -> anyhow::Result<()> {
    put(text)
}

/// Prints a line to standard error, with control characters escaped. Ignores errors.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", foreign::lines(text, false));
}

/// Writer of log lines to standard error, with control characters escaped.
#[derive(Debug)]
pub struct Log {
    /// Keep the formatter's own colours.
    pub colour: bool,
}

impl Write for Log {
    fn write(&mut self, entry: &[u8]) -> std::io::Result<usize> {
        // The formatter writes each entry in one call.
        let text = String::from_utf8_lossy(entry);
        let text = foreign::log(&text, self.colour);
        match &mut *held() {
            // The interface fills the screen: log lines would destroy it.
            Some(held) if held.len() < HELD => held.push_str(&text),
            // Drop lines beyond the limit: they are likely repetitions.
            Some(_) => {}
            None => std::io::stderr().write_all(text.as_bytes())?,
        }
        Ok(entry.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Maximum size of deferred log lines, in bytes.
const HELD: usize = 1 << 20;

fn held() -> MutexGuard<'static, Option<String>> {
    static LOG: Mutex<Option<String>> = Mutex::new(None);
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Defers log lines while the interface fills the screen, if standard error is a terminal.
pub fn hold_log() {
    if std::io::stderr().is_terminal() {
        held().get_or_insert_default();
    }
}

/// Writes the deferred log lines, and stops deferring.
pub fn release_log() {
    let log = held().take().unwrap_or_default();
    // Ignore errors: there is no other place to report that standard error is closed.
    let _ = std::io::stderr().write_all(log.as_bytes());
}

pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    put(&foreign::json(&serde_json::to_string_pretty(value)?))
}

pub fn print_json_line(value: &impl serde::Serialize) -> anyhow::Result<()> {
    put(&foreign::json(&serde_json::to_string(value)?))
}

pub fn print_results(results: &Results, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Text => print(&report::text(results, style())),
        Format::Markdown => print(&report::markdown(results)),
        // Not escaped: lines end in \r\n, and the cells are already sanitised.
        Format::Csv => put(&report::csv(results)),
        Format::CsvSamples => put(&report::csv_samples(results)),
        Format::Json => print_json(results),
        // Labels are already escaped.
        Format::Openmetrics => put(&report::openmetrics(results)),
    }
}

/// Writes and prints the results of a run, and removes the samples beside them. Returns the exit code.
pub fn deliver(
    results: &Results,
    ended: Ended,
    arguments: &Output,
    destination: Option<&Destination>,
    kept: Option<Kept>,
    by_name: &ByName,
) -> anyhow::Result<Exit> {
    let written = match destination {
        Some(destination) => destination.write(&(serde_json::to_string_pretty(results)? + "\n")),
        // Without --out only the printed form exists.
        None => Ok(()),
    };
    if let Some(kept) = kept.filter(|_| written.is_ok()) {
        // Not after printing, which fails if the pipe is closed.
        kept.done();
    }
    // Print the results even if the disk is full, so that the measurement is not lost.
    let format = if arguments.json { Format::Json } else { arguments.format };
    print_results(results, format)?;
    written?;
    let mut trials = results.faults.iter().flat_map(|fault| &fault.trials);
    let failed = results.cells.iter().any(|cell| cell.status == Status::Failed)
        || results.modes.iter().any(|mode| mode.status == Status::Failed)
        || trials.any(|trial| trial.cost.is_none())
        || !results.complete
        || by_name.is_lacking(results);
    // Text for people lists them.
    if failed && !matches!(format, Format::Text | Format::Markdown) {
        for sentence in report::not_measured(results) {
            complain(&format!("not measured: {sentence}"));
        }
    }
    Ok(match ended {
        Ended::Interrupted => Exit::Interrupted,
        Ended::Failed => Exit::Partly,
        _ if failed => Exit::Partly,
        _ => Exit::Done,
    })
}

/// Returns the style of standard output. Colour is used only on a terminal.
pub fn style() -> report::Style {
    let colour = std::io::stdout().is_terminal() && colour_is_wanted();
    report::Style { colour, width: known_columns().unwrap_or(80) }
}

/// Returns the columns that lines may have, at least 60; unlimited for a file or a pipe, so that a
/// program that reads it finds one record in a line.
pub fn columns() -> usize {
    known_columns().unwrap_or(usize::MAX)
}

/// Returns the width of `COLUMNS` or of the terminal, at least 60, which tables need.
fn known_columns() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    asked.or_else(terminal_columns).map(|columns: usize| columns.max(60))
}

/// Returns the width of the terminal that standard output is; `None` for a file or a pipe.
fn terminal_columns() -> Option<usize> {
    // Text that is not read on a terminal is not folded.
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (columns, _) = ratatui::crossterm::terminal::size().ok()?;
    // A serial console reports 0.
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// Returns false if `NO_COLOR` is set (no-color.org).
pub fn colour_is_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// An output file that was checked to be writable before the work starts.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    /// Write in place, because a device or a pipe cannot be replaced.
    special: bool,
}

impl Destination {
    /// Checks that `--out` can be written, without leaving a file.
    ///
    /// # Errors
    /// A usage error that names the path and the reason.
    pub fn check(path: &Path) -> anyhow::Result<Destination> {
        Destination::check_for("--out", path)
    }

    /// Like [`Destination::check`], for another argument.
    ///
    /// # Errors
    /// A usage error that names the argument, the path and the reason.
    pub fn check_for(argument: &str, path: &Path) -> anyhow::Result<Destination> {
        let problem = |error: &dyn std::fmt::Display| {
            usage(argument, format!("{} cannot be written: {error}", path.display()))
        };
        let special = match path.metadata() {
            // A directory would be found only at the end of the run.
            Ok(meta) if meta.is_dir() => return Err(problem(&"it is a directory")),
            Ok(meta) if !meta.is_file() => {
                refuse_untrusted_link(path).map_err(|e| problem(&e))?;
                true
            }
            Ok(_) => {
                std::fs::OpenOptions::new().append(true).open(path).map_err(|e| problem(&e))?;
                false
            }
            // The file does not exist yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(problem(&error)),
        };
        if !special {
            // An unnamed file, if the file system supports it, disappears even after kill -9.
            tempfile::tempfile_in(directory(path)).map_err(|e| problem(&e))?;
        }
        Ok(Destination { path: path.to_owned(), special })
    }

    /// Writes the whole content or nothing, so that a full disk does not destroy an existing file.
    pub fn write(&self, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let content = content.as_ref();
        let context = || format!("write {}", self.path.display());
        if self.special {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).custom_flags(follow_trusted(&self.path));
            let mut file = options.open(&self.path).with_context(context)?;
            return file.write_all(content).with_context(context);
        }
        let directory = directory(&self.path);
        // The file has no name until it is complete, so that a killed process leaves no partial
        // file behind.
        let mut file = tempfile::tempfile_in(directory).with_context(context)?;
        file.write_all(content).with_context(context)?;
        file.set_permissions(PermissionsExt::from_mode(mode())).with_context(context)?;
        file.sync_all().with_context(context)?;
        match name(&file, &self.path) {
            Ok(()) => return Ok(()),
            // An existing file needs the rename below.
            Err(Errno::EEXIST) => {}
            // The file system does not support O_TMPFILE, so tempfile has unlinked a named file.
            Err(Errno::ENOENT) => return self.replace(content).with_context(context),
            Err(error) => return Err(error).with_context(context),
        }
        // Only rename(2) can replace an existing file, and it needs a temporary name.
        let first = directory.join(format!(".overlane-{}", std::process::id()));
        name(&file, &first).with_context(context)?;
        // The old file stays as it was.
        std::fs::rename(&first, &self.path)
            .inspect_err(|_| drop(std::fs::remove_file(&first)))
            .with_context(context)
    }

    /// Writes a named file and renames it.
    fn replace(&self, content: &[u8]) -> std::io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(".overlane-")
            .permissions(PermissionsExt::from_mode(mode()))
            .tempfile_in(directory(&self.path))?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// A file beside the results for the samples of a run as they come. It is removed once the results
/// are written, or if it has no sample.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    has_samples: Arc<AtomicBool>,
}

/// Writes to the file, and records that it is no longer empty.
struct KeptFile {
    file: std::fs::File,
    has_samples: Arc<AtomicBool>,
    lines: u64,
}

impl Write for KeptFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.lines += 1;
        // The first line describes the run.
        self.has_samples.store(self.lines > 1, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Kept {
    /// Creates `FILE.samples` for the results file of `--out`. `None` for a device or a pipe.
    ///
    /// # Errors
    /// A usage error: the file cannot be created, or has the samples of an earlier run.
    pub fn beside(destination: &Destination) -> anyhow::Result<Option<(Kept, Keeping)>> {
        // A pipe or a device has no file beside it.
        if destination.special {
            return Ok(None);
        }
        let mut path = destination.path.clone().into_os_string();
        path.push(".samples");
        let path = PathBuf::from(path);
        // A run that was killed before its first block leaves an empty file.
        if path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
            let _ = std::fs::remove_file(&path);
        }
        let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| match error.kind() {
            // Never overwrite: these samples exist nowhere else.
            std::io::ErrorKind::AlreadyExists => usage(
                "--out",
                format!(
                    "{0} has the samples of a run that was killed, or that still goes on; show it \
                     with `overlane report {0}`, then move or remove it",
                    path.display()
                ),
            ),
            _ => usage("--out", format!("{} cannot be written: {error}", path.display())),
        })?;
        let has_samples = Arc::new(AtomicBool::new(false));
        let written = KeptFile { file, has_samples: Arc::clone(&has_samples), lines: 0 };
        Ok(Some((Kept { path, has_samples }, Keeping::to(written))))
    }

    /// Removes the file: the results are written.
    pub fn done(self) {
        self.has_samples.store(false, Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.has_samples.load(Ordering::Relaxed)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!("{} was not removed: {error}", self.path.display());
        }
    }
}

/// Opens the file of `--events`.
///
/// # Errors
/// A usage error: a regular file exists, or it cannot be created.
pub fn events(path: &Path) -> anyhow::Result<Box<dyn Write>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(std::io::stderr()));
    }
    let is_special = path.metadata().is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(!is_special).custom_flags(follow_trusted(path));
    let file = options
        .open(path)
        .map_err(|error| usage("--events", format!("cannot create {}: {error}", path.display())))?;
    Ok(Box::new(file))
}

/// `O_NOFOLLOW`, unless a link at `place` is root's or the caller's, such as `/dev/stderr`: another
/// user's link would choose which file or device root writes to.
pub fn follow_trusted(place: &Path) -> i32 {
    let own = nix::unistd::geteuid().as_raw();
    match place.symlink_metadata() {
        Ok(link) if link.is_symlink() && [0, own].contains(&link.uid()) => 0,
        _ => libc::O_NOFOLLOW,
    }
}

/// Refuses another user's link, before the work whose output it would take.
fn refuse_untrusted_link(place: &Path) -> std::io::Result<()> {
    let is_link = place.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    match is_link && follow_trusted(place) != 0 {
        true => Err(std::io::Error::other("it is a link of another user")),
        false => Ok(()),
    }
}

/// An output directory that was checked to be writable before the work starts.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Checks that files can be written to `path`, or that it can be created.
    ///
    /// # Errors
    /// A usage error that names the argument, the path and the reason.
    pub fn check(argument: &str, path: &Path) -> anyhow::Result<Directory> {
        let problem = |error: &dyn std::fmt::Display| {
            usage(argument, format!("{} cannot be written: {error}", path.display()))
        };
        let place = match path.metadata() {
            Ok(meta) if !meta.is_dir() => return Err(problem(&"it is not a directory")),
            Ok(_) => path,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => directory(path),
            Err(error) => return Err(problem(&error)),
        };
        tempfile::tempfile_in(place).map_err(|error| problem(&error))?;
        Ok(Directory { path: path.to_owned() })
    }

    /// Writes a file into the directory, which it creates if needed.
    ///
    /// # Errors
    /// If the directory cannot be created or the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.path)
            .with_context(|| format!("create {}", self.path.display()))?;
        Destination { path: self.path.join(name), special: false }.write(text)
    }
}

/// Permissions of a new file: those of open(2) with mode 0666, so less the umask.
fn mode() -> u32 {
    // umask(2) can only be read by setting it, which would change that of other threads.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // proc(5): since Linux 4.7. Without it, the file is the owner's alone.
    let umask = umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o077);
    0o666 & !umask
}

/// Gives an unnamed file a name (open(2), `O_TMPFILE`).
fn name(file: &std::fs::File, path: &Path) -> nix::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(AT_FDCWD, unnamed.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_blanks() {
        let step =
            "       52.0 µs  a  nic0  queued: 148 bytes, in VXLAN 42 10.0.0.1:1 -> 10.0.0.2:4789";
        let expected = "       52.0 µs  a  nic0  queued:
           148 bytes, in VXLAN 42
           10.0.0.1:1 ->
           10.0.0.2:4789";
        assert_eq!(folded(step, 34, None), expected);
        assert_eq!(folded(step, usize::MAX, None), step);
        assert_eq!(folded("  a  b c", 6, Some(5)), "  a  b\n   c", "half of the columns remain");
        assert_eq!(folded("  0123456789 b", 6, None), "  0123456789\n   b");
        assert_eq!(folded("  0123456789", 6, None), "  0123456789");
        assert_eq!(folded("", 6, None), "");
    }
}
