//! Sums up the received pieces of each class.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::class::{Class, Transport};
use crate::seen::{Fault, Piece};

/// Received packets of one class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Frames.
    pub frames: u32,
    /// Repetitions of which all bytes arrived, without damage.
    pub whole: u32,
    /// Repetitions of which any packet arrived.
    pub seen: u32,
    /// Frames that hold several segments: never cut, or merged by GRO.
    pub merged: u32,
    /// Largest payload of a frame, bytes.
    pub largest: u32,
    /// Frames with a partial checksum.
    pub partial: u32,
    /// Frames with TCP segments of other boundaries than asked for.
    pub recut: u32,
    /// Frames with a translated address or port.
    pub translated: u32,
    /// Damaged frames, by damage.
    pub faults: BTreeMap<Fault, u32>,
}

/// Sums up pieces by class and repetition.
#[derive(Debug)]
pub struct Counting<'a> {
    classes: &'a [Class],
    tallies: Vec<Tally>,
    /// Undamaged ranges of payload, by class and repetition.
    ranges: BTreeMap<(u16, u32), Vec<(i64, i64)>>,
}

impl<'a> Counting<'a> {
    /// Creates an empty sum of these classes.
    pub fn new(classes: &'a [Class]) -> Counting<'a> {
        let tallies = vec![Tally::default(); classes.len()];
        Counting { classes, tallies, ranges: BTreeMap::new() }
    }

    pub fn add(&mut self, piece: &Piece) {
        let index = usize::from(piece.class);
        let (Some(class), Some(tally)) = (self.classes.get(index), self.tallies.get_mut(index))
        else {
            // Numbers are from packets, which may be damaged.
            return;
        };
        tally.frames += 1;
        tally.partial += u32::from(piece.partial);
        tally.merged += u32::from(piece.segment > 0);
        tally.translated += u32::from(piece.translated);
        tally.largest = tally.largest.max(piece.length);
        for fault in &piece.faults {
            *tally.faults.entry(*fault).or_default() += 1;
        }
        // Small payloads do not name their repetition: each is one of its own.
        let repetition = match class.payload < 32 {
            true => tally.frames,
            false => piece.repetition.map_or(u32::MAX, u32::from),
        };
        let ranges = self.ranges.entry((piece.class, repetition)).or_default();
        // A damaged piece may lie about its offset, so it fills no range.
        let (Some(offset), true) = (piece.offset, piece.faults.is_empty()) else { return };
        let end = offset + i64::from(piece.length);
        ranges.push((offset, end));
        if class.segment > 0 && !cut_as_asked(class, piece, offset, end) {
            match class.transport {
                // The boundaries of datagrams are data.
                Transport::Udp => *tally.faults.entry(Fault::Segmentation).or_default() += 1,
                _ => tally.recut += 1,
            }
        }
    }

    /// Returns the sums, in the order of the classes.
    pub fn finish(mut self) -> Vec<Tally> {
        for ((index, _), mut ranges) in self.ranges {
            let (class, tally) =
                (&self.classes[usize::from(index)], &mut self.tallies[usize::from(index)]);
            tally.seen += 1;
            ranges.sort_unstable();
            let mut reached = 0;
            for (start, end) in ranges {
                if start <= reached {
                    reached = reached.max(end);
                }
            }
            tally.whole += u32::from(reached >= i64::from(class.payload));
        }
        self.tallies
    }
}

/// Whether a piece begins and ends at the segment boundaries that its class asks for.
fn cut_as_asked(class: &Class, piece: &Piece, offset: i64, end: i64) -> bool {
    let segment = i64::from(class.segment);
    let is_boundary = |at: i64| at % segment == 0 || at == i64::from(class.payload);
    let one = end - offset <= segment && piece.segment == 0;
    let several = piece.segment == class.segment;
    is_boundary(offset) && is_boundary(end) && (one || several)
}
