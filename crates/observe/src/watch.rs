//! The network, live: exact counters of devices and drops, and the ways of packets that are
//! followed by chance.
//!
//! Every packet is counted by the kernel itself: by devices, and by reason where one is
//! dropped. Of the others one in so many is followed, and tells where packets are cut, merged,
//! checksummed and delayed. How many are followed depends on what that costs: the CPU time of
//! this program is held below a budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netstate::{Counters, Interface, Netlink};
use sys::netns::NetNs;

use crate::called::Called;
use crate::drops::{Dropped, Drops, DropsError, DropsReading};
use crate::edges::edges;
use crate::explain::explanation;
use crate::filter::Filter;
use crate::flow_id::FlowId;
use crate::flows::{self, FlowCounter, Flows};
use crate::journey::Journey;
use crate::journeys::Journeys;
use crate::places::Places;
use crate::snapshot::{DropSeen, FORMAT, Rates, Side, Snapshot};
use crate::told::Names;
use crate::totals::Totals;
use crate::tracer::{TraceError, Tracer};
use crate::ways::{self, Ways};

/// How often it is looked whether fewer packets are to be followed.
const TICK: Duration = Duration::from_millis(100);
/// One packet in so many at the beginning, before it is known what one costs.
const CAREFUL: u32 = 64;
/// No rarer than this.
const RAREST: u32 = 1 << 20;
/// How often namespaces and devices are looked for.
const REDISCOVER: Duration = Duration::from_secs(5);

/// What the network cannot be watched for.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Packets cannot be followed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Drops cannot be counted.
    #[error(transparent)]
    Drops(#[from] DropsError),
    /// Namespaces cannot be listed.
    #[error(transparent)]
    Sys(#[from] sys::Error),
}

/// What watching may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// CPU time of this program, percent of one CPU.
    pub cpu: f64,
    /// One packet in so many at least; more are followed where the CPU time allows.
    pub most: u32,
}

/// A namespace whose devices are counted.
#[derive(Debug)]
struct Space {
    netlink: Netlink,
    counters: BTreeMap<u32, Counters>,
    /// Devices' names, where totals are wanted.
    names: BTreeMap<u32, String>,
}

/// The network under watch.
#[derive(Debug)]
pub struct Watch {
    tracer: Tracer,
    journeys: Journeys,
    drops: Option<Drops>,
    dropped: DropsReading,
    spaces: BTreeMap<u32, Space>,
    only: Vec<u32>,
    budget: Budget,
    sample: u32,
    lost: u64,
    places: Places,
    discovered: Instant,
    not_seen: Vec<String>,
    totals: Option<Arc<Mutex<Totals>>>,
    flows: Option<FlowCounter>,
}

/// CPU time of this process so far: a function of whoever may ask the kernel.
pub type OwnCpu<'a> = &'a dyn Fn() -> Duration;

impl Watch {
    /// Begins to look; `filter` restricts which packets are followed. Devices and drops are
    /// counted in the namespaces `only`, in all that are found where it names none.
    ///
    /// # Errors
    /// A kernel that lets nobody look, or not this process.
    pub fn start(filter: Filter, only: &[NetNs], budget: Budget) -> Result<Watch, WatchError> {
        let inode = |netns: &NetNs| u32::try_from(netns.inode()).ok();
        let named: Vec<u32> = only.iter().filter_map(inode).collect();
        let filter = Filter { netns: named.clone(), ..filter };
        let sample = CAREFUL.max(budget.most);
        let filter = Filter { sample, drops_only: false, ..filter };
        let held = only.iter().filter_map(|netns| netns.try_clone().ok());
        let tracer = Tracer::start(filter, &Places::of_machine()?.with(held))?;
        let mut not_seen = tracer.not_seen.clone();
        let drops = match Drops::open() {
            Ok(drops) => Some(drops),
            Err(reason) => {
                not_seen.push(format!("drops: {reason}"));
                None
            }
        };
        let mut watch = Watch {
            tracer,
            journeys: Journeys::default(),
            drops,
            dropped: DropsReading::default(),
            spaces: BTreeMap::new(),
            only: named,
            budget,
            sample,
            lost: 0,
            places: Places::default(),
            discovered: Instant::now(),
            not_seen,
            totals: None,
            flows: None,
        };
        for netns in only {
            watch.add(netns)?;
        }
        watch.discover()?;
        watch.count();
        if let Some(drops) = &watch.drops {
            watch.dropped = drops.read()?;
        }
        Ok(watch)
    }

    /// Where packets are.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Sums everything up from now on; each interval is added when it ends.
    pub fn sum_up(&mut self) -> Arc<Mutex<Totals>> {
        self.totals.get_or_insert_default().clone()
    }

    /// Counts every packet that leaves what is watched or comes into it, by flow, from now on:
    /// those of the filter's flows and tunnel.
    ///
    /// # Errors
    /// A kernel that does not let this process.
    pub fn count_flows(&mut self) -> Result<Arc<Flows>, WatchError> {
        let counter = FlowCounter::start(self.tracer.filter())?;
        let flows = counter.flows();
        self.flows = Some(counter);
        self.know_edges(&BTreeMap::new())?;
        Ok(flows)
    }

    /// Devices of all namespaces, as they are.
    fn links(&self) -> BTreeMap<u32, Vec<Interface>> {
        // Of a namespace that goes away nothing is known any more.
        let links = |space: &Space| space.netlink.links().unwrap_or_default();
        self.spaces.iter().map(|(inode, space)| (*inode, links(space))).collect()
    }

    /// Takes up what is new of the edge.
    fn know_edges(&mut self, hosts: &BTreeMap<u32, String>) -> Result<(), WatchError> {
        let Some(mut flows) = self.flows.take() else { return Ok(()) };
        let links = self.links();
        let names = Called { places: &self.places, hosts, tracer: &self.tracer };
        let device = self.tracer.filter().device.as_deref();
        let named =
            edges(&links, self.only.is_empty(), device).into_iter().map(|(inode, index)| {
                let link = links[&inode].iter().find(|link| link.index == index);
                let name = link.map(|link| link.name.as_str()).unwrap_or_default();
                ((inode, index), format!("{} {name}", names.namespace(Some(inode))))
            });
        let known = flows.know(named.collect(), &self.places.tunnel_ports());
        self.flows = Some(flows);
        Ok(known?)
    }

    /// Counts in a namespace from now on.
    fn add(&mut self, netns: &NetNs) -> Result<(), WatchError> {
        let Ok(inode) = u32::try_from(netns.inode()) else { return Ok(()) };
        // One that went meanwhile has nothing to count.
        if let Ok(Ok(netlink)) = netns.run(Netlink::open) {
            if let Some(drops) = &self.drops {
                drops.watch(u64::from(inode))?;
            }
            self.spaces.insert(
                inode,
                Space { netlink, counters: BTreeMap::new(), names: BTreeMap::new() },
            );
        }
        Ok(())
    }

    /// Takes up what is new of namespaces and devices.
    fn discover(&mut self) -> Result<(), WatchError> {
        let mut fresh = Vec::new();
        self.places = Places::of_machine_with(&mut |inode, netns| {
            // Those that were named are known.
            if self.only.is_empty() && !self.spaces.contains_key(&inode) {
                fresh.extend(netns.try_clone());
            }
        })?;
        self.tracer.know(&self.places)?;
        fresh.iter().try_for_each(|netns| self.add(netns))?;
        // A socket would keep a namespace that all others have left.
        let (inodes, named) = (self.places.inodes(), &self.only);
        self.spaces.retain(|inode, _| inodes.contains(inode) || named.contains(inode));
        self.discovered = Instant::now();
        Ok(())
    }

    /// Counters of all devices, as they are; answers those of before.
    fn count(&mut self) -> BTreeMap<u32, BTreeMap<u32, Counters>> {
        let mut before = BTreeMap::new();
        for (inode, space) in &mut self.spaces {
            // Of a namespace that goes away nothing is known any more.
            let links = space.netlink.links().unwrap_or_default();
            if self.totals.is_some() {
                let names = links.iter().map(|link| (link.index, link.name.clone()));
                space.names = names.collect();
            }
            let now = links.into_iter().map(|link| (link.index, link.counters)).collect();
            before.insert(*inode, std::mem::replace(&mut space.counters, now));
        }
        before
    }

    /// Looks for this long, or until `goes_on` says no.
    ///
    /// # Errors
    /// What can be looked at no longer.
    pub fn interval(
        &mut self,
        length: Duration,
        own_cpu: OwnCpu<'_>,
        hosts: &BTreeMap<u32, String>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Snapshot, WatchError> {
        if self.discovered.elapsed() >= REDISCOVER {
            self.discover()?;
            self.know_edges(hosts)?;
            self.flows.as_ref().map(FlowCounter::make_room).transpose()?;
        }
        let (begun, cpu_before) = (Instant::now(), own_cpu());
        let (mut events, mut ended) = (0, Vec::<Journey>::new());
        let mut cpu_tick = cpu_before;
        while begun.elapsed() < length && goes_on() {
            let tick = Instant::now();
            while tick.elapsed() < TICK.min(length) && goes_on() {
                let came = self.tracer.poll(TICK.saturating_sub(tick.elapsed()))?;
                events += came.len() as u64;
                let now = came.last().map(|event| event.time);
                ended.extend(self.journeys.take(came));
                ended.extend(now.map(|now| self.journeys.settle(now)).into_iter().flatten());
            }
            let cpu = own_cpu();
            let spent = (cpu.saturating_sub(cpu_tick)).as_secs_f64() / tick.elapsed().as_secs_f64();
            cpu_tick = cpu;
            self.adapt(100.0 * spent)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let before = self.count();
        let dropped = self.dropped_since()?;
        let lost = self.tracer.lost()?;
        let events_lost = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let counted = |netns: u32, index: u32, side: Side| {
            let before = before.get(&netns)?.get(&index)?;
            let delta = self.spaces.get(&netns)?.counters.get(&index)?.since(before);
            let (packets, bytes, dropped) = match side {
                Side::Tx => (delta.tx_packets, delta.tx_bytes, delta.tx_dropped),
                Side::Rx => (delta.rx_packets, delta.rx_bytes, delta.rx_dropped),
                Side::Socket | Side::Drop => return None,
            };
            let rate = |count: u64| count as f64 / seconds;
            Some(Rates {
                packets_per_s: rate(packets),
                bytes_per_s: rate(bytes),
                dropped_per_s: rate(dropped),
            })
        };
        let own = 100.0 * own_cpu().saturating_sub(cpu_before).as_secs_f64() / seconds;
        let mut snapshot = Snapshot {
            format: FORMAT,
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64()),
            seconds,
            sample: self.sample,
            followed: 0,
            events,
            events_lost,
            own_cpu: own,
            budget: self.budget.cpu,
            ways: Vec::new(),
            other_ways: 0,
            drops: Vec::new(),
            not_seen: self.not_seen.clone(),
            peer: None,
        };
        let names = Called { places: &self.places, hosts, tracer: &self.tracer };
        let mut ways = Ways::default();
        ended.iter().for_each(|journey| ways.add(journey, &names));
        // Held until the interval is in it as a whole.
        if let Some(flows) = &self.flows {
            flows.note(hops(&ended, &names));
        }
        let totals = self.totals.as_ref();
        let mut totals = totals.map(|totals| totals.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(totals) = &mut totals {
            totals.add_ways(&ways, &names);
        }
        (snapshot.followed, snapshot.other_ways) = (ways.followed, ways.others);
        snapshot.ways = ways.into_seen(&names, &counted);
        snapshot.drops = dropped.iter().map(|dropped| drop_seen(dropped, &names)).collect();
        snapshot.drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
        if let Some(mut totals) = totals {
            self.add_devices(&mut totals, &before, &names);
            totals.add_drops(&dropped, &names);
            totals.add_interval(&snapshot, self.spaces.len());
        }
        Ok(snapshot)
    }

    /// What devices counted since `before`; one that was not there then has no beginning yet.
    fn add_devices(
        &self,
        totals: &mut Totals,
        before: &BTreeMap<u32, BTreeMap<u32, Counters>>,
        names: &dyn Names,
    ) {
        for (inode, space) in &self.spaces {
            let Some(before) = before.get(inode) else { continue };
            let namespace = names.namespace(Some(*inode));
            for (index, counters) in &space.counters {
                if let (Some(before), Some(name)) = (before.get(index), space.names.get(index)) {
                    totals.add_device(&namespace, name, &counters.since(before));
                }
            }
        }
    }

    /// Follows fewer packets where that costs too much, and more where it costs little.
    fn adapt(&mut self, cpu: f64) -> Result<(), WatchError> {
        let wanted = match cpu {
            cpu if cpu > self.budget.cpu => self.sample.saturating_mul(2).min(RAREST),
            cpu if cpu < self.budget.cpu / 4.0 => (self.sample / 2).max(self.budget.most.max(1)),
            _ => self.sample,
        };
        if wanted != self.sample {
            self.sample = wanted;
            self.tracer.sample(wanted)?;
        }
        Ok(())
    }

    fn dropped_since(&mut self) -> Result<Vec<Dropped>, WatchError> {
        let Some(drops) = &self.drops else { return Ok(Vec::new()) };
        let now = drops.read()?;
        let since = drops.difference(&self.dropped, &now);
        self.dropped = now;
        Ok(since)
    }
}

/// Hops of each flow's last packet.
fn hops(ended: &[Journey], names: &dyn Names) -> BTreeMap<FlowId, Vec<String>> {
    let mut known = BTreeMap::new();
    for journey in ended {
        let Some(flow) = journey.flow().map(|flow| FlowId::inner(&flow)) else { continue };
        known.entry(flow).or_insert_with(|| {
            flows::hops(ways::places(journey).map(|place| {
                let device = place.device.map_or("-".to_owned(), |(_, name)| name);
                format!("{} {device} {}", names.namespace(place.netns), place.side.name())
            }))
        });
    }
    known
}

fn drop_seen(dropped: &Dropped, names: &dyn Names) -> DropSeen {
    let known = explanation(&dropped.reason, dropped.function.as_deref());
    DropSeen {
        namespace: names.namespace(u32::try_from(dropped.netns).ok()),
        device: Some(dropped.device.clone()).filter(|device| !device.is_empty()),
        reason: dropped.reason.clone(),
        function: dropped.function.clone(),
        packets: dropped.packets,
        meaning: known.map(|known| known.meaning.to_owned()),
        check: known.and_then(|known| known.check.map(str::to_owned)),
    }
}
