//! Drops that were counted but not reported one by one: `bpf/suppressed.h`.
//!
//! With `--drops-only`, the number of drops per second and the number of drops in the ring are
//! limited. The kernel counts all further drops and emits no event for them. No reported drop is
//! lost, because the ring has room for all that the limits allow, even if it is not read for a long
//! time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};

/// Bytes of `struct place_of_drop`.
pub(crate) const KEY_BYTES: usize = 16;
/// Drops reported per second while more occur.
const PER_SECOND: f64 = 5000.0;
/// Reported drops that may be unread in the ring. At 2 KiB each, the size of the largest snapshot,
/// they fill half of it.
const AT_ONCE: u64 = 4096;
/// A smaller allowance is not worth a system call.
const LEAST: u64 = 50;

/// Drops at one place in the kernel that were counted but not reported one by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Suppressed {
    /// The kernel's reason.
    pub reason: String,
    /// The kernel function that dropped them; `null` if unknown.
    pub function: Option<String>,
    /// Number of packets; a GSO packet counts as one.
    pub packets: u64,
}

impl Suppressed {
    /// Sums the counts by reason and function: one function can drop at several places.
    pub(crate) fn summed(
        counts: impl Iterator<Item = ((String, Option<String>), u64)>,
    ) -> Vec<Suppressed> {
        let mut sums = BTreeMap::<_, u64>::new();
        for (named, packets) in counts {
            *sums.entry(named).or_default() += packets;
        }
        let drops = sums.into_iter().map(|((reason, function), packets)| Suppressed {
            reason,
            function,
            packets,
        });
        drops.collect()
    }

    /// Returns the drops in `after` that were not yet counted in `before`.
    pub fn since(before: &[Suppressed], after: &[Suppressed]) -> Vec<Suppressed> {
        let is_same = |one: &Suppressed, other: &Suppressed| {
            one.reason == other.reason && one.function == other.function
        };
        let new = after.iter().map(|drops| {
            let known = before.iter().find(|known| is_same(known, drops));
            let known = known.map_or(0, |known| known.packets);
            Suppressed { packets: drops.packets.saturating_sub(known), ..drops.clone() }
        });
        new.filter(|drops| drops.packets > 0).collect()
    }
}

impl std::fmt::Display for Suppressed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Suppressed { reason, function, packets } = self;
        // The kernel may hide its symbols.
        let function = function.as_deref().unwrap_or("?");
        write!(f, "{packets} dropped: {reason} by {function}")
    }
}

/// Location in the kernel's code, and drop reason.
pub(crate) type Key = (u64, u32);

/// The rate limit for reported drops, and the counts of the others.
#[derive(Debug)]
pub(crate) struct Allowance {
    allowed: MapHandle,
    suppressed: MapHandle,
    /// Drops that may be reported, counted since the start.
    most: Cell<u64>,
    since: Cell<Instant>,
}

impl Allowance {
    /// Starts with an allowance for the first drops.
    pub(crate) fn new(allowed: MapHandle, suppressed: MapHandle) -> libbpf_rs::Result<Allowance> {
        let (most, since) = (Cell::new(AT_ONCE), Cell::new(Instant::now()));
        let allowance = Allowance { allowed, suppressed, most, since };
        allowance.write(AT_ONCE)?;
        Ok(allowance)
    }

    fn write(&self, most: u64) -> libbpf_rs::Result<()> {
        self.allowed.update(&0_u32.to_ne_bytes(), &most.to_ne_bytes(), MapFlags::ANY)
    }

    /// Raises the limit. `read` is the number of events read since the start.
    pub(crate) fn renew(&self, read: u64) -> libbpf_rs::Result<()> {
        let came = (self.since.get().elapsed().as_secs_f64() * PER_SECOND) as u64;
        // A smaller raise is not worth a write.
        if came < LEAST {
            return Ok(());
        }
        self.since.set(Instant::now());
        let most = self.most.get().saturating_add(came).min(read + AT_ONCE);
        // If nothing was reported since, the limit stays and needs no write.
        if most == self.most.replace(most) { Ok(()) } else { self.write(most) }
    }

    /// Returns the unreported drops since the start, by place and reason.
    pub(crate) fn suppressed(&self) -> libbpf_rs::Result<BTreeMap<Key, u64>> {
        let mut counts = BTreeMap::new();
        // Entries are never removed, so iterating over the map ends.
        for bytes in self.suppressed.keys() {
            let values = self.suppressed.lookup_percpu(&bytes, MapFlags::ANY)?;
            let count = |value: Vec<u8>| value.try_into().map_or(0, u64::from_ne_bytes);
            let packets = values.unwrap_or_default().into_iter().map(count).sum();
            counts.extend(parse(&bytes).map(|key| (key, packets)));
        }
        Ok(counts)
    }
}

fn parse(bytes: &[u8]) -> Option<Key> {
    let bytes: &[u8; KEY_BYTES] = bytes.try_into().ok()?;
    let (location, rest) = bytes.split_first_chunk::<8>()?;
    let (reason, _) = rest.split_first_chunk::<4>()?;
    Some((u64::from_ne_bytes(*location), u32::from_ne_bytes(*reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summed(counts: [(&str, &str, u64); 3]) -> Vec<Suppressed> {
        let named = |(reason, function, packets): (&str, &str, u64)| {
            ((reason.to_owned(), Some(function.to_owned())), packets)
        };
        Suppressed::summed(counts.into_iter().map(named))
    }

    #[test]
    fn places_of_a_function_are_summed_and_reported_once() {
        let before = summed([("A", "one", 3), ("A", "one", 4), ("B", "one", 5)]);
        let texts: Vec<String> = before.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["7 dropped: A by one", "5 dropped: B by one"]);
        let after = summed([("A", "one", 3), ("A", "one", 6), ("B", "one", 5)]);
        let new = Suppressed::since(&before, &after);
        assert_eq!(
            new.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["2 dropped: A by one"]
        );
    }
}
