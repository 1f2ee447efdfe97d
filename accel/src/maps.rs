//! The BPF maps: kept as the plan has them, and never seen half-done.
//!
//! Before the first entry changes the generation becomes odd, after the last one
//! even: meanwhile every packet takes the slow path. An entry that the kernel
//! would not take (a full map) is left out, which means the slow path too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};

use crate::abi::{self, Fdb, Place};
use crate::bpf::Programs;
use crate::counters::Counters;
use crate::plan::Plan;
use crate::{Error, Result, lock};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// One map and what was written into it.
struct Mirrored {
    map: MapHandle,
    entries: Entries,
}

impl Mirrored {
    /// Brings it to `wanted`; entries that stay the same keep what the programs
    /// noted in them. Gives how many could not be written.
    fn set(&mut self, wanted: Entries) -> Result<usize> {
        for key in self.entries.keys().filter(|key| !wanted.contains_key(*key)) {
            match self.map.delete(key) {
                Ok(()) => {}
                Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {}
                // A stale entry must not be published.
                Err(error) => return Err(bpf("delete from", &self.map, &error)),
            }
        }
        let mut written = Entries::new();
        let mut left_out = 0;
        for (key, value) in wanted {
            if self.entries.get(&key) != Some(&value)
                && let Err(error) = self.map.update(&key, &value, MapFlags::ANY)
            {
                if self.entries.contains_key(&key) {
                    return Err(bpf("update", &self.map, &error));
                }
                left_out += 1;
                continue;
            }
            written.insert(key, value);
        }
        self.entries = written;
        Ok(left_out)
    }
}

fn bpf(operation: &'static str, map: &MapHandle, error: &libbpf_rs::Error) -> Error {
    let object = format!("map {}", map.name().to_string_lossy());
    Error::Bpf { operation, object, problem: error.to_string() }
}

/// All maps.
pub struct Maps {
    state: MapHandle,
    ports: Mirrored,
    vteps: Mirrored,
    fdb: Mirrored,
    sources: Mirrored,
    counters: Arc<Mutex<Counters>>,
    generation: u64,
    refresh: u64,
}

impl Maps {
    pub(crate) fn of(programs: &Programs, counters: Arc<Mutex<Counters>>) -> Result<Maps> {
        let mirrored = |name, size| {
            Ok::<_, Error>(Mirrored { map: programs.map(name, size)?, entries: Entries::new() })
        };
        Ok(Maps {
            state: programs.map("state", abi::STATE)?,
            ports: mirrored("ports", abi::PORT)?,
            vteps: mirrored("vteps", abi::VTEP)?,
            fdb: mirrored("fdb", abi::FDB)?,
            sources: mirrored("sources", abi::SOURCE)?,
            counters,
            // Odd: nothing may be taken yet.
            generation: 1,
            refresh: 0,
        })
    }

    /// Sends every packet by the slow path until [`Maps::publish`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn withdraw(&mut self) -> Result<()> {
        self.generation |= 1;
        self.beat()
    }

    /// Writes a plan and lets packets be taken by it. Gives how many entries did
    /// not fit.
    ///
    /// # Errors
    /// When the kernel refuses; every packet takes the slow path then.
    pub fn publish(&mut self, plan: &Plan) -> Result<usize> {
        self.withdraw()?;
        let mut left_out = 0;
        let counters = self.counters.clone();
        let mut counters = lock(&counters);
        counters.give(&plan.ports.keys().copied().collect(), &plan.vxlan_devices())?;
        let ports = plan.ports.iter();
        left_out += self.ports.set(
            ports
                .map(|(port, domain)| {
                    (port.bytes().to_vec(), abi::port(domain, counters.slot(*port)).to_vec())
                })
                .collect(),
        )?;
        let vteps = plan.vteps.iter();
        left_out += self.vteps.set(
            vteps
                .map(|(key, vtep)| {
                    (key.bytes().to_vec(), vtep.bytes(counters.slot(vtep.device())).to_vec())
                })
                .collect(),
        )?;
        let fdb = plan.fdb.iter();
        left_out += self.fdb.set(
            fdb.map(|((domain, mac), entry)| {
                let slot = entry.device(*domain).map_or(0, |device| counters.slot(device));
                (abi::mac_key(*domain, *mac).to_vec(), entry.bytes(slot).to_vec())
            })
            .collect(),
        )?;
        let sources = plan.fdb.iter().filter_map(|((domain, mac), entry)| match entry {
            Fdb::Local { port, .. } => {
                let port = Place { index: *port, ..*domain };
                let source = abi::source(plan.ports.get(&port)?, counters.slot(port));
                Some((abi::mac_key(port, *mac).to_vec(), source.to_vec()))
            }
            Fdb::Remote(_) | Fdb::Own { .. } => None,
        });
        left_out += self.sources.set(sources.collect())?;
        self.refresh = plan.refresh.as_nanos().try_into().unwrap_or(u64::MAX);
        self.generation += 1;
        self.beat()?;
        Ok(left_out)
    }

    /// Writes the heartbeat.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn beat(&self) -> Result<()> {
        let state = abi::state(now(), self.generation, self.refresh);
        self.state
            .update(&0u32.to_ne_bytes(), &state, MapFlags::ANY)
            .map_err(|e| bpf("update", &self.state, &e))
    }

    /// The generation; odd while packets take the slow path.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Forwarding entries written.
    pub fn entries(&self) -> usize {
        self.fdb.entries.len()
    }
}

/// `CLOCK_MONOTONIC`, as `bpf_ktime_get_ns`, ns.
fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs()
    })
}
