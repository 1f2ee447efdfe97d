//! Which columns of the list there is room for, and how wide they are.

/// A column behind that of the place, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Packets a second, as the device counts them.
    Packets,
    /// Mbit/s, as the device counts them.
    Megabits,
    /// Mean bytes.
    Bytes,
    /// Mean packets of a GSO packet.
    Gso,
    /// Median since the hop before.
    P50,
    /// 99th percentile since the hop before.
    P99,
    /// Packets a second of the last intervals.
    History,
    /// What happens to packets there.
    Notes,
}

/// Columns with their least widths, what is to go last first. The width has the space before it.
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
/// From here on, notes are words; below, letters.
const WORDS: usize = 24;

/// Columns of the list.
#[derive(Debug, PartialEq, Eq)]
pub struct Columns {
    /// Width of the place.
    pub place: usize,
    /// The others, in their order.
    pub others: Vec<(Column, usize)>,
}

impl Columns {
    /// What there is room for.
    pub fn of(width: usize) -> Columns {
        let mut left = width.saturating_sub(LEAST_PLACE);
        let mut others = Vec::new();
        for (column, least) in WANTED {
            // What comes later is worth less: it is not shown in its stead.
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
                Column::History => left.min(MOST_HISTORY - *width),
                Column::Notes => left,
                _ => 0,
            };
            *width += more;
            left -= more;
        }
        Columns { place, others }
    }

    /// Width of a column; 0: it is not shown.
    pub fn width(&self, column: Column) -> usize {
        self.others.iter().find(|(other, _)| *other == column).map_or(0, |(_, width)| *width)
    }

    /// Whether notes are words.
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
