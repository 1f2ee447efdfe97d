//! A cache: whether rules accept a tunnel's packets for every remote VTEP.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ruleset::Ruleset;

use crate::lock::lock;

/// Interface index of a NIC, local address of a VXLAN device, UDP port.
type Key = (u32, IpAddr, u16);

/// Whether rules accept a tunnel's packets for every remote VTEP. The cache is derived from a
/// snapshot and does not belong to it: comparison ignores it, and a clone starts empty.
#[derive(Debug, Default)]
pub struct Passes(Mutex<(Arc<Ruleset>, BTreeMap<Key, bool>)>);

impl Passes {
    /// Returns the cached result for these rules, or computes it with `find`.
    pub(crate) fn get(&self, rules: &Arc<Ruleset>, key: Key, find: impl FnOnce() -> bool) -> bool {
        let mut known = lock(&self.0);
        if !Arc::ptr_eq(&known.0, rules) {
            *known = (rules.clone(), BTreeMap::new());
        }
        *known.1.entry(key).or_insert_with(find)
    }
}

impl PartialEq for Passes {
    fn eq(&self, _: &Passes) -> bool {
        true
    }
}

impl Eq for Passes {}

impl Clone for Passes {
    fn clone(&self) -> Passes {
        Passes::default()
    }
}
