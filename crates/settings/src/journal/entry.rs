//! An entry and its file format: one JSON object. Its marks are single digits at fixed positions at
//! the beginning, so that they can be changed in place.
//!
//! `{"format":2,"made":0,"waits":0,"trial":0,"sum":"…","entry":{…}}`

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{boot, now_s};
use crate::change::Change;

/// Version of the format that is written.
const FORMAT: u64 = 2;
/// Beginning of every file. A mark is 0 or 1.
const HEAD: &str = r#"{"format":2,"made":0,"waits":0,"trial":0,"#;
/// Length of a checksum, characters. It detects damage, not tampering.
const SUM: usize = 16;

/// A change as the journal keeps it for `undo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Number; later changes have higher ones.
    pub id: u64,
    pub code: String,
    /// Change, with the value to restore.
    pub change: Change,
    /// Time of the change, seconds since 1970.
    pub made_s: u64,
    /// `/proc/sys/kernel/random/boot_id`, because settings end with their boot.
    pub(super) boot: String,
    /// Whether the change is known to have been made.
    pub made: bool,
    /// Time at which it is undone unless confirmed.
    pub confirm_until: Option<Until>,
    /// Whether it belongs to a [`crate::trial::Trial`], and ends with it.
    pub trial: bool,
    /// Directory in which a command was run.
    pub(super) directory: Option<String>,
    /// Whether the file's format has places for marks.
    pub(super) marks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// `CLOCK_BOOTTIME`, milliseconds, valid within one boot. No user can set this clock, and it
    /// continues during suspend.
    BootMs(u64),
    /// Seconds since 1970, in entries of earlier versions.
    WallS(u64),
}

/// Data of an entry without its marks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    id: u64,
    code: String,
    change: Change,
    made_s: u64,
    boot: String,
    confirm_until: Option<Until>,
    directory: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "format")]
    _format: u64,
    made: u8,
    waits: u8,
    trial: u8,
    sum: String,
    entry: Kept,
}

/// Format 1 of an entry, as earlier versions wrote it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    #[serde(rename = "format")]
    _format: u64,
    id: u64,
    code: String,
    change: Change,
    made_s: u64,
    boot: String,
    made: bool,
    confirm_until_s: Option<u64>,
    #[serde(default)]
    trial: bool,
}

/// State of an entry that changes after it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Made,
    Waits,
    Trial,
}

impl Mark {
    /// Offset in the file.
    pub(super) fn at(self) -> u64 {
        match self {
            Mark::Made => 19,
            Mark::Waits => 29,
            Mark::Trial => 39,
        }
    }
}

impl Until {
    /// Returns a deadline from now.
    pub fn after(seconds: u64) -> Until {
        Until::BootMs(boot_ms().saturating_add(seconds.saturating_mul(1000)))
    }
}

impl Entry {
    /// Whether it still waits for confirmation.
    pub fn waits(&self) -> bool {
        self.confirm_until.is_some()
    }

    /// Whether the machine rebooted since, which resets settings.
    pub fn rebooted(&self) -> bool {
        self.boot != boot()
    }

    /// Whether its confirmation is overdue.
    pub(super) fn is_late(&self) -> bool {
        match self.confirm_until {
            None => false,
            // The deadline counts from the earlier boot.
            Some(_) if self.rebooted() => true,
            Some(Until::BootMs(until)) => boot_ms() >= until,
            Some(Until::WallS(until)) => {
                let now = now_s();
                // Otherwise a clock that was set back would extend the deadline.
                now >= until || now < self.made_s
            }
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{:08}.json", self.id)
    }

    /// # Errors
    /// If a value cannot be written as text.
    pub(super) fn text(&self) -> Result<Vec<u8>, String> {
        let Entry { id, code, change, made_s, boot, .. } = self.clone();
        let (confirm_until, directory) = (self.confirm_until, self.directory.clone());
        let kept = Kept { id, code, change, made_s, boot, confirm_until, directory };
        let (sum, kept) = sum(&kept)?;
        let mut text = format!(r#"{HEAD}"sum":"{sum}","entry":{kept}}}"#).into_bytes();
        let marks =
            [(Mark::Made, self.made), (Mark::Waits, self.waits()), (Mark::Trial, self.trial)];
        for (mark, set) in marks {
            text[mark.at() as usize] = b'0' + u8::from(set);
        }
        Ok(text)
    }

    /// Parses an entry, or returns its fault and a remedy.
    pub(super) fn parse(name: &str, text: &[u8]) -> Result<Entry, Problem> {
        let damaged = |what: String| Problem { what, remedy: Problem::DAMAGED };
        // Some file systems leave an empty file after a power failure.
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(damaged("empty".to_owned()));
        }
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| damaged(format!("no JSON: {error}")))?;
        let read = match value.get("format").and_then(serde_json::Value::as_u64) {
            // A format is required, because later versions change the meaning of fields.
            None => return Err(damaged("no format given".to_owned())),
            Some(1) => Entry::first(value),
            Some(FORMAT) => Entry::second(value),
            // A later version may have made a change that this one cannot undo correctly.
            Some(format) => {
                let what = format!("format {format}, this program reads 1 and {FORMAT}");
                return Err(Problem { what, remedy: Problem::NEWER });
            }
        };
        let entry = read.map_err(damaged)?;
        match entry.name() == name {
            true => Ok(entry),
            false => {
                Err(damaged(format!("its number is {}, which differs from its name", entry.id)))
            }
        }
    }

    fn second(value: serde_json::Value) -> Result<Entry, String> {
        let file: File = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let expected = sum(&file.entry)?.0;
        // A damaged entry could write a wrong value to the host.
        if file.sum != expected {
            return Err(format!("its checksum is {expected}, expected {:?}", file.sum));
        }
        let set = |mark: u8| match mark {
            0 | 1 => Ok(mark == 1),
            other => Err(format!("a mark is {other}, expected 0 or 1")),
        };
        let Kept { id, code, change, made_s, boot, confirm_until, directory } = file.entry;
        let (made, trial) = (set(file.made)?, set(file.trial)?);
        // The mark overrides the deadline, which is never rewritten.
        let confirm_until = confirm_until.filter(|_| file.waits != 0);
        set(file.waits)?;
        let marks = true;
        Ok(Entry { id, code, change, made_s, boot, made, confirm_until, trial, directory, marks })
    }

    fn first(value: serde_json::Value) -> Result<Entry, String> {
        let first: First = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let First { id, code, change, made_s, boot, made, trial, .. } = first;
        let confirm_until = first.confirm_until_s.map(Until::WallS);
        let (directory, marks) = (None, false);
        Ok(Entry { id, code, change, made_s, boot, made, confirm_until, trial, directory, marks })
    }
}

/// Fault of a file, with a remedy.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) remedy: &'static str,
}

impl Problem {
    pub(super) const DAMAGED: &str = "its change is unknown: examine the file, then remove it";
    const NEWER: &str = "written by a later version: run that version's `overlane undo`";
    pub(super) const ODD: &str = "not an entry of this user: examine it, then remove it";
}

fn sum(kept: &Kept) -> Result<(String, String), String> {
    let text = serde_json::to_string(kept).map_err(|error| error.to_string())?;
    let sum: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((sum[..SUM].to_owned(), text))
}

fn boot_ms() -> u64 {
    // Every supported kernel has this clock. Without it, deadlines would not expire.
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0, |now| now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_where_they_are_changed() {
        for (mark, name) in
            [(Mark::Made, r#""made":"#), (Mark::Waits, r#""waits":"#), (Mark::Trial, r#""trial":"#)]
        {
            assert_eq!(HEAD.find(name).unwrap() + name.len(), mark.at() as usize);
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_damage_is_seen() {
        let change = Change::machine("net/core/netdev_budget", 300, 600);
        let mut entry = Entry {
            id: 7,
            code: "OV001".to_owned(),
            change,
            made_s: 1,
            boot: boot(),
            made: true,
            confirm_until: Some(Until::after(5)),
            trial: true,
            directory: Some("/".to_owned()),
            marks: true,
        };
        let text = entry.text().unwrap();
        assert_eq!(Entry::parse("00000007.json", &text).unwrap(), entry);
        let other = Entry::parse("00000008.json", &text).unwrap_err().what;
        assert!(other.contains("its number is 7"), "{other}");
        // Any digit or letter replaced by another one.
        let damage = [("300", "301"), (":1,", ":0,"), ("budget", "budgeT"), ("OV001", "OV002")];
        for (at, (was, is)) in damage.into_iter().enumerate() {
            let damaged = String::from_utf8(text.clone()).unwrap().replacen(was, is, 1);
            let read = Entry::parse("00000007.json", damaged.as_bytes());
            if at == 1 {
                entry.made = false;
                assert_eq!(read.unwrap(), entry);
            } else {
                let problem = read.unwrap_err().what;
                assert!(problem.contains("its checksum is"), "{problem}");
            }
        }
        for length in 0..text.len() {
            assert!(Entry::parse("00000007.json", &text[..length]).is_err(), "{length}");
        }
    }
}
