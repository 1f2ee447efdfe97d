//! Tests that need root, each in namespaces of its own.

mod driver;
mod engine;
