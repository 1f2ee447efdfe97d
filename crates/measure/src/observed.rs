//! What happened on a path between two readings.

use std::collections::BTreeMap;

use netstate::{Counters, Metered};

use crate::sampler::{Dropped, NamespaceSample};

/// What happened between two readings.
#[derive(Debug)]
pub struct Observed {
    /// Place → device → counters.
    pub devices: BTreeMap<String, BTreeMap<String, Counters>>,
    /// Protocol counters of every place, in the subject's order.
    pub namespaces: Vec<NamespaceSample>,
    /// What the kernel dropped in the subject's places, with the place's name;
    /// empty where BPF is not allowed.
    pub drops: Vec<(String, Dropped)>,
    /// What programs on the path dropped in user space, by their names.
    pub programs: Vec<(String, u64)>,
    /// What stages carried and left, and what bypassed devices are excused, by
    /// place and name.
    pub metered: BTreeMap<(String, String), Metered>,
}

impl Observed {
    /// Counters of a device.
    pub fn device(&self, host: &str, device: &str) -> Option<&Counters> {
        self.devices.get(host)?.get(device)
    }

    /// What a stage carried, or a bypassed device is excused.
    pub fn metered(&self, host: &str, name: &str) -> Option<&Metered> {
        self.metered.get(&(host.to_owned(), name.to_owned()))
    }

    /// Protocol counters of a place.
    pub fn namespace(&self, host: &str) -> Option<&NamespaceSample> {
        self.namespaces.iter().find(|namespace| namespace.label == host)
    }
}
