//! Selects the columns of the list that fit, and their widths.

/// The columns after the place, in display order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Packets per second, counted by the device.
    Packets,
    /// Mbit/s, counted by the device.
    Megabits,
    /// Mean size in bytes.
    Bytes,
    /// Mean number of packets per GSO packet.
    Gso,
    /// Median time since the previous hop.
    P50,
    /// 99th percentile of the time since the previous hop.
    P99,
    /// Packets per second in the last intervals.
    History,
    /// Notes about the packets at this hop.
    Notes,
}

/// Columns with their minimum widths, the most important first. Widths include a leading space.
const WANTED: [(Column, usize); 8] = [
    (Column::P99, 7),
    (Column::Packets, 7),
    (Column::P50, 7),
    (Column::History, 11),
    (Column::Megabits, 7),
    (Column::Bytes, 7),
    (Column::Gso, 6),
    (Column::Notes, 7),
];
const LEAST_PLACE: usize = 18;
const MOST_PLACE: usize = 40;
const MOST_HISTORY: usize = super::history::KEPT + 1;
/// Minimum width for notes in words. Narrower columns show letters.
const WORDS: usize = 24;

#[derive(Debug, PartialEq, Eq)]
pub struct Columns {
    pub place: usize,
    /// The other columns, in display order.
    pub others: Vec<(Column, usize)>,
}

impl Columns {
    /// Selects the columns that fit.
    pub fn of(width: usize) -> Columns {
        let mut left = width.saturating_sub(LEAST_PLACE);
        let mut others = Vec::new();
        for (column, least) in WANTED {
            // Stop here: do not show a less important column instead.
            if least > left {
                break;
            }
            left -= least;
            others.push((column, least));
        }
        others.sort_unstable();
        let place = (width.min(LEAST_PLACE) + left).min(MOST_PLACE);
        left -= place.saturating_sub(LEAST_PLACE);
        for (column, width) in &mut others {
            let more = match column {
                // A chart wider than the history would be empty.
                Column::History => left.min(MOST_HISTORY - *width),
                // Notes come last and get all remaining space.
                Column::Notes => left,
                _ => 0,
            };
            *width += more;
            left -= more;
        }
        Columns { place, others }
    }

    /// Returns the width of a column, 0 if it is hidden.
    pub fn width(&self, column: Column) -> usize {
        self.others.iter().find(|(other, _)| *other == column).map_or(0, |(_, width)| *width)
    }

    pub fn has_words(&self) -> bool {
        self.width(Column::Notes) >= WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_take_what_there_is() {
        for width in 0..400 {
            let columns = Columns::of(width);
            let all = columns.place + columns.others.iter().map(|(_, width)| width).sum::<usize>();
            assert!(all <= width, "{width}: {columns:?}");
            assert!(all + 1 >= width || width < LEAST_PLACE + 70, "{width}: {columns:?}");
        }
        assert_eq!(Columns::of(80).others.len(), WANTED.len());
        let narrow = [(Column::Packets, 7), (Column::P50, 7), (Column::P99, 7)];
        assert_eq!(Columns::of(40).others, narrow);
        assert!(Columns::of(200).has_words() && !Columns::of(80).has_words());
    }
}
