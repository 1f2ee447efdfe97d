//! Tables of ebtables-legacy (`CONFIG_BRIDGE_NF_EBTABLES_LEGACY`), which no file lists.
//!
//! Querying a table (`EBT_SO_GET_INFO`) makes the kernel create it in the namespace. A table's
//! module has a use count for tables with rules, but not for a table that only drops by policy. So
//! only the presence of the module can be checked.

use std::path::Path;
use std::sync::OnceLock;

const TABLES: [&str; 3] = ["filter", "nat", "broute"];

/// Lists the ebtables-legacy tables that a namespace may have: those whose module is loaded or
/// built in, for any namespace.
pub fn ebtables() -> Vec<String> {
    let is_there =
        |table: &&str| Path::new(&format!("/sys/module/ebtable_{table}")).exists() || is_built_in();
    let there = TABLES.into_iter().filter(is_there);
    there.map(|table| format!("ebtables-legacy {table} (module loaded)")).collect()
}

/// Whether the tables are built in.
fn is_built_in() -> bool {
    static BUILT_IN: OnceLock<bool> = OnceLock::new();
    *BUILT_IN.get_or_init(|| {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let list = format!("/lib/modules/{}/modules.builtin", release.trim());
        std::fs::read_to_string(list).is_ok_and(|list| list.contains("/ebtable_filter.ko"))
    })
}
