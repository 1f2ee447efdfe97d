//! Counter differences on a path between two readings.

use std::collections::BTreeMap;

use netstate::{Counters, Metered};

use crate::sampler::{Dropped, NamespaceSample};

/// Counter differences between two readings.
#[derive(Debug)]
pub struct Observed {
    /// Place → device → counters.
    pub devices: BTreeMap<String, BTreeMap<String, Counters>>,
    /// Protocol counters of every place, in the subject's order.
    pub namespaces: Vec<NamespaceSample>,
    /// Drops by the kernel in the subject's places, with the place's name; empty if BPF is not
    /// allowed.
    pub drops: Vec<(String, Dropped)>,
    /// Packets dropped by user-space programs on the path, by program.
    pub programs: Vec<(String, u64)>,
    /// Packets that stages carried and left, and that bypassed devices are excused, by place and
    /// name.
    pub metered: BTreeMap<(String, String), Metered>,
}

impl Observed {
    pub fn device(&self, host: &str, device: &str) -> Option<&Counters> {
        self.devices.get(host)?.get(device)
    }

    /// Returns the packets that a stage carried, or that a bypassed device is excused.
    pub fn metered(&self, host: &str, name: &str) -> Option<&Metered> {
        self.metered.get(&(host.to_owned(), name.to_owned()))
    }

    /// Returns the protocol counters of a place.
    pub fn namespace(&self, host: &str) -> Option<&NamespaceSample> {
        self.namespaces.iter().find(|namespace| namespace.label == host)
    }
}
