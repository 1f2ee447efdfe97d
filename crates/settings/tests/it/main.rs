//! Tests that need no rights.

mod proposal;
