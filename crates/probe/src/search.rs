//! The search for the setting that causes damage: settings are switched off, at either end, until
//! one alone explains it.

use std::collections::BTreeSet;

use crate::class::Class;
use crate::exchange::{Exchange, Trouble};
use crate::judge::Verdict;
use crate::report::{Candidate, Direction, End, Report, Search, Setting};
use crate::switch::Switch;

/// Repetitions of each bad class in one step of a search.
const STEP: u16 = 4;
/// Most classes of one step.
const STEP_CLASSES: usize = 8;

/// Searches the setting that causes damage, among settings in the order of their likelihood.
/// `is_bad_without` switches settings off and returns whether packets are still bad.
///
/// # Errors
/// If a setting cannot be changed or restored, or a step fails.
pub fn bisect(
    settings: &[Setting],
    is_bad_without: &mut dyn FnMut(&[Setting]) -> Result<bool, Trouble>,
) -> Result<Search, Trouble> {
    if settings.is_empty() {
        return Ok(Search::NotDone("no setting that may be switched can be the cause".to_owned()));
    }
    if is_bad_without(settings)? {
        return Ok(Search::None);
    }
    // The smallest number of settings from the front that helps. The last of them is necessary.
    let (mut helps, mut not_enough) = (settings.len(), 0);
    while not_enough + 1 < helps {
        let middle = usize::midpoint(not_enough, helps);
        match is_bad_without(&settings[..middle])? {
            true => not_enough = middle,
            false => helps = middle,
        }
    }
    let guilty = &settings[helps - 1];
    let alone = helps == 1 || !is_bad_without(std::slice::from_ref(guilty))?;
    // Without the change it must be bad again: otherwise the fault has gone by itself.
    if !is_bad_without(&[])? {
        return Ok(Search::NotDone("the fault disappeared during the search".to_owned()));
    }
    Ok(match alone {
        true => Search::Guilty(guilty.clone()),
        false => Search::Together(settings[..helps].to_vec()),
    })
}

/// Searches the setting that causes the damage of each bad path of a report. Settings of the peer
/// take part if its administrator allows it.
///
/// # Errors
/// If a setting of this machine cannot be changed or restored, or this end fails.
pub fn search(
    exchange: &mut Exchange<'_>,
    report: &mut Report,
    switch: &mut dyn Switch,
    say: &dyn Fn(&str),
) -> Result<(), Trouble> {
    for at in 0..report.bad.len() {
        let bad = &report.bad[at];
        let names: BTreeSet<&String> = bad.classes.iter().collect();
        let classes: Vec<Class> = report
            .classes
            .iter()
            .filter(|one| one.way == bad.way && names.contains(&one.name))
            .map(|one| one.class)
            .take(STEP_CLASSES)
            .collect();
        let way = bad.way;
        let candidates = bad.candidates.clone();
        let found = loop {
            let may_be_switched = |end: End| end != End::Peer || report.peer_locked.is_none();
            let candidates = candidates.iter().filter(|one| may_be_switched(one.end));
            let settings: Vec<Setting> = candidates.map(Candidate::setting).collect();
            say(&format!("search among {} settings, packets {}", settings.len(), way.text()));
            let mut is_bad_without = |off: &[Setting]| {
                let (there, here): (Vec<_>, Vec<_>) =
                    off.iter().cloned().partition(|one| one.end == End::Peer);
                let there: Vec<String> = there.into_iter().map(|one| one.feature).collect();
                let mut step =
                    || exchange.without(&there, |exchange| is_bad(exchange, way, &classes));
                if here.is_empty() { step() } else { switch.without(&here, &mut step) }
            };
            match bisect(&settings, &mut is_bad_without) {
                // The peer could not change or restore something: search without its settings.
                Err(Trouble::Peer(reason)) if report.peer_locked.is_none() => {
                    report.notes.push(format!("settings of the peer: {reason}"));
                    report.peer_locked = Some(reason);
                }
                // The report is worth showing although the peer has gone.
                Err(Trouble::Peer(reason)) => break Search::NotDone(format!("the peer: {reason}")),
                found => break found?,
            }
        };
        report.bad[at].search = found;
    }
    Ok(())
}

/// Sends bad classes again, with a packet that no device touches. If that is lost, too, the packets
/// are late rather than lost, and are sent again with more time.
fn is_bad(exchange: &mut Exchange<'_>, way: Direction, classes: &[Class]) -> Result<bool, Trouble> {
    let with_control = [classes, &[Class::PLAIN]].concat();
    loop {
        let results = exchange.classes(way, &with_control, STEP)?;
        // Without the control's result, the loss may be that of a packet filter.
        let Some((control, results)) = results.split_last() else { return Ok(false) };
        if matches!(control.verdict, Verdict::Lost { .. } | Verdict::Late) && exchange.be_patient()
        {
            continue;
        }
        return Ok(results.iter().any(|one| is_still_bad(&one.verdict)));
    }
}

/// A single loss during a search is chance, see [`crate::judge::confirm`].
fn is_still_bad(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Lost { lost, of } => lost * 2 >= *of,
        other => other.is_bad(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(feature: &str) -> Setting {
        // The end that has the setting makes no difference.
        let end = if feature < "e" { End::Here } else { End::Peer };
        Setting { end, netns: None, device: "eth0".to_owned(), feature: feature.to_owned() }
    }

    /// Searches on a path whose packets are bad while one of the guilty settings is on. Returns the
    /// number of steps with a setting off, too.
    fn find(guilty: &[&str]) -> (Search, usize) {
        let guilty: Vec<Setting> = guilty.iter().copied().map(setting).collect();
        let mut steps = 0;
        let mut is_bad_without = |off: &[Setting]| {
            steps += usize::from(!off.is_empty());
            Ok(guilty.iter().any(|one| !off.contains(one)))
        };
        let settings = ["a", "b", "c", "d", "e", "f", "g", "h"].map(setting);
        let found = bisect(&settings, &mut is_bad_without).unwrap();
        (found, steps)
    }

    #[test]
    fn the_guilty_setting_is_found_in_few_steps() {
        for feature in ["a", "b", "d", "h"] {
            let (found, steps) = find(&[feature]);
            assert_eq!(found, Search::Guilty(setting(feature)));
            assert!(steps <= 5, "{steps}");
        }
        assert_eq!(find(&["elsewhere"]).0, Search::None);
        let both = ["a", "b", "c"].map(setting).to_vec();
        assert_eq!(find(&["b", "c"]).0, Search::Together(both));
        let none = bisect(&[], &mut |_| Ok(true)).unwrap();
        assert!(matches!(none, Search::NotDone(_)));
    }
}
