//! Tests that need no privileges.

mod remote_fuzz;
