//! Tests that need root, each in namespaces of its own.

mod address;
mod setting;
