//! `overlane trace`: journeys of single packets, through devices, tunnels and namespaces.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};
use observe::{Filter, FlowPattern, Journey, Journeys, Names, Packet, Places, Tracer};
use sys::netns::NetNs;

use crate::exit::{Exit, usage};
use crate::named_netns::netns;
use crate::output::{complain, print};
use crate::trace_args::Trace;
use crate::{interrupt, lab_socket};

/// How often it is looked whether to go on.
const TICK: Duration = Duration::from_millis(50);
/// Packets are a whole second's at the most in one answer.
const MOST_SAMPLED: u32 = 1 << 30;

/// Tells of packets until it is told to end.
///
/// # Errors
/// Usage; a kernel that lets nobody look, or not this process.
pub fn run(arguments: &Trace) -> anyhow::Result<Exit> {
    let (filter, places) = (filter(arguments)?, Places::of_machine()?);
    for left_out in &places.left_out {
        complain(&format!("left out: {left_out}"));
    }
    let stop = interrupt::flag()?;
    let tracer = Tracer::start(filter, places.tunnel_ports())?;
    for not_seen in &tracer.not_seen {
        complain(&format!("this kernel does not show {not_seen}"));
    }
    let names = Known { places, hosts: hosts(), tracer: &tracer };
    complain("tracing: Ctrl-C ends it");
    let mut telling = Telling { arguments, names: &names, told: 0 };
    let begun = Instant::now();
    let mut journeys = Journeys::default();
    let is_over = |told: u64| {
        stop.load(Ordering::Relaxed)
            || arguments.duration.is_some_and(|limit| begun.elapsed() >= *limit)
            || arguments.count.is_some_and(|count| told >= count)
    };
    while !is_over(telling.told) {
        let mut ended = journeys.take(tracer.poll(TICK)?);
        ended.extend(journeys.settle(now()?));
        for journey in &ended {
            telling.tell(journey)?;
        }
    }
    for journey in &journeys.finish() {
        telling.tell(journey)?;
    }
    let told = telling.told;
    let lost = tracer.lost()?;
    complain(&format!("{told} packets told, {lost} events lost"));
    Ok(if stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Done })
}

/// `CLOCK_MONOTONIC`, ns.
fn now() -> anyhow::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).context("clock_gettime")?;
    Ok(u64::try_from(Duration::from(time).as_nanos())?)
}

/// Prints those packets that are wanted.
struct Telling<'a> {
    arguments: &'a Trace,
    names: &'a Known<'a>,
    told: u64,
}

impl Telling<'_> {
    fn tell(&mut self, journey: &Journey) -> anyhow::Result<()> {
        let is_fast = |limit: &humantime::Duration| {
            u128::from(journey.took()) <= Duration::from(*limit).as_nanos()
        };
        let is_enough = self.arguments.count.is_some_and(|count| self.told >= count);
        if is_enough || self.arguments.slower_than.as_ref().is_some_and(is_fast) {
            return Ok(());
        }
        self.told += 1;
        let packet = Packet::of(journey, self.names);
        match self.arguments.json {
            true => print(&serde_json::to_string(&packet)?),
            false => print(&packet.text()),
        }
    }
}

fn filter(arguments: &Trace) -> anyhow::Result<Filter> {
    let flows = arguments.flow.iter().map(|text| text.parse::<FlowPattern>());
    let flows = flows.collect::<Result<Vec<_>, _>>().map_err(|error| usage("--flow", error))?;
    if flows.len() > Filter::MOST_FLOWS {
        let problem = format!("{} flows, expected at most {}", flows.len(), Filter::MOST_FLOWS);
        return Err(usage("--flow", problem));
    }
    let named = |text: &str| {
        let inode = netns("--netns", Some(text))?.inode();
        u32::try_from(inode).context("an inode number of a namespace has 32 bits")
    };
    let netns = match arguments.netns.as_str() {
        "all" => Vec::new(),
        some => some.split(',').map(named).collect::<anyhow::Result<_>>()?,
    };
    if let Some(device) = &arguments.device
        && (device.is_empty() || device.len() > 15)
    {
        return Err(usage("--device", format!("{device:?}: expected 1 to 15 bytes")));
    }
    if let Some(vni) = arguments.vni
        && vni >= 1 << 24
    {
        return Err(usage("--vni", format!("{vni}: expected less than 2^24")));
    }
    let sample = arguments.sample.strip_prefix("1/").and_then(|text| text.parse::<u32>().ok());
    let sample = sample.filter(|sample| (1..=MOST_SAMPLED).contains(sample)).ok_or_else(|| {
        let got = &arguments.sample;
        usage("--sample", format!("{got:?}: expected 1/N, N from 1 to {MOST_SAMPLED}"))
    })?;
    Ok(Filter {
        flows,
        vni: arguments.vni,
        device: arguments.device.clone(),
        netns,
        sample,
        drops_only: arguments.drops_only,
    })
}

/// Hosts of the standing testbeds, by the inode of their namespace.
fn hosts() -> BTreeMap<u32, String> {
    // Where sockets of testbeds cannot be asked, their hosts have other names.
    let standing = lab_socket::all().unwrap_or_default();
    let hosts = standing.iter().flat_map(|testbed| &testbed.hosts);
    let named = hosts.filter_map(|host| {
        let netns = NetNs::open(Path::new(&host.netns)).ok()?;
        Some((u32::try_from(netns.inode()).ok()?, host.name.clone()))
    });
    named.collect()
}

/// Names of namespaces, and of what the kernel tells by number.
struct Known<'a> {
    places: Places,
    hosts: BTreeMap<u32, String>,
    tracer: &'a Tracer,
}

impl Names for Known<'_> {
    fn namespace(&self, netns: Option<u32>) -> String {
        let host = netns.and_then(|inode| self.hosts.get(&inode));
        host.cloned().unwrap_or_else(|| self.places.name(netns))
    }

    fn reason(&self, reason: u32) -> String {
        self.tracer.reason(reason)
    }

    fn function(&self, location: u64) -> Option<String> {
        self.tracer.function(location)
    }
}
