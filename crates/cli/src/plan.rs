//! Plans: TOML files that describe a run, which users can copy and edit. The keys are the long
//! options of `lab run`. `[[part]]` tables set different workloads for the same paths, `[quick]`
//! has the values to use with `--quick`. Arguments on the command line override the plan.

mod schema;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::{Args as _, FromArgMatches as _};
use toml_edit::{Document, Item, TableLike, Value};

use crate::args::{Asking, Run};
use crate::exit::usage;
use crate::quantity::alternatives;

pub use schema::schema;

/// Name and text of each built-in plan.
const BUILT_IN: [(&str, &str); 9] = [
    ("qperf-sweep", include_str!("../plans/qperf-sweep.toml")),
    ("netperf-offload", include_str!("../plans/netperf-offload.toml")),
    ("cni-sweep", include_str!("../plans/cni-sweep.toml")),
    ("docker-modes", include_str!("../plans/docker-modes.toml")),
    ("udp-tuning", include_str!("../plans/udp-tuning.toml")),
    ("tap-bridge", include_str!("../plans/tap-bridge.toml")),
    ("network-node", include_str!("../plans/network-node.toml")),
    ("vm-tap", include_str!("../plans/vm-tap.toml")),
    ("calico-bgp", include_str!("../plans/calico-bgp.toml")),
];

/// Options of `lab run` that no plan may contain: they select the plan, its repetition or output.
const NOT_IN_A_PLAN: [&str; 7] = ["plan", "quick", "seed", "out", "json", "format", "help"];

/// Option name → values in command-line form.
type Options = BTreeMap<String, Vec<String>>;

/// A parsed plan. Keys are checked; values are checked by [`PlanFile::with`].
#[derive(Debug, Clone)]
pub struct PlanFile {
    pub name: String,
    /// Purpose, in one line.
    pub description: String,
    whole: Options,
    quick: Options,
    parts: Vec<Options>,
}

/// A plan merged with the arguments of the command line.
pub struct Planned {
    /// All options; `parts` replaces its workload options.
    pub run: Run,
    /// The workload options of each part.
    pub parts: Vec<Asking>,
}

impl PlanFile {
    /// Returns name and text of every built-in plan.
    pub fn built_in() -> Vec<(&'static str, &'static str)> {
        BUILT_IN.to_vec()
    }

    /// Finds a plan by name, or reads it from a file (a name with `/` or `.`).
    ///
    /// # Errors
    /// A usage error: no such plan or file, or the wrong line.
    pub fn find(name: &str) -> anyhow::Result<PlanFile> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return PlanFile::parse(name, text);
        }
        // Any other name is a misspelled plan, not a file.
        if !name.contains(['/', '.']) {
            let known = BUILT_IN.iter().map(|(name, _)| *name);
            let others = alternatives(name, known, "overlane lab plans");
            let file = "a file name must contain . or /";
            return Err(usage("--plan", format!("unknown plan {name:?}{others}; {file}")));
        }
        let text = std::fs::read_to_string(Path::new(name))
            .map_err(|error| usage("--plan", format!("cannot read {name}: {error}")))?;
        PlanFile::parse(name, &text)
    }

    fn parse(name: &str, text: &str) -> anyhow::Result<PlanFile> {
        let document = Document::parse(text).map_err(|error| {
            usage("--plan", format!("{name} is not TOML: {}", error.to_string().trim_end()))
        })?;
        let reader = Reader { name, text, known: known_keys() };
        let mut plan = PlanFile {
            name: name.to_owned(),
            description: String::new(),
            whole: Options::new(),
            quick: Options::new(),
            parts: Vec::new(),
        };
        let asking = asking_keys();
        for (key, item) in document.as_table().iter() {
            match (key, item) {
                ("description", Item::Value(Value::String(text))) => {
                    plan.description = text.value().clone();
                }
                ("quick", Item::Table(table)) => {
                    plan.quick = reader.options(table, &reader.known)?
                }
                ("part", Item::ArrayOfTables(parts)) => {
                    for part in parts {
                        plan.parts.push(reader.options(part, &asking)?);
                    }
                }
                ("description" | "quick" | "part", item) => {
                    let shape = match key {
                        "description" => "a string",
                        "quick" => "a table, [quick]",
                        _ => "tables, [[part]]",
                    };
                    return Err(reader.wrong(item.span(), format!("{key} must be {shape}")));
                }
                (key, _) => {
                    let root = document.as_table();
                    reader.option(root, key, &reader.known, &["description", "quick", "part"])?;
                    plan.whole.insert(key.to_owned(), reader.values(key, item)?);
                }
            }
        }
        // Without [[part]], the plan's own options are the only part.
        if plan.parts.is_empty() {
            plan.parts.push(Options::new());
        }
        Ok(plan)
    }

    /// Merges the plan with the arguments of the command line, which override the plan and all
    /// of its parts.
    ///
    /// # Errors
    /// A usage error that names the plan and the key with the invalid value.
    pub fn with(&self, given: &[OsString], quick: bool) -> anyhow::Result<Planned> {
        let mut whole = self.whole.clone();
        if quick {
            whole.extend(self.quick.clone());
        }
        // clap rejects --confidence with --blocks. Here only --confidence was given, so it
        // overrides the planned blocks.
        if given.iter().any(|word| word.to_string_lossy().starts_with("--confidence")) {
            whole.remove("blocks");
        }
        let parse = |part: &Options| {
            let mut words: Vec<OsString> = Vec::new();
            let mut options = whole.clone();
            options.extend(part.clone());
            if quick {
                // Second time: [quick] may also reduce the workloads, and it overrides the part.
                options.extend(self.quick.clone());
            }
            for (key, values) in options {
                words.extend(values.into_iter().map(|value| match value.as_str() {
                    "" => format!("--{key}").into(),
                    value => format!("--{key}={value}").into(),
                }));
            }
            words.extend(given.iter().cloned());
            parsed(words)
        };
        let run = |part: &Options| {
            parse(part).map_err(|error| {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                usage("--plan", format!("{}: {}", self.name, first.trim_start_matches("error: ")))
            })
        };
        let parts = self.parts.iter().map(|part| Ok(run(part)?.asking));
        Ok(Planned { parts: parts.collect::<anyhow::Result<_>>()?, run: run(&Options::new())? })
    }
}

/// Parses the words after `lab run`.
///
/// # Errors
/// A usage error with the first line of clap's message.
pub fn arguments(words: &[OsString]) -> anyhow::Result<Run> {
    parsed(words.to_vec()).map_err(|error| {
        let text = error.to_string();
        usage("lab run", text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })
}

fn parsed(words: Vec<OsString>) -> Result<Run, clap::Error> {
    let command = Run::augment_args(clap::Command::new("overlane"));
    let words = std::iter::once("overlane".into()).chain(words);
    // An argument of the command line follows the plan's and overrides it.
    let matches = command.args_override_self(true).try_get_matches_from(words)?;
    Run::from_arg_matches(&matches)
}

/// Returns the long options of `lab run` that a plan may contain.
fn known_keys() -> Vec<String> {
    let command = Run::augment_args(clap::Command::new("run"));
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    names.filter(|name| !NOT_IN_A_PLAN.contains(name)).map(str::to_owned).collect()
}

/// Returns the long options that a part may contain.
fn asking_keys() -> Vec<String> {
    let command = Asking::augment_args(clap::Command::new("part"));
    command.get_arguments().filter_map(|a| a.get_long()).map(str::to_owned).collect()
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    known: Vec<String>,
}

impl Reader<'_> {
    fn options(&self, table: &dyn TableLike, known: &[String]) -> anyhow::Result<Options> {
        let mut options = Options::new();
        for (key, item) in table.iter() {
            self.option(table, key, known, &[])?;
            options.insert(key.to_owned(), self.values(key, item)?);
        }
        Ok(options)
    }

    /// Checks that a key is known. The error suggests the most similar key.
    fn option(
        &self,
        table: &dyn TableLike,
        key: &str,
        known: &[String],
        besides: &[&str],
    ) -> anyhow::Result<()> {
        if known.iter().any(|name| name == key) {
            return Ok(());
        }
        let names = known.iter().map(String::as_str).chain(besides.iter().copied());
        let nearest = names
            .max_by(|a, b| strsim::jaro_winkler(key, a).total_cmp(&strsim::jaro_winkler(key, b)));
        let span = table.get_key_value(key).and_then(|(key, _)| key.span());
        let nearest = nearest.unwrap_or_default();
        Err(self.wrong(span, format!("unknown key {key:?}; did you mean {nearest:?}?")))
    }

    /// Returns a value in command-line form. A list is joined with commas, except for options
    /// that are repeated per value.
    fn values(&self, key: &str, item: &Item) -> anyhow::Result<Vec<String>> {
        let word = |value: &Value| match value {
            Value::String(text) => Some(text.value().clone()),
            Value::Integer(number) => Some(number.value().to_string()),
            Value::Float(number) => Some(number.value().to_string()),
            _ => None,
        };
        let problem = || {
            self.wrong(item.span(), format!("{key} must be a number, a string or a list of them"))
        };
        match item {
            // `false` means that the flag is absent.
            Item::Value(Value::Boolean(on)) if !on.value() => Ok(Vec::new()),
            Item::Value(Value::Boolean(_)) => Ok(vec![String::new()]),
            Item::Value(Value::Array(list)) => {
                let words: Option<Vec<String>> = list.iter().map(word).collect();
                let words = words.ok_or_else(problem)?;
                Ok(if key == "vary" { words } else { vec![words.join(",")] })
            }
            Item::Value(value) => Ok(vec![word(value).ok_or_else(problem)?]),
            _ => Err(problem()),
        }
    }

    fn wrong(&self, span: Option<std::ops::Range<usize>>, problem: String) -> anyhow::Error {
        let line = span.map_or(String::new(), |span| {
            let before = self.text.get(..span.start).unwrap_or_default();
            format!(", line {}", before.matches('\n').count() + 1)
        });
        usage("--plan", format!("{}{line}: {problem}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        PlanFile::parse("x.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn every_plan_is_whole_and_described() {
        for (name, text) in BUILT_IN {
            let plan = PlanFile::parse(name, text).unwrap();
            assert!(!plan.description.is_empty(), "{name}");
            for quick in [false, true] {
                let planned = plan.with(&[], quick).unwrap();
                assert!(!planned.parts.is_empty(), "{name}");
                assert!(planned.run.measuring.blocks.is_some(), "{name}");
                assert!(!planned.run.measuring.quick, "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known() {
        let problem = error("modes = \"host\"\n\nofload = \"full\"\n");
        assert!(problem.contains("line 3"), "{problem}");
        assert!(problem.contains("\"ofload\"") && problem.contains("\"offload\""), "{problem}");
        let problem = error("[[part]]\nworkloads = \"tcp_rr\"\nsize = 4\n");
        assert!(problem.contains("line 3") && problem.contains("\"sizes\""), "{problem}");
        // A part contains workload options only.
        let problem = error("[[part]]\nblocks = 4\n");
        assert!(problem.contains("line 2"), "{problem}");
        assert!(error("modes = \n").contains("not TOML"), "{}", error("modes = \n"));
        assert!(error("part = 3\n").contains("[[part]]"));
        assert!(error("mtu = { a = 1 }\n").contains("mtu must be a number"));
    }

    #[test]
    fn arguments_given_go_before_the_plans() {
        let text = "blocks = 9\nflows = 2\n[quick]\nblocks = 3\n\
                    [[part]]\nworkloads = \"tcp_rr\"\n[[part]]\nflows = [3, 4]\n";
        let plan = PlanFile::parse("x.toml", text).unwrap();
        let planned = plan.with(&[], false).unwrap();
        assert_eq!(planned.run.measuring.blocks, Some(9));
        assert_eq!(planned.parts[0].workloads, "tcp_rr");
        assert_eq!((&*planned.parts[0].flows, &*planned.parts[1].flows), ("2", "3,4"));
        let given = ["--flows=5", "--blocks", "7"].map(OsString::from);
        let planned = plan.with(&given, true).unwrap();
        assert_eq!(planned.run.measuring.blocks, Some(7));
        assert!(planned.parts.iter().all(|part| part.flows == "5"));
        assert_eq!(plan.with(&[], true).unwrap().run.measuring.blocks, Some(3));
        let given = [OsString::from("--confidence=95,5")];
        assert_eq!(plan.with(&given, false).unwrap().run.measuring.blocks, None);
    }

    /// Fault trials are an option like any other.
    #[test]
    fn a_plan_may_have_faults() {
        let plan = PlanFile::parse("x.toml", "faults = 3\n[quick]\nfaults = 1\n").unwrap();
        assert_eq!(plan.with(&[], false).unwrap().run.faults, 3);
        assert_eq!(plan.with(&[], true).unwrap().run.faults, 1);
        let given = [OsString::from("--faults=2")];
        assert_eq!(plan.with(&given, true).unwrap().run.faults, 2);
        let plan = PlanFile::parse("x.toml", "[quick]\nblocks = 2\n").unwrap();
        assert_eq!(plan.with(&given, true).unwrap().run.faults, 2, "given besides it");
        let plan = PlanFile::parse("x.toml", "faults = 1001\n").unwrap();
        let problem = plan.with(&[], false).err().unwrap().to_string();
        assert!(problem.contains("x.toml") && problem.contains("1001"), "{problem}");
    }

    /// `bench/run` runs every plan of `bench/plans`, and the plans use existing modes.
    #[test]
    fn plans_of_the_benchmarks_can_be_carried_out() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/plans");
        let script = include_str!("../../../bench/run");
        let claims = include_str!("../../../docs/results/claims.json");
        let (_, list) = script.split_once("for plan in ").unwrap();
        let together: Vec<&str> = list.split_once(';').unwrap().0.split(' ').collect();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let plan = PlanFile::find(path.to_str().unwrap()).unwrap();
            let planned = plan.with(&[], false).unwrap();
            assert!(planned.parts.len() == 3 && !plan.description.is_empty(), "{path:?}");
            for mode in planned.run.modes.split(',').chain([&*planned.run.baseline]) {
                assert!(lab::find(mode).is_some(), "{path:?}: {mode}");
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            let by_itself = [script, claims]
                .iter()
                .any(|text| text.contains(&format!("--plan bench/plans/{name}.toml")));
            assert!(by_itself || together.contains(&name), "{path:?}: bench/run does not run it");
        }
    }

    #[test]
    fn a_value_that_is_not_allowed_names_the_plan() {
        let plan = PlanFile::parse("x.toml", "blocks = \"many\"\n").unwrap();
        let problem = plan.with(&[], false).err().unwrap().to_string();
        assert!(problem.contains("x.toml") && problem.contains("many"), "{problem}");
    }
}
