//! The BPF maps: they mirror the plan, and programs never use them half-written.
//!
//! The generation becomes odd before the first entry changes, and even after the last one. While it
//! is odd, every packet takes the slow path. An entry that the kernel rejects (map full) is left
//! out, so its packets take the slow path, too. A single address can be withdrawn and published
//! while all others stay in force.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::abi::HOOK_LISTS;
use super::clock::now;
use super::{Counters, Programs, abi};
use crate::lock::lock;
use crate::model::{DeviceId, EntryKey, Fdb, Plan};
use crate::{Error, Result};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// A map and the entries written to it.
struct Mirrored {
    map: MapHandle,
    entries: Entries,
    /// Entries that did not fit.
    left_out: Entries,
}

impl Mirrored {
    /// Makes the entries equal to `wanted`. Unchanged entries keep the timestamps that programs
    /// wrote.
    fn set(&mut self, wanted: Entries) -> Result<()> {
        let gone = |key: &&Vec<u8>| !wanted.contains_key(*key);
        let gone: Vec<Vec<u8>> = self.entries.keys().filter(gone).cloned().collect();
        for key in gone {
            self.remove(&key)?;
        }
        self.left_out.clear();
        for (key, value) in wanted {
            if self.entries.get(&key) != Some(&value) {
                self.put(key, value)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        self.left_out.remove(key);
        if self.entries.remove(key).is_none() {
            return Ok(());
        }
        match self.map.delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                // A stale entry must not be published.
                Err(bpf("delete from", &self.map, &error))
            }
            // Already absent.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        match self.map.update(&key, &value, MapFlags::ANY) {
            Ok(()) => drop(self.entries.insert(key, value)),
            // An outdated value must not be published.
            Err(error) if self.entries.contains_key(&key) => {
                return Err(bpf("update", &self.map, &error));
            }
            // The map is full: this entry's packets take the slow path.
            Err(_) => drop(self.left_out.insert(key, value)),
        }
        Ok(())
    }

    /// Writes left-out entries while there is room.
    fn fill(&mut self) -> Result<()> {
        while let Some((key, value)) = self.left_out.pop_first() {
            let before = self.entries.len();
            self.put(key, value)?;
            // Still no room.
            if self.entries.len() == before {
                break;
            }
        }
        Ok(())
    }
}

fn bpf(operation: &'static str, map: &MapHandle, error: &libbpf_rs::Error) -> Error {
    let object = format!("map {}", map.name().to_string_lossy());
    Error::Bpf { operation, object, problem: error.to_string() }
}

pub struct Maps {
    state: MapHandle,
    ports: Mirrored,
    vteps: Mirrored,
    fdb: Mirrored,
    sources: Mirrored,
    counters: Arc<Mutex<Counters>>,
    generation: u64,
    refresh: u64,
    verdicts: u64,
    rules: u32,
    hooks: [u64; HOOK_LISTS],
}

impl Maps {
    pub(crate) fn of(programs: &Programs, counters: Arc<Mutex<Counters>>) -> Result<Maps> {
        let mirrored = |name, size| {
            let map = programs.map(name, size)?;
            Ok::<_, Error>(Mirrored { map, entries: Entries::new(), left_out: Entries::new() })
        };
        Ok(Maps {
            state: programs.map("state", size_of::<abi::RawState>())?,
            ports: mirrored("ports", size_of::<abi::RawPort>())?,
            vteps: mirrored("vteps", size_of::<abi::RawVtep>())?,
            fdb: mirrored("fdb", size_of::<abi::RawFdb>())?,
            sources: mirrored("sources", size_of::<abi::RawSource>())?,
            counters,
            // Odd: nothing may be accelerated yet.
            generation: 1,
            refresh: 0,
            verdicts: 0,
            rules: 0,
            hooks: [0; HOOK_LISTS],
        })
    }

    /// Sends all packets to the slow path until [`Maps::publish`].
    pub fn withdraw(&mut self) -> Result<()> {
        self.generation |= 1;
        self.beat()
    }

    /// Writes a plan and puts it into force.
    ///
    /// # Errors
    /// If the kernel refuses. All packets take the slow path then.
    pub fn publish(&mut self, plan: &Plan) -> Result<()> {
        self.withdraw()?;
        let counters = self.counters.clone();
        let mut counters = lock(&counters);
        counters.give(&plan.ports.keys().copied().collect(), &plan.vxlan_devices())?;
        let ports = plan.ports.iter().map(|(port, domain)| {
            let value = abi::port(domain, counters.slot(*port));
            (abi::bytes(&abi::device(*port)), abi::bytes(&value))
        });
        self.ports.set(ports.collect())?;
        let vteps = plan.vteps.iter().map(|(key, vtep)| {
            let value = abi::vtep(vtep, counters.slot(vtep.device()));
            (abi::bytes(&abi::vtep_key(key)), abi::bytes(&value))
        });
        self.vteps.set(vteps.collect())?;
        self.fdb.set(plan.fdb.iter().map(|(key, entry)| fdb(&counters, *key, entry)).collect())?;
        let sources = plan.fdb.iter();
        self.sources.set(
            sources.filter_map(|(key, entry)| source(&counters, plan, *key, entry)).collect(),
        )?;
        self.refresh = plan.refresh.as_nanos().try_into().unwrap_or(u64::MAX);
        self.generation += 1;
        self.beat()
    }

    /// Withdraws one address: its packets take the slow path, all others stay accelerated. `plan`
    /// is the plan in the maps.
    pub(crate) fn withdraw_entry(&mut self, plan: &Plan, key: EntryKey) -> Result<()> {
        let (domain, mac) = key;
        self.fdb.remove(&abi::bytes(&abi::mac_key(domain, mac)))?;
        if let Some(Fdb::Local { port, .. }) = plan.fdb.get(&key) {
            let port = DeviceId { index: *port, ..domain };
            self.sources.remove(&abi::bytes(&abi::mac_key(port, mac)))?;
        }
        Ok(())
    }

    /// Writes the plan's entry for a withdrawn address.
    pub(crate) fn publish_entry(&mut self, plan: &Plan, key: EntryKey) -> Result<()> {
        let Some(entry) = plan.fdb.get(&key) else { return Ok(()) };
        let counters = self.counters.clone();
        let counters = lock(&counters);
        let (bytes, value) = fdb(&counters, key, entry);
        self.fdb.put(bytes, value)?;
        if let Some((bytes, value)) = source(&counters, plan, key, entry) {
            self.sources.put(bytes, value)?;
        }
        Ok(())
    }

    /// Writes left-out entries if removed ones have made room.
    pub(crate) fn fill(&mut self) -> Result<()> {
        self.fdb.fill()?;
        self.sources.fill()
    }

    /// Writes the heartbeat.
    pub fn beat(&self) -> Result<()> {
        let state = abi::RawState {
            heartbeat: now(),
            generation: self.generation,
            refresh: self.refresh,
            verdicts: self.verdicts,
            rules: self.rules,
            padding: 0,
            hooks: self.hooks,
        };
        self.state
            .update(&0u32.to_ne_bytes(), &abi::bytes(&state), MapFlags::ANY)
            .map_err(|e| bpf("update", &self.state, &e))
    }

    /// Frees the counters of a namespace's devices, because its number will be reused.
    pub(crate) fn forget(&mut self, netns: u16) {
        if let Err(error) = lock(&self.counters).forget(netns) {
            tracing::warn!("cannot free counters of a removed sandbox: {error}");
        }
    }

    /// Voids verdicts on flows with another number. 0: gives none. Effective with the next
    /// heartbeat or plan.
    pub(crate) fn set_verdicts(&mut self, number: u64) {
        self.verdicts = number;
    }

    /// Sends all packets to the slow path once the kernel's rules have another generation. 0: no
    /// check. Effective with the next heartbeat or plan.
    pub(crate) fn set_rules(&mut self, generation: u32) {
        self.rules = generation;
    }

    /// Sends all packets to the slow path once other lists of functions are at netfilter's hooks.
    /// Effective with the next heartbeat or plan.
    pub(crate) fn set_hooks(&mut self, lists: [u64; HOOK_LISTS]) {
        self.hooks = lists;
    }

    /// Returns the generation. It is odd while packets take the slow path.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of forwarding entries in the map.
    pub fn entries(&self) -> usize {
        self.fdb.entries.len()
    }

    /// Number of entries of all maps that did not fit.
    pub fn left_out(&self) -> usize {
        let all = [&self.ports, &self.vteps, &self.fdb, &self.sources];
        all.iter().map(|map| map.left_out.len()).sum()
    }
}

/// Key and value for the map of forwarding entries.
fn fdb(counters: &Counters, (domain, mac): EntryKey, entry: &Fdb) -> (Vec<u8>, Vec<u8>) {
    let slot = entry.device(domain).map_or(0, |device| counters.slot(device));
    (abi::bytes(&abi::mac_key(domain, mac)), abi::bytes(&abi::fdb(entry, slot)))
}

/// Key and value for the map of sources, if the address is behind a port.
fn source(
    counters: &Counters,
    plan: &Plan,
    (domain, mac): EntryKey,
    entry: &Fdb,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let Fdb::Local { port, .. } = entry else { return None };
    let port = DeviceId { index: *port, ..domain };
    let source = abi::source(plan.ports.get(&port)?, counters.slot(port));
    Some((abi::bytes(&abi::mac_key(port, mac)), abi::bytes(&source)))
}
