//! Tests that need no privileges.

mod limits;
mod results_schema;
mod stats_coverage;
