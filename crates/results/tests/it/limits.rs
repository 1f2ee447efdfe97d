//! Results files made to harm their reader.

use results::{LIMITS, MOST_CELLS, ReadError, Results};
use serde_json::{Value, json};
use test_support::allocations::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: u64 = 1 << 20;

/// Error for a text, and the most memory held meanwhile beside the text itself.
#[track_caller]
fn refused(text: &[u8], words: &str) {
    let before = Counting::held();
    Counting::forget_peak();
    let error = Results::from_json(text).unwrap_err().to_string();
    let most = Counting::peak() - before;
    assert!(error.contains(words), "no {words:?} in {error:.300}");
    assert!(error.len() < 1000, "{} bytes", error.len());
    assert!(most < 16 * MIB, "{} MiB for {} bytes", most / MIB, text.len());
}

/// One test, because the peak covers all threads.
#[test]
fn large_deep_and_long_things_are_refused_before_they_are_built() {
    let path = std::path::Path::new("/dev/zero");
    Counting::forget_peak();
    let error = Results::read(path).unwrap_err();
    assert!(matches!(error, ReadError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("/dev/zero"), "{error}");
    assert!(Counting::peak() < 2 * LIMITS.bytes + 16 * MIB, "{}", Counting::peak() / MIB);

    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    refused(deep(1_000_000).as_bytes(), "more than 32 nested levels");
    refused(
        format!("{{\"overlane\": \"{}\"}}", "a".repeat(1 << 20)).as_bytes(),
        "the string at byte",
    );
    refused(format!("{{\"seed\": {}}}", "1".repeat(1 << 20)).as_bytes(), "the number at byte");
    let strings = format!("{{\"warnings\": [{}\"\"]}}", "\"\",".repeat(15_000_000));
    refused(strings.as_bytes(), "of memory");
    let cells = format!("{{\"cells\": [{}{{}}]}}", "{},".repeat(25_000_000));
    refused(cells.as_bytes(), "of memory");
    for number in ["NaN", "Infinity", "1e999", "-", "0x1", "1.", "+1"] {
        refused(
            format!("{{\"schema\": \"overlane.results/3\", \"complete\": {number}}}").as_bytes(),
            "",
        );
    }
}

/// A million cells take some hundred megabytes of text: their number is checked early, before they
/// are built.
#[test]
fn cells_and_blocks_are_counted() {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/results.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    assert_eq!(schema.pointer("/properties/cells/maxItems"), Some(&json!(MOST_CELLS)));
    for number in ["plan/properties/max_blocks", "confidence_goal/properties/looks/items"] {
        let most = schema.pointer(&format!("/$defs/{number}/maximum"));
        assert_eq!(most, Some(&json!(10_000)), "{number}");
    }
}
