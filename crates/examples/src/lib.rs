//! This crate has only tests. They check the files in `examples/` against the formats of the
//! programs that read them.

#![forbid(unsafe_code)]
