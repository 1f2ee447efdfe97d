//! `overlane lab list`: every mode by group, whether it can be built here, and if not why.

use lab::at_guest::{self, AtGuest};
use lab::{Capabilities, Group, Mode, Unsupported, groups};
use report::listing::ListedMode;

use crate::args::List;
use crate::exit::Exit;
use crate::output::{print, print_json};

/// Probes and prints every mode.
///
/// # Errors
/// Without the right to make network namespaces; standard output.
pub fn run(arguments: &List) -> anyhow::Result<Exit> {
    let machine = Capabilities::new(testbed::acquire()?)?;
    let all = groups().iter().flat_map(|group| group.modes.iter().map(move |mode| (group, mode)));
    let here = all.map(|(group, mode)| probed(&machine, group, *mode));
    let inside = at_guest::all().iter().map(|mode| probed_inside(&machine, mode));
    let listed: Vec<ListedMode> = here.chain(inside).collect();
    if arguments.json {
        print_json(&listed)?;
    } else {
        print(&table(&listed))?;
    }
    Ok(Exit::Done)
}

fn probed(machine: &Capabilities, group: &Group, mode: &dyn Mode) -> ListedMode {
    let listed = able(mode.name(), group.name, mode.path(), mode.probe(machine).err());
    ListedMode { in_all: mode.in_all(), ..listed }
}

fn probed_inside(machine: &Capabilities, mode: &AtGuest) -> ListedMode {
    able(mode.name, at_guest::GROUP, mode.path, mode.probe(machine).err())
}

/// A mode that is not in `all`.
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

/// What the columns of [`table`] say.
const LEGEND: &str = "yes: this machine can build it; all: --modes all measures it, others by \
                      name\n--modes takes the name of a group for all its modes\n";

fn table(listed: &[ListedMode]) -> String {
    let width = listed.iter().map(|mode| mode.mode.len()).max().unwrap_or(0);
    let mut text = String::new();
    let titles = groups().iter().map(|group| (group.name, group.title));
    for (group, title) in titles.chain([(at_guest::GROUP, at_guest::TITLE)]) {
        text += &format!("{group}: {title}\n");
        // Modes that lack the same are told together.
        let mut lacking: Vec<([&str; 2], Vec<&str>)> = Vec::new();
        for mode in listed.iter().filter(|mode| mode.group == group) {
            let state = if mode.supported { "yes" } else { "no " };
            let all = if mode.in_all { "all" } else { "   " };
            text += &format!("  {:width$}  {state}  {all}  {}\n", mode.mode, mode.path);
            if let (Some(reason), Some(remedy)) = (&mode.reason, &mode.remedy) {
                let why = [reason.as_str(), remedy];
                match lacking.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, modes)) => modes.push(mode.mode),
                    None => lacking.push((why, vec![mode.mode])),
                }
            }
        }
        for ([reason, remedy], modes) in lacking {
            text += &format!("  no {}:\n    {reason}\n    {remedy}\n", modes.join(", "));
        }
        text += "\n";
    }
    text + LEGEND
}
