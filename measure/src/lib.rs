//! Measuring: the load engine, the samplers, plans, statistics and the schema
//! of the results. Nothing here prints, and nothing here builds a network.

#![forbid(unsafe_code)]

mod calibrate;
pub mod driver;
mod drop_point;
pub mod engine;
pub mod path;
pub mod plan;
pub mod remote;
pub mod results;
pub mod run;
mod sample;
pub mod sampler;
pub mod stats;
pub mod subject;
mod summary;
pub mod verdict;
