//! Reports of a made-up run, compared with reviewed files. `UPDATE_EXPECTED=1 cargo test -p
//! overlane-report` rewrites them.

use crate::example;

use std::path::PathBuf;

use report::Style;

const PLAIN: Style = Style { colour: false, width: 80 };

fn compare(name: &str, got: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/expected")).join(name);
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (i, (got, expected)) in got.lines().zip(expected.lines()).enumerate() {
        assert_eq!(got, expected, "{} line {}", path.display(), i + 1);
    }
    assert_eq!(got, expected, "{}", path.display());
}

#[test]
fn text_is_as_expected() {
    compare("lab.txt", &report::text(&example::results(), PLAIN));
}

#[test]
fn markdown_is_as_expected() {
    compare("lab.md", &report::markdown(&example::results()));
}

#[test]
fn csv_is_as_expected() {
    compare("lab.csv", &report::csv(&example::results()));
}

#[test]
fn every_dimension_is_as_expected() {
    compare("deep.txt", &report::text(&example::deep(), PLAIN));
    compare("deep.md", &report::markdown(&example::deep()));
    compare("deep.csv", &report::csv(&example::deep()));
}
