//! A VXLAN tunnel endpoint in user space (RFC 7348).
//!
//! A packet's way out: [`crate::tapbridge::Port`] is the tenants' TAP, whose
//! GSO packets `transmit` reads, finds their remote end in [`fdb`] (or, where it is
//! asked for a [`neighbour`], answers), and hands over whole by the second TAP of
//! `handover`, or cuts and sends through the sockets of `underlay`. The way in:
//! `receive` takes packets from both, believes nothing, merges, and writes to the TAP. `engine` is a thread per queue that does both ways,
//! `path_monitor` one that watches routes; [`config`] says what it is to do, [`crate::counters`]
//! what became of every packet.
//!
//! Invariants:
//! - received = forwarded + answered + dropped, each drop with its reason.
//! - Nothing is allocated per packet; what packets can make grow ([`table`]) has a
//!   bound.
//! - What comes from the wire never goes to the wire. What comes from a TAP goes to
//!   one remote end, or once to each of the replication list.
//! - Packets of one flow that one thread handles keep their order.
//! - The TAPs are not persistent: they go with the descriptors, however the process
//!   ends.

pub mod config;
mod engine;
pub mod fdb;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod groups;
mod guest_writer;
mod handover;
mod icmp_too_big;
pub mod neighbour;
mod network;
mod path_monitor;
pub mod place;
mod receive;
pub mod status;
pub mod table;
#[cfg(test)]
mod tests;
mod thread_network;
mod transmit;
mod underlay;

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use packet::ethernet::MacAddr;
use sys::frame_ring::FrameRing;
use sys::netns::NetNs;
use sys::tap::Offload;

use crate::counters::{Counters, Tally};
pub use crate::error::ConfigError;
use crate::tapbridge::BridgePort;
use crate::threads::Threads;
use crate::vhost_user::{GuestPort, GuestStatus, GuestWatcher};
use crate::{Error, Result};
pub use config::{Config, Engine, HandOver, NetworkConfig};
use engine::Worker;
use guest_writer::GuestWriter;
pub use handover::Way;
use network::{Network, Policy};
use thread_network::{ThreadNetwork, Writer};
pub use underlay::SENDERS;
use underlay::Underlay;

/// An endpoint whose sockets are open.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    underlay: Underlay,
    policies: Vec<Policy>,
    mtus: Vec<u32>,
}

impl Endpoint {
    /// What of a TAP's offloads is of use here.
    pub const OFFLOAD: Offload = Offload::PLAIN;

    /// Opens the sockets in the underlay's namespace and looks up the paths.
    ///
    /// # Errors
    /// For a configuration that cannot be ([`Config::validate`]), an MTU that the
    /// path does not take; `EADDRINUSE` when another endpoint has the port, or
    /// the kernel's VXLAN; `EADDRNOTAVAIL`, `ENETUNREACH`.
    pub fn open(config: &Config, netns: &NetNs) -> Result<Endpoint> {
        config.validate()?;
        let underlay = Underlay::open(config, netns, true)?;
        let mut policies = Vec::new();
        let mut mtus = Vec::new();
        for network in &config.networks {
            let policy = Policy::new(network, &underlay)?;
            mtus.push(mtu(config, network, &policy)?);
            policies.push(policy);
        }
        Ok(Endpoint { config: config.clone(), underlay, policies, mtus })
    }

    /// MTU that the TAP of the network at that place of the configuration is to
    /// have, in bytes; its ICMP answers and GSO packets are made to it.
    pub fn mtu(&self, network: usize) -> u32 {
        self.mtus[network]
    }

    /// How GSO packets will be handed to the kernel.
    pub fn way(&self) -> Way {
        self.underlay.way()
    }

    /// Joins the TAPs, in the configuration's order.
    ///
    /// # Errors
    /// [`Error::Ports`] for another number of ports or queues; those of a ring where
    /// it is configured.
    pub fn attach(self, ports: Vec<impl Into<BridgePort>>) -> Result<Ready> {
        let ports: Vec<BridgePort> = ports.into_iter().map(Into::into).collect();
        let Endpoint { config, underlay, policies, mtus } = self;
        let mismatch = |device: &str, wanted: String, got: String| {
            Err(Error::Ports { device: device.to_owned(), wanted, got })
        };
        if ports.len() != config.networks.len() {
            let (wanted, got) = (config.networks.len(), ports.len());
            return mismatch("TAPs", wanted.to_string(), got.to_string());
        }
        for (port, network) in ports.iter().zip(&config.networks) {
            let name = network.guest().map_or(Some(network.tap.as_str()), |path| path.to_str());
            let of_guest = network.guest().is_some() == port.tap().is_none();
            if Some(port.name()) != name || !of_guest || port.queue_count() != config.queues {
                let wanted = format!("{} with {} queues", network.tap, config.queues);
                let got = format!("{} with {} queues", port.name(), port.queue_count());
                return mismatch(port.name(), wanted, got);
            }
        }
        let mut networks = Vec::new();
        for ((network, policy), mtu) in config.networks.iter().zip(policies).zip(mtus) {
            let entries = network.entries()?;
            networks.push(Arc::new(Network::new(network, &entries, policy, mtu)));
        }
        let threads = Threads::new()?;
        let mut rings = Vec::new();
        if config.engine == Engine::Uring {
            for queue in 0..config.queues {
                // A configuration with guests has no rings.
                let taps = ports.iter().filter_map(BridgePort::tap);
                let taps: Vec<_> = taps.map(|port| &port.queues()[queue]).collect();
                rings.push(engine::ring(&taps, &underlay, queue, &threads)?);
            }
        }
        Ok(Ready { config, underlay: Arc::new(underlay), networks, ports, threads, rings })
    }
}

/// The MTU of a network's TAP.
fn mtu(config: &Config, network: &NetworkConfig, policy: &Policy) -> Result<u32> {
    let wrong =
        |problem| ConfigError::Value { key: format!("mtu of VNI {}", network.vni), problem };
    let path = policy.least_mtu();
    let room = path.saturating_sub(config.overhead()).min(*config::MTU.end());
    let unknown = network.remotes.is_empty() && network.group.is_none();
    match network.mtu {
        // It would be a black hole but for the ICMP answers.
        Some(mtu) if config.df && mtu > room && !unknown => Err(wrong(format!(
            "{mtu} and {} of the tunnel exceed the path's {path}; with df = false packets are \
             fragmented",
            config.overhead()
        ))
        .into()),
        Some(mtu) => Ok(mtu),
        None if unknown => {
            Err(wrong("cannot be found out without remotes or group; say which".to_owned()).into())
        }
        None if room < *config::MTU.start() => {
            Err(wrong(format!("the path's {path} leave no room")).into())
        }
        None => Ok(room),
    }
}

/// An endpoint that is set up: nothing that it still does needs a capability.
#[derive(Debug)]
pub struct Ready {
    config: Config,
    underlay: Arc<Underlay>,
    networks: Vec<Arc<Network>>,
    ports: Vec<BridgePort>,
    threads: Threads,
    /// By thread, where the TAPs are read by rings.
    rings: Vec<FrameRing>,
}

impl Ready {
    /// Starts the threads, which have the capabilities and CPUs of the calling
    /// thread.
    ///
    /// # Errors
    /// When threads or descriptors have run out.
    pub fn start(self) -> Result<Running> {
        let Ready { config, underlay, networks, ports, threads, rings } = self;
        let mut rings = rings.into_iter();
        let start = Instant::now();
        // Packets for devices that take no GSO packets are left as they came.
        let merge = ports.iter().all(|port| port.offload().contains(Offload::CSUM));
        let merge_udp = ports.iter().all(|port| port.offload().contains(Offload::USO4));
        // Whoever knows it can choose which flows share a source port.
        let seed = RandomState::new().hash_one(0);
        let guests = ports.iter().map(|port| match port {
            BridgePort::Guest(guest) => Some(guest.watcher()),
            BridgePort::Tap(_) => None,
        });
        let guests = guests.collect();
        let mut served: Vec<GuestPort> = Vec::new();
        let mut queues = Vec::new();
        for port in ports {
            let of_port: Vec<Writer> = match port {
                BridgePort::Tap(port) => port.into_queues().into_iter().map(Writer::Tap).collect(),
                BridgePort::Guest(port) => {
                    let pairs = port.pairs().into_iter();
                    served.push(port);
                    pairs.map(|pair| Writer::Guest(GuestWriter::new(pair))).collect()
                }
            };
            queues.push(of_port.into_iter());
        }
        let mut running = Running {
            config,
            underlay,
            networks,
            guests,
            tallies: Vec::new(),
            strangers: Vec::new(),
            threads,
        };
        for index in 0..running.config.queues {
            let mut thread_networks = Vec::new();
            let mut tallies = Vec::new();
            for (network, queues) in running.networks.iter().zip(&mut queues) {
                let Some(tap) = queues.next() else { continue };
                let own = match tap.tap() {
                    Some(tap) => MacAddr(tap.hardware_address()?),
                    None => MacAddr::ZERO,
                };
                let (out, back) = (Arc::new(Tally::default()), Arc::new(Tally::default()));
                tallies.push([out.clone(), back.clone()]);
                thread_networks.push(ThreadNetwork {
                    policy: network.policy(),
                    generation: network.generation(),
                    network: network.clone(),
                    tap,
                    own,
                    out,
                    back,
                });
            }
            let strangers = Arc::new(Tally::default());
            running.tallies.push(tallies);
            running.strangers.push(strangers.clone());
            let worker = Worker {
                index,
                thread_networks,
                underlay: running.underlay.clone(),
                strangers,
                start,
                merge,
                merge_udp,
                seed,
                busy_poll: running.config.busy_poll(),
            };
            // Those that run already end when `running` is dropped.
            worker.spawn(&mut running.threads, rings.next())?;
        }
        let Running { underlay, networks, threads, .. } = &mut running;
        for port in served {
            port.serve(threads)?;
        }
        path_monitor::spawn(underlay, networks, threads)?;
        running.threads.pin(&running.config.cpus)?;
        Ok(running)
    }
}

/// What an endpoint has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Each network, in the configuration's order.
    pub networks: Vec<NetworkReport>,
    /// Packets from the wire that belong to no network.
    pub strangers: Counters,
}

/// What was counted of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkReport {
    /// VXLAN network identifier, 24 bits.
    pub vni: packet::vxlan::Vni,
    /// Name of the tenant-facing TAP device, or what the configuration has for a guest.
    pub tap: String,
    /// From the TAP to the wire.
    pub out: Counters,
    /// From the wire to the TAP.
    pub back: Counters,
    /// FDB entries that the configuration has.
    pub configured: usize,
    /// Learned FDB entries, those too old included until their room is needed.
    pub learned: usize,
    /// The remote end with the most of these, and how many they are.
    pub largest: Option<(std::net::IpAddr, usize)>,
    /// Neighbours: configured and learned.
    pub neighbours: [usize; 2],
    /// The guest, where the tenants' side is one.
    pub guest: Option<GuestStatus>,
}

/// An endpoint at work; dropping it ends it and removes its TAPs.
#[derive(Debug)]
pub struct Running {
    config: Config,
    underlay: Arc<Underlay>,
    networks: Vec<Arc<Network>>,
    /// Likewise, where it is a guest.
    guests: Vec<Option<GuestWatcher>>,
    /// By thread and network: from the TAP, from the wire.
    tallies: Vec<Vec<[Arc<Tally>; 2]>>,
    /// One counter block a thread, of packets for no network.
    strangers: Vec<Arc<Tally>>,
    threads: Threads,
}

impl Running {
    /// How GSO packets are handed to the kernel now.
    pub fn way(&self) -> Way {
        self.underlay.way()
    }

    /// What a filter of system calls has to know: the numbers of the sockets that
    /// datagrams pass through, first and last, and of the one that is connected anew to
    /// look up a path.
    pub fn descriptors(&self) -> (RangeInclusive<RawFd>, RawFd) {
        (self.underlay.descriptors(), self.underlay.probe_descriptor())
    }

    /// The guests that there are.
    pub fn guests(&self) -> Vec<GuestWatcher> {
        self.guests.iter().flatten().cloned().collect()
    }

    /// What was counted so far.
    pub fn report(&self) -> Report {
        let sum = |network: usize, way: usize| {
            Counters::sum(self.tallies.iter().map(|thread| &*thread[network][way]))
        };
        let networks = self.networks.iter().enumerate().map(|(index, network)| {
            let (configured, learned) = network.fdb.count();
            NetworkReport {
                vni: network.vni,
                tap: self.config.networks[index].tap.clone(),
                out: sum(index, 0),
                back: sum(index, 1),
                configured,
                learned,
                largest: network.fdb.largest(),
                neighbours: network.neighbours.count().into(),
                guest: self.guests[index].as_ref().map(GuestWatcher::status),
            }
        });
        let strangers = Counters::sum(self.strangers.iter().map(|thread| &**thread));
        Report { networks: networks.collect(), strangers }
    }

    /// Takes over what may change: remote ends, replication, forwarding entries,
    /// neighbours, learning and its bounds. On an error everything stays as it was.
    ///
    /// # Errors
    /// When anything else differs, or a remote end has no route.
    pub fn reload(&mut self, config: &Config) -> Result<()> {
        config.validate()?;
        unchangeable(&self.config, config)?;
        let mut prepared = Vec::new();
        for network in &config.networks {
            prepared.push((Policy::new(network, &self.underlay)?, network.entries()?));
        }
        for (network, (policy, entries)) in self.networks.iter().zip(prepared) {
            network.reload(policy, &entries);
        }
        self.config = config.clone();
        Ok(())
    }

    /// Becomes readable when the endpoint has ended by itself; [`Running::stop`]
    /// tells why.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.threads.ended()
    }

    /// Ends the endpoint and removes its TAPs. Returns what was counted, and why it
    /// ended by itself, if it did.
    pub fn stop(mut self) -> (Report, Result<()>) {
        let outcome = self.threads.join();
        (self.report(), outcome)
    }
}

/// Refuses a change of what sockets and TAPs were made from.
fn unchangeable(old: &Config, new: &Config) -> Result<()> {
    let part = |config: &Config| {
        let networks = config.networks.iter().map(|network| NetworkConfig {
            netns: network.netns.clone(),
            address: network.address.clone(),
            mtu: network.mtu,
            group: network.group,
            ..NetworkConfig::new(network.vni, network.tap.clone())
        });
        Config { networks: networks.collect(), ..config.clone() }
    };
    if part(old) == part(new) {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: "reload".to_owned(),
        problem: "only remotes, replicate, any-remote, fdb, neighbours, learning and its bounds \
                  can change while the endpoint runs; start it anew for the others"
            .to_owned(),
    }
    .into())
}
