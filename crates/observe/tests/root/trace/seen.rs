//! A tracer's reports about a network.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use lab::Network;
use nix::time::{ClockId, clock_gettime};
use observe::{Filter, Journey, Journeys, Names, Packet, PacketEnding, PacketStep, Places, Tracer};
use testbed::{Host, Process, Processes};

use super::LIMIT;

/// A tracer, and the packets of a network that it has reported.
pub struct Seen {
    pub tracer: Tracer,
    journeys: Journeys,
    hosts: BTreeMap<u32, String>,
    /// In the order in which they ended.
    pub packets: Vec<Packet>,
}

/// Names of the network's hosts.
struct Known<'a>(&'a BTreeMap<u32, String>, &'a Tracer);

impl Names for Known<'_> {
    fn namespace(&self, netns: Option<u32>) -> String {
        let Some(inode) = netns else { return "?".to_owned() };
        self.0.get(&inode).cloned().unwrap_or_else(|| format!("net:[{inode}]"))
    }

    fn reason(&self, reason: u32) -> String {
        self.1.reason(reason)
    }

    fn function(&self, location: u64) -> Option<String> {
        self.1.function(location)
    }
}

/// The machine's clock, as in events.
fn now() -> u64 {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos() as u64
}

impl Seen {
    /// Starts to trace these flows.
    pub fn of(network: &Network, flows: &[String]) -> Seen {
        let flows = flows.iter().map(|flow| flow.parse().unwrap()).collect();
        Seen::filtered(network, Filter { flows, ..Filter::default() })
    }

    /// Starts to trace packets with this port at either end.
    pub fn of_port(network: &Network, port: u16) -> Seen {
        Seen::of(network, &[format!("*:{port}")])
    }

    pub fn filtered(network: &Network, filter: Filter) -> Seen {
        let seen = Seen::on_any_kernel(network, filter);
        assert_eq!(seen.not_seen(), &Vec::<String>::new());
        seen
    }

    /// The same on a kernel that may lack some trace points.
    pub fn on_any_kernel(network: &Network, filter: Filter) -> Seen {
        let hosts = network.hosts().iter();
        let hosts = hosts.map(|host| (inode(host), host.name().to_owned())).collect();
        let places = places(network);
        let tracer = Tracer::start(filter, &places).unwrap();
        Seen { tracer, journeys: Journeys::default(), hosts, packets: Vec::new() }
    }

    /// Facts that the kernel does not provide.
    pub fn not_seen(&self) -> &Vec<String> {
        &self.tracer.not_seen
    }

    /// Reads pending events.
    pub fn look(&mut self) {
        let mut ended = self.journeys.take(self.tracer.poll(Duration::from_millis(20)).unwrap());
        ended.extend(self.journeys.settle(now()));
        self.keep(&ended);
        assert_eq!(self.lost(), 0, "events were lost");
    }

    fn keep(&mut self, ended: &[Journey]) {
        let packets = ended.iter().map(|j| Packet::of(j, &Known(&self.hosts, &self.tracer)));
        // Other networks of this machine have the same addresses.
        self.packets.extend(
            packets.filter(|packet| {
                packet.steps.iter().all(|step| !step.namespace.starts_with("net:["))
            }),
        );
    }

    /// Acts and reads until `wanted` is satisfied.
    pub fn until<T>(
        &mut self,
        what: &str,
        act: impl FnMut(),
        find: impl FnMut(&[Packet]) -> Result<T, String>,
    ) -> T {
        self.found(what, act, find).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like `until`, but returns the packets seen instead as an error.
    pub fn found<T>(
        &mut self,
        what: &str,
        mut act: impl FnMut(),
        mut find: impl FnMut(&[Packet]) -> Result<T, String>,
    ) -> Result<T, testbed::Error> {
        testbed::poll(what, LIMIT, || {
            act();
            self.look();
            Ok(find(&self.packets).map_err(|problem| format!("{problem}\n{}", self.text())))
        })
    }

    /// Reads until no new event arrives, and ends all journeys.
    pub fn rest(&mut self) {
        let mut quiet = 0;
        while quiet < 10 {
            let events = self.tracer.poll(Duration::from_millis(20)).unwrap();
            quiet = if events.is_empty() { quiet + 1 } else { 0 };
            let ended = self.journeys.take(events);
            self.keep(&ended);
        }
        let ended = std::mem::take(&mut self.journeys).finish();
        self.keep(&ended);
        assert_eq!(self.lost(), 0, "events were lost");
    }

    /// The last packets as text.
    pub fn text(&self) -> String {
        self.packets.iter().rev().take(6).map(Packet::text).collect()
    }

    /// Events lost for lack of space.
    pub fn lost(&self) -> u64 {
        self.tracer.lost().unwrap()
    }
}

/// The machine's namespaces, including the network's. A process finds namespaces by the processes
/// in them, so one sleeps in each host meanwhile.
pub fn places(network: &Network) -> Places {
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping: Vec<Process> = network.hosts().iter().map(sleep).collect();
    let places = Places::of_machine().unwrap();
    for host in network.hosts() {
        let name = host.name();
        assert!(places.inodes().contains(&inode(host)), "{name}: {:?}", places.left_out);
    }
    places
}

pub fn inode(host: &Host) -> u32 {
    u32::try_from(host.netns().inode()).unwrap()
}

pub fn begins_in(packet: &Packet, host: &str) -> bool {
    packet.steps.first().is_some_and(|step| step.what == "queued" && step.namespace == host)
}

/// Whether it has this transport and source port.
pub fn is_from(packet: &Packet, protocol: &str, port: u16) -> bool {
    packet
        .flow
        .as_ref()
        .is_some_and(|flow| flow.protocol == protocol && flow.source_port == Some(port))
}

/// Whether it reached this host's sockets. The kernel does not show every reader of a datagram;
/// then the last step is its reception by the host.
pub fn is_arrived(packet: &Packet, host: &str) -> bool {
    let is_at = |at: usize| {
        let mut of_leg = packet.steps.iter().filter(|step| step.leg == at);
        of_leg
            .rfind(|step| step.namespace == host && step.what != "consumed")
            .is_some_and(|step| step.what == "received")
    };
    packet.legs.iter().enumerate().any(|(at, leg)| match leg.ending {
        PacketEnding::Read { .. } | PacketEnding::Received => true,
        PacketEnding::Unseen | PacketEnding::Consumed => is_at(at),
        _ => false,
    })
}

/// Whether a leg reached its socket.
pub fn is_received(ending: &PacketEnding) -> bool {
    matches!(ending, PacketEnding::Read { .. } | PacketEnding::Received)
}

/// Drops of a packet: step, reason, function of the kernel.
pub fn drops(packet: &Packet) -> impl Iterator<Item = (&PacketStep, &str, &str)> {
    packet.steps.iter().filter_map(|step| match &packet.legs[step.leg].ending {
        PacketEnding::Dropped { reason, function, .. } if step.what == "dropped" => {
            Some((step, reason.as_str(), function.as_deref().unwrap_or("?")))
        }
        _ => None,
    })
}

pub fn was_at(packet: &Packet, host: &str, device: &str) -> bool {
    steps_at(packet, host, device).next().is_some()
}

pub fn steps_at<'p>(
    packet: &'p Packet,
    host: &'p str,
    device: &'p str,
) -> impl Iterator<Item = &'p PacketStep> {
    packet
        .steps
        .iter()
        .filter(move |step| step.namespace == host && step.device.as_deref() == Some(device))
}

/// Devices that sent the packet's segments.
pub fn cut_at(packet: &Packet) -> Vec<(String, String)> {
    let legs = packet.legs.iter().enumerate().filter(|(_, leg)| leg.segment_of == Some(0));
    let mut places: Vec<(String, String)> = legs
        .filter_map(|(at, _)| packet.steps.iter().find(|step| step.leg == at))
        .map(|step| (step.namespace.clone(), step.device.clone().unwrap_or_default()))
        .collect();
    places.sort();
    places.dedup();
    places
}
