//! Tables of the older ebtables (`CONFIG_BRIDGE_NF_EBTABLES_LEGACY`), which no file lists.
//!
//! Asking for one (`EBT_SO_GET_INFO`) makes the kernel create it in the namespace. A
//! table's module counts as users those that have rules, but not one that only drops by
//! its policy. What is left to go by is that the module is there.

use std::path::Path;
use std::sync::OnceLock;

const TABLES: [&str; 3] = ["filter", "nat", "broute"];

/// Tables of ebtables-legacy that a namespace may have. A table counts when its module is
/// loaded or part of the kernel, whichever namespace it was loaded for.
pub fn ebtables() -> Vec<String> {
    let is_there =
        |table: &&str| Path::new(&format!("/sys/module/ebtable_{table}")).exists() || is_built_in();
    let there = TABLES.into_iter().filter(is_there);
    there.map(|table| format!("ebtables-legacy {table}, perhaps: its module is loaded")).collect()
}

/// Whether the tables are no modules.
fn is_built_in() -> bool {
    static BUILT_IN: OnceLock<bool> = OnceLock::new();
    *BUILT_IN.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let list = format!("/lib/modules/{}/modules.builtin", release.trim());
        std::fs::read_to_string(list).is_ok_and(|list| list.contains("/ebtable_filter.ko"))
    })
}
