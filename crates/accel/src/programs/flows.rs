//! The maps of flows: verdicts, what is seen on the slow path, what is asked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use netstate::connection::Tuple;
use zerocopy::FromBytes;

use super::Programs;
use super::abi::{
    self, FLOW_ASK_MS, FLOW_ENTERED, FLOW_LEFT, FLOW_ONE_WAY, FLOW_TRANSLATED, FLOW_UNTRACKED,
    FLOW_VERDICT, FLOW_YOUNG, RawFlow, RawFlowKey, RawSeen,
};
use super::clock::now;
use super::judged::Judged;
use crate::lock::lock;
use crate::{Error, Result};

/// Where in the host a flow is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the map of verdicts.
    Verdict,
    /// Where it came in.
    Entered,
    /// Where it left by the slow path.
    Left,
}

/// A direction of a connection at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) netns: u16,
    pub(crate) device: u32,
    pub(crate) tuple: Tuple,
    pub(crate) place: Place,
}

/// A direction that may go fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) key: FlowKey,
    /// Number of the state that it was judged by.
    pub(crate) verdict: u64,
    /// Index of the device by which it leaves.
    pub(crate) output: u32,
    /// Of conntrack's entry.
    pub(crate) mark: u32,
    /// Of conntrack's entry, `IPS_*`.
    pub(crate) status: u32,
    /// Addresses and ports with which it leaves.
    pub(crate) leaves: Tuple,
    /// Conntrack has an entry.
    pub(crate) is_tracked: bool,
    /// It has seen packets of this direction only.
    pub(crate) is_one_way: bool,
    /// It has seen packets of both, and not for long.
    pub(crate) is_young: bool,
}

/// Verdicts, places where flows were seen, and the questions about them.
pub(crate) struct FlowMaps {
    flows: MapHandle,
    judged: Judged,
    seen: MapHandle,
    asked: RingBuffer<'static>,
    questions: Arc<Mutex<Vec<FlowKey>>>,
}

/// Questions that are taken at once.
const MOST: usize = 4096;
/// Entries of a map that are read at once.
const AT_ONCE: u32 = 4096;
/// A flow that may be another thing in a moment is asked about again after this time for each of
/// its packets that was noted, and no later than `SOON`.
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
        let questions = Arc::new(Mutex::new(Vec::new()));
        let theirs = questions.clone();
        let ring = programs.map_of_any("asked_flows")?;
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            let mut questions = lock(&theirs);
            if questions.len() < MOST {
                questions.extend(RawFlowKey::read_from_bytes(bytes).ok().and_then(|raw| key(&raw)));
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
        })
    }

    /// Flows that a verdict is asked for, those of the devices in turn; waits for at most that
    /// time.
    pub(crate) fn asked(&mut self, within: Duration) -> Vec<FlowKey> {
        // A signal ends it early, with what there is.
        let _ = self.asked.poll(within);
        let questions = std::mem::take(&mut *lock(&self.questions));
        // A tenant with many flows keeps nobody else's waiting.
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

    /// The number of the state under which a flow was seen there last.
    pub(crate) fn seen(&self, key: &FlowKey) -> Option<u64> {
        let found = self.seen.lookup(&abi::bytes(&raw_key(key)), MapFlags::ANY).ok()??;
        RawSeen::read_from_bytes(&found).ok().map(|seen| seen.verdict)
    }

    /// Lets the programs ask about a flow again after this time.
    pub(crate) fn ask_later(&self, key: &FlowKey, after: Duration) {
        self.postpone(key, |_| after);
    }

    /// Lets the programs ask about a flow again when a few more of its packets can have been
    /// noted: the more were, the later.
    pub(crate) fn ask_soon(&self, key: &FlowKey) {
        self.postpone(key, |seen| {
            u32::try_from(seen.packets).map_or(SOON, |noted| SOON.min(A_PACKET * noted))
        });
    }

    fn postpone(&self, key: &FlowKey, after: impl FnOnce(&RawSeen) -> Duration) {
        let key = abi::bytes(&raw_key(&FlowKey { place: Place::Entered, ..*key }));
        let Ok(Some(found)) = self.seen.lookup(&key, MapFlags::ANY) else { return };
        let Ok(mut seen) = RawSeen::read_from_bytes(&found) else { return };
        // The programs add their own pause.
        let ask = now() + u64::try_from(after(&seen).as_nanos()).unwrap_or(0);
        seen.asked = ask.saturating_sub(u64::from(FLOW_ASK_MS) * 1_000_000);
        // One that has gone meanwhile is not put back.
        let _ = self.seen.update(&key, &abi::bytes(&seen), MapFlags::EXIST);
    }

    /// Writes verdicts.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn admit(&mut self, all: &[Admitted]) -> Result<()> {
        for admitted in all {
            let leaves = raw_key(&FlowKey { tuple: admitted.leaves, ..admitted.key });
            let flow = RawFlow {
                verdict: admitted.verdict,
                refreshed: now(),
                flags: abi::flag(admitted.leaves != admitted.key.tuple, FLOW_TRANSLATED)
                    | abi::flag(!admitted.is_tracked, FLOW_UNTRACKED)
                    | abi::flag(admitted.is_one_way, FLOW_ONE_WAY)
                    | abi::flag(admitted.is_young, FLOW_YOUNG),
                output: admitted.output,
                mark: admitted.mark,
                timeout: 0,
                source: leaves.source,
                dest: leaves.dest,
                source_port: leaves.source_port,
                dest_port: leaves.dest_port,
                status: admitted.status,
                expires: 0,
                unused: 0,
                way_back: 0,
            };
            let key = raw_key(&admitted.key);
            let flows = &self.flows;
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

/// Flows that have a verdict by this number.
fn live(flows: &MapHandle, verdict: u64) -> Result<Vec<RawFlowKey>> {
    let failed = |error: libbpf_rs::Error| Error::Bpf {
        operation: "read",
        object: "map flows".to_owned(),
        problem: error.to_string(),
    };
    // Entries that come and go meanwhile do not begin it anew, as reading key by key would.
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
            Place::Verdict => FLOW_VERDICT as u16,
            Place::Entered => FLOW_ENTERED as u16,
            Place::Left => FLOW_LEFT as u16,
        },
    }
}

/// A question; those of other namespaces than can be numbered are none.
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
    Some(FlowKey { netns, device: raw.device, tuple, place: Place::Entered })
}
