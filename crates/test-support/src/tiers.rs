//! Tests by name, as `.config/nightly` and the table of capabilities list them.

use std::path::{Path, PathBuf};

/// Returns the entries of `.config/nightly`: the name of a test binary, and a prefix of the names of
/// its tests that only `make test-all` runs.
///
/// # Panics
/// If the file cannot be read, or a line has no space.
pub fn nightly(top: &Path) -> Vec<(String, String)> {
    let list = std::fs::read_to_string(top.join(".config/nightly")).unwrap();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = lines.map(|line| line.split_once(' ').expect("BINARY TEST-PREFIX"));
    parts.map(|(binary, test)| (binary.to_owned(), test.to_owned())).collect()
}

/// Whether the sources have a test of this name; with `MODULE::`, whether they have the module.
///
/// # Panics
/// If the sources of the binary cannot be read.
pub fn exists(top: &Path, binary: &str, test: &str) -> bool {
    let (package, part) = binary.split_once("::").unwrap_or((binary, "src"));
    let package = package.strip_prefix("overlane-").unwrap_or("cli");
    let part = if part == "src" { "src".to_owned() } else { format!("tests/{part}") };
    let directory = top.join("crates").join(package).join(part);
    let (modules, function) = test.rsplit_once("::").unwrap_or(("", test));
    if function.is_empty() {
        let module = directory.join(modules.replace("::", "/"));
        return module.is_dir() || module.with_extension("rs").is_file();
    }
    sources(&directory).contains(&format!("fn {function}()"))
}

/// All Rust sources below a directory as one text.
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
