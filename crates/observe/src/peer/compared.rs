//! Compares the counts of both hosts.
//!
//! A round reads counts in this order, so that packets in flight never count as lost: here, there,
//! *(wait for packets in flight)*, here, there, here.

use std::collections::{BTreeMap, BTreeSet};

use super::loss::{Bounds, Loss};
use super::message::{FlowRecord, MOST_FLOWS, Sample};
use crate::flow_id::FlowId;
use crate::flows::{Count, FlowCount, FlowsReading};
use crate::peer_seen::{Direction, FlowSeen};

#[derive(Debug)]
pub(super) struct Round {
    pub here: FlowsReading,
    pub there: Sample,
    /// Second read here, after packets that had left there have arrived.
    pub here_settled: FlowsReading,
    /// Second read there, after packets that had left here have arrived.
    pub there_settled: Sample,
    pub here_last: FlowsReading,
}

/// A count relative to its value at the first comparison.
#[derive(Debug, Clone, Default)]
struct Tally {
    last: Option<Count>,
    total: Count,
}

impl Tally {
    fn add(&mut self, now: Count, is_new: bool) {
        // A flow that existed before the comparison counts only from now on.
        let first = if is_new { Count::default() } else { now };
        let last = self.last.unwrap_or(first);
        let more = |now: u64, last: u64, total: u64| total.saturating_add(now.saturating_sub(last));
        self.total.packets = more(now.packets, last.packets, self.total.packets);
        self.total.bytes = more(now.bytes, last.bytes, self.total.bytes);
        self.last = Some(now);
    }
}

/// One direction of a flow.
#[derive(Debug, Clone, Default)]
struct OneWay {
    left: Tally,
    came: Tally,
    /// Whether a packet ever arrived, since counting began.
    came_ever: bool,
    loss: Loss,
}

/// Counts of one direction, in the order in which they were read.
struct Read {
    left: Count,
    came: Count,
    left_last: Count,
}

impl OneWay {
    fn add(&mut self, read: &Read, is_new: bool) {
        let packets = [read.left, read.came, read.left_last].map(|count| count.packets);
        self.loss.add(Bounds::of(packets[0], packets[1], packets[2]), is_new);
        self.left.add(read.left_last, is_new);
        self.came.add(read.came, is_new);
        self.came_ever |= read.came.packets > 0;
    }

    fn begin_anew(&mut self) {
        self.loss.begin_anew();
        (self.left.last, self.came.last) = (None, None);
    }
}

#[derive(Debug, Clone, Default)]
struct Both {
    out: OneWay,
    back: OneWay,
    devices: (BTreeSet<String>, BTreeSet<String>),
    there: Vec<String>,
}

/// Flows of both hosts, since they are compared.
#[derive(Debug, Default)]
pub(super) struct Compared {
    flows: BTreeMap<FlowId, Both>,
    /// Epochs of the last round, here and there.
    epochs: Option<(u64, u64)>,
    /// Whether `flows` has every flow of the last round. If so, any other flow is new.
    is_complete: bool,
    /// Flows left out in the last round for want of room, and packets that were not counted so far.
    pub others: u64,
    pub uncounted: u64,
}

impl Compared {
    /// Restarts the comparison, because the other host or its counts were replaced.
    pub fn begin_anew(&mut self) {
        (self.epochs, self.is_complete) = (None, false);
        for flow in self.flows.values_mut() {
            flow.out.begin_anew();
            flow.back.begin_anew();
        }
    }

    /// Compares the counts of a round; returns `false` if they are inconsistent because counts were
    /// removed meanwhile.
    pub fn add(&mut self, round: &Round) -> bool {
        let here = [&round.here, &round.here_settled, &round.here_last].map(|read| read.epoch);
        let there = [&round.there, &round.there_settled].map(|sample| sample.epoch);
        let is_one = here.iter().all(|e| *e == here[0]) && there[0] == there[1];
        if !is_one || self.epochs.is_some_and(|epochs| epochs != (here[0], there[0])) {
            self.begin_anew();
        }
        // The counts restarted during the round, so their differences mean nothing.
        if !is_one {
            return false;
        }
        self.epochs = Some((here[0], there[0]));
        let there = |sample: &Sample| -> BTreeMap<FlowId, FlowCount> {
            let of = |record: &FlowRecord| (record.flow.clone(), record.count.clone());
            sample.flows.iter().map(of).collect()
        };
        let (first, settled) = (there(&round.there), there(&round.there_settled));
        let (chosen, left_out) = chosen(&round.here_last.flows, &settled);
        let none = FlowCount::default();
        for flow in &chosen {
            let of = |flows: &'_ BTreeMap<FlowId, FlowCount>| -> FlowCount {
                flows.get(flow).unwrap_or(&none).clone()
            };
            let here = of(&round.here.flows);
            let here_settled = of(&round.here_settled.flows);
            let here_last = of(&round.here_last.flows);
            let (there, there_settled) = (of(&first), of(&settled));
            // Only if no flow was left out before, the flow has really started since.
            let is_new = self.is_complete && !self.flows.contains_key(flow);
            let both = self.flows.entry(flow.clone()).or_default();
            let (left, left_last) = (here.left, here_last.left);
            both.out.add(&Read { left, came: there_settled.came, left_last }, is_new);
            let (left, left_last) = (there.left, there_settled.left);
            both.back.add(&Read { left, came: here_settled.came, left_last }, is_new);
            both.devices = (here_last.devices, there_settled.devices);
        }
        for record in &round.there_settled.flows {
            if let Some(both) = self.flows.get_mut(&record.flow) {
                both.there.clone_from(&record.hops);
            }
        }
        self.flows.retain(|flow, _| chosen.contains(flow));
        self.others = left_out.max(round.there_settled.others);
        self.uncounted = round.here_last.uncounted.saturating_add(round.there_settled.uncounted);
        // A flow that was left out now may have existed before it is listed.
        self.is_complete = self.others == 0 && round.there.others == 0 && self.uncounted == 0;
        true
    }

    pub fn seen(&self) -> Vec<FlowSeen> {
        let mut seen = Vec::new();
        for (flow, both) in &self.flows {
            let (here, there) = &both.devices;
            let directions = [
                (Direction::Out, &both.out, here, there),
                (Direction::In, &both.back, there, here),
            ];
            for (direction, way, left_by, came_by) in directions {
                // No packet left at that end: the flow came from a third host, or there is none in
                // this direction.
                if way.left.total.packets == 0 {
                    continue;
                }
                seen.push(FlowSeen {
                    flow: flow.addresses(),
                    encapsulation: flow.encapsulation,
                    vni: flow.vni,
                    direction,
                    left: way.left.total.packets,
                    left_bytes: way.left.total.bytes,
                    came: way.came.total.packets,
                    came_bytes: way.came.total.bytes,
                    lost: way.came_ever.then(|| way.loss.lost()),
                    in_flight: way.loss.open(),
                    left_by: left_by.iter().cloned().collect(),
                    came_by: came_by.iter().cloned().collect(),
                    there: both.there.clone(),
                });
            }
        }
        seen.sort_by_key(|flow| std::cmp::Reverse((flow.lost, flow.left)));
        seen
    }
}

/// Chooses the flows to compare, those with most packets first; returns how many are left out.
fn chosen(
    here: &BTreeMap<FlowId, FlowCount>,
    there: &BTreeMap<FlowId, FlowCount>,
) -> (BTreeSet<FlowId>, u64) {
    let packets = |flow: &FlowId| {
        let counts = [here.get(flow), there.get(flow)].into_iter().flatten();
        let counts = counts.flat_map(|count| [count.left.packets, count.came.packets]);
        counts.fold(0, u64::saturating_add)
    };
    let all: BTreeSet<&FlowId> = here.keys().chain(there.keys()).collect();
    let mut all: Vec<(u64, &FlowId)> = all.into_iter().map(|flow| (packets(flow), flow)).collect();
    all.sort_by_key(|(packets, _)| std::cmp::Reverse(*packets));
    let left_out = all.len().saturating_sub(MOST_FLOWS) as u64;
    (all.into_iter().take(MOST_FLOWS).map(|(_, flow)| flow.clone()).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Encapsulation;

    fn flow(port: u16) -> FlowId {
        let ends = ([10, 1, 0, 11].into(), [10, 1, 0, 12].into());
        FlowId {
            source: ends.0,
            destination: ends.1,
            ports: (port, 80),
            protocol: 17,
            encapsulation: Some(Encapsulation::Vxlan),
            vni: Some(7),
        }
    }

    fn count(left: u64, came: u64) -> FlowCount {
        let count = |packets| Count { packets, bytes: packets * 100 };
        FlowCount { left: count(left), came: count(came), devices: BTreeSet::new() }
    }

    /// Packets that left, and packets that arrived.
    type Packets = (u64, u64);

    /// A round in a quiet moment: flows by port, with the packets sent and received at each end.
    fn round(flows: &[(u16, Packets, Packets)], epoch: u64) -> Round {
        let here = FlowsReading {
            flows: flows
                .iter()
                .map(|(port, here, _)| (flow(*port), count(here.0, here.1)))
                .collect(),
            uncounted: 0,
            epoch: 0,
        };
        let there = Sample {
            received_ns: 0,
            answered_ns: 0,
            flows: flows
                .iter()
                .map(|(port, _, there)| FlowRecord {
                    flow: flow(*port),
                    count: count(there.0, there.1),
                    hops: Vec::new(),
                })
                .collect(),
            others: 0,
            uncounted: 0,
            epoch,
        };
        Round {
            here: here.clone(),
            there: there.clone(),
            here_settled: here.clone(),
            there_settled: there,
            here_last: here,
        }
    }

    fn fates(compared: &Compared) -> Vec<(Direction, u64, u64, Option<u64>, u64)> {
        let seen = compared.seen().into_iter();
        seen.map(|f| (f.direction, f.left, f.came, f.lost, f.in_flight)).collect()
    }

    #[test]
    fn lost_packets_are_counted_by_flow_and_direction() {
        let mut compared = Compared::default();
        // Counts of before say nothing.
        assert!(compared.add(&round(&[(1, (500, 0), (0, 200))], 0)));
        assert_eq!(fates(&compared), []);
        let flows = [(1, (600, 40), (50, 290)), (2, (30, 0), (0, 29))];
        assert!(compared.add(&round(&flows, 0)));
        let wanted = [
            (Direction::Out, 100, 90, Some(10), 0),
            (Direction::In, 50, 40, Some(10), 0),
            (Direction::Out, 30, 29, Some(1), 0),
        ];
        assert_eq!(fates(&compared), wanted);
    }

    #[test]
    fn flows_that_never_arrived_may_have_another_destination() {
        let mut compared = Compared::default();
        compared.add(&round(&[], 0));
        compared.add(&round(&[(1, (100, 0), (0, 0)), (2, (0, 70), (0, 0))], 0));
        // The other came from a third host.
        assert_eq!(fates(&compared), [(Direction::Out, 100, 0, None, 0)]);
        compared.add(&round(&[(1, (101, 0), (0, 1))], 0));
        assert_eq!(fates(&compared), [(Direction::Out, 101, 1, Some(100), 0)]);
    }

    #[test]
    fn counts_that_were_removed_are_no_loss() {
        let mut compared = Compared::default();
        compared.add(&round(&[], 0));
        compared.add(&round(&[(1, (100, 0), (0, 98))], 0));
        // The other end made room, and counts from 0.
        compared.add(&round(&[(1, (110, 0), (0, 5))], 2));
        assert_eq!(fates(&compared), [(Direction::Out, 100, 98, Some(2), 0)]);
        compared.add(&round(&[(1, (120, 0), (0, 14))], 2));
        assert_eq!(fates(&compared), [(Direction::Out, 110, 107, Some(3), 0)]);
        // In the middle of a round nothing can be compared.
        let mut torn = round(&[(1, (0, 0), (0, 0))], 2);
        torn.there_settled.epoch = 3;
        assert!(!compared.add(&torn));
    }

    #[test]
    fn flows_without_room_are_counted_and_not_new_later() {
        let mut compared = Compared::default();
        compared.add(&round(&[], 0));
        let many: Vec<_> = (1..=300).map(|n| (n, (u64::from(n), 0), (0, u64::from(n)))).collect();
        compared.add(&round(&many, 0));
        assert_eq!((compared.flows.len(), compared.others), (MOST_FLOWS, 44));
        // The first flow is reported from now on, without any known loss.
        compared.add(&round(&[(1, (1000, 0), (0, 900))], 0));
        assert_eq!(fates(&compared), []);
        compared.add(&round(&[(1, (1010, 0), (0, 910))], 0));
        assert_eq!(fates(&compared), [(Direction::Out, 10, 10, Some(0), 0)]);
    }
}
