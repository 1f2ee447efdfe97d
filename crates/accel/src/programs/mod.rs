//! The BPF programs: loading, attaching, maps and counters.

mod abi;
mod clock;
mod counters;
mod flows;
mod judged;
mod labelling;
mod links;
mod look;
mod maps;
mod object;
mod sandboxes;
#[cfg(test)]
mod stack;
mod windows;

pub(crate) use abi::STALE_MS;
pub(crate) use counters::Counters;
pub(crate) use flows::{Admitted, FlowKey, FlowMaps, FlowStore};
pub(crate) use labelling::{LabellingReader, Symbols};
pub(crate) use links::Listing;
pub(crate) use look::{Class, CountKey, TrafficCounter, TrafficCounts};
pub(crate) use maps::Maps;
pub use object::DecapGso;
pub(crate) use object::{Programs, Role};
pub(crate) use sandboxes::SandboxPrograms;
