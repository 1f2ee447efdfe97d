//! Tests that need no privileges.

mod proposal;
