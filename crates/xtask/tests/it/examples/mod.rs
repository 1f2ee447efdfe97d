//! Checks the files in `examples/` against the formats of the programs that read them.

mod accel;
mod api;
mod kubernetes;
mod metrics;
