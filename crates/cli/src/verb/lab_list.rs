//! `overlane lab list`: lists all modes by group, and why some cannot be built on this machine.

use lab::at_guest::{self, AtGuest};
use lab::{Capabilities, Group, Mode, Unsupported, groups};
use report::listing::ListedMode;

use crate::args::List;
use crate::exit::{Exit, usage};
use crate::output::{columns, folded, print, print_json};
use crate::quantity::alternatives;

/// Probes and prints every mode.
///
/// # Errors
/// Missing permission to create network namespaces; standard output.
pub fn run(arguments: &List) -> anyhow::Result<Exit> {
    let machine = Capabilities::new(testbed::acquire()?)?;
    let all = groups().iter().flat_map(|group| group.modes.iter().map(move |mode| (group, mode)));
    let here = all.map(|(group, mode)| probed(&machine, group, *mode));
    // Modes inside a guest are a separate list, because they cannot be mixed with others.
    let inside = at_guest::all().iter().map(|mode| probed_inside(&machine, mode));
    let mut listed: Vec<ListedMode> = here.chain(inside).collect();
    if !arguments.words.is_empty() {
        listed = chosen(listed, &arguments.words)?;
    }
    if arguments.json {
        print_json(&listed)?;
    } else {
        print(&table(&listed, columns()))?;
    }
    Ok(Exit::Done)
}

/// Keeps the modes whose name or group contains one of the words.
fn chosen(listed: Vec<ListedMode>, words: &[String]) -> anyhow::Result<Vec<ListedMode>> {
    let words: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    let has = |mode: &ListedMode, word: &str| mode.mode.contains(word) || mode.group.contains(word);
    if let Some(word) = words.iter().find(|word| !listed.iter().any(|mode| has(mode, word))) {
        let known = listed.iter().map(|mode| mode.mode).chain(groups().iter().map(|g| g.name));
        let others = alternatives(word, known, "overlane lab list");
        return Err(usage("MODE", format!("no mode or group contains {word:?}{others}")));
    }
    let wanted = |mode: &ListedMode| words.iter().any(|word| has(mode, word));
    Ok(listed.into_iter().filter(wanted).collect())
}

fn probed(machine: &Capabilities, group: &Group, mode: &dyn Mode) -> ListedMode {
    let listed = able(mode.name(), group.name, mode.path(), mode.probe(machine).err());
    ListedMode { in_all: mode.in_all(), ..listed }
}

fn probed_inside(machine: &Capabilities, mode: &AtGuest) -> ListedMode {
    able(mode.name, at_guest::GROUP, mode.path, mode.probe(machine).err())
}

/// Builds the entry of a mode that is not in `all`.
fn able(
    mode: &'static str,
    group: &'static str,
    path: &'static str,
    unsupported: Option<Unsupported>,
) -> ListedMode {
    ListedMode {
        mode,
        group,
        in_all: false,
        path,
        supported: unsupported.is_none(),
        reason: unsupported.as_ref().map(|why| why.reason.clone()),
        remedy: unsupported.map(|why| why.remedy),
    }
}

/// Legend of [`table`].
const LEGEND: &str = "yes: this machine can build it; all: included in --modes all\n--modes also \
                      accepts a group name for all modes of the group\n";

/// Lists modes by group, in lines of at most `columns`.
fn table(listed: &[ListedMode], columns: usize) -> String {
    let width = listed.iter().map(|mode| mode.mode.len()).max().unwrap_or(0);
    let mut text = String::new();
    let titles = groups().iter().map(|group| (group.name, group.title));
    for (group, title) in titles.chain([(at_guest::GROUP, at_guest::TITLE)]) {
        if !listed.iter().any(|mode| mode.group == group) {
            continue;
        }
        text += &folded(&format!("{group}: {title}"), columns, None);
        text.push('\n');
        // Merge modes with the same missing feature into one line.
        let mut lacking: Vec<([&str; 2], Vec<&str>)> = Vec::new();
        for mode in listed.iter().filter(|mode| mode.group == group) {
            let state = if mode.supported { "yes" } else { "no " };
            let all = if mode.in_all { "all" } else { "   " };
            let line = format!("  {:width$}  {state}  {all}  {}", mode.mode, mode.path);
            text += &folded(&line, columns, Some(width + 14));
            text.push('\n');
            if let (Some(reason), Some(remedy)) = (&mode.reason, &mode.remedy) {
                let why = [reason.as_str(), remedy];
                match lacking.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, modes)) => modes.push(mode.mode),
                    None => lacking.push((why, vec![mode.mode])),
                }
            }
        }
        for ([reason, remedy], modes) in lacking {
            for line in [
                format!("  no {}:", modes.join(", ")),
                format!("    {reason}"),
                format!("    {remedy}"),
            ] {
                text += &folded(&line, columns, None);
                text.push('\n');
            }
        }
        text += "\n";
    }
    for line in LEGEND.lines() {
        text += &folded(line, columns, None);
        text.push('\n');
    }
    text
}
