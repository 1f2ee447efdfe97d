//! Shell completion. The scripts of `overlane completions` call this program, which knows its own
//! modes, codes and plans, and the devices and namespaces of the machine.

use std::ffi::OsStr;

use clap::builder::StyledStr;
use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use crate::command_line;
use crate::plan::PlanFile;
use results::names::Named;
use results::{Engine, Profile, Task};

/// The scripts set it to the name of the shell.
const VARIABLE: &str = "OVERLANE_COMPLETE";

/// Answers the request of a completion script and ends the process, if this is one.
pub fn answer_request() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Returns the script that makes a shell ask this program.
///
/// # Errors
/// A shell without completion.
pub fn script(shell: clap_complete::Shell) -> anyhow::Result<String> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&name);
    let completer = completer.ok_or_else(|| anyhow::anyhow!("no completion for {name}"))?;
    let mut text = Vec::new();
    completer.write_registration(VARIABLE, "overlane", "overlane", "overlane", &mut text)?;
    let mut text = String::from_utf8(text)?;
    if name == "zsh" {
        // zsh loads the file as a function at the first use, which must complete, too.
        text +=
            "[[ \"${funcstack[1]}\" = _overlane ]] && _clap_dynamic_completer_overlane \"$@\"\n";
    }
    Ok(text)
}

/// One possible value, with its description.
type Value = (String, String);

/// Returns the values of an argument by the verb above its command and the name of its value.
fn values(verb: &str, value_name: &str) -> Option<fn() -> Vec<Value>> {
    match (verb, value_name) {
        ("accel", "CODE") => Some(refusals),
        (_, "CODE") => Some(checks),
        (_, "MODE" | "MODES") => Some(modes),
        (_, "WORKLOADS") => Some(named::<Task>),
        (_, "ENGINE" | "ENGINES") => Some(named::<Engine>),
        (_, "PROFILE" | "PROFILES") => Some(named::<Profile>),
        (_, "PLAN") => Some(plans),
        (_, "DEV" | "DEVICE" | "[NETNS:]DEV") => Some(devices),
        (_, "NETNS") => Some(namespaces),
        _ => None,
    }
}

/// The command line, with the values that only the program knows.
fn command() -> Command {
    with_values(command_line::command(), "")
}

fn with_values(command: Command, verb: &str) -> Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|argument| {
            let value_name =
                argument.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
            match value_name.and_then(|value_name| values(verb, &value_name)) {
                Some(values) => completed(argument, values),
                None => argument,
            }
        })
        .mut_subcommands(|under| with_values(under, &name))
}

fn completed(argument: Arg, values: fn() -> Vec<Value>) -> Arg {
    argument.add(ArgValueCompleter::new(move |current: &OsStr| candidates(current, values)))
}

/// Returns the values that continue the last element of a comma-separated list.
fn candidates(current: &OsStr, values: fn() -> Vec<Value>) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let (before, last) = match current.rfind(',') {
        Some(comma) => current.split_at(comma + 1),
        None => ("", current),
    };
    let taken: Vec<&str> = before.split(',').collect();
    let fitting = values()
        .into_iter()
        .filter(|(value, _)| value.starts_with(last) && !taken.contains(&value.as_str()));
    let candidate = |(value, help): Value| {
        let help = (!help.is_empty()).then(|| StyledStr::from(help));
        CompletionCandidate::new(format!("{before}{value}")).help(help)
    };
    fitting.map(candidate).collect()
}

fn modes() -> Vec<Value> {
    let groups = lab::groups().iter().map(|group| (group.name.to_owned(), group.title.to_owned()));
    let modes = lab::modes().iter().map(|mode| (mode.name().to_owned(), mode.path().to_owned()));
    let all = ("all".to_owned(), "modes that join two endpoints".to_owned());
    std::iter::once(all).chain(groups).chain(modes).collect()
}

fn named<T: Named>() -> Vec<Value> {
    T::ALL.iter().map(|value| (value.name().to_owned(), String::new())).collect()
}

fn plans() -> Vec<Value> {
    let described =
        |name: &str| PlanFile::find(name).map(|plan| plan.description).unwrap_or_default();
    PlanFile::built_in().iter().map(|(name, _)| ((*name).to_owned(), described(name))).collect()
}

fn checks() -> Vec<Value> {
    let checks = doctor::CHECKS.iter();
    checks.map(|check| (check.code.to_owned(), check.title.to_owned())).collect()
}

fn refusals() -> Vec<Value> {
    let known = accel::EXPLANATIONS.iter();
    known.map(|known| (known.code.to_owned(), known.title.to_owned())).collect()
}

fn devices() -> Vec<Value> {
    names_in("/sys/class/net")
}

fn namespaces() -> Vec<Value> {
    names_in("/run/netns")
}

/// Returns the names in a directory; none if it cannot be read.
fn names_in(directory: &str) -> Vec<Value> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // A shell interprets some characters, and a terminal others.
    let is_plain =
        |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@:+".contains(c));
    let mut names: Vec<String> = names.filter(is_plain).collect();
    names.sort();
    names.into_iter().map(|name| (name, String::new())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(current: &str, values: fn() -> Vec<Value>) -> Vec<String> {
        let candidates = candidates(OsStr::new(current), values);
        candidates.iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_last_element_of_a_list_is_completed() {
        let found = of("host,vxlan+", modes);
        assert!(found.contains(&"host,vxlan+accel".to_owned()), "{found:?}");
        assert!(found.iter().all(|value| value.starts_with("host,vxlan+")), "{found:?}");
        assert_eq!(of("tcp_rr,tcp_r", named::<Task>), Vec::<String>::new(), "already taken");
        assert_eq!(of("tcp_cr", named::<Task>), ["tcp_crr"]);
    }

    #[test]
    fn codes_and_plans_are_known() {
        assert_eq!(of("OV001", checks), ["OV001"]);
        assert!(of("AX", refusals).len() > 10);
        assert_eq!(of("", plans).len(), PlanFile::built_in().len());
    }

    #[test]
    fn every_shell_has_a_script_that_asks_the_program() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = script(shell.parse().unwrap()).unwrap();
            assert!(script.contains(VARIABLE), "{shell}: {script}");
        }
    }

    #[test]
    fn arguments_of_subcommands_are_completed() {
        let command = command();
        let run =
            command.find_subcommand("lab").and_then(|lab| lab.find_subcommand("run")).unwrap();
        let modes = run.get_arguments().find(|argument| argument.get_id() == "modes").unwrap();
        assert!(modes.get::<ArgValueCompleter>().is_some());
    }
}
