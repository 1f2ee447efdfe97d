//! Tests that need no privileges.

mod modules;
