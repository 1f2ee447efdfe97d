//! Counters of a path: opened once, read before and after each sample.

use std::collections::BTreeMap;
use std::sync::Arc;

use netstate::{Counters, Hop, Meter, Metered, Netlink, Program};

use crate::observed::Observed;
use crate::path_netns::PathNetns;
use crate::sampler::{Drops, DropsReading, Namespace, NamespaceSnapshot, SamplerError};

/// Samplers of a path's namespaces and programs, opened once for all samples.
#[derive(Debug)]
pub struct Probes {
    places: Vec<PlaceProbe>,
    programs: Vec<Program>,
    meters: BTreeMap<Device, Meter>,
    drops: Option<Arc<Drops>>,
}

/// Place and device, or stage.
type Device = (String, String);

#[derive(Debug)]
struct PlaceProbe {
    name: String,
    inode: u64,
    netlink: Netlink,
    namespace: Namespace,
}

/// Counters of every place at one moment.
#[derive(Debug)]
pub struct Reading {
    places: Vec<(BTreeMap<String, Counters>, NamespaceSnapshot)>,
    /// Packets that each program has dropped.
    programs: Vec<u64>,
    meters: BTreeMap<Device, Metered>,
    drops: Option<DropsReading>,
}

/// A probe that could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Protocol counters of a namespace could not be opened or read.
    #[error("{place}: {error}")]
    Namespace {
        /// Name of the place.
        place: String,
        /// Failed file or request, and the error.
        error: SamplerError,
    },
    /// Link counters of a namespace could not be opened or read.
    #[error("{place}: {error}")]
    Links {
        /// Name of the place.
        place: String,
        /// Failed request, and the error.
        error: netstate::Error,
    },
}

impl Probes {
    /// Opens the samplers of these places.
    ///
    /// # Errors
    /// If a namespace cannot be entered or its counters cannot be read.
    pub fn open(places: &[PathNetns]) -> Result<Probes, ProbeError> {
        let open = |place: &PathNetns| {
            let netlink = Netlink::open_in(&place.netns)
                .map_err(|error| ProbeError::Links { place: place.name.clone(), error })?;
            let namespace = Namespace::open_in(&place.netns, &place.name)
                .map_err(|error| ProbeError::Namespace { place: place.name.clone(), error })?;
            let inode = place.netns.inode();
            Ok(PlaceProbe { name: place.name.clone(), inode, netlink, namespace })
        };
        let places = places.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Probes { places, programs: Vec::new(), meters: BTreeMap::new(), drops: None })
    }

    /// Adds the programs behind these hops (their drops) and the stages (their packets).
    #[must_use]
    pub fn with_programs(mut self, hops: &[Hop]) -> Probes {
        self.programs = hops.iter().filter_map(|hop| hop.program.clone()).collect();
        let meter = |hop: &Hop| {
            let excused = hop.bypass.as_ref().and_then(|bypass| bypass.excused.clone());
            // A bypassed device has no meter of its own, only one of excused packets.
            let meter = hop.meter.clone().or(excused)?;
            Some(((hop.host.clone(), hop.device.clone()), meter))
        };
        self.meters = hops.iter().filter_map(meter).collect();
        self
    }

    /// Adds the kernel's drop reasons.
    ///
    /// # Errors
    /// If a namespace cannot be added to the counted ones.
    pub fn with_drops(mut self, drops: Arc<Drops>) -> Result<Probes, ProbeError> {
        for place in &self.places {
            drops.watch(place.inode).map_err(|error| place.failed(error.into()))?;
        }
        self.drops = Some(drops);
        Ok(self)
    }

    /// Takes the first reading of an interval. Stages are read first here and last at the end:
    /// they excuse packets of bypassed devices, so they must count at least what the devices
    /// count. Reading everything takes milliseconds, while streams go on.
    pub fn begin(&self) -> Result<Reading, ProbeError> {
        let meters = self.meters();
        let reading = self.all_but_meters()?;
        Ok(Reading { meters, ..reading })
    }

    /// Takes the last reading of an interval.
    pub fn end(&self) -> Result<Reading, ProbeError> {
        let reading = self.all_but_meters()?;
        Ok(Reading { meters: self.meters(), ..reading })
    }

    fn meters(&self) -> BTreeMap<Device, Metered> {
        self.meters.iter().map(|(at, meter)| (at.clone(), meter.read())).collect()
    }

    fn all_but_meters(&self) -> Result<Reading, ProbeError> {
        let read = |place: &PlaceProbe| {
            let links = place
                .netlink
                .counters()
                .map_err(|error| ProbeError::Links { place: place.name.clone(), error })?;
            let snapshot = place
                .namespace
                .snapshot()
                .map_err(|error| ProbeError::Namespace { place: place.name.clone(), error })?;
            Ok((links, snapshot))
        };
        let places = self.places.iter().map(read).collect::<Result<_, _>>()?;
        let drops = match (&self.drops, self.places.first()) {
            (Some(drops), Some(place)) => Some(drops.read().map_err(|e| place.failed(e.into()))?),
            // Without BPF, drops are attributed by counters.
            _ => None,
        };
        let programs = self.programs.iter().map(Program::dropped).collect();
        Ok(Reading { places, programs, meters: BTreeMap::new(), drops })
    }

    /// Returns the difference of two readings.
    pub fn difference(&self, before: &Reading, after: &Reading) -> Observed {
        let mut devices = BTreeMap::new();
        let mut namespaces = Vec::new();
        for (place, (before, after)) in
            self.places.iter().zip(before.places.iter().zip(&after.places))
        {
            let links = after.0.iter().map(|(device, counters)| {
                // Created since the first reading, so all that it counts belongs to the interval.
                let earlier = before.0.get(device).copied().unwrap_or_default();
                (device.clone(), counters.since(&earlier))
            });
            devices.insert(place.name.clone(), links.collect());
            namespaces.push(place.namespace.difference(&before.1, &after.1));
        }
        let read = before.drops.as_ref().zip(after.drops.as_ref());
        let dropped = self
            .drops
            .as_ref()
            .zip(read)
            .map_or_else(Vec::new, |(drops, (before, after))| drops.difference(before, after));
        // Drops are counted for all subjects together: skip those of other subjects.
        let drops = dropped
            .into_iter()
            .filter_map(|drop| {
                let place = self.places.iter().find(|place| place.inode == drop.netns)?;
                Some((place.name.clone(), drop))
            })
            .collect();
        let programs = self
            .programs
            .iter()
            .zip(before.programs.iter().zip(&after.programs))
            .map(|(program, (before, after))| (program.name.clone(), after.saturating_sub(*before)))
            .collect();
        let metered = after.meters.iter().map(|(at, after)| {
            // Started since the first reading, so all that it counts belongs to the interval.
            let before = before.meters.get(at).cloned().unwrap_or_default();
            (at.clone(), after.since(&before))
        });
        Observed { devices, namespaces, drops, programs, metered: metered.collect() }
    }
}

impl PlaceProbe {
    fn failed(&self, error: SamplerError) -> ProbeError {
        ProbeError::Namespace { place: self.name.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A stream goes on while counters are read: each counter sees one packet more per reading.
    #[test]
    fn a_meter_counts_whatever_the_other_counters_can_have_seen() {
        let packets = Arc::new(AtomicU64::new(0));
        let [one, other] = [(); 2].map(|()| packets.clone());
        let meter = Meter::new(move || {
            let tx_packets = one.fetch_add(1, Ordering::Relaxed);
            Metered { carried: Counters { tx_packets, ..Default::default() }, ..Default::default() }
        });
        let hop = Hop::tx("a", "nic0")
            .before("copy loop", move || other.fetch_add(1, Ordering::Relaxed))
            .bypassed_but_for(netstate::TrafficDirection::Forward, meter);
        let probes = Probes::open(&[]).unwrap().with_programs(&[hop]);
        let (before, after) = (probes.begin().unwrap(), probes.end().unwrap());
        let observed = probes.difference(&before, &after);
        // First reading: meter, program. Last reading: program, meter.
        assert_eq!(observed.programs, [("copy loop".to_owned(), 1)]);
        assert_eq!(observed.metered("a", "nic0").unwrap().carried.tx_packets, 3);
    }
}
