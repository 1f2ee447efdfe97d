//! Drops that were counted and not told one by one: `bpf/not_told.h`.
//!
//! Where only drops are told, so many may be told a second, and so many at once. The rest is
//! counted by the kernel, before anything of it is told. So no event of a drop is lost: the ring
//! has room for all that may be told, however long nobody reads it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};

/// Bytes of `struct place_of_drop`.
pub(crate) const KEY_BYTES: usize = 16;
/// Drops told a second, as long as more come.
const PER_SECOND: f64 = 5000.0;
/// Drops that may be in the ring, unread. With 2 KiB each, the most that a snapshot has, they take
/// half of it.
const AT_ONCE: u64 = 4096;
/// Fewer are not worth a system call.
const LEAST: u64 = 50;

/// Drops at one place in the kernel that were counted, and not told one by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NotTold {
    /// The kernel's reason.
    pub reason: String,
    /// The kernel's function that did it; `null` where the kernel does not tell.
    pub function: Option<String>,
    /// Packets; a GSO packet is one.
    pub packets: u64,
}

impl NotTold {
    /// By reason and function: a function drops at several places.
    pub(crate) fn summed(
        counts: impl Iterator<Item = ((String, Option<String>), u64)>,
    ) -> Vec<NotTold> {
        let mut sums = BTreeMap::<_, u64>::new();
        for (named, packets) in counts {
            *sums.entry(named).or_default() += packets;
        }
        let drops = sums.into_iter().map(|((reason, function), packets)| NotTold {
            reason,
            function,
            packets,
        });
        drops.collect()
    }

    /// Those of `after` that were not there `before`.
    pub fn since(before: &[NotTold], after: &[NotTold]) -> Vec<NotTold> {
        let is_same = |one: &NotTold, other: &NotTold| {
            one.reason == other.reason && one.function == other.function
        };
        let new = after.iter().map(|drops| {
            let known = before.iter().find(|known| is_same(known, drops));
            let known = known.map_or(0, |known| known.packets);
            NotTold { packets: drops.packets.saturating_sub(known), ..drops.clone() }
        });
        new.filter(|drops| drops.packets > 0).collect()
    }
}

impl std::fmt::Display for NotTold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotTold { reason, function, packets } = self;
        let function = function.as_deref().unwrap_or("?");
        write!(f, "{packets} dropped: {reason} by {function}")
    }
}

/// Where and why: location in the kernel's code, reason.
pub(crate) type Key = (u64, u32);

/// How many drops may be told, and those that were not.
#[derive(Debug)]
pub(crate) struct Allowance {
    allowed: MapHandle,
    not_told: MapHandle,
    /// Drops that may be told, since the beginning.
    most: Cell<u64>,
    since: Cell<Instant>,
}

impl Allowance {
    /// With room for the first ones.
    pub(crate) fn new(allowed: MapHandle, not_told: MapHandle) -> libbpf_rs::Result<Allowance> {
        let (most, since) = (Cell::new(AT_ONCE), Cell::new(Instant::now()));
        let allowance = Allowance { allowed, not_told, most, since };
        allowance.write(AT_ONCE)?;
        Ok(allowance)
    }

    fn write(&self, most: u64) -> libbpf_rs::Result<()> {
        self.allowed.update(&0_u32.to_ne_bytes(), &most.to_ne_bytes(), MapFlags::ANY)
    }

    /// Allows more, when so many were read since the beginning.
    pub(crate) fn renew(&self, read: u64) -> libbpf_rs::Result<()> {
        let came = (self.since.get().elapsed().as_secs_f64() * PER_SECOND) as u64;
        if came < LEAST {
            return Ok(());
        }
        self.since.set(Instant::now());
        let most = self.most.get().saturating_add(came).min(read + AT_ONCE);
        // Nothing was told since: the same is allowed.
        if most == self.most.replace(most) { Ok(()) } else { self.write(most) }
    }

    /// All that were not told, since the beginning, by place and reason.
    pub(crate) fn not_told(&self) -> libbpf_rs::Result<BTreeMap<Key, u64>> {
        let mut counts = BTreeMap::new();
        // Entries are never removed, so that walking the map ends.
        for bytes in self.not_told.keys() {
            let values = self.not_told.lookup_percpu(&bytes, MapFlags::ANY)?;
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

    fn summed(counts: [(&str, &str, u64); 3]) -> Vec<NotTold> {
        let named = |(reason, function, packets): (&str, &str, u64)| {
            ((reason.to_owned(), Some(function.to_owned())), packets)
        };
        NotTold::summed(counts.into_iter().map(named))
    }

    #[test]
    fn places_of_a_function_are_summed_and_told_once() {
        let before = summed([("A", "one", 3), ("A", "one", 4), ("B", "one", 5)]);
        let told: Vec<String> = before.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["7 dropped: A by one", "5 dropped: B by one"]);
        let after = summed([("A", "one", 3), ("A", "one", 6), ("B", "one", 5)]);
        let new = NotTold::since(&before, &after);
        assert_eq!(
            new.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["2 dropped: A by one"]
        );
    }
}
