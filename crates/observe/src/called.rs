//! Names of namespaces, reasons and functions on this machine.

use std::collections::BTreeMap;

use crate::places::Places;
use crate::record::Names;
use crate::tracer::Tracer;

/// Looks up names on this machine.
#[derive(Debug, Clone, Copy)]
pub struct Called<'a> {
    /// Namespaces of the machine.
    pub places: &'a Places,
    /// Names of hosts of test beds, by the inode of their namespaces.
    pub hosts: &'a BTreeMap<u32, String>,
    /// Resolves the kernel's reasons and functions.
    pub tracer: &'a Tracer,
}

impl Names for Called<'_> {
    fn namespace(&self, netns: Option<u32>) -> String {
        let host = netns.and_then(|inode| self.hosts.get(&inode));
        host.cloned().unwrap_or_else(|| self.places.name(netns))
    }

    fn reason(&self, reason: u32) -> String {
        self.tracer.reason(reason)
    }

    fn function(&self, location: u64) -> Option<String> {
        self.tracer.function(location)
    }
}
