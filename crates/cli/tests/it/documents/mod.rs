//! The documents: their commands run, their links resolve, their generated parts match the program.
//!
//! `src/documents.rs` tests that every command line is valid.

mod fence;

use std::path::Path;
use std::process::Command;

use test_support::{need, require};

const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");

/// Runs every block tagged `sh run` in a directory of its own, with results to read.
#[test]
fn commands_that_are_to_be_run_succeed() {
    let mut run = 0;
    for page in fence::pages() {
        for block in fence::blocks(&page).0.iter().filter(|block| block.is("run")) {
            let directory = tempfile::tempdir().unwrap();
            for name in ["results.json", "before.json", "after.json"] {
                let from = fence::top().join("docs/results/modes.json");
                std::fs::copy(from, directory.path().join(name)).unwrap();
            }
            let commands = block.commands();
            assert!(!commands.is_empty(), "{}: nothing to run", block.place);
            for command in commands {
                if command[..2] == ["overlane", "lab"] {
                    require!(need::that(may_make_namespaces(), "network namespaces"));
                }
                assert_eq!(command[0], "overlane", "{}: {command:?}", block.place);
                let ended = Command::new(OVERLANE)
                    .args(&command[1..])
                    .current_dir(directory.path())
                    .output()
                    .unwrap();
                assert!(ended.status.success(), "{}: {command:?}: {ended:?}", block.place);
                run += 1;
            }
        }
    }
    assert!(run >= 10, "{run} commands: blocks are no longer found");
}

fn may_make_namespaces() -> bool {
    let ended = Command::new(OVERLANE).args(["lab", "list"]).output().unwrap();
    ended.status.success()
}

/// Links to files of the repository, and to headings of the same page.
#[test]
fn links_lead_somewhere() {
    let mut problems = Vec::new();
    for page in fence::pages() {
        let prose = fence::blocks(&page).1;
        let headings: Vec<String> =
            prose.lines().filter_map(|line| line.strip_prefix('#')).map(anchor).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let there = page.parent().unwrap().join(file);
            if !file.is_empty() && !there.exists() {
                problems.push(format!("{}: {link}", page.display()));
            } else if file.is_empty() && !headings.iter().any(|known| known == heading) {
                problems.push(format!("{}: no heading {link}", page.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// The summary lists every page of the book, and only these.
#[test]
fn the_summary_has_every_page() {
    let book = fence::top().join("docs/src");
    let summary = std::fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    for page in fence::pages() {
        let Ok(name) = page.strip_prefix(&book) else { continue };
        let listed = summary.contains(&format!("]({})", name.display()));
        assert!(listed || name == Path::new("SUMMARY.md"), "{}: not in SUMMARY.md", name.display());
    }
}

/// `make NAME`, `bench/run NAME` and scripts in documents exist.
#[test]
fn targets_and_scripts_exist() {
    let makefile = std::fs::read_to_string(fence::top().join("Makefile")).unwrap();
    let benchmarks = std::fs::read_to_string(fence::top().join("bench/run")).unwrap();
    let mut problems = Vec::new();
    for page in fence::pages() {
        let (blocks, prose) = fence::blocks(&page);
        let inline = prose.replace('\n', " ");
        let pieces = inline.split('`').skip(1).step_by(2).flat_map(fence::commands);
        for command in pieces.chain(blocks.iter().flat_map(fence::Block::commands)) {
            if let [make, target, ..] = &command[..]
                && make == "make"
                && !makefile.lines().any(|line| line.starts_with(&format!("{target}:")))
            {
                problems.push(format!("{}: make {target}", page.display()));
            }
            let program = command[0].as_str();
            if let [run, name, ..] = &command[..]
                && run == "bench/run"
                && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
                && !benchmarks.lines().any(|line| line.starts_with(&format!("{name}() {{ #")))
            {
                problems.push(format!("{}: bench/run {name}", page.display()));
            }
            let of_ours = program.starts_with("scripts/") || program.starts_with("bench/");
            if of_ours && !fence::top().join(program).exists() {
                problems.push(format!("{}: {program}", page.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Files of the repository, relative to its top.
fn files() -> Vec<String> {
    let (mut files, mut directories) = (Vec::new(), vec![fence::top()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("target") || path.ends_with(".git") {
                continue;
            } else if path.is_dir() {
                directories.push(path);
            } else {
                files.push(path.strip_prefix(fence::top()).unwrap().display().to_string());
            }
        }
    }
    files
}

/// Sources and directories in inline code exist: `crates/x/src/y.rs`, or its end, `x/src/y.rs`,
/// `y.rs`. The archive and the changelog describe earlier states.
#[test]
fn sources_that_are_named_exist() {
    let files = files();
    let mut problems = Vec::new();
    for page in fence::pages() {
        if page.ends_with("archive.md") || page.ends_with("CHANGELOG.md") {
            continue;
        }
        let prose = fence::blocks(&page).1.replace('\n', " ");
        for code in prose.split('`').skip(1).step_by(2) {
            let place = code.trim_end_matches('/');
            let source = [".rs", ".h", ".bpf.c", ".toml"].iter().any(|end| code.ends_with(end));
            let folder = code.ends_with('/') && !code.starts_with('/');
            let pattern = code.contains(['*', ' ', '<', '{']) || code.contains("NAME");
            let known = files.iter().any(|file| {
                let file = format!("/{file}");
                file.ends_with(&format!("/{place}")) || file.contains(&format!("/{place}/"))
            });
            // `vtep.toml` and similar files are the reader's own.
            let own = code.ends_with(".toml") && !code.contains('/');
            if (source || folder) && !pattern && !own && !known {
                problems.push(format!("{}: {code}", page.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Lists of modes, checks and options, and the pages of results, byte for byte.
#[test]
fn generated_parts_are_what_the_program_says() {
    require!(need::tool("python3"), need::that(may_make_namespaces(), "network namespaces"));
    let arguments = ["scripts/docs-pages", "--check", "--overlane", OVERLANE];
    let ended = Command::new("python3").args(arguments).current_dir(fence::top()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// The tables of workloads and of engines contain every one that the program knows.
#[test]
fn workloads_and_engines_are_explained() {
    let page = fence::top().join("docs/src/reference/workloads.md");
    let page = std::fs::read_to_string(page).unwrap();
    for option in ["--workloads", "--engine"] {
        let ended = Command::new(OVERLANE).args(["lab", "run", option, "?"]).output().unwrap();
        let answer = String::from_utf8(ended.stderr).unwrap();
        let known = answer.split("known: ").nth(1).unwrap_or_else(|| panic!("{answer}"));
        for name in known.trim().split(", ") {
            assert!(page.contains(&format!("\n| `{name}` | ")), "{option} {name} has no line");
        }
    }
}

/// The page lists the codes of the program's own help.
#[test]
fn exit_codes_are_explained() {
    let page = fence::top().join("docs/src/reference/exit-codes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let help = String::from_utf8(Command::new(OVERLANE).arg("--help-all").output().unwrap().stdout);
    let help = help.unwrap().replace('\n', " ");
    let codes = help.split("Exit codes: ").nth(1).unwrap().split('.').next().unwrap();
    for code in codes.split([' ', ',']).filter(|word| word.parse::<u8>().is_ok()) {
        assert!(page.contains(&format!("\n| {code} | ")), "{code} has no line");
    }
}

/// README and ARCHITECTURE are short.
#[test]
fn documents_are_short() {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let lines = std::fs::read_to_string(fence::top().join(name)).unwrap().lines().count();
        assert!(lines <= 150, "{name}: {lines} lines");
    }
}
