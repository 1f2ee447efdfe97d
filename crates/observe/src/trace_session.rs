//! A session of `trace`: reads events, follows packets, and returns those that are finished.
//!
//! Namespaces and devices come and go, so the session reads them again while it runs. Under
//! overload it lowers the sample rate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use crate::called::Called;
use crate::filter::Filter;
use crate::journey::Journey;
use crate::journeys::Journeys;
use crate::places::Places;
use crate::record::Packet;
use crate::sample_rate::{SampleRate, SampleRateChange};
use crate::suppressed::Suppressed;
use crate::tracer::{TraceError, Tracer};

/// Time between two readings of namespaces, devices and connections.
const REFRESH: Duration = Duration::from_secs(2);

/// How a session follows packets.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// Packets to follow, and what to read of them.
    pub filter: Filter,
    /// Names of hosts of testbeds, by the inode of their namespaces.
    pub hosts: BTreeMap<u32, String>,
    /// Lowers the sample rate while events are lost.
    pub adapts: bool,
    /// Returns only packets that took longer.
    pub slower_than: Option<Duration>,
}

/// A packet that will have no more steps.
#[derive(Debug)]
pub struct Finished {
    pub journey: Journey,
    pub packet: Packet,
}

/// Attached programs and the packets on their way, until this value is dropped.
pub struct TraceSession {
    tracer: Tracer,
    places: Places,
    hosts: BTreeMap<u32, String>,
    /// `None` before the first reading.
    refreshed: Option<Instant>,
    journeys: Journeys,
    pace: Option<SampleRate>,
    looked: Instant,
    rate: Option<SampleRateChange>,
    slower_than: Option<Duration>,
    drops_only: bool,
    /// Drops that were only counted, as of the last returned packet.
    counted: Vec<Suppressed>,
}

impl TraceSession {
    /// Attaches the programs.
    ///
    /// # Errors
    /// A kernel without tracing, or missing privileges.
    pub fn start(options: TraceOptions) -> Result<TraceSession, TraceError> {
        let TraceOptions { filter, hosts, adapts, slower_than } = options;
        let places = Places::of_machine()?;
        // Drops have their own rate limit: excess ones are counted.
        let pace = (adapts && !filter.drops_only).then(SampleRate::default);
        let drops_only = filter.drops_only;
        Ok(TraceSession {
            tracer: Tracer::start(filter, &places)?,
            places,
            hosts,
            refreshed: None,
            journeys: Journeys::default(),
            pace,
            looked: Instant::now(),
            rate: None,
            slower_than,
            drops_only,
            counted: Vec::new(),
        })
    }

    /// Returns namespaces that cannot be read, each with the reason.
    pub fn left_out(&self) -> &BTreeSet<String> {
        &self.places.left_out
    }

    /// Returns steps of packets that this kernel does not show.
    pub fn not_seen(&self) -> &[String] {
        &self.tracer.not_seen
    }

    /// Returns the packets that finished, after at most `limit`.
    ///
    /// # Errors
    /// If events cannot be read, or namespaces cannot be listed.
    pub fn poll(&mut self, limit: Duration) -> Result<Vec<Finished>, TraceError> {
        if self.refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
            self.places = self.tracer.refresh()?;
            self.refreshed = Some(Instant::now());
        }
        let events = self.tracer.poll(limit)?;
        if let Some(pace) = &mut self.pace {
            let elapsed = self.looked.elapsed();
            self.looked = Instant::now();
            let change = pace.look(events.len() as u64, self.tracer.lost()?, elapsed);
            if let Some(change) = change {
                self.tracer.sample(change.one_in)?;
                self.rate = Some(change);
            }
        }
        let mut ended = self.journeys.take(events);
        ended.extend(self.journeys.settle_when_due(now()?));
        self.finished(ended)
    }

    /// Returns the last change of the sample rate, once.
    pub fn rate_change(&mut self) -> Option<SampleRateChange> {
        self.rate.take()
    }

    /// Returns when the oldest unfinished packet was first seen (`CLOCK_MONOTONIC`, ns).
    pub fn oldest(&self) -> Option<u64> {
        self.journeys.oldest()
    }

    /// Ends all journeys, and returns their packets.
    pub fn finish(&mut self) -> Result<Vec<Finished>, TraceError> {
        let ended = std::mem::take(&mut self.journeys).finish();
        self.finished(ended)
    }

    /// Returns the number of events lost since the start.
    pub fn lost(&self) -> Result<u64, TraceError> {
        self.tracer.lost()
    }

    /// Returns drops that were only counted, since the start.
    pub fn counted(&self) -> Result<Vec<Suppressed>, TraceError> {
        self.tracer.suppressed()
    }

    fn finished(&mut self, mut ended: Vec<Journey>) -> Result<Vec<Finished>, TraceError> {
        if let Some(limit) = self.slower_than {
            ended.retain(|journey| u128::from(journey.took()) > limit.as_nanos());
        }
        let to_unix = unix_offset()?;
        let names = Called { places: &self.places, hosts: &self.hosts, tracer: &self.tracer };
        let packets = ended.into_iter().map(|journey| {
            let mut packet = Packet::of(&journey, &names);
            packet.begun_unix_ns = Some(packet.begun_ns.saturating_add_signed(to_unix));
            Finished { journey, packet }
        });
        let mut packets: Vec<Finished> = packets.collect();
        // Attach the counts to the first packet only, so that none is counted twice.
        if let Some(first) = packets.first_mut().filter(|_| self.drops_only) {
            let all = self.tracer.suppressed()?;
            first.packet.suppressed = Suppressed::since(&self.counted, &all);
            self.counted = all;
        }
        Ok(packets)
    }
}

/// Returns `CLOCK_MONOTONIC` in ns.
fn now() -> Result<u64, TraceError> {
    clock(ClockId::CLOCK_MONOTONIC)
}

fn clock(id: ClockId) -> Result<u64, TraceError> {
    let time =
        clock_gettime(id).map_err(|errno| TraceError::Kernel(format!("clock_gettime: {errno}")))?;
    Ok(u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the difference of `CLOCK_REALTIME` and `CLOCK_MONOTONIC`, ns. It changes if the time is
/// set, so it is read for each packet's output.
fn unix_offset() -> Result<i64, TraceError> {
    let (unix, monotonic) = (clock(ClockId::CLOCK_REALTIME)?, now()?);
    Ok(unix.wrapping_sub(monotonic).cast_signed())
}
