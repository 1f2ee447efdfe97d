//! Packet counters by reason, per tenant's device and per VXLAN device.
//!
//! The programs count in a device's slot: packets from a tenant at the tenant's device, packets
//! from the wire at the VXLAN device, and accelerated packets at the output device as well. Devices
//! get slots when they are planned and keep them, because the kernel does not reuse an index soon.
//! When no slot is free, slots of removed devices are reused; their counts stay in the sum.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::Programs;
use super::abi::{RawCount, SLOTS};
use crate::model::{Counted, DeviceId, Reason};
use crate::{Error, Result};

/// Slot of devices without their own.
const NONE: u32 = 0;

#[derive(Debug, Clone, Copy)]
struct Slot {
    number: u32,
    /// A tenant's device rather than a VXLAN device.
    port: bool,
}

/// The map of counters and the owners of its slots. Clones share the map: a reader of many counters
/// clones first, so that it never blocks the assignment of slots.
#[derive(Clone)]
pub(crate) struct Counters {
    map: Arc<MapHandle>,
    capacity: u32,
    slots: BTreeMap<DeviceId, Slot>,
    free: Vec<u32>,
    /// Number of slots that were ever assigned.
    used: u32,
    /// Counts of slots that have been reused.
    past: BTreeMap<Reason, Counted>,
}

type Counts = BTreeMap<Reason, Counted>;
/// Counts by the reasons' words.
type Words = BTreeMap<String, Counted>;

impl Counters {
    pub(crate) fn of(programs: &Programs) -> Result<Counters> {
        let map = programs.map("counts", size_of::<RawCount>())?;
        let capacity = SLOTS;
        Ok(Counters {
            map: Arc::new(map),
            capacity,
            slots: BTreeMap::new(),
            free: Vec::new(),
            used: NONE + 1,
            past: Counts::new(),
        })
    }

    /// Assigns slots to devices that have none.
    pub(crate) fn give(
        &mut self,
        ports: &BTreeSet<DeviceId>,
        devices: &BTreeSet<DeviceId>,
    ) -> Result<()> {
        let wanted = |of: &BTreeSet<DeviceId>, port| {
            of.iter().map(move |id| (*id, port)).collect::<Vec<_>>()
        };
        for (id, port) in [wanted(ports, true), wanted(devices, false)].concat() {
            if self.slots.contains_key(&id) {
                continue;
            }
            if self.free.is_empty() && self.used == self.capacity {
                self.take_back(|id| ports.contains(id) || devices.contains(id))?;
            }
            let number = match self.free.pop() {
                Some(number) => number,
                None if self.used < self.capacity => {
                    self.used += 1;
                    self.used - 1
                }
                // All devices without a slot share slot 0.
                None => return Ok(()),
            };
            self.slots.insert(id, Slot { number, port });
        }
        Ok(())
    }

    /// Frees the slots of a namespace's devices. Their counts stay in the sum.
    pub(crate) fn forget(&mut self, netns: u16) -> Result<()> {
        self.take_back(|id| id.netns != netns)
    }

    /// Frees the slots of devices that are not kept.
    fn take_back(&mut self, kept: impl Fn(&DeviceId) -> bool) -> Result<()> {
        let gone: Vec<Slot> =
            self.slots.iter().filter(|(id, _)| !kept(id)).map(|(_, slot)| *slot).collect();
        for slot in gone {
            let counted = primary(self.read(slot.number), slot.port);
            // Keep the counts in the total before clearing the slot.
            add(&mut self.past, counted);
            let zeros =
                vec![vec![0; size_of::<RawCount>()]; libbpf_rs::num_possible_cpus().unwrap_or(1)];
            for reason in 0..Reason::ALL.len() as u32 {
                self.map.update_percpu(&key(slot.number, reason), &zeros, MapFlags::ANY).map_err(
                    |error| Error::Bpf {
                        operation: "clear",
                        object: "map counts".to_owned(),
                        problem: error.to_string(),
                    },
                )?;
            }
            self.free.push(slot.number);
        }
        self.slots.retain(|id, _| kept(id));
        Ok(())
    }

    /// Returns the slot number that programs use for a device.
    pub(crate) fn slot(&self, id: DeviceId) -> u32 {
        self.slots.get(&id).map_or(NONE, |slot| slot.number)
    }

    /// Returns the total, which counts each packet once, and the counts of each device's slot. Zero
    /// counts are left out.
    pub(crate) fn counted(&self) -> (Words, BTreeMap<DeviceId, Words>) {
        let mut all = self.past.clone();
        add(&mut all, self.read(NONE));
        let mut each = BTreeMap::new();
        for (id, slot) in &self.slots {
            let counts = self.read(slot.number);
            each.insert(*id, words(&counts));
            add(&mut all, primary(counts, slot.port));
        }
        (words(&all), each)
    }

    /// Reads a slot's counters, summed over CPUs.
    fn read(&self, slot: u32) -> Counts {
        let mut counts = Counts::new();
        for (number, reason) in Reason::ALL.iter().enumerate() {
            let key = key(slot, number as u32);
            // An unreadable counter counts as zero.
            let Ok(Some(cpus)) = self.map.lookup_percpu(&key, MapFlags::ANY) else { continue };
            let sum = counts.entry(*reason).or_default();
            for value in &cpus {
                let word = |at: usize| {
                    let bytes = value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                    bytes.map_or(0, u64::from_ne_bytes)
                };
                sum.packets += word(offset_of!(RawCount, packets));
                sum.bytes += word(offset_of!(RawCount, bytes));
            }
        }
        counts
    }
}

fn key(slot: u32, reason: u32) -> [u8; 4] {
    (slot * Reason::ALL.len() as u32 + reason).to_ne_bytes()
}

/// Keeps only the counts at the input device: packets from a tenant's device, or packets to a VXLAN
/// device. The rest was also counted at the other end.
fn primary(counts: Counts, port: bool) -> Counts {
    counts.into_iter().filter(|(reason, _)| reason.is_encap() == port).collect()
}

fn add(to: &mut Counts, from: Counts) {
    for (reason, counted) in from {
        let sum = to.entry(reason).or_default();
        sum.packets += counted.packets;
        sum.bytes += counted.bytes;
    }
}

fn words(counts: &Counts) -> Words {
    let counted = counts.iter().filter(|(_, counted)| counted.packets > 0);
    counted.map(|(reason, counted)| (reason.word().to_owned(), *counted)).collect()
}
