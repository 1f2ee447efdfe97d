//! The page of hooks matches the sources: each named test exists.

use std::path::{Path, PathBuf};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/reference/accel-hooks.md");
/// Directories with tests.
const SOURCES: [&str; 3] = ["src", "tests", "../netstate/src"];

/// Path without extension, and text of each file.
fn sources(directory: &Path, all: &mut Vec<(PathBuf, String)>) {
    for entry in directory.read_dir().unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push((path.with_extension(""), text));
        }
    }
}

/// Whether a file has a test of this name, not just a function.
fn has_test(text: &str, name: &str) -> bool {
    let Some(at) = text.find(&format!("fn {name}(")) else { return false };
    // The attributes are between the last blank line and the function.
    let before = text[..at].rsplit("\n\n").next().unwrap();
    before.contains("#[test]") && !before.contains("#[ignore")
}

/// Whether a test is where its path says: `hook::tests::name` in `hook.rs` or in
/// `hook/tests.rs`.
fn is_there(all: &[(PathBuf, String)], name: &str) -> bool {
    let (module, test) = name.rsplit_once("::").unwrap();
    let module = module.replace("::", "/");
    let inside = module.strip_suffix("/tests").unwrap_or(&module);
    let of = |path: &Path| path.ends_with(&module) || path.ends_with(inside);
    all.iter().any(|(path, text)| of(path) && has_test(text, test))
}

#[test]
fn a_test_is_found_by_its_module_and_not_by_its_name_alone() {
    let text = "#[test]\nfn one() {}\n\nfn two() {}\n\n#[test]\n#[ignore]\nfn three() {}\n";
    let all = [("src/hook".into(), text.to_owned()), ("src/a/tests".into(), text.to_owned())];
    for (name, there) in [
        ("hook::one", true),
        ("hook::tests::one", true),
        ("a::tests::one", true),
        ("b::tests::one", false),
        ("ook::one", false),
        ("hook::two", false),
        ("hook::three", false),
        ("hook::four", false),
    ] {
        assert_eq!(is_there(&all, name), there, "{name}");
    }
}

#[test]
fn each_test_that_the_page_names_is_there() {
    let mut all = Vec::new();
    for directory in SOURCES {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(directory), &mut all);
    }
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut rows = 0;
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.contains("---")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [feature, outcome, tests] = cells[..] else { panic!("three cells: {line}") };
        if feature.trim() == "Kernel feature" {
            continue;
        }
        rows += 1;
        let outcomes = ["identical", "refused", "not on this path", "not visible"];
        assert!(outcomes.iter().any(|known| outcome.trim().starts_with(known)), "{line}");
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {line}");
        for name in named {
            assert!(is_there(&all, name), "no such test: {name}");
        }
    }
    assert!(rows > 40, "only {rows} rows");
}
