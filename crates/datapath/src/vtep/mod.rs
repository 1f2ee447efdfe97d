//! A VXLAN tunnel endpoint in user space (RFC 7348).
//!
//! To the wire: `transmit` reads GSO packets from the tenants' TAP ([`crate::tapbridge::Port`]) and
//! looks up the remote endpoint in [`fdb`], or answers a request for a [`neighbour`] itself. It
//! then passes the packet on unsegmented, through the second TAP of `handover`, or segments it and
//! sends it through the sockets of `underlay`. From the wire: `receive` takes packets from both,
//! validates and merges them, and writes them to the TAP. `engine` is a thread per queue that
//! handles both directions. `path_monitor` is a thread that watches routes. [`config`] is the
//! configuration, and [`crate::counters`] counts the outcome of every packet.
//!
//! Invariants:
//! - received = forwarded + answered + dropped, each drop with its reason.
//! - Nothing is allocated per packet. Everything that packets can make grow ([`table`]) has a
//!   limit.
//! - A packet from the wire is never sent to the wire. A packet from a TAP is sent to one remote
//!   endpoint, or once to each entry of the replication list.
//! - Packets of one flow that one thread handles keep their order.
//! - The TAPs are not persistent: the kernel removes them when their descriptors are closed,
//!   however the process ends.

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
pub use handover::HandOverMode;
use network::{Network, Policy};
use thread_network::{ThreadNetwork, Writer};
pub use underlay::SENDERS;
use underlay::Underlay;

/// An endpoint with open sockets.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    underlay: Underlay,
    policies: Vec<Policy>,
    mtus: Vec<u32>,
}

impl Endpoint {
    /// The TAP offloads that the endpoint can use.
    pub const OFFLOAD: Offload = Offload::PLAIN;

    /// Opens the sockets in the underlay's namespace and looks up the paths.
    ///
    /// # Errors
    /// If the configuration is invalid ([`Config::validate`]) or an MTU exceeds the path MTU.
    /// `EADDRINUSE`: another endpoint or the kernel's VXLAN uses the port. `EADDRNOTAVAIL`,
    /// `ENETUNREACH`.
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

    /// Returns the MTU for the TAP of a network, by its index in the configuration, in bytes. ICMP
    /// answers and GSO packets are made for this MTU.
    pub fn mtu(&self, network: usize) -> u32 {
        self.mtus[network]
    }

    /// Returns how GSO packets will be passed to the kernel.
    pub fn way(&self) -> HandOverMode {
        self.underlay.way()
    }

    /// Attaches the TAPs, in the order of the configuration.
    ///
    /// # Errors
    /// [`Error::Ports`] if the number of ports or queues differs; errors of io_uring if it is
    /// configured.
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
                // The configuration allows no guests with rings, so every port is a TAP.
                let taps = ports.iter().filter_map(BridgePort::tap);
                let taps: Vec<_> = taps.map(|port| &port.queues()[queue]).collect();
                rings.push(engine::ring(&taps, &underlay, queue, &threads)?);
            }
        }
        Ok(Ready { config, underlay: Arc::new(underlay), networks, ports, threads, rings })
    }
}

/// Returns the MTU of a network's TAP.
fn mtu(config: &Config, network: &NetworkConfig, policy: &Policy) -> Result<u32> {
    let wrong =
        |problem| ConfigError::Value { key: format!("mtu of VNI {}", network.vni), problem };
    let path = policy.least_mtu();
    let room = path.saturating_sub(config.overhead()).min(*config::MTU.end());
    let unknown = network.remotes.is_empty() && network.group.is_none();
    match network.mtu {
        // Packets above the path MTU would be lost unless the sender handles the ICMP answers, so
        // refuse.
        Some(mtu) if config.df && mtu > room && !unknown => Err(wrong(format!(
            "{mtu} plus {} bytes of overhead exceed the path MTU of {path}. With df = false, \
                packets are fragmented",
            config.overhead()
        ))
        .into()),
        Some(mtu) => Ok(mtu),
        None if unknown => Err(wrong(
            "cannot be determined without remotes or group; set it explicitly".to_owned(),
        )
        .into()),
        None if room < *config::MTU.start() => {
            Err(wrong(format!("the path MTU of {path} leaves no room")).into())
        }
        None => Ok(room),
    }
}

/// An endpoint that is set up. It needs no capabilities from here on.
#[derive(Debug)]
pub struct Ready {
    config: Config,
    underlay: Arc<Underlay>,
    networks: Vec<Arc<Network>>,
    ports: Vec<BridgePort>,
    threads: Threads,
    /// One ring per thread, if the TAPs are read with io_uring.
    rings: Vec<FrameRing>,
}

impl Ready {
    /// Starts the threads, with the capabilities and CPUs of the calling thread.
    ///
    /// # Errors
    /// If there are no more threads or descriptors.
    pub fn start(self) -> Result<Running> {
        let Ready { config, underlay, networks, ports, threads, rings } = self;
        let mut rings = rings.into_iter();
        let start = Instant::now();
        // A device that takes no GSO packets gets packets as they arrived.
        let merge = ports.iter().all(|port| port.offload().contains(Offload::CSUM));
        let merge_udp = ports.iter().all(|port| port.offload().contains(Offload::USO4));
        // Secret: a tenant that knew it could choose which flows share a source port.
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
            unassigned: Vec::new(),
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
            let unassigned = Arc::new(Tally::default());
            running.tallies.push(tallies);
            running.unassigned.push(unassigned.clone());
            let worker = Worker {
                index,
                thread_networks,
                underlay: running.underlay.clone(),
                unassigned,
                start,
                merge,
                merge_udp,
                seed,
                busy_poll: running.config.busy_poll(),
            };
            // If this fails, dropping `running` ends the threads that were started.
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

/// Counters of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// One report per network, in the order of the configuration.
    pub networks: Vec<NetworkReport>,
    /// Packets from the wire that belong to no network.
    pub unassigned: Counters,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkReport {
    /// VXLAN network identifier, 24 bits.
    pub vni: packet::vxlan::Vni,
    /// Name of the tenants' TAP device, or the configured name of a guest.
    pub tap: String,
    /// From the TAP to the wire.
    pub out: Counters,
    /// From the wire to the TAP.
    pub back: Counters,
    /// Static FDB entries.
    pub configured: usize,
    /// Learned FDB entries. Expired ones are included until their room is needed.
    pub learned: usize,
    /// The remote endpoint with the most learned entries, and their number.
    pub largest: Option<(std::net::IpAddr, usize)>,
    /// Number of static and of learned neighbours.
    pub neighbours: [usize; 2],
    /// State of the guest, if the tenants' side is a guest.
    pub guest: Option<GuestStatus>,
}

/// A running endpoint. Dropping it ends it and removes its TAPs.
#[derive(Debug)]
pub struct Running {
    config: Config,
    underlay: Arc<Underlay>,
    networks: Vec<Arc<Network>>,
    /// Guests by network; `None` for a TAP.
    guests: Vec<Option<GuestWatcher>>,
    /// Counters by thread and network: from the TAP, from the wire.
    tallies: Vec<Vec<[Arc<Tally>; 2]>>,
    /// Counters by thread, of packets for no network.
    unassigned: Vec<Arc<Tally>>,
    threads: Threads,
}

impl Running {
    /// Returns how GSO packets are currently passed to the kernel.
    pub fn way(&self) -> HandOverMode {
        self.underlay.way()
    }

    /// Returns descriptor numbers for a seccomp filter: the range of sockets that carry datagrams,
    /// and the socket that is connected again to look up a path.
    pub fn descriptors(&self) -> (RangeInclusive<RawFd>, RawFd) {
        (self.underlay.descriptors(), self.underlay.probe_descriptor())
    }

    pub fn guests(&self) -> Vec<GuestWatcher> {
        self.guests.iter().flatten().cloned().collect()
    }

    /// Returns the counters so far.
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
        let unassigned = Counters::sum(self.unassigned.iter().map(|thread| &**thread));
        Report { networks: networks.collect(), unassigned }
    }

    /// Applies the settings that can change: remote endpoints, replication, FDB entries,
    /// neighbours, learning and its limits. On an error, nothing changes.
    ///
    /// # Errors
    /// If another setting differs, or a remote endpoint has no route.
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

    /// Returns a descriptor that becomes readable when the endpoint has ended by itself.
    /// [`Running::stop`] returns the reason.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.threads.ended()
    }

    /// Ends the endpoint and removes its TAPs. Returns the counters, and the error if it had ended
    /// by itself.
    pub fn stop(mut self) -> (Report, Result<()>) {
        let outcome = self.threads.join();
        (self.report(), outcome)
    }
}

/// Refuses changes to settings that the sockets and TAPs were created from.
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
    // Unchanged parts need no check.
    if part(old) == part(new) {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: "reload".to_owned(),
        problem: "only remotes, replicate, any-remote, fdb, neighbours, learning and its limits \
            can change at run time; restart the endpoint to change other settings"
            .to_owned(),
    }
    .into())
}
