//! Plans: what to run as a file (TOML) that users copy and change. A plan's keys
//! are the long options of `lab run`, so it can say whatever they can; `[[part]]`
//! tables ask different things of the same paths, `[quick]` is what `--quick`
//! changes. Arguments given besides the plan go before it.

mod schema;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::{Args as _, FromArgMatches as _};
use toml_edit::{Document, Item, TableLike, Value};

use crate::args::{Asking, Run};
use crate::exit::usage;

pub use schema::schema;

/// Name and text of each plan that comes with the program.
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

/// Options of `lab run` that say where results go or which plan: no part of one.
const NOT_IN_A_PLAN: [&str; 7] = ["plan", "quick", "seed", "out", "json", "format", "help"];

/// Option name → values as they would be typed.
type Options = BTreeMap<String, Vec<String>>;

/// A plan, read and checked as far as its own text goes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name, or the file it came from.
    pub name: String,
    /// What it is for, in a line.
    pub description: String,
    whole: Options,
    quick: Options,
    parts: Vec<Options>,
}

/// A plan and the arguments given besides it, as one set of arguments.
pub struct Planned {
    /// Everything but what is asked.
    pub run: Run,
    /// What is asked, a part each.
    pub parts: Vec<Asking>,
}

impl Plan {
    /// Every plan that comes with the program.
    pub fn built_in() -> Vec<(&'static str, &'static str)> {
        BUILT_IN.to_vec()
    }

    /// Finds a plan by name, or reads it from a file (a name with `/` or `.`).
    ///
    /// # Errors
    /// Usage: no such plan or file, or the line that is wrong.
    pub fn find(name: &str) -> anyhow::Result<Plan> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Plan::parse(name, text);
        }
        if !name.contains(['/', '.']) {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            let known = known.join(", ");
            return Err(usage(
                "--plan",
                format!(
                    "unknown plan {name:?}; known: {known}, or a file (with . or / in its name)"
                ),
            ));
        }
        let text = std::fs::read_to_string(Path::new(name))
            .map_err(|error| usage("--plan", format!("cannot read {name}: {error}")))?;
        Plan::parse(name, &text)
    }

    fn parse(name: &str, text: &str) -> anyhow::Result<Plan> {
        let document = Document::parse(text).map_err(|error| {
            usage("--plan", format!("{name} is not TOML: {}", error.to_string().trim_end()))
        })?;
        let reader = Reader { name, text, known: known_keys() };
        let mut plan = Plan {
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
        if plan.parts.is_empty() {
            plan.parts.push(Options::new());
        }
        Ok(plan)
    }

    /// Joins the plan and the arguments given besides it: those go before the
    /// plan's, and before every part's.
    ///
    /// # Errors
    /// Usage, naming the plan and the key whose value is not allowed.
    pub fn with(&self, given: &[OsString], quick: bool) -> anyhow::Result<Planned> {
        let mut whole = self.whole.clone();
        if quick {
            whole.extend(self.quick.clone());
        }
        // Given together they contradict each other; here the one is given and
        // the other only planned.
        if given.iter().any(|word| word.to_string_lossy().starts_with("--confidence")) {
            whole.remove("blocks");
        }
        let parse = |part: &Options| {
            let mut words: Vec<OsString> = Vec::new();
            let mut options = whole.clone();
            options.extend(part.clone());
            if quick {
                // What is asked may be cut down as well.
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

/// Words after `lab run`, as they would be typed.
///
/// # Errors
/// Usage.
pub fn arguments(words: &[OsString]) -> anyhow::Result<Run> {
    parsed(words.to_vec()).map_err(|error| {
        let text = error.to_string();
        usage("lab run", text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })
}

fn parsed(words: Vec<OsString>) -> Result<Run, clap::Error> {
    let command = Run::augment_args(clap::Command::new("overlane"));
    let words = std::iter::once("overlane".into()).chain(words);
    let matches = command.args_override_self(true).try_get_matches_from(words)?;
    Run::from_arg_matches(&matches)
}

/// The long options of `lab run` that a plan may hold.
fn known_keys() -> Vec<String> {
    let command = Run::augment_args(clap::Command::new("run"));
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    names.filter(|name| !NOT_IN_A_PLAN.contains(name)).map(str::to_owned).collect()
}

/// The long options that a part may hold.
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

    /// Checks that a key is known.
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
        Err(self.wrong(span, format!("unknown key {key:?}; the nearest known is {nearest:?}")))
    }

    /// A value as it would be typed: a list is joined with commas, but for
    /// options that are given once a value.
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
        Plan::parse("x.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn every_plan_is_whole_and_described() {
        for (name, text) in BUILT_IN {
            let plan = Plan::parse(name, text).unwrap();
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
        // What is asked belongs to parts, how to measure it does not.
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
        let plan = Plan::parse("x.toml", text).unwrap();
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

    /// Trials of faults are an option as any other.
    #[test]
    fn a_plan_may_have_faults() {
        let plan = Plan::parse("x.toml", "faults = 3\n[quick]\nfaults = 1\n").unwrap();
        assert_eq!(plan.with(&[], false).unwrap().run.faults, 3);
        assert_eq!(plan.with(&[], true).unwrap().run.faults, 1);
        let given = [OsString::from("--faults=2")];
        assert_eq!(plan.with(&given, true).unwrap().run.faults, 2);
        let plan = Plan::parse("x.toml", "[quick]\nblocks = 2\n").unwrap();
        assert_eq!(plan.with(&given, true).unwrap().run.faults, 2, "given besides it");
        let plan = Plan::parse("x.toml", "faults = 1001\n").unwrap();
        let problem = plan.with(&[], false).err().unwrap().to_string();
        assert!(problem.contains("x.toml") && problem.contains("1001"), "{problem}");
    }

    /// `make bench-datapath` and `make bench-accel` ask for things that there are, and for
    /// every plan.
    #[test]
    fn plans_of_the_makefile_can_be_carried_out() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/plans");
        let makefile = include_str!("../../../Makefile");
        let (_, list) = makefile.split_once("for plan in ").unwrap();
        let together: Vec<&str> = list.split_once(';').unwrap().0.split(' ').collect();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let plan = Plan::find(path.to_str().unwrap()).unwrap();
            let planned = plan.with(&[], false).unwrap();
            assert!(planned.parts.len() == 3 && !plan.description.is_empty(), "{path:?}");
            for mode in planned.run.modes.split(',').chain([&*planned.run.baseline]) {
                assert!(lab::find(mode).is_some(), "{path:?}: {mode}");
            }
            let name = path.file_stem().unwrap().to_str().unwrap();
            let by_itself = makefile.contains(&format!("--plan scripts/plans/{name}.toml"));
            assert!(by_itself || together.contains(&name), "{path:?}: no target runs it");
        }
    }

    #[test]
    fn a_value_that_is_not_allowed_names_the_plan() {
        let plan = Plan::parse("x.toml", "blocks = \"many\"\n").unwrap();
        let problem = plan.with(&[], false).err().unwrap().to_string();
        assert!(problem.contains("x.toml") && problem.contains("many"), "{problem}");
    }
}
