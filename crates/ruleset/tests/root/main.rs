//! Tests that need root, each in namespaces of its own.

mod common;
mod differential;
mod recorded;
mod renew;
mod rules_page;
