//! Tests that need no rights.

mod modules;
