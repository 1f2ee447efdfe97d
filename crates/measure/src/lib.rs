//! Measuring: plans, samplers, the proof of the path, the run that combines them, and measuring
//! between two machines ([`remote`]). Nothing here prints or builds a network.

#![forbid(unsafe_code)]

mod calibrate;
mod confirmed_probe;
mod drop_point;
mod giving_way;
pub mod guest;
pub mod impact;
mod in_force;
pub mod kept;
pub mod observed;
pub mod observer;
pub mod path;
pub mod path_netns;
pub mod path_probe;
pub mod path_under_test;
pub mod plan;
pub mod probes;
mod ratios;
pub mod remote;
mod reported;
pub mod run;
mod sample;
pub mod sampler;
mod summary;
mod void;

pub use calibrate::offered_rate;
