//! How often each check was right on the faults from public reports (`scripts/field-cases`).

/// Counts for each check, as `scripts/field-cases` writes them.
const TABLE: &str = include_str!("record.txt");

/// Counts of one check. Each view of a case counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// It named the cause.
    pub right: u32,
    /// It reported a warning or an error beside the cause, mostly a symptom.
    pub beside: u32,
    /// It warned on the same hosts without the fault.
    pub healthy: u32,
}

/// Returns the record of a check. `None`: no case has its fault.
pub fn of(code: &str) -> Option<Record> {
    let mut lines = TABLE.lines().filter_map(|line| line.split_once(' '));
    let (_, counts) = lines.find(|(of, _)| *of == code)?;
    let mut counts = counts.split(' ').map(str::parse);
    let mut next = || counts.next()?.ok();
    Some(Record { right: next()?, beside: next()?, healthy: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_that_of_a_check() {
        for line in TABLE.lines() {
            let code = line.split(' ').next().unwrap_or_default();
            assert!(crate::check::find(code).is_some(), "{line}");
            assert!(of(code).is_some(), "{line}");
        }
        assert_eq!(of("OV000"), None);
    }

    #[test]
    fn the_book_has_the_same_counts() {
        let book = include_str!("../../../docs/src/reference/field-cases.md");
        let rows = book.lines().filter(|line| line.starts_with("| OV"));
        let counts: Vec<String> = rows
            .map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                [cells[1], cells[3], cells[4], cells[5]].join(" ")
            })
            .collect();
        assert_eq!(counts, TABLE.lines().collect::<Vec<_>>());
    }
}
