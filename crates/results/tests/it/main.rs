//! Tests that need no rights.

mod limits;
mod results_schema;
mod stats_coverage;
