//! `--help` fits a screen: the usual options and two examples. `--help-all` has the rest.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

/// Options in `--help` of the commands that have more than fit a screen.
const USUAL: &[(&str, &str)] = &[
    (
        "lab run",
        "plan modes offload vary tries workloads sizes flows duration confidence quick out",
    ),
    ("measure run", "baseline token workloads sizes flows duration confidence quick impact out"),
    ("try", "finding undo_with against token keep workloads duration confidence quick impact json"),
    ("vtep", "config vni tap netns local remote port mtu metrics"),
];

/// Heading of the examples in the text below the options.
const EXAMPLES: &str = "EXAMPLES\n";
/// Number of examples in `--help`.
const SHOWN: usize = 2;

/// Adds `--help` and `--help-all` to a command and those below it, in place of clap's own.
pub fn with_flags(command: Command) -> Command {
    let short = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help_heading(None)
        .help("Print the usual options");
    let all = Arg::new("help-all")
        .long("help-all")
        .action(ArgAction::HelpLong)
        .help_heading(None)
        .help("Print all options and their details");
    command.disable_help_flag(true).arg(short).arg(all).mut_subcommands(with_flags)
}

/// Restricts `--help` of a command and those below it to the usual options and two examples.
pub fn on_a_screen(command: Command) -> Command {
    shortened(command, "")
}

fn shortened(mut command: Command, path: &str) -> Command {
    if let Some((_, usual)) = USUAL.iter().find(|(of, _)| *of == path) {
        let is_usual = |argument: &Arg| {
            let id = argument.get_id().as_str();
            argument.is_positional()
                || id.starts_with("help")
                || usual.split(' ').any(|one| one == id)
        };
        command = command.mut_args(|argument| match is_usual(&argument) {
            true => argument,
            false => argument.hide_short_help(true),
        });
    }
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        let examples = examples(&text).take(SHOWN).map(|line| format!("\n{line}"));
        let short = format!("{}{}", EXAMPLES.trim_end(), examples.collect::<String>());
        // Without a longer text, `--help-all` keeps the layout of `--help`.
        if text != short {
            command = command.after_long_help(text).after_help(short);
        }
    }
    command.mut_subcommands(|under| {
        let path = format!("{path} {}", under.get_name());
        shortened(under, path.trim_start())
    })
}

/// Returns the examples in the text below a command's options.
fn examples(text: &str) -> impl Iterator<Item = &str> {
    text.split_once(EXAMPLES).map(|(_, examples)| examples).into_iter().flat_map(str::lines)
}

/// Adds the first example of a command to the error that an argument of it is missing.
pub fn with_example(mut error: clap::Error, command: &Command) -> clap::Error {
    if error.kind() != ErrorKind::MissingRequiredArgument {
        return error;
    }
    let mut named = command;
    for word in std::env::args().skip(1) {
        match named.find_subcommand(word) {
            Some(under) => named = under,
            None => break,
        }
    }
    let text = named.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some(example) = examples(&text).next() {
        let tip = StyledStr::from(format!("for example: {}", example.trim()));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line;

    /// Lines that `--help` may take in a terminal of 80 columns.
    const SCREEN: usize = 45;

    fn each(command: &Command, path: &str, visit: &mut impl FnMut(&Command, &str)) {
        visit(command, path);
        let shown = command.get_subcommands().filter(|under| !under.is_hide_set());
        for under in shown.filter(|under| under.get_name() != "help") {
            each(under, &format!("{path} {}", under.get_name()), visit);
        }
    }

    #[test]
    fn the_help_of_each_command_fits_a_screen_and_has_two_examples() {
        let mut command = command_line::command();
        command.build();
        let mut problems = Vec::new();
        each(&command, "overlane", &mut |command, path| {
            let help = command.clone().term_width(80).render_help().to_string();
            let lines = help.lines().count();
            let shown = examples(&help).filter(|line| line.starts_with("  overlane ")).count();
            if lines > SCREEN || shown != SHOWN {
                problems.push(format!("{path}: {lines} lines, {shown} examples"));
            }
        });
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn every_usual_option_exists_and_all_are_in_the_long_help() {
        let command = command_line::command();
        for (path, usual) in USUAL {
            let named =
                path.split(' ').fold(&command, |at, word| at.find_subcommand(word).unwrap());
            for id in usual.split(' ') {
                let known = named.get_arguments().any(|argument| argument.get_id() == id);
                assert!(known, "{path}: {id}");
            }
            let help = named.clone().render_long_help().to_string();
            for long in named.get_arguments().filter_map(Arg::get_long) {
                assert!(help.contains(&format!("--{long}")), "{path}: --{long}");
            }
        }
    }
}
