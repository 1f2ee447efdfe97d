//! Tests that the parser accepts every command line in the documents.

use clap::CommandFactory;

use crate::args::LabVerb;
use crate::command_line::{Arguments, Verb};
use crate::verb::lab_run::named;
use crate::verb::lab_run_guest;

#[path = "../tests/it/documents/fence.rs"]
mod fence;

/// Returns the `overlane` command of a shell command line, with its arguments.
fn of_overlane(command: &[String]) -> Option<&[String]> {
    match command {
        [sudo, rest @ ..] if sudo == "sudo" => of_overlane(rest),
        // Without arguments, nothing is parsed.
        [program, _, ..] if program == "overlane" => Some(command),
        _ => None,
    }
}

/// Returns the reason why the parser rejects a command line.
fn refused(command: &[String]) -> Option<String> {
    use clap::Parser;
    use clap::error::ErrorKind;
    match Arguments::try_parse_from(command) {
        Ok(arguments) => {
            let Verb::Lab { verb: LabVerb::Run(run) } = arguments.verb else { return None };
            match lab_run_guest::asked(&run) {
                Ok(Some(_)) => return None,
                Ok(None) => {}
                Err(error) => return Some(error.to_string()),
            }
            let unknown = |name: &&str| named(name).is_none() && lab::find(name).is_none();
            run.modes.split(',').find(unknown).map(|name| format!("{name} is no mode"))
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Returns an unknown verb or option of a command line with placeholder values.
fn misnamed(command: &[String]) -> Option<String> {
    let mut verb = &Arguments::command();
    let mut inherited = vec!["help", "help-all", "version"];
    for word in command.iter().skip(1) {
        if word == "--" {
            break;
        }
        if let Some(option) = word.strip_prefix("--") {
            let name = option.split(['=', '[', ',']).next().unwrap_or_default();
            let known = verb.get_arguments().any(|argument| {
                argument.get_long() == Some(name)
                    || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
            });
            if !known && !inherited.contains(&name) {
                return Some(format!("{} has no --{name}", verb.get_name()));
            }
        } else if let Some(inner) = verb.find_subcommand(word) {
            verb = inner;
            inherited = vec!["help", "version"];
        } else if verb.get_subcommands().next().is_some()
            && verb.get_positionals().next().is_none()
            && word.chars().all(|c| c.is_ascii_lowercase())
        {
            return Some(format!("{} has no verb {word}", verb.get_name()));
        }
    }
    None
}

#[test]
fn command_lines_in_blocks_are_taken_by_the_parser() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for page in fence::pages() {
        for block in &fence::blocks(&page).0 {
            for command in block.commands() {
                let Some(command) = of_overlane(&command) else { continue };
                seen += 1;
                problems.extend(
                    refused(command)
                        .map(|why| format!("{}: {}: {why}", block.place, command.join(" "))),
                );
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(seen >= 60, "{seen} command lines: blocks are no longer found");
}

#[test]
fn command_lines_in_prose_name_what_there_is() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for page in fence::pages() {
        let prose = fence::blocks(&page).1.replace('\n', " ");
        // Every other piece between backquotes is inline code.
        for code in prose.split('`').skip(1).step_by(2) {
            for command in fence::commands(code) {
                let Some(command) = of_overlane(&command) else { continue };
                seen += 1;
                problems.extend(
                    misnamed(command).map(|why| format!("{}: {code}: {why}", page.display())),
                );
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(seen >= 60, "{seen} command lines: inline code is no longer found");
}

#[test]
fn a_wrong_command_line_is_noticed() {
    let words = |line: &str| fence::commands(line).remove(0);
    assert!(refused(&words("overlane lab run --no-such-option")).is_some());
    assert!(refused(&words("overlane lab run --modes host,no-such-mode")).is_some());
    assert!(refused(&words("overlane lab run --modes 'host' \\\n --quick # fast")).is_none());
    assert!(misnamed(&words("overlane doctor repair")).is_some());
    assert!(misnamed(&words("overlane doctor explain CODE --json")).is_some());
    assert!(misnamed(&words("overlane report NAME.json --markdown")).is_none());
    assert!(misnamed(&words("overlane lab run --mode NAME")).is_none());
}

fn page(name: &str) -> String {
    std::fs::read_to_string(fence::top().join("docs/src").join(name)).unwrap()
}

/// The screens in the book match the golden file of the interface's tests.
#[test]
fn screens_are_those_that_are_drawn() {
    let drawn = include_str!("../tests/data/screens.txt");
    let mut screens: Vec<&str> = drawn.split("\n== ").collect();
    // Remove the name of each screen, and the empty lines between screens.
    screens.iter_mut().for_each(|screen| {
        *screen = screen.split_once('\n').map_or("", |(_, lines)| lines.trim_end_matches('\n'));
    });
    let page = page("tasks/watch.md");
    let blocks: Vec<&str> = page.split("```text\n").skip(1).collect();
    let blocks = blocks.iter().filter_map(|rest| rest.split("\n```").next());
    // A screen ends with the keys.
    let shown: Vec<&str> = blocks.filter(|block| block.contains("? help  q quit")).collect();
    assert_eq!(shown.len(), 2, "{shown:?}");
    for screen in shown {
        assert!(screens.contains(&screen), "not as it is drawn:\n{screen}");
    }
}

#[test]
fn groups_of_modes_are_listed() {
    let page = page("reference/modes.md");
    let section = page.split("\n## Groups\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
    let listed: Vec<String> = section.lines().filter_map(name).collect();
    let groups = lab::groups().iter().map(|group| group.name);
    assert_eq!(listed, groups.chain([lab::at_guest::GROUP]).collect::<Vec<_>>());
}

#[test]
fn counters_of_vtep_are_explained() {
    use datapath::counters::{DropReason, Learning, Resolution};
    let page = page("reference/metrics.md");
    let reasons = DropReason::ALL.map(DropReason::name);
    let outcomes = Resolution::ALL.map(Resolution::name);
    let words = reasons.into_iter().chain(outcomes).chain(Learning::ALL.map(Learning::name));
    for word in words {
        assert!(page.contains(&format!("\n| `{word}` | ")), "{word} has no line");
    }
}

/// The recorded tour is an asciicast of less than five minutes, and its commands are still valid.
#[test]
fn the_recorded_tour_shows_commands_that_exist() {
    let cast = std::fs::read_to_string(fence::top().join("docs/tour.cast")).unwrap();
    let mut lines =
        cast.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let header = lines.next().unwrap();
    assert_eq!((&header["version"], &header["width"]), (&2.into(), &80.into()));
    let (mut shown, mut last) = (String::new(), 0.0);
    for event in lines {
        let at = event[0].as_f64().unwrap();
        assert!(at >= last && event[1] == "o", "{event}");
        last = at;
        shown += event[2].as_str().unwrap();
    }
    assert!(last < 300.0, "{last} s");
    let typed = shown.lines().filter_map(|line| line.trim_end().strip_prefix("$ "));
    let mut count = 0;
    for command in typed {
        let words: Vec<String> =
            command.trim_end_matches(" &").split_whitespace().map(str::to_owned).collect();
        assert_eq!(refused(&words), None, "{command}");
        count += 1;
    }
    assert!(count > 10, "{count} commands");
    assert!(shown.contains("OV015"), "the fault was not found");
}
