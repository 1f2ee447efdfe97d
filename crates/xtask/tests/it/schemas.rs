//! The committed schemas match the types.

use xtask::schema::all;

#[test]
fn committed_schemas_are_those_derived() {
    for file in all() {
        let kept = std::fs::read_to_string(file.path()).unwrap_or_default();
        assert!(
            kept == file.text(),
            "schema/{}.schema.json does not match its types: run `make schemas`",
            file.name
        );
    }
}
