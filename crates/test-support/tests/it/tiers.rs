//! `.config/nightly` names tests that exist.

use std::path::Path;

use test_support::tiers;

/// A line without a matching test would silently move a renamed test into the first tier.
#[test]
fn nightly_tests_exist() {
    let top = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut wrong = tiers::nightly(top);
    wrong.retain(|(binary, test)| !tiers::exists(top, binary, test));
    assert!(wrong.is_empty(), "no such test: {wrong:#?}");
}
