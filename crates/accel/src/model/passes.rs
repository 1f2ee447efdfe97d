//! What rules say of all remote VTEPs at once, found out once.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ruleset::Ruleset;

use crate::lock::lock;

/// Index of a NIC, address of a VXLAN device and its port.
type Key = (u32, IpAddr, u16);

/// Whether rules let a tunnel's datagrams pass whatever the remote VTEP. Found out from a
/// snapshot, and no part of it: it neither makes two of them different nor is copied.
#[derive(Debug, Default)]
pub struct Passes(Mutex<(Arc<Ruleset>, BTreeMap<Key, bool>)>);

impl Passes {
    /// What is known of these rules, or what `find` says.
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
