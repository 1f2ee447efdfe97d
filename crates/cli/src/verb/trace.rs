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
/// How often namespaces, devices and connections are read anew.
const REFRESH: Duration = Duration::from_secs(2);
/// Rarer is never.
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
    let stop = interrupt::flag()?;
    let mut places = Places::of_machine()?;
    let tracer = Tracer::start(filter, &places)?;
    for left_out in &places.left_out {
        complain(&format!("left out: {left_out}"));
    }
    for not_seen in &tracer.not_seen {
        complain(&format!("this kernel does not show {not_seen}"));
    }
    let hosts = hosts();
    complain("tracing: Ctrl-C ends it");
    let (begun, mut told, mut refreshed) = (Instant::now(), 0, None::<Instant>);
    let mut journeys = Journeys::default();
    let is_over = |told: u64| {
        stop.load(Ordering::Relaxed)
            || arguments.duration.is_some_and(|limit| begun.elapsed() >= *limit)
            || arguments.count.is_some_and(|count| told >= count)
    };
    while !is_over(told) {
        if refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
            places = tracer.refresh()?;
            refreshed = Some(Instant::now());
        }
        let mut ended = journeys.take(tracer.poll(TICK)?);
        ended.extend(journeys.settle(now()?));
        let names = Called { places: &places, hosts: &hosts, tracer: &tracer };
        told += tell(&ended, arguments, told, &names)?;
    }
    let names = Called { places: &places, hosts: &hosts, tracer: &tracer };
    told += tell(&journeys.finish(), arguments, told, &names)?;
    let lost = tracer.lost()?;
    complain(&format!("{told} packets told, {lost} events lost"));
    Ok(if stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Done })
}

/// `CLOCK_MONOTONIC`, ns.
fn now() -> anyhow::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).context("clock_gettime")?;
    Ok(u64::try_from(Duration::from(time).as_nanos())?)
}

/// Prints those packets that are wanted, after so many others; answers how many.
fn tell(
    ended: &[Journey],
    arguments: &Trace,
    before: u64,
    names: &Called<'_>,
) -> anyhow::Result<u64> {
    let is_slow = |journey: &&Journey| {
        let limit = arguments.slower_than.map_or(Duration::ZERO, Duration::from);
        arguments.slower_than.is_none() || u128::from(journey.took()) > limit.as_nanos()
    };
    let room = arguments.count.unwrap_or(u64::MAX).saturating_sub(before);
    let mut told = 0;
    for journey in ended.iter().filter(is_slow) {
        if told == room {
            break;
        }
        let packet = Packet::of(journey, names);
        match arguments.json {
            true => print_json_line(&packet)?,
            false => print(&packet.text())?,
        }
        told += 1;
    }
    Ok(told)
}

/// One packet in so many.
fn sample(text: &str) -> anyhow::Result<u32> {
    let sample = text.strip_prefix("1/").and_then(|text| text.parse::<u32>().ok());
    let sample = sample.filter(|sample| (1..=MOST_SAMPLED).contains(sample));
    sample.ok_or_else(|| {
        usage("--sample", format!("{text:?}: expected 1/N, N from 1 to {MOST_SAMPLED}"))
    })
}
