//! Tests that need root, each in namespaces of its own.

mod browser;
#[path = "../it/example/mod.rs"]
mod example;
