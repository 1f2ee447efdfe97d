//! `overlane trace`: journeys of single packets, through devices, tunnels and namespaces.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};
use observe::{Called, Filter, Journey, Journeys, Packet, Places, Tracer};

use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::{complain, print, print_json_line};
use crate::packet_filter::hosts;
use crate::trace_args::Trace;

/// How often it is looked whether to go on.
const TICK: Duration = Duration::from_millis(50);
/// Packets are a whole second's at the most in one answer.
const MOST_SAMPLED: u32 = 1 << 30;

/// Tells of packets until it is told to end.
///
/// # Errors
/// Usage; a kernel that lets nobody look, or not this process.
pub fn run(arguments: &Trace) -> anyhow::Result<Exit> {
    let filter = Filter {
        sample: sample(&arguments.sample)?,
        drops_only: arguments.drops_only,
        ..arguments.filter.parse()?
    };
    let places = Places::of_machine()?;
    for left_out in &places.left_out {
        complain(&format!("left out: {left_out}"));
    }
    let stop = interrupt::flag()?;
    let tracer = Tracer::start(filter, &places)?;
    for not_seen in &tracer.not_seen {
        complain(&format!("this kernel does not show {not_seen}"));
    }
    let hosts = hosts();
    let names = Called { places: &places, hosts: &hosts, tracer: &tracer };
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
    names: &'a Called<'a>,
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
            true => print_json_line(&packet),
            false => print(&packet.text()),
        }
    }
}

/// One packet in so many.
fn sample(text: &str) -> anyhow::Result<u32> {
    let sample = text.strip_prefix("1/").and_then(|text| text.parse::<u32>().ok());
    let sample = sample.filter(|sample| (1..=MOST_SAMPLED).contains(sample));
    sample.ok_or_else(|| {
        usage("--sample", format!("{text:?}: expected 1/N, N from 1 to {MOST_SAMPLED}"))
    })
}
