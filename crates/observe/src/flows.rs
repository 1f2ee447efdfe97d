//! Counts packets that left and entered this machine, by flow: loads and reads `bpf/flows.bpf.c`.
//!
//! Every packet is counted, none is sampled. A GSO packet counts as the packets that it stands for,
//! each with its headers, so that both ends of a wire count the same. Packets are counted when a
//! driver takes them (`net_dev_start_xmit`) and when a driver passes them to the stack
//! (`netif_receive_skb`), at the [edge](crate::edges).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};

use crate::event::Encapsulation;
use crate::filter::{Emitted, FILTER_BYTES, Filter};
use crate::flow_id::FlowId;
use crate::tracer::TraceError;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.o"));

/// Sizes of `struct flow_key` and `struct flow_count` in the C source, which asserts the same.
const KEY_BYTES: usize = 52;
const COUNT_BYTES: usize = 24;
/// Capacity of the map `flows` of the C source. Each direction and device of a flow needs an entry.
const ROOM: usize = 16384;
/// Maximum number of flows whose hops are kept.
const MOST_PATHS: usize = 1024;
/// Maximum number of hops kept for a flow.
const MOST_HOPS: usize = 32;

/// Packets and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// Packets; a GSO packet counts as the packets that it stands for.
    pub packets: u64,
    /// Bytes of their IP packets; for a tunnel, of the outer ones.
    pub bytes: u64,
}

/// Counts of a flow since counting began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowCount {
    /// Packets that left this machine.
    pub left: Count,
    /// Packets that entered it.
    pub came: Count,
    /// Devices that it passed, with their namespaces.
    pub devices: BTreeSet<String>,
}

/// All counts at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowsReading {
    pub flows: BTreeMap<FlowId, FlowCount>,
    /// Packets of flows for which the map had no room.
    pub uncounted: u64,
    /// Incremented when entries of idle flows are removed: the counts of a flow may restart at 0.
    pub epoch: u64,
}

/// State of flows that is shared with other threads.
#[derive(Debug)]
pub struct Flows {
    counts: MapHandle,
    uncounted: MapHandle,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Names of the devices at the edge.
    devices: BTreeMap<(u32, u32), String>,
    /// Hops of flows, regardless of tunnel, with the interval in which they were last seen.
    paths: BTreeMap<FlowId, (u64, Vec<String>)>,
    /// Number of intervals so far.
    now: u64,
    epoch: u64,
}

/// The attached programs, until this value is dropped.
#[derive(Debug)]
pub(crate) struct FlowCounter {
    flows: Arc<Flows>,
    origins: MapHandle,
    tunnels: MapHandle,
    edges: BTreeSet<(u32, u32)>,
    // Dropping them detaches the programs.
    _links: Vec<Link>,
}

fn failed(operation: &'static str) -> impl Fn(libbpf_rs::Error) -> TraceError {
    move |error| TraceError::Bpf { operation, error }
}

impl FlowCounter {
    /// Attaches the programs. They count nothing until [`FlowCounter::know`] names edge devices.
    pub fn start(filter: &Filter) -> Result<FlowCounter, TraceError> {
        let (object, _) = bpf_load::open(OBJECT).map_err(TraceError::Kernel)?;
        let object = bpf_load::load(object).map_err(TraceError::Kernel)?;
        let map =
            |name, key, value| bpf_load::map(&object, name, key, value).map_err(TraceError::Kernel);
        let filters = map("filters", 4, FILTER_BYTES)?;
        let put = filters.update(&0_u32.to_ne_bytes(), &filter.emit(&Emitted::ALL), MapFlags::ANY);
        put.map_err(failed("writing the filter of flows"))?;
        let flows = Flows {
            counts: map("flows", KEY_BYTES, COUNT_BYTES)?,
            uncounted: map("uncounted", 4, 8)?,
            known: Mutex::default(),
        };
        let (origins, tunnels) = (map("origins", 8, 4)?, map("tunnels", 2, 2)?);
        let mut links = Vec::new();
        for program in object.progs_mut() {
            links.push(program.attach().map_err(failed("attaching to a trace point"))?);
        }
        let flows = Arc::new(flows);
        Ok(FlowCounter { flows, origins, tunnels, edges: BTreeSet::new(), _links: links })
    }

    /// Returns the state for other threads.
    pub fn flows(&self) -> Arc<Flows> {
        Arc::clone(&self.flows)
    }

    /// Counts at these devices only, and parses tunnels at these ports.
    pub fn know(
        &mut self,
        edges: BTreeMap<(u32, u32), String>,
        ports: &BTreeMap<u16, Encapsulation>,
    ) -> Result<(), TraceError> {
        for (port, encapsulation) in ports {
            let kind = encapsulation.number().to_ne_bytes();
            let put = self.tunnels.update(&port.to_be_bytes(), &kind, MapFlags::ANY);
            put.map_err(failed("adding a tunnel's port"))?;
        }
        let key = |(netns, index): &(u32, u32)| {
            (u64::from(*netns) << 32 | u64::from(*index)).to_ne_bytes()
        };
        let wanted: BTreeSet<(u32, u32)> = edges.keys().copied().collect();
        // Only changes are written: each entry is a system call.
        for edge in wanted.difference(&self.edges) {
            let put = self.origins.update(&key(edge), &[0; 4], MapFlags::ANY);
            put.map_err(failed("adding a device at the edge"))?;
        }
        for edge in self.edges.difference(&wanted) {
            // An entry that is already gone counts nothing; the error does not matter.
            let _ = self.origins.delete(&key(edge));
        }
        self.edges = wanted;
        // Names of removed devices stay for the counts that they still have.
        self.flows.known().devices.extend(edges);
        Ok(())
    }

    /// Records the hops of flows in an interval. The most recently seen flows are kept.
    pub fn note(&self, paths: BTreeMap<FlowId, Vec<String>>) {
        let mut known = self.flows.known();
        known.now += 1;
        let now = known.now;
        known.paths.extend(paths.into_iter().map(|(flow, hops)| (flow, (now, hops))));
        // There is still room for the paths of all flows.
        let Some(beyond) = known.paths.len().checked_sub(MOST_PATHS).filter(|n| *n > 0) else {
            return;
        };
        let mut by_age: Vec<(u64, FlowId)> =
            known.paths.iter().map(|(flow, (seen, _))| (*seen, flow.clone())).collect();
        by_age.sort_unstable();
        for (_, flow) in by_age.into_iter().take(beyond) {
            known.paths.remove(&flow);
        }
    }

    /// Removes the least recently seen flows when the map is three quarters full.
    pub fn make_room(&self) -> Result<(), TraceError> {
        let entries = self.flows.entries()?;
        // There is enough room until the next interval.
        if entries.len() < ROOM / 4 * 3 {
            return Ok(());
        }
        let mut by_age: Vec<(u64, &Vec<u8>)> =
            entries.iter().map(|(key, count)| (count.last, key)).collect();
        by_age.sort_unstable();
        // A changed epoch tells concurrent readers that counts restarted.
        self.flows.known().epoch += 1;
        for (_, key) in by_age.into_iter().take(ROOM / 4) {
            // An entry that is already gone makes room, too.
            let _ = self.flows.counts.delete(key);
        }
        self.flows.known().epoch += 1;
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    count: Count,
    last: u64,
}

impl Flows {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self) -> Result<BTreeMap<Vec<u8>, Entry>, TraceError> {
        let mut entries = BTreeMap::new();
        // Iteration restarts when an entry is removed meanwhile, so bound it at twice the capacity.
        for key in self.counts.keys().take(2 * ROOM) {
            let value = self.counts.lookup(&key, MapFlags::ANY);
            let value = value.map_err(failed("reading the counts of flows"))?;
            // The entry was removed since the keys were listed.
            let Some(value) = value.filter(|value| value.len() == COUNT_BYTES) else { continue };
            let wide = |at: usize| {
                let bytes = value[at..at + 8].try_into().unwrap_or_default();
                u64::from_ne_bytes(bytes)
            };
            let count = Count { packets: wide(0), bytes: wide(8) };
            entries.insert(key, Entry { count, last: wide(16) });
        }
        Ok(entries)
    }

    /// Returns the counts of all wanted flows.
    pub fn read(&self, wanted: &dyn Fn(&FlowId) -> bool) -> Result<FlowsReading, TraceError> {
        let epoch = self.known().epoch;
        let entries = self.entries()?;
        let value = self.uncounted.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(failed("reading the count of flows without room"))?;
        let uncounted = value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let known = self.known();
        let mut reading = FlowsReading { uncounted, epoch, ..FlowsReading::default() };
        for (key, entry) in entries {
            // The key has an unexpected length.
            let Some((flow, edge, has_left)) = parse(&key) else { continue };
            if !wanted(&flow) {
                continue;
            }
            let flow = reading.flows.entry(flow).or_default();
            let side = if has_left { &mut flow.left } else { &mut flow.came };
            side.packets = side.packets.saturating_add(entry.count.packets);
            side.bytes = side.bytes.saturating_add(entry.count.bytes);
            flow.devices.extend(known.devices.get(&edge).cloned());
        }
        // Entries were removed during the read: the counts are inconsistent, so read again.
        if known.epoch != epoch {
            drop(known);
            return self.read(wanted);
        }
        Ok(reading)
    }

    /// Returns the hops of the last followed packet of a flow; empty if none was followed.
    pub fn hops(&self, flow: &FlowId) -> Vec<String> {
        // Paths are stored by the inner flow.
        let plain = FlowId { encapsulation: None, vni: None, ..flow.clone() };
        self.known().paths.get(&plain).map(|(_, hops)| hops.clone()).unwrap_or_default()
    }
}

/// Limits the hops to [`MOST_HOPS`].
pub(crate) fn hops(hops: impl Iterator<Item = String>) -> Vec<String> {
    hops.take(MOST_HOPS).collect()
}

/// Parses a key: flow, namespace and index of the device, and whether the packets left.
fn parse(key: &[u8]) -> Option<(FlowId, (u32, u32), bool)> {
    let key: &[u8; KEY_BYTES] = key.try_into().ok()?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&key[at..at + 16]);
        Ipv6Addr::from(octets).to_canonical()
    };
    let word = |at: usize| u16::from_be_bytes([key[at], key[at + 1]]);
    let long = |at: usize| u32::from_ne_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
    let (encapsulation, is_known) = match key[37] {
        0 => (None, false),
        number => {
            let (encapsulation, is_known) = Encapsulation::parse(number)?;
            (Some(encapsulation), is_known)
        }
    };
    let flow = FlowId {
        source: address(0),
        destination: address(16),
        ports: (word(32), word(34)),
        protocol: key[36],
        encapsulation,
        vni: is_known.then(|| long(40)),
    };
    Some((flow, (long(44), long(48)), key[38] != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_the_program_writes_it() {
        let mut key = [0; KEY_BYTES];
        key[10..16].copy_from_slice(&[0xff, 0xff, 10, 1, 0, 11]);
        key[26..32].copy_from_slice(&[0xff, 0xff, 10, 1, 0, 12]);
        key[32..36].copy_from_slice(&[0x12, 0x34, 0, 80]);
        (key[36], key[37], key[38]) = (17, 1, 1);
        for (at, value) in [(40, 42_u32), (44, 4_026_531_840), (48, 7)] {
            key[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let (flow, edge, has_left) = parse(&key).unwrap();
        assert_eq!(flow.addresses().to_string(), "10.1.0.11:4660 -> 10.1.0.12:80 udp");
        assert_eq!((flow.vni, edge, has_left), (Some(42), (4_026_531_840, 7), true));
        assert_eq!(parse(&key[1..]), None);
        let wanted = |text: &str, vni| flow.is_of(&[text.parse().unwrap()], vni);
        assert!(wanted("10.1.0.12", None) && wanted("10.1.0.12:80/udp", Some(42)));
        assert!(!wanted("10.1.0.12", Some(41)) && !wanted("10.1.0.13", None));
        assert!(flow.is_of(&[], Some(42)) && flow.is_of(&[], None));
    }
}
