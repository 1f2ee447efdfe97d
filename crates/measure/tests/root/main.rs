//! Tests that need root, each in namespaces of its own.

mod drops;
mod load_percent;
mod pair;
mod path_probe;
mod planned;
mod remote;
mod sampler;
