//! The lists of `.config` name tests that exist.

use std::path::{Path, PathBuf};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns all Rust sources below a directory as one text.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{error}: {directory:?}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(path).unwrap();
        }
    }
    text
}

/// A line of `.config/nightly` that names no test would move a renamed test into the first tier
/// without notice.
#[test]
fn nightly_tests_exist() {
    let list = std::fs::read_to_string(format!("{TOP}/.config/nightly")).unwrap();
    let mut wrong = Vec::new();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (binary, test) = line.split_once(' ').expect("BINARY TEST-PREFIX");
        let (package, part) = binary.split_once("::").unwrap_or((binary, "src"));
        let directory = match package.strip_prefix("overlane-") {
            Some(name) => format!("{TOP}/crates/{name}"),
            None => format!("{TOP}/crates/cli"),
        };
        let part = if part == "src" { "src".to_owned() } else { format!("tests/{part}") };
        let directory = Path::new(&directory).join(part);
        let (modules, function) = test.rsplit_once("::").expect("MODULE::TEST or MODULE::");
        let text = if function.is_empty() {
            let module = directory.join(modules);
            if module.is_dir() || module.with_extension("rs").is_file() {
                continue;
            }
            String::new()
        } else {
            sources(&directory)
        };
        if !text.contains(&format!("fn {function}()")) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "no such test:\n{}", wrong.join("\n"));
}
