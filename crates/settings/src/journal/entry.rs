//! An entry, and how it is written: one JSON object, whose marks are single digits at
//! fixed places in front, so that they are changed without writing the rest again.
//!
//! `{"format":2,"made":0,"waits":0,"trial":0,"sum":"…","entry":{…}}`

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{boot, now_s};
use crate::change::Change;

/// Version of the form that is written.
const FORMAT: u64 = 2;
/// What every file begins with; a mark is a zero or a one.
const HEAD: &str = r#"{"format":2,"made":0,"waits":0,"trial":0,"#;
/// Where a sum's text is cut, characters: it finds damage, it keeps nobody out.
const SUM: usize = 16;

/// A change that was made, as the journal keeps it for `undo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number; later changes have higher ones.
    pub id: u64,
    /// The check whose finding it was.
    pub code: String,
    /// What was changed, with the value to go back to.
    pub change: Change,
    /// Seconds since 1970.
    pub made_s: u64,
    /// `/proc/sys/kernel/random/boot_id`: a setting is gone with its boot.
    pub(super) boot: String,
    /// The change was made, as far as its maker lived to see.
    pub made: bool,
    /// When it is to be taken back, unless confirmed.
    pub confirm_until: Option<Until>,
    /// Of a [`crate::trial::Trial`]: not to outlive it.
    pub trial: bool,
    /// Where a command was run.
    pub(super) directory: Option<String>,
    /// It is in the form in which marks have their places.
    pub(super) marks: bool,
}

/// An end of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// `CLOCK_BOOTTIME`, milliseconds: nobody sets it, and it goes on while the machine
    /// sleeps. Of one boot.
    BootMs(u64),
    /// Seconds since 1970, in entries of before.
    WallS(u64),
}

/// What is kept of an entry besides its marks.
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

/// Format 1 of an entry, which earlier versions have written.
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

/// What became of an entry since it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Made,
    Waits,
    Trial,
}

impl Mark {
    /// Its place in the file.
    pub(super) fn at(self) -> u64 {
        match self {
            Mark::Made => 19,
            Mark::Waits => 29,
            Mark::Trial => 39,
        }
    }
}

impl Until {
    /// A time from now.
    pub fn after(seconds: u64) -> Until {
        Until::BootMs(boot_ms().saturating_add(seconds.saturating_mul(1000)))
    }
}

impl Entry {
    /// Whether nobody has confirmed it yet.
    pub fn waits(&self) -> bool {
        self.confirm_until.is_some()
    }

    /// Whether the machine was started anew since: a setting is gone then.
    pub fn rebooted(&self) -> bool {
        self.boot != boot()
    }

    /// Whether nobody has confirmed it in time.
    pub(super) fn is_late(&self) -> bool {
        match self.confirm_until {
            None => false,
            // What it counts from is another moment.
            Some(_) if self.rebooted() => true,
            Some(Until::BootMs(until)) => boot_ms() >= until,
            Some(Until::WallS(until)) => {
                let now = now_s();
                // A clock that was set back would keep it waiting for longer.
                now >= until || now < self.made_s
            }
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{:08}.json", self.id)
    }

    /// # Errors
    /// What cannot be written as text.
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

    /// Reads one; else what is wrong with it, and what would help.
    pub(super) fn parse(name: &str, text: &[u8]) -> Result<Entry, Problem> {
        let damaged = |what: String| Problem { what, remedy: Problem::DAMAGED };
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(damaged("empty".to_owned()));
        }
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| damaged(format!("no JSON: {error}")))?;
        let read = match value.get("format").and_then(serde_json::Value::as_u64) {
            None => return Err(damaged("no format is named".to_owned())),
            Some(1) => Entry::first(value),
            Some(FORMAT) => Entry::second(value),
            Some(format) => {
                let what = format!("format {format}, this program reads 1 and {FORMAT}");
                return Err(Problem { what, remedy: Problem::NEWER });
            }
        };
        let entry = read.map_err(damaged)?;
        match entry.name() == name {
            true => Ok(entry),
            false => Err(damaged(format!("its number is {}, not that of its name", entry.id))),
        }
    }

    fn second(value: serde_json::Value) -> Result<Entry, String> {
        let file: File = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let expected = sum(&file.entry)?.0;
        if file.sum != expected {
            return Err(format!("its sum is {expected}, expected {:?}", file.sum));
        }
        let set = |mark: u8| match mark {
            0 | 1 => Ok(mark == 1),
            other => Err(format!("a mark is {other}, expected 0 or 1")),
        };
        let Kept { id, code, change, made_s, boot, confirm_until, directory } = file.entry;
        let (made, trial) = (set(file.made)?, set(file.trial)?);
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

/// What is wrong with a file.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) remedy: &'static str,
}

impl Problem {
    pub(super) const DAMAGED: &str = "what it would take back cannot be told: look at the file, \
         then remove it";
    const NEWER: &str = "a later version wrote it: let its `overlane undo` take it back";
    pub(super) const ODD: &str = "no entry of this user: look at it, then remove it";
}

fn sum(kept: &Kept) -> Result<(String, String), String> {
    let text = serde_json::to_string(kept).map_err(|error| error.to_string())?;
    let sum: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((sum[..SUM].to_owned(), text))
}

fn boot_ms() -> u64 {
    // Every kernel has this clock; one that did not would have no deadlines.
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
        // Any digit or letter that another took the place of.
        let damage = [("300", "301"), (":1,", ":0,"), ("budget", "budgeT"), ("OV001", "OV002")];
        for (at, (was, is)) in damage.into_iter().enumerate() {
            let damaged = String::from_utf8(text.clone()).unwrap().replacen(was, is, 1);
            let read = Entry::parse("00000007.json", damaged.as_bytes());
            if at == 1 {
                entry.made = false;
                assert_eq!(read.unwrap(), entry);
            } else {
                let problem = read.unwrap_err().what;
                assert!(problem.contains("its sum is"), "{problem}");
            }
        }
        for length in 0..text.len() {
            assert!(Entry::parse("00000007.json", &text[..length]).is_err(), "{length}");
        }
    }
}
