//! Reads the tables of ebtables-legacy, which only another kernel has, in a QEMU guest with a stock
//! Debian kernel.

use crate::qemu;

use std::process::Command;

use netstate::netfilter::ebtables;
use qemu::Guest;

/// The test that the guest runs, in this program: it performs the part inside.
const INSIDE: &str = "guest::tables_of_ebtables_are_reported_where_they_may_exist";

fn tables_come_and_go_with_their_modules() {
    let modprobe = |arguments: &[&str]| {
        let output = Command::new("modprobe").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    assert_eq!(ebtables(), Vec::<String>::new());
    for (module, expected) in [
        ("ebtable_filter", vec!["filter"]),
        ("ebtable_broute", vec!["filter", "broute"]),
        ("ebtable_nat", vec!["filter", "nat", "broute"]),
    ] {
        modprobe(&[module]);
        let seen = ebtables();
        let tables = seen.iter().map(|what| {
            what.strip_suffix(" (module loaded)")
                .and_then(|table| table.strip_prefix("ebtables-legacy "))
                .unwrap()
        });
        assert_eq!(tables.collect::<Vec<_>>(), expected);
    }
    modprobe(&["-r", "ebtable_filter", "ebtable_nat", "ebtable_broute"]);
    assert_eq!(ebtables(), Vec::<String>::new());
    println!("told");
}

#[test]
fn tables_of_ebtables_are_reported_where_they_may_exist() {
    if qemu::is_inside() {
        return tables_come_and_go_with_their_modules();
    }
    let guest = test_support::require!(Guest::find());
    let program = std::env::current_exe().unwrap();
    let output = guest.run(&program, &["--exact", INSIDE, "--nocapture"]);
    assert!(output.stdout.contains("told"), "{output:#?}");
}
