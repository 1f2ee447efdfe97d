//! What left this machine and what came in, by flow: `bpf/flows.bpf.c`, loaded and read.
//!
//! Every packet is counted, none is chosen by chance. A GSO packet counts as the packets that it
//! stands for, with as many headers, so that both ends of a wire count the same. What is counted
//! is what a driver took (`net_dev_start_xmit`) and what a driver handed to the stack
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

/// `struct flow_key` and `struct flow_count` of the C source, which asserts the same.
const KEY_BYTES: usize = 52;
const COUNT_BYTES: usize = 24;
/// Flows that there is room for, each direction and device by itself (`flows` of the C source).
const ROOM: usize = 16384;
/// Flows whose hops are known at a time.
const MOST_WAYS: usize = 1024;
/// Hops that are told of a flow.
const MOST_HOPS: usize = 32;

/// Packets and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// Packets; a GSO packet is those that it stands for.
    pub packets: u64,
    /// Bytes of their IP packets; in a tunnel, of the outer ones.
    pub bytes: u64,
}

/// What was counted of a flow since the counting began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowCount {
    /// What left this machine.
    pub left: Count,
    /// What came in.
    pub came: Count,
    /// Devices by which it left or came in, with their namespaces.
    pub devices: BTreeSet<String>,
}

/// All that was counted, at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowsReading {
    /// By flow.
    pub flows: BTreeMap<FlowId, FlowCount>,
    /// Packets of flows that found no room.
    pub uncounted: u64,
    /// Times that counts of silent flows were removed: a flow of before may begin anew.
    pub epoch: u64,
}

/// What threads other than the one that watches know of flows.
#[derive(Debug)]
pub struct Flows {
    counts: MapHandle,
    uncounted: MapHandle,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What devices at the edge are called.
    devices: BTreeMap<(u32, u32), String>,
    /// Hops of flows, whatever tunnel they are in, and when they were seen last.
    ways: BTreeMap<FlowId, (u64, Vec<String>)>,
    /// Intervals so far.
    now: u64,
    epoch: u64,
}

/// The programs at work, until it is dropped.
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
    /// Attaches the programs. They count nothing before they [know](FlowCounter::know) an edge.
    pub fn start(filter: &Filter) -> Result<FlowCounter, TraceError> {
        let (object, _) = bpf_load::open(OBJECT).map_err(TraceError::Kernel)?;
        let object = bpf_load::load(object).map_err(TraceError::Kernel)?;
        let map =
            |name, key, value| bpf_load::map(&object, name, key, value).map_err(TraceError::Kernel);
        let filters = map("filters", 4, FILTER_BYTES)?;
        let put =
            filters.update(&0_u32.to_ne_bytes(), &filter.emit(&Emitted::ALL).0, MapFlags::ANY);
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

    /// What other threads read.
    pub fn flows(&self) -> Arc<Flows> {
        Arc::clone(&self.flows)
    }

    /// Counts at these devices, and only there, and looks into tunnels at these ports.
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
        for edge in wanted.difference(&self.edges) {
            let put = self.origins.update(&key(edge), &[0; 4], MapFlags::ANY);
            put.map_err(failed("adding a device at the edge"))?;
        }
        for edge in self.edges.difference(&wanted) {
            // One that is not there any more counts nothing.
            let _ = self.origins.delete(&key(edge));
        }
        self.edges = wanted;
        self.flows.known().devices.extend(edges);
        Ok(())
    }

    /// Packets of these flows went these hops in an interval. The flows that were seen last are
    /// kept.
    pub fn note(&self, ways: BTreeMap<FlowId, Vec<String>>) {
        let mut known = self.flows.known();
        known.now += 1;
        let now = known.now;
        known.ways.extend(ways.into_iter().map(|(flow, hops)| (flow, (now, hops))));
        let Some(beyond) = known.ways.len().checked_sub(MOST_WAYS).filter(|n| *n > 0) else {
            return;
        };
        let mut by_age: Vec<(u64, FlowId)> =
            known.ways.iter().map(|(flow, (seen, _))| (*seen, flow.clone())).collect();
        by_age.sort_unstable();
        for (_, flow) in by_age.into_iter().take(beyond) {
            known.ways.remove(&flow);
        }
    }

    /// Makes room where most of it is taken: the flows go of which nothing was seen for the
    /// longest time.
    pub fn make_room(&self) -> Result<(), TraceError> {
        let entries = self.flows.entries()?;
        if entries.len() < ROOM / 4 * 3 {
            return Ok(());
        }
        let mut by_age: Vec<(u64, &Vec<u8>)> =
            entries.iter().map(|(key, count)| (count.last, key)).collect();
        by_age.sort_unstable();
        // Whoever reads meanwhile is told that counts began anew.
        self.flows.known().epoch += 1;
        for (_, key) in by_age.into_iter().take(ROOM / 4) {
            // One that has gone already makes room, too.
            let _ = self.flows.counts.delete(key);
        }
        self.flows.known().epoch += 1;
        Ok(())
    }
}

/// An entry of the map.
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
        // Walking begins anew where an entry goes meanwhile: more than twice is never needed.
        for key in self.counts.keys().take(2 * ROOM) {
            let value = self.counts.lookup(&key, MapFlags::ANY);
            let value = value.map_err(failed("reading the counts of flows"))?;
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

    /// Counts of all flows that are wanted.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn read(&self, wanted: &dyn Fn(&FlowId) -> bool) -> Result<FlowsReading, TraceError> {
        let epoch = self.known().epoch;
        let entries = self.entries()?;
        let value = self.uncounted.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(failed("reading the count of flows without room"))?;
        let uncounted = value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
        let known = self.known();
        let mut reading = FlowsReading { uncounted, epoch, ..FlowsReading::default() };
        for (key, entry) in entries {
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
        // Removed while they were read: neither of before nor of after.
        if known.epoch != epoch {
            drop(known);
            return self.read(wanted);
        }
        Ok(reading)
    }

    /// Hops that a followed packet of a flow went last; none where none was followed.
    pub fn hops(&self, flow: &FlowId) -> Vec<String> {
        let plain = FlowId { encapsulation: None, vni: None, ..flow.clone() };
        self.known().ways.get(&plain).map(|(_, hops)| hops.clone()).unwrap_or_default()
    }
}

/// Hops in words, no more than are told of a flow.
pub(crate) fn hops(hops: impl Iterator<Item = String>) -> Vec<String> {
    hops.take(MOST_HOPS).collect()
}

/// Flow, namespace and index of the device, and whether it left there.
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
