//! Tests that need no rights.

mod remote_fuzz;
