//! Order of a block: groups of compared cells in random order, and the cells of each group in
//! random order.
//!
//! Cells of a group follow each other, so that other load is as similar for all of them as
//! possible. All orders of a group are equally likely, so other load hits a cell and its baseline
//! with the same probability.

use crate::plan::PlannedCell;
use results::stats::block_order;

/// Separates the seeds of groups from that of their order: the fraction of √2.
const GROUP: u64 = 0x6A09_E667_F3BC_C909;

/// Returns groups of compared cells, by index. Each cell is in one group.
pub(super) fn groups(cells: &[PlannedCell]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for at in 0..cells.len() {
        let first = first(cells, at);
        match groups.iter_mut().find(|(known, _)| *known == first) {
            Some((_, group)) => group.push(at),
            None => groups.push((first, vec![at])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Returns the end of a cell's chain of baselines.
fn first(cells: &[PlannedCell], at: usize) -> usize {
    let mut first = at;
    // Bound the loop against cycles: a chain is never longer than the list.
    for _ in 0..cells.len() {
        match cells.get(first) {
            Some(cell) if cell.baseline != first => first = cell.baseline,
            _ => break,
        }
    }
    first
}

/// Returns the groups of a block in its order, which depends only on seed and block.
pub(super) fn of_block(seed: u64, block: u32, groups: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let shuffled = block_order(seed, block, groups.len()).into_iter();
    shuffled
        .map(|at| {
            let group = &groups[at];
            let seed = seed ^ GROUP.wrapping_mul(at as u64 + 1);
            block_order(seed, block, group.len()).into_iter().map(|place| group[place]).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::{Step, cells};
    use load::Workload;
    use load::ask::{Ask, Task};

    fn planned() -> Vec<PlannedCell> {
        let subjects = [("host", "full", 1500), ("vxlan", "full", 1500)];
        let asks = [Workload::TcpRr, Workload::UdpStream].map(|w| Ask::new(Task::Steady(w)));
        let steps = [0, 1].map(|subject| vec![Step { setting: 0, subject }]);
        cells(&subjects, "host", &asks, &steps)
    }

    #[test]
    fn cells_of_one_comparison_are_one_group_settings_too() {
        assert_eq!(groups(&planned()), [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]]);
    }

    #[test]
    fn every_cell_comes_once_and_its_group_with_it() {
        let groups = groups(&planned());
        for block in 0..50 {
            let order = of_block(7, block, &groups);
            assert_eq!(order, of_block(7, block, &groups), "the same for the same seed");
            for group in order {
                let mut sorted = group.clone();
                sorted.sort_unstable();
                assert!(groups.contains(&sorted), "{group:?}");
            }
        }
    }

    #[test]
    fn a_cell_comes_before_its_baseline_as_often_as_after_it() {
        let groups = vec![vec![0, 1, 2], vec![3, 4, 5]];
        let mut seen: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        for block in 0..6000 {
            for group in of_block(3, block, &groups) {
                *seen.entry(group).or_default() += 1;
            }
        }
        // 6 orders for each of two groups, 1000 of each expected, ±5 standard deviations.
        assert_eq!(seen.len(), 12);
        assert!(seen.values().all(|count| (855..=1145).contains(count)), "{seen:?}");
    }
}
