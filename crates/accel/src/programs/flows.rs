//! The maps of flows: verdicts, flows seen on the slow path, requests for verdicts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use netstate::connection::Tuple;
use zerocopy::FromBytes;

use super::Programs;
use super::abi::{
    self, FLOW_ASK_MS, FLOW_ENTERED, FLOW_LEFT, FLOW_ONE_WAY, FLOW_REPLY, FLOW_RESET, FLOW_SYNCED,
    FLOW_TRANSLATED, FLOW_UNTRACKED, FLOW_VERDICT, FLOW_YOUNG, RawFlow, RawFlowKey, RawSeen,
};
use super::clock::now;
use super::judged::Judged;
use super::windows::{Window, Windows};
use crate::lock::lock;
use crate::{Error, Result};

/// FlowStore where a flow is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowStore {
    /// The map of verdicts.
    Verdict,
    /// The input device.
    Entered,
    /// The output device, on the slow path.
    Left,
}

/// One direction of a connection, at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) netns: u16,
    pub(crate) device: u32,
    pub(crate) tuple: Tuple,
    pub(crate) place: FlowStore,
}

/// A direction admitted to the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) key: FlowKey,
    /// Number of the state that the verdict depends on.
    pub(crate) verdict: u64,
    /// Interface index of the output device.
    pub(crate) output: u32,
    /// Mark of the conntrack entry.
    pub(crate) mark: u32,
    /// Status of the conntrack entry, `IPS_*`.
    pub(crate) status: u32,
    /// Tuple of packets as they leave.
    pub(crate) leaves: Tuple,
    /// There is a conntrack entry.
    pub(crate) is_tracked: bool,
    /// Conntrack has seen packets in this direction only.
    pub(crate) is_one_way: bool,
    /// Conntrack has seen both directions, but not for long.
    pub(crate) is_young: bool,
    /// The reply direction of the entry.
    pub(crate) is_reply: bool,
    /// TCP with an entry: its windows.
    pub(crate) window: Option<Window>,
}

/// Access to the flow maps, and the queue of requests.
pub(crate) struct FlowMaps {
    flows: MapHandle,
    judged: Judged,
    seen: MapHandle,
    asked: RingBuffer<'static>,
    questions: Arc<Mutex<Queue>>,
    pub(crate) windows: Windows,
}

/// Requests of the programs.
#[derive(Default)]
struct Queue {
    flows: Vec<FlowKey>,
    resets: Vec<Tuple>,
    synced: Vec<Tuple>,
}

/// Maximum number of queued requests.
const MOST: usize = 4096;
/// Map entries to read per system call.
const AT_ONCE: u32 = 4096;
/// A denial that may change soon delays the next request by this time per recorded packet of the
/// flow, up to `SOON`.
const A_PACKET: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_secs(1);

impl FlowMaps {
    pub(crate) fn of(programs: &Programs) -> Result<FlowMaps> {
        let failed = |operation: &'static str| {
            move |error: libbpf_rs::Error| Error::Bpf {
                operation,
                object: "map asked_flows".to_owned(),
                problem: error.to_string(),
            }
        };
        let questions = Arc::new(Mutex::new(Queue::default()));
        let theirs = questions.clone();
        let ring = programs.map_of_any("asked_flows")?;
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            let mut queue = lock(&theirs);
            let Ok(raw) = RawFlowKey::read_from_bytes(bytes) else { return 0 };
            let Some(key) = key(&raw) else { return 0 };
            // Requests beyond the limit are dropped; the programs repeat all but resets.
            match u32::from(raw.place) {
                FLOW_RESET if queue.resets.len() < MOST => queue.resets.push(key.tuple),
                FLOW_SYNCED if queue.synced.len() < MOST => queue.synced.push(key.tuple),
                FLOW_RESET | FLOW_SYNCED => {}
                _ if queue.flows.len() < MOST => queue.flows.push(key),
                _ => {}
            }
            0
        };
        builder.add(&ring, take).map_err(failed("read"))?;
        Ok(FlowMaps {
            flows: programs.map("flows", size_of::<RawFlow>())?,
            judged: Judged::of(programs)?,
            seen: programs.map("seen_flows", size_of::<RawSeen>())?,
            asked: builder.build().map_err(failed("poll"))?,
            questions,
            windows: Windows::of(programs)?,
        })
    }

    /// Returns the connections that were reset: a tuple of one direction each.
    pub(crate) fn resets(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut lock(&self.questions).resets)
    }

    /// Returns the connections both of whose ends may have begun anew: a tuple of one direction
    /// each.
    pub(crate) fn synced(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut lock(&self.questions).synced)
    }

    /// Returns requests for verdicts, interleaved by device. Waits at most `within`.
    pub(crate) fn asked(&mut self, within: Duration) -> Vec<FlowKey> {
        // A signal ends the poll early; return what there is.
        let _ = self.asked.poll(within);
        let questions = std::mem::take(&mut lock(&self.questions).flows);
        // Interleave devices, so that a tenant with many flows does not delay the others.
        let mut before: BTreeMap<u32, usize> = BTreeMap::new();
        let mut turns: Vec<(usize, FlowKey)> = Vec::with_capacity(questions.len());
        for key in questions {
            let turn = before.entry(key.device).or_default();
            turns.push((*turn, key));
            *turn += 1;
        }
        turns.sort_by_key(|(turn, _)| *turn);
        turns.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns the number of the state under which a flow was last seen at that place.
    pub(crate) fn seen(&self, key: &FlowKey) -> Option<u64> {
        let found = self.seen.lookup(&abi::bytes(&raw_key(key)), MapFlags::ANY).ok()??;
        RawSeen::read_from_bytes(&found).ok().map(|seen| seen.verdict)
    }

    /// Suppresses requests for a flow for this time.
    pub(crate) fn ask_later(&self, key: &FlowKey, after: Duration) {
        self.postpone(key, |_| after);
    }

    /// Suppresses requests for a flow briefly. The delay grows with the number of recorded packets.
    pub(crate) fn ask_soon(&self, key: &FlowKey) {
        self.postpone(key, |seen| {
            u32::try_from(seen.packets).map_or(SOON, |noted| SOON.min(A_PACKET * noted))
        });
    }

    fn postpone(&self, key: &FlowKey, after: impl FnOnce(&RawSeen) -> Duration) {
        let key = abi::bytes(&raw_key(&FlowKey { place: FlowStore::Entered, ..*key }));
        // The entry may have been evicted.
        let Ok(Some(found)) = self.seen.lookup(&key, MapFlags::ANY) else { return };
        let Ok(mut seen) = RawSeen::read_from_bytes(&found) else { return };
        // The programs add their own delay.
        let ask = now() + u64::try_from(after(&seen).as_nanos()).unwrap_or(0);
        seen.asked = ask.saturating_sub(u64::from(FLOW_ASK_MS) * 1_000_000);
        // Do not recreate an entry that was removed meanwhile.
        let _ = self.seen.update(&key, &abi::bytes(&seen), MapFlags::EXIST);
    }

    /// Writes verdicts.
    pub(crate) fn admit(&mut self, all: &[Admitted]) -> Result<()> {
        for admitted in all {
            let leaves = raw_key(&FlowKey { tuple: admitted.leaves, ..admitted.key });
            let flow = RawFlow {
                verdict: admitted.verdict,
                refreshed: now(),
                flags: abi::flag(admitted.leaves != admitted.key.tuple, FLOW_TRANSLATED)
                    | abi::flag(!admitted.is_tracked, FLOW_UNTRACKED)
                    | abi::flag(admitted.is_one_way, FLOW_ONE_WAY)
                    | abi::flag(admitted.is_young, FLOW_YOUNG)
                    | abi::flag(admitted.is_reply, FLOW_REPLY),
                output: admitted.output,
                mark: admitted.mark,
                timeout: 0,
                source: leaves.source,
                dest: leaves.dest,
                source_port: leaves.source_port,
                dest_port: leaves.dest_port,
                status: admitted.status,
                expires: 0,
                connection: admitted.window.map_or(0, |window| window.connection),
                serial: admitted.window.map_or(0, |window| window.serial),
                unused: 0,
                way_back: 0,
            };
            let key = raw_key(&admitted.key);
            let flows = &self.flows;
            // Set the bit first: without it, the programs skip the lookup in `flows`.
            self.judged.set(&key, admitted.verdict, || live(flows, admitted.verdict))?;
            let key = abi::bytes(&key);
            self.flows.update(&key, &abi::bytes(&flow), MapFlags::ANY).map_err(|error| {
                Error::Bpf {
                    operation: "update",
                    object: "map flows".to_owned(),
                    problem: error.to_string(),
                }
            })?;
        }
        Ok(())
    }
}

/// Returns the flows that have a verdict with this number.
fn live(flows: &MapHandle, verdict: u64) -> Result<Vec<RawFlowKey>> {
    let failed = |error: libbpf_rs::Error| Error::Bpf {
        operation: "read",
        object: "map flows".to_owned(),
        problem: error.to_string(),
    };
    // A batch read, unlike a read key by key, does not restart when entries come and go.
    let entries = flows.lookup_batch(AT_ONCE, MapFlags::ANY, MapFlags::ANY).map_err(failed)?;
    let by_it = entries.filter_map(|(key, value)| {
        let flow = RawFlow::read_from_bytes(&value).ok()?;
        (flow.verdict == verdict).then(|| RawFlowKey::read_from_bytes(&key).ok()).flatten()
    });
    Ok(by_it.collect())
}

fn raw_key(key: &FlowKey) -> RawFlowKey {
    RawFlowKey {
        netns: key.netns.into(),
        device: key.device,
        source: abi::four_words(key.tuple.source.0),
        dest: abi::four_words(key.tuple.destination.0),
        source_port: key.tuple.source.1.to_be_bytes(),
        dest_port: key.tuple.destination.1.to_be_bytes(),
        protocol: key.tuple.protocol,
        ipv6: key.tuple.source.0.is_ipv6().into(),
        place: match key.place {
            FlowStore::Verdict => FLOW_VERDICT as u16,
            FlowStore::Entered => FLOW_ENTERED as u16,
            FlowStore::Left => FLOW_LEFT as u16,
        },
    }
}

/// Parses a request. Returns `None` for namespace numbers that are out of range.
fn key(raw: &RawFlowKey) -> Option<FlowKey> {
    let address = |words: [u8; 16]| match raw.ipv6 {
        0 => IpAddr::V4(Ipv4Addr::new(words[0], words[1], words[2], words[3])),
        _ => IpAddr::V6(Ipv6Addr::from(words)),
    };
    let tuple = Tuple {
        source: (address(raw.source), u16::from_be_bytes(raw.source_port)),
        destination: (address(raw.dest), u16::from_be_bytes(raw.dest_port)),
        protocol: raw.protocol,
    };
    let netns = u16::try_from(raw.netns).ok()?;
    Some(FlowKey { netns, device: raw.device, tuple, place: FlowStore::Entered })
}
