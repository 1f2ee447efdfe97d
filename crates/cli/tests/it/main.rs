//! Tests that need no rights.

mod documents;
#[path = "../../../report/tests/it/example/mod.rs"]
mod example;
mod foreign_text;
