//! Live view of the network: exact counters of devices and drops, and the paths of sampled packets.
//!
//! The kernel counts every packet: devices by direction, drops by reason. A sample of the packets,
//! one in N, is followed to show where packets are segmented, merged, checksummed and delayed. The
//! sample rate and the share of time in which packets are sampled depend on the cost: the CPU time
//! of this program and of its BPF programs is kept below a budget.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netstate::{Counters, Interface, Netlink};
use sys::netns::NetNs;

use crate::called::Called;
use crate::drops::{Dropped, Drops, DropsError, DropsReading};
use crate::edges::edges;
use crate::event::Event;
use crate::explain::{explanation, is_used};
use crate::filter::Filter;
use crate::flow_drops::FlowDrops;
use crate::flow_id::FlowId;
use crate::flows::{self, FlowCounter, Flows};
use crate::journey::Journey;
use crate::journeys::Journeys;
use crate::paths::{self, Paths};
use crate::places::Places;
use crate::record::Names;
use crate::snapshot::{DropSeen, FORMAT, Rates, Side, Snapshot};
use crate::softirqs::Softirqs;
use crate::totals::Totals;
use crate::tracer::{TraceError, Tracer};
use crate::windows::{Change, Spent, Windows};

/// Interval at which events are read while a window is open.
const SLICE: Duration = Duration::from_millis(5);
/// Interval at which `goes_on` and the opening of a window are checked.
const TICK: Duration = Duration::from_millis(20);
/// Interval at which namespaces and devices are discovered.
const REDISCOVER: Duration = Duration::from_secs(5);

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

/// Limits on the cost of watching.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// CPU time of this program and of its BPF programs, percent of one CPU.
    pub cpu: f64,
    /// Highest sample rate: one packet in this many. The rate is lower if the CPU time does not
    /// suffice.
    pub most: u32,
}

/// A namespace whose devices are counted.
#[derive(Debug)]
struct Space {
    netlink: Netlink,
    counters: BTreeMap<u32, Counters>,
    /// Names of the devices, if totals are wanted.
    names: BTreeMap<u32, String>,
}

/// The network being watched.
#[derive(Debug)]
pub struct Watch {
    tracer: Tracer,
    journeys: Journeys,
    drops: Option<Drops>,
    dropped: DropsReading,
    spaces: BTreeMap<u32, Space>,
    only: Vec<u32>,
    budget: Budget,
    windows: Windows,
    /// Time zero of the windows.
    begun: Instant,
    /// CPU time of this process spent outside of observation, and its CPU time at the end of the
    /// last interval's observation.
    aside: Duration,
    looked_until: Duration,
    events: u64,
    lost: u64,
    places: Places,
    discovered: Instant,
    not_seen: Vec<String>,
    softirqs: Option<Softirqs>,
    totals: Option<Arc<Mutex<Totals>>>,
    flows: Option<FlowCounter>,
    flow_drops: Option<FlowDrops>,
}

/// Returns the CPU time of this process so far.
pub type OwnCpu<'a> = &'a dyn Fn() -> Duration;

impl Watch {
    /// Starts watching. `filter` restricts which packets are followed. Devices and drops are
    /// counted in the namespaces `only`, or in all that are found if it is empty.
    ///
    /// # Errors
    /// If the kernel does not support it or the process lacks privileges.
    pub fn start(filter: Filter, only: &[NetNs], budget: Budget) -> Result<Watch, WatchError> {
        let inode = |netns: &NetNs| u32::try_from(netns.inode()).ok();
        let named: Vec<u32> = only.iter().filter_map(inode).collect();
        let filter = Filter { netns: named.clone(), ..filter };
        // Windows set the sample rate themselves.
        let filter = Filter { sample: 1, drops_only: false, ..filter };
        let held = only.iter().filter_map(|netns| netns.try_clone().ok());
        // At the first drop, resolving functions would delay the end of a window.
        bpf_load::know_functions();
        let places = Places::of_machine()?.with(held);
        let flow_drops = FlowDrops::start(&filter, &places)?;
        let tracer = Tracer::in_windows(filter, &places)?;
        let mut not_seen = tracer.not_seen.clone();
        let drops = match Drops::open() {
            Ok(drops) => Some(drops),
            Err(reason) => {
                // The paths are still useful without drops; report what is missing.
                not_seen.push(format!("drops: {reason}"));
                None
            }
        };
        let softirqs = match Softirqs::open() {
            Ok(softirqs) => Some(softirqs),
            Err(reason) => {
                // Continue without the CPU work; report what is missing.
                not_seen.push(format!("softirqs: {reason}"));
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
            windows: Windows::new(budget.cpu, budget.most),
            begun: Instant::now(),
            aside: Duration::ZERO,
            looked_until: Duration::ZERO,
            events: 0,
            lost: 0,
            places: Places::default(),
            discovered: Instant::now(),
            not_seen,
            softirqs,
            totals: None,
            flows: None,
            flow_drops,
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

    /// Returns the namespaces, as last discovered.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Accumulates totals from now on; each interval is added when it ends.
    pub fn sum_up(&mut self) -> Arc<Mutex<Totals>> {
        self.totals.get_or_insert_default().clone()
    }

    /// Counts, from now on and by flow, every packet that crosses the edge of the watched
    /// namespaces and matches the filter's flows and tunnel.
    ///
    /// # Errors
    /// If the kernel or the process's privileges do not allow it.
    pub fn count_flows(&mut self) -> Result<Arc<Flows>, WatchError> {
        let counter = FlowCounter::start(self.tracer.filter())?;
        let flows = counter.flows();
        self.flows = Some(counter);
        self.know_edges(&BTreeMap::new())?;
        Ok(flows)
    }

    /// Returns the current devices of all namespaces.
    fn links(&self) -> BTreeMap<u32, Vec<Interface>> {
        // If the namespace is being removed, it has no devices any more.
        let links = |space: &Space| space.netlink.links().unwrap_or_default();
        self.spaces.iter().map(|(inode, space)| (*inode, links(space))).collect()
    }

    /// Adds new edge devices to the flow counters.
    fn know_edges(&mut self, hosts: &BTreeMap<u32, String>) -> Result<(), WatchError> {
        // Flows are counted only on request.
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

    /// Starts counting in a namespace.
    fn add(&mut self, netns: &NetNs) -> Result<(), WatchError> {
        // The kernel's inodes of namespaces have 32 bits; events can name no others.
        let Ok(inode) = u32::try_from(netns.inode()) else { return Ok(()) };
        // A namespace that was removed meanwhile has nothing to count.
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

    /// Discovers new namespaces and devices.
    fn discover(&mut self) -> Result<(), WatchError> {
        let mut fresh = Vec::new();
        self.places = Places::of_machine_with(&mut |inode, netns| {
            // Namespaces that were named were added at the start.
            if self.only.is_empty() && !self.spaces.contains_key(&inode) {
                fresh.extend(netns.try_clone());
            }
        })?;
        self.tracer.know(&self.places)?;
        if let Some(drops) = &mut self.flow_drops {
            drops.know(&self.places)?;
        }
        fresh.iter().try_for_each(|netns| self.add(netns))?;
        // Our netlink socket would keep alive a namespace that all other users have left.
        let (inodes, named) = (self.places.inodes(), &self.only);
        self.spaces.retain(|inode, _| inodes.contains(inode) || named.contains(inode));
        self.discovered = Instant::now();
        Ok(())
    }

    /// Reads the counters of all devices; returns the previous ones.
    fn count(&mut self) -> BTreeMap<u32, BTreeMap<u32, Counters>> {
        let mut before = BTreeMap::new();
        for (inode, space) in &mut self.spaces {
            // If the namespace is being removed, it has no devices any more.
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

    /// Watches for `length`, or until `goes_on` returns false.
    ///
    /// # Errors
    /// If a map or the ring of events cannot be read.
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
        let (begun, cpu_before, kernel_before) =
            (Instant::now(), own_cpu(), self.tracer.cost()?.took);
        let (events_before, open_before) = (self.events, self.windows.open(self.begun.elapsed()));
        let mut ended = Vec::<Journey>::new();
        self.aside += own_cpu().saturating_sub(self.looked_until);
        while begun.elapsed() < length && goes_on() {
            let own = own_cpu();
            ended.extend(self.look(own)?);
            // Without programs no events can arrive, so sleep longer.
            let slice = if self.windows.is_open() { SLICE } else { TICK };
            let came = self.tracer.poll(slice.min(length.saturating_sub(begun.elapsed())))?;
            ended.extend(self.take(came));
        }
        self.looked_until = own_cpu();
        let seconds = begun.elapsed().as_secs_f64();
        let cpus = self.softirqs.as_mut().map(Softirqs::since).unwrap_or_default();
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
                // Device counters exist only for sending and receiving.
                Side::Socket | Side::Drop => return None,
            };
            let rate = |count: u64| count as f64 / seconds;
            Some(Rates {
                packets_per_s: rate(packets),
                bytes_per_s: rate(bytes),
                dropped_per_s: rate(dropped),
            })
        };
        let percent = |cpu: Duration| 100.0 * cpu.as_secs_f64() / seconds;
        let kernel = percent(self.tracer.cost()?.took.saturating_sub(kernel_before));
        let own = percent(own_cpu().saturating_sub(cpu_before)) + kernel;
        let open = self.windows.open(self.begun.elapsed()).saturating_sub(open_before);
        let mut snapshot = Snapshot {
            format: FORMAT,
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64()),
            seconds,
            sample: self.windows.sample(),
            looked: (open.as_secs_f64() / seconds).min(1.0),
            followed: 0,
            events: self.events - events_before,
            events_lost,
            own_cpu: own,
            kernel_cpu: kernel,
            budget: self.budget.cpu,
            paths: Vec::new(),
            other_paths: 0,
            drops: Vec::new(),
            flow_drops: None,
            not_seen: self.not_seen.clone(),
            cpus,
            peer: None,
        };
        let names = Called { places: &self.places, hosts, tracer: &self.tracer };
        let mut paths = Paths::default();
        ended.iter().for_each(|journey| paths.add(journey, &names));
        // Publish the flows' hops only when the interval is complete.
        if let Some(flows) = &self.flows {
            flows.note(hops(&ended, &names));
        }
        let totals = self.totals.as_ref();
        let mut totals = totals.map(|totals| totals.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(totals) = &mut totals {
            totals.add_paths(&paths, &names);
        }
        (snapshot.followed, snapshot.other_paths) = (paths.followed, paths.others);
        let queues = Queues { spaces: &self.spaces, known: RefCell::default() };
        snapshot.paths = paths.into_seen(&names, &|netns, index, side| {
            (counted(netns, index, side), queues.queued(netns, index, side))
        });
        snapshot.drops = dropped.iter().map(|dropped| drop_seen(dropped, &names)).collect();
        snapshot.drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
        if let Some(drops) = &mut self.flow_drops {
            snapshot.flow_drops = Some(drops.since(&names)?);
        }
        if let Some(mut totals) = totals {
            self.add_devices(&mut totals, &before, &names);
            totals.add_drops(&dropped, &names);
            totals.add_interval(&snapshot, self.spaces.len());
        }
        Ok(snapshot)
    }

    /// Adds what devices counted since `before`. A device that was not there then has no previous
    /// count and is skipped.
    fn add_devices(
        &self,
        totals: &mut Totals,
        before: &BTreeMap<u32, BTreeMap<u32, Counters>>,
        names: &dyn Names,
    ) {
        for (inode, space) in &self.spaces {
            // The namespace is new: there is no previous count.
            let Some(before) = before.get(inode) else { continue };
            let namespace = names.namespace(Some(*inode));
            for (index, counters) in &space.counters {
                if let (Some(before), Some(name)) = (before.get(index), space.names.get(index)) {
                    totals.add_device(&namespace, name, &counters.since(before));
                }
            }
        }
    }

    /// Opens or closes a window; returns the journeys that ended by that. `own` is the CPU time of
    /// this process.
    fn look(&mut self, own: Duration) -> Result<Vec<Journey>, WatchError> {
        let cost = self.tracer.cost()?;
        // Reading counters at the end of an interval costs the same without any window.
        let cpu = own.saturating_sub(self.aside) + cost.took;
        let spent = Spent { cpu, events: self.events, runs: cost.runs };
        let is_under_way = self.journeys.is_under_way();
        match self.windows.step(self.begun.elapsed(), spent, is_under_way) {
            None => {}
            Some(Change::Open(sample)) => {
                self.tracer.open(sample)?;
                self.windows.begun(self.begun.elapsed());
            }
            Some(Change::Sample(sample)) => self.tracer.sample(sample)?,
            // Rate 0 selects no more packets, but the programs keep following.
            Some(Change::Settle) => self.tracer.sample(0)?,
            Some(Change::Close) => {
                self.tracer.close();
                // Events that are still in the ring belong to this window.
                let came = self.tracer.rest()?;
                let mut ended = self.take(came);
                ended.extend(std::mem::take(&mut self.journeys).cut_off());
                return Ok(ended);
            }
        }
        Ok(Vec::new())
    }

    /// Takes events; returns the journeys that ended by them.
    fn take(&mut self, came: Vec<Event>) -> Vec<Journey> {
        self.events += came.len() as u64;
        let now = came.last().map(|event| event.time);
        let mut ended = self.journeys.take(came);
        ended.extend(now.map(|now| self.journeys.settle_when_due(now)).into_iter().flatten());
        ended
    }

    fn dropped_since(&mut self) -> Result<Vec<Dropped>, WatchError> {
        // The kernel does not support counting drops; this was reported at the start.
        let Some(drops) = &self.drops else { return Ok(Vec::new()) };
        let now = drops.read()?;
        let mut since = drops.difference(&self.dropped, &now);
        since.retain(|drop| !is_used(&drop.reason, drop.function.as_deref()));
        self.dropped = now;
        Ok(since)
    }
}

/// Queue lengths of devices, read once for each namespace that is asked for.
struct Queues<'a> {
    spaces: &'a BTreeMap<u32, Space>,
    /// By namespace and device.
    known: RefCell<BTreeMap<u32, BTreeMap<u32, u32>>>,
}

impl Queues<'_> {
    fn queued(&self, netns: u32, index: u32, side: Side) -> Option<u32> {
        let space = self.spaces.get(&netns).filter(|_| side == Side::Tx)?;
        let mut known = self.known.borrow_mut();
        let of_space = known.entry(netns).or_insert_with(|| {
            let mut devices = BTreeMap::new();
            // If the namespace is being removed, it has no queues any more.
            for qdisc in space.netlink.qdiscs().unwrap_or_default() {
                if qdisc.kind != "noqueue" {
                    // The root qdisc's count includes those of its classes and queues.
                    let most: &mut u32 = devices.entry(qdisc.link).or_default();
                    *most = qdisc.queued.max(*most);
                }
            }
            devices
        });
        of_space.get(&index).copied()
    }
}

/// Returns the hops of a followed packet of each flow: of one that was dropped, if there is any.
fn hops(ended: &[Journey], names: &dyn Names) -> BTreeMap<FlowId, Vec<String>> {
    let mut known = BTreeMap::<FlowId, (bool, Vec<String>)>::new();
    for journey in ended {
        // Packets that are not IP belong to no flow.
        let Some(flow) = journey.flow().map(|flow| FlowId::inner(&flow)) else { continue };
        let dropped = paths::dropped(journey, names);
        if known.get(&flow).is_some_and(|(is_dropped, _)| *is_dropped || dropped.is_none()) {
            continue;
        }
        let mut hops = flows::hops(paths::places(journey, names).map(|place| {
            let device = place.device.map_or("-".to_owned(), |(_, name)| name);
            format!("{} {device} {}", names.namespace(place.netns), place.side.name())
        }));
        let is_dropped = dropped.is_some();
        hops.extend(dropped);
        known.insert(flow, (is_dropped, hops));
    }
    known.into_iter().map(|(flow, (_, hops))| (flow, hops)).collect()
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
