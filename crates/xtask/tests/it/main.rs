//! Tests that need no rights.

mod schemas;
