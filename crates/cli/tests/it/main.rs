//! Tests that need no privileges.

mod capabilities;
mod documents;
#[path = "../../../report/tests/it/example/mod.rs"]
mod example;
mod files;
mod foreign_text;
#[path = "../common/launch.rs"]
mod launch;
mod overview;
mod pandas;
#[path = "../common/promtool.rs"]
mod promtool;
mod report;
#[path = "../common/schema.rs"]
mod schema;
