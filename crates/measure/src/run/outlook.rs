//! Notes about the intervals at the end of a run: other load, and the time that narrower
//! intervals would take.

use std::time::Duration;

use super::Ended;
use super::blocks::Blocked;
use crate::plan::Plan;
use crate::sampler::Limits;
use results::stats::FELT;
use results::{Background, MachineBackground};

/// Returns notes on the background, on a missed goal, and on cells with fewer samples. `settled`
/// has the number of blocks after which each cell settled.
pub(super) fn notes(
    plan: &Plan,
    blocked: &Blocked,
    background: &Background,
    settled: &[Option<u32>],
) -> Vec<String> {
    let mut notes = blocked.notes.clone();
    notes.extend(busy("", &background.machine));
    notes.extend(background.peer.as_ref().and_then(|peer| busy("server: ", peer)));
    if background.kept > 0 {
        notes.push(format!(
            "{} samples exceeded the usual other load and still count: intervals are wider",
            background.kept
        ));
    }
    notes.extend(goal(plan, blocked));
    notes.extend(trial(plan, blocked));
    notes.extend(early(plan, blocked, settled));
    notes
}

/// Lists the workloads without samples in the last blocks.
fn early(plan: &Plan, blocked: &Blocked, settled: &[Option<u32>]) -> Option<String> {
    let tried = plan.cells.iter().zip(settled).filter(|(cell, _)| cell.setting.is_some());
    let early =
        tried.filter_map(|(cell, after)| Some((cell, after.filter(|n| *n < blocked.done)?)));
    let said: Vec<String> =
        early.map(|(cell, after)| format!("{} after {after}", cell.ask.task)).collect();
    (!said.is_empty()).then(|| {
        format!(
            "of {} blocks, not measured further once known well enough for the verdict: {}",
            blocked.done,
            said.join(", ")
        )
    })
}

/// Describes the usual load of a machine, unless it is as low as on an idle one.
fn busy(whose: &str, usual: &MachineBackground) -> Option<String> {
    let least = Limits::DEFAULT;
    let mut said = Vec::new();
    for (usual, least, what) in [
        (usual.other, least.other_share, "of all CPUs used by other programs"),
        (usual.steal, least.steal_share, "of CPU time stolen by the hypervisor"),
        (usual.throttled, least.throttled_share, "of the time throttled by a control group"),
    ] {
        // Load that an idle machine also has is not worth a note.
        if usual.level + usual.spread > least {
            let (level, spread) = (usual.level * 100.0, usual.spread * 100.0);
            said.push(format!("{level:.0}% (±{spread:.0}%) {what}"));
        }
    }
    (!said.is_empty()).then(|| format!("{whose}during the run: {}", said.join(", ")))
}

/// Describes why a goal was not reached, and the effort that it would take.
fn goal(plan: &Plan, blocked: &Blocked) -> Option<String> {
    let goal = plan.stopping.half_width?;
    // A run that ended for another reason did not miss its goal.
    if !matches!(blocked.ended, Ended::OutOfReach | Ended::MaxBlocks) {
        return None;
    }
    let outlook = blocked.outlook?;
    let needed = outlook.needed?;
    let more = more(blocked, needed);
    Some(format!(
        "the widest interval is ±{:.1}% after {} blocks, the goal is ±{:.1}%: reaching it takes \
         about {} more at this load (--max-blocks {needed:.0}); longer samples (--duration) need \
         fewer blocks",
        outlook.widest * 100.0,
        blocked.done,
        goal * 100.0,
        in_words(more),
    ))
}

/// Maximum of `--blocks`.
const MOST_BLOCKS: f64 = 10_000.0;

/// Describes what it takes to decide a change without a statistically significant difference.
fn trial(plan: &Plan, blocked: &Blocked) -> Option<String> {
    // With a width goal, its own note says so. An interrupted trial was not complete.
    let trial = plan.stopping.proof && plan.stopping.half_width.is_none();
    if !trial || !blocked.ended.is_complete() {
        return None;
    }
    let outlook = blocked.outlook?;
    // Proven: nothing more is needed.
    let needed = outlook.needed?;
    let (done, widest) = (blocked.done, outlook.widest * 100.0);
    // Ended early: any remaining change is too small to matter.
    if blocked.ended == Ended::Decided {
        let felt = (FELT - 1.0) * 100.0;
        return Some(format!(
            "after {done} blocks every workload is known to change by less than {felt:.0}%"
        ));
    }
    // Do not suggest a number of blocks that the option refuses.
    Some(match needed < MOST_BLOCKS {
        true => format!(
            "not statistically different after {done} blocks (±{widest:.1}%): if the observed \
             difference is real, proving it takes about {} more at this load (--blocks \
             {needed:.0}); longer samples (--duration) need fewer blocks",
            in_words(more(blocked, needed)),
        ),
        false => format!(
            "not statistically different after {done} blocks (±{widest:.1}%), and no sign of a \
             difference: more blocks narrow the interval with their square root (--blocks)"
        ),
    })
}

/// Returns the time until `needed` blocks are done.
fn more(blocked: &Blocked, needed: f64) -> Duration {
    blocked.block_time.mul_f64((needed - f64::from(blocked.done)).clamp(0.0, 1e9))
}

/// Formats a time: `40 seconds`, `14 minutes`, `3 hours`.
pub(super) fn in_words(time: Duration) -> String {
    let of = |number: f64, unit: &str| {
        let number = number.round().max(1.0);
        format!("{number:.0} {unit}{}", if number == 1.0 { "" } else { "s" })
    };
    match time.as_secs_f64() {
        seconds if seconds < 90.0 => of(seconds, "second"),
        seconds if seconds < 5400.0 => of(seconds / 60.0, "minute"),
        seconds => of(seconds / 3600.0, "hour"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use results::Usual;

    #[test]
    fn times_are_in_the_unit_that_fits() {
        for (seconds, words) in
            [(0, "1 second"), (40, "40 seconds"), (840, "14 minutes"), (20_000, "6 hours")]
        {
            assert_eq!(in_words(Duration::from_secs(seconds)), words);
        }
    }

    #[test]
    fn an_undecided_comparison_names_the_blocks_needed() {
        let plan = |half_width| {
            let stopping = crate::plan::Stopping {
                level: 0.95,
                blocks: 26,
                proof: true,
                half_width,
                max_blocks: 100,
            };
            crate::run::simulated::plan(1, crate::sampler::Rule::Background, stopping)
        };
        let blocked = |needed| Blocked {
            done: 26,
            ended: Ended::Blocks,
            outlook: Some(results::stats::Outlook { widest: 0.08, at_end: 0.08, needed }),
            block_time: Duration::from_secs(2),
            notes: Vec::new(),
        };
        assert_eq!(trial(&plan(None), &blocked(None)), None, "proven");
        assert_eq!(trial(&plan(Some(0.05)), &blocked(Some(86.0))), None, "the goal's note says it");
        let said = trial(&plan(None), &blocked(Some(86.0))).unwrap();
        assert!(said.contains("after 26 blocks (±8.0%)"), "{said}");
        assert!(said.contains("about 2 minutes more at this load (--blocks 86)"), "{said}");
        let said = trial(&plan(None), &blocked(Some(f64::INFINITY))).unwrap();
        assert!(said.contains("no sign of a difference"), "{said}");
        let nothing = Blocked { ended: Ended::Decided, ..blocked(Some(f64::INFINITY)) };
        let said = trial(&plan(None), &nothing).unwrap();
        assert!(said.ends_with("known to change by less than 5%"), "{said}");
    }

    #[test]
    fn cells_settled_before_the_end_are_named() {
        let stopping = crate::plan::Stopping {
            level: 0.95,
            blocks: 26,
            proof: true,
            half_width: None,
            max_blocks: 26,
        };
        let plan = crate::run::simulated::plan(1, crate::sampler::Rule::Background, stopping);
        let blocked = Blocked { done: 26, ..Blocked::stopped() };
        let settled = |after| -> Vec<Option<u32>> { plan.cells.iter().map(|_| after).collect() };
        for at_the_end in [None, Some(26)] {
            assert_eq!(early(&plan, &blocked, &settled(at_the_end)), None);
        }
        let said = early(&plan, &blocked, &settled(Some(8))).unwrap();
        assert!(said.starts_with("of 26 blocks") && said.ends_with(" after 8"), "{said}");
    }

    #[test]
    fn an_idle_machine_is_not_worth_a_word() {
        let idle = MachineBackground {
            other: Usual { level: 0.02, spread: 0.01 },
            ..MachineBackground::default()
        };
        assert_eq!(busy("", &idle), None);
        let half = MachineBackground {
            other: Usual { level: 0.5, spread: 0.04 },
            steal: Usual { level: 0.0, spread: 0.08 },
            ..idle
        };
        assert_eq!(
            busy("server: ", &half).unwrap(),
            "server: during the run: 50% (±4%) of all CPUs used by other programs, 0% (±8%) of CPU \
             time stolen by the hypervisor"
        );
    }
}
