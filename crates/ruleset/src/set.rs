//! Lookup of a key in a set.

use crate::model::{Set, Shape, Value};
use crate::value::{Byte, Comparison, Doubt, Holds, compare, doubt, whole, within};

/// Result of a lookup, for every packet of a flow.
pub(crate) enum Found<'a> {
    Yes(&'a Value),
    No,
    Maybe(Doubt),
}

impl Set {
    /// Looks up a key of the set's length.
    pub(crate) fn find(&self, key: &[Byte]) -> Found<'_> {
        // The elements may have changed since they were read.
        if let Some(doubt) = self.doubt {
            return Found::Maybe(doubt);
        }
        let elements = &self.elements;
        let found = match (self.shape, whole(key)) {
            (Shape::Keys, Some(key)) => elements.exact.get(&key).map_or(Found::No, Found::Yes),
            // Some bits are unknown: the key may match any compatible element.
            (Shape::Keys, None) => {
                let may = |known: &Vec<u8>| compare(key, Comparison::Equal, known) != Holds::No;
                if elements.exact.keys().any(may) { Found::Maybe(doubt(key)) } else { Found::No }
            }
            (Shape::Ranges, Some(key)) => {
                // Find the last edge that is not above the key.
                let above = elements.edges.partition_point(|(edge, _)| *edge <= key);
                let edge = above.checked_sub(1).map(|at| &elements.edges[at].1);
                edge.and_then(Option::as_ref).map_or(Found::No, Found::Yes)
            }
            (Shape::Ranges, None) => self.range_of_some(key),
            (Shape::Boxes, _) => self.first_box(key),
        };
        match (found, &elements.otherwise) {
            // The catch-all element.
            (Found::No, Some(value)) => Found::Yes(value),
            (found, _) => found,
        }
    }

    /// Looks up a partly known key in ranges.
    fn range_of_some(&self, key: &[Byte]) -> Found<'_> {
        for (at, (least, value)) in self.elements.edges.iter().enumerate() {
            let Some(value) = value else { continue };
            let mut holds = compare(key, Comparison::GreaterOrEqual, least);
            if let Some((end, _)) = self.elements.edges.get(at + 1) {
                holds = holds.and(compare(key, Comparison::Less, end));
            }
            match holds {
                Holds::Yes => return Found::Yes(value),
                Holds::Maybe(doubt) => return Found::Maybe(doubt),
                Holds::No => {}
            }
        }
        Found::No
    }

    /// Looks up a key in boxes. The kernel rejects overlapping boxes, so any match is the only one.
    fn first_box(&self, key: &[Byte]) -> Found<'_> {
        for (least, most, value) in &self.elements.boxes {
            let mut holds = Holds::Yes;
            let mut at = 0;
            for field in &self.fields {
                let span = at..at + field;
                holds = holds.and(within(&key[span.clone()], &least[span.clone()], &most[span]));
                at += field.next_multiple_of(4);
            }
            match holds {
                Holds::Yes => return Found::Yes(value),
                Holds::Maybe(doubt) => return Found::Maybe(doubt),
                Holds::No => {}
            }
        }
        Found::No
    }
}
