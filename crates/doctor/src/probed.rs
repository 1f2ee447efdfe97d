//! Offloads that `overlane probe` found to damage or lose packets. The verb keeps them in a note of
//! the journal's directory, so that `doctor` reports them and `doctor fix` switches them off.
//!
//! A note is valid in the boot in which it was written: afterwards, devices and namespaces have
//! other numbers.

use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use settings::journal::{Journal, JournalError, read_note};

/// Name of the note.
const NOTE: &str = "probe.found";
/// Version of the note's form.
const FORMAT: u32 = 1;
/// Most findings in a note, the latest ones.
const MOST: usize = 64;

/// One fault of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probed {
    /// Inode number of the device's namespace.
    pub namespace: u64,
    /// Number that is unique among the namespaces of this boot; `None` before Linux 5.14.
    pub cookie: Option<u64>,
    /// Index of the device.
    pub index: u32,
    /// Its name.
    pub device: String,
    /// Features that repair the packets if all are off, in the order of switching. Empty: no
    /// setting was found, or none was searched.
    pub features: Vec<String>,
    /// Address of the other end.
    pub peer: IpAddr,
    /// Whether this end sends the packets.
    pub outgoing: bool,
    /// Verdict of the probe: `corrupted`.
    pub verdict: String,
    /// Damage, in words.
    pub detail: String,
    /// Number of classes of packets that have the fault.
    pub classes: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    format: u32,
    /// Boot in which it was written.
    boot: String,
    found: Vec<Probed>,
}

/// Reads the findings of this boot.
///
/// # Errors
/// A note that others can write, or that this program cannot read, as text.
pub fn read(journal: &Path) -> Result<Vec<Probed>, String> {
    let text = read_note(journal, NOTE).map_err(|error| error.to_string())?;
    let Some(text) = text else { return Ok(Vec::new()) };
    parse(&text, &boot()).map_err(|error| format!("{}: {error}", journal.join(NOTE).display()))
}

fn parse(text: &[u8], boot: &str) -> Result<Vec<Probed>, String> {
    let note: Note = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    // A later version may mean something else by the same fields.
    if note.format != FORMAT {
        return Err(format!("format {}: expected {FORMAT}", note.format));
    }
    let mut found = if note.boot == boot { note.found } else { Vec::new() };
    found.truncate(MOST);
    Ok(found)
}

/// Replaces the findings.
///
/// # Errors
/// A journal that cannot be opened or written.
pub fn write(journal: &Path, mut found: Vec<Probed>) -> Result<(), JournalError> {
    let surplus = found.len().saturating_sub(MOST);
    found.drain(..surplus);
    let note = Note { format: FORMAT, boot: boot(), found };
    // Plain numbers and texts always have a JSON form.
    let text = serde_json::to_vec(&note).unwrap_or_default();
    Journal::open(journal)?.write_note(NOTE, &text)
}

/// A run of a probe from a device of this host.
#[derive(Debug)]
pub struct Run<'a> {
    /// Inode number of the device's namespace.
    pub namespace: u64,
    /// Name of the device.
    pub device: &'a str,
    /// Features of the device that are on.
    pub features_on: &'a [String],
    /// Address of the other end.
    pub peer: IpAddr,
    /// Whether its result replaces earlier findings on packets to the peer, and on packets from it.
    pub replaces: [bool; 2],
}

/// Returns the known findings and those of a new run. The run replaces the earlier findings on the
/// same path, except for features that are off meanwhile: it proves nothing about these.
#[must_use]
pub fn updated(known: Vec<Probed>, run: &Run<'_>, new: Vec<Probed>) -> Vec<Probed> {
    let is_on = |feature: &String| run.features_on.contains(feature);
    let stays = |one: &Probed| {
        let is_other = one.namespace != run.namespace
            || one.device != run.device
            || one.peer != run.peer
            || !run.replaces[usize::from(!one.outgoing)];
        // Some are off: the fault is repaired, not disproved.
        is_other || !one.features.is_empty() && !one.features.iter().all(is_on)
    };
    let mut all: Vec<Probed> = known.into_iter().filter(stays).collect();
    all.extend(new);
    all
}

fn boot() -> String {
    netstate::proc::read_value("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(features: &[&str], outgoing: bool) -> Probed {
        Probed {
            namespace: 4_026_531_840,
            cookie: Some(1),
            index: 2,
            device: "eth0".to_owned(),
            features: features.iter().map(|one| (*one).to_owned()).collect(),
            peer: "192.0.2.7".parse().unwrap(),
            outgoing,
            verdict: "corrupted".to_owned(),
            detail: "checksum wrong in 3 of 3 packets".to_owned(),
            classes: 4,
        }
    }

    #[test]
    fn findings_are_kept_in_this_boot_only() {
        let parent = tempfile::tempdir().unwrap();
        let journal = parent.path().join("journal");
        assert_eq!(read(&journal), Ok(Vec::new()));
        let found = vec![probed(&["tx-udp-segmentation"], true)];
        write(&journal, found.clone()).unwrap();
        assert_eq!(read(&journal), Ok(found.clone()));
        let text = serde_json::to_vec(&Note { format: 1, boot: "other".into(), found }).unwrap();
        assert_eq!(parse(&text, "this"), Ok(Vec::new()));
        let later = Note { format: 2, boot: String::new(), found: Vec::new() };
        let error = parse(&serde_json::to_vec(&later).unwrap(), "").unwrap_err();
        assert!(error.contains("format 2: expected 1"), "{error}");
        assert!(parse(b"{}", "").is_err() && parse(b"\xff", "").is_err());
    }

    #[test]
    fn only_the_latest_findings_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let journal = parent.path().join("journal");
        let many = |count: u32| (0..count).map(|n| Probed { index: n, ..probed(&[], true) });
        write(&journal, many(MOST as u32 + 3).collect()).unwrap();
        let indices: Vec<u32> = read(&journal).unwrap().iter().map(|one| one.index).collect();
        assert_eq!((indices.len(), indices[0]), (MOST, 3));
    }

    #[test]
    fn a_run_disproves_only_what_it_has_tested() {
        let known = vec![
            probed(&["tx-udp-segmentation"], true),
            probed(&["tx-tcp-segmentation"], true),
            probed(&[], false),
            Probed { device: "eth1".to_owned(), ..probed(&[], true) },
        ];
        let run = Run {
            namespace: 4_026_531_840,
            device: "eth0",
            // The first one was switched off.
            features_on: &["tx-tcp-segmentation".to_owned()],
            peer: "192.0.2.7".parse().unwrap(),
            replaces: [true, true],
        };
        let left = updated(known.clone(), &run, Vec::new());
        assert_eq!(left, [known[0].clone(), known[3].clone()]);
        let one_way = Run { replaces: [true, false], ..run };
        assert_eq!(updated(known, &one_way, Vec::new()).len(), 3);
    }
}
