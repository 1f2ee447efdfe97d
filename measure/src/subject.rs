//! What is measured: a path between two ends, with the counters that prove it.
//! Who built it is not known here. The client's end is a namespace of this
//! machine; the server's, too, or a server on another machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use netstate::{Counters, Hop, Meter, Metered, Netlink, Program};
use sys::netns::NetNs;

use crate::engine::{Between, Ends};
use crate::remote::Remote;
use crate::sampler::{
    Dropped, Drops, DropsReading, Namespace, NamespaceSample, NamespaceSnapshot, SamplerError,
};

/// A network namespace on the path.
#[derive(Debug, Clone)]
pub struct Place {
    /// Name, as hops and figures have it (`a`, `tenant-b`).
    pub name: String,
    /// The namespace.
    pub netns: Arc<NetNs>,
}

/// A path to be measured.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Mode.
    pub mode: String,
    /// Offload profile.
    pub offload: String,
    /// Underlay MTU, bytes.
    pub mtu: u32,
    /// Index of the client's namespace in `places`.
    pub client: usize,
    /// The server's end.
    pub server: ServerEnd,
    /// The path, client to server.
    pub hops: Vec<Hop>,
    /// Every namespace of the path that is on this machine.
    pub places: Vec<Place>,
}

/// Where the server's half of a load runs.
#[derive(Debug, Clone)]
pub enum ServerEnd {
    /// In this process.
    Here {
        /// Index of its namespace in [`Subject::places`].
        place: usize,
        /// What the client connects to.
        target: SocketAddr,
        /// What the server binds.
        listen: SocketAddr,
    },
    /// In another process, most likely on another machine.
    Away(Arc<Remote>),
}

impl Subject {
    /// Where the two halves of a load run.
    pub fn between(&self) -> Between<'_> {
        let client = &*self.places[self.client].netns;
        match &self.server {
            &ServerEnd::Here { place, target, listen } => {
                let server = &*self.places[place].netns;
                Between::Here(Ends { client, server, target, listen })
            }
            ServerEnd::Away(server) => Between::Away { client, server: &**server },
        }
    }

    /// The server, where it is another process.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.server {
            ServerEnd::Here { .. } => None,
            ServerEnd::Away(remote) => Some(remote),
        }
    }

    /// Names of the two ends, as places and hops have them.
    pub fn ends(&self) -> [&str; 2] {
        let client = self.places[self.client].name.as_str();
        match &self.server {
            &ServerEnd::Here { place, .. } => [client, self.places[place].name.as_str()],
            ServerEnd::Away(_) => [client, Remote::HOST],
        }
    }
}

/// The samplers of a subject's places, opened once for all its samples.
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

/// One reading of every place.
#[derive(Debug)]
pub struct Reading {
    places: Vec<(BTreeMap<String, Counters>, NamespaceSnapshot)>,
    /// What each program has dropped.
    programs: Vec<u64>,
    meters: BTreeMap<Device, Metered>,
    drops: Option<DropsReading>,
}

/// What happened between two readings.
#[derive(Debug)]
pub struct Observed {
    /// Place → device → counters.
    pub devices: BTreeMap<String, BTreeMap<String, Counters>>,
    /// Protocol counters of every place, in the subject's order.
    pub namespaces: Vec<NamespaceSample>,
    /// What the kernel dropped in the subject's places, with the place's name;
    /// empty where BPF is not allowed.
    pub drops: Vec<(String, Dropped)>,
    /// What programs on the path dropped in user space, by their names.
    pub programs: Vec<(String, u64)>,
    /// What stages carried and left, and what bypassed devices are excused, by
    /// place and name.
    pub metered: BTreeMap<(String, String), Metered>,
}

/// A probe that cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Protocol counters.
    #[error("{place}: {error}")]
    Namespace {
        /// The place.
        place: String,
        /// Why.
        error: SamplerError,
    },
    /// Link counters.
    #[error("{place}: {error}")]
    Links {
        /// The place.
        place: String,
        /// Why.
        error: netstate::Error,
    },
}

impl Probes {
    /// Opens them.
    ///
    /// # Errors
    /// When a namespace cannot be entered or its counters not be read.
    pub fn open(places: &[Place]) -> Result<Probes, ProbeError> {
        let open = |place: &Place| {
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

    /// Asks the programs behind these hops, too, what they dropped, and stages
    /// what they carried.
    #[must_use]
    pub fn with_programs(mut self, hops: &[Hop]) -> Probes {
        self.programs = hops.iter().filter_map(|hop| hop.program.clone()).collect();
        let meter = |hop: &Hop| {
            let excused = hop.bypass.as_ref().and_then(|bypass| bypass.excused.clone());
            let meter = hop.meter.clone().or(excused)?;
            Some(((hop.host.clone(), hop.device.clone()), meter))
        };
        self.meters = hops.iter().filter_map(meter).collect();
        self
    }

    /// Lets the kernel say where it drops what, too.
    ///
    /// # Errors
    /// When a namespace cannot be added to those that are counted.
    pub fn with_drops(mut self, drops: Arc<Drops>) -> Result<Probes, ProbeError> {
        for place in &self.places {
            drops.watch(place.inode).map_err(|error| place.failed(error))?;
        }
        self.drops = Some(drops);
        Ok(self)
    }

    /// Reads every counter.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn read(&self) -> Result<Reading, ProbeError> {
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
            (Some(drops), Some(place)) => Some(drops.read().map_err(|e| place.failed(e))?),
            _ => None,
        };
        let programs = self.programs.iter().map(Program::dropped).collect();
        let meters = self.meters.iter().map(|(at, meter)| (at.clone(), meter.read())).collect();
        Ok(Reading { places, programs, meters, drops })
    }

    /// What happened between two readings.
    pub fn difference(&self, before: &Reading, after: &Reading) -> Observed {
        let mut devices = BTreeMap::new();
        let mut namespaces = Vec::new();
        for (place, (before, after)) in
            self.places.iter().zip(before.places.iter().zip(&after.places))
        {
            let links = after.0.iter().map(|(device, counters)| {
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
        // Those of other subjects, which are counted together, have no name here.
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

impl Observed {
    /// Counters of a device.
    pub fn device(&self, host: &str, device: &str) -> Option<&Counters> {
        self.devices.get(host)?.get(device)
    }

    /// What a stage carried, or a bypassed device is excused.
    pub fn metered(&self, host: &str, name: &str) -> Option<&Metered> {
        self.metered.get(&(host.to_owned(), name.to_owned()))
    }

    /// Protocol counters of a place.
    pub fn namespace(&self, host: &str) -> Option<&NamespaceSample> {
        self.namespaces.iter().find(|namespace| namespace.label == host)
    }
}
