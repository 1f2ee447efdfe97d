//! What an endpoint tells about itself: to who asks (`overlane vtep status`), to a
//! terminal, to Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;

use datapath::counters::{Counters, DropReason, Resolution};
use datapath::vtep::{Config, Report, Way};
use serde::{Deserialize, Serialize};

use crate::control::{self, user};

/// One endpoint.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its address and port on the underlay.
    pub local: SocketAddr,
    /// How super-packets are handed to the kernel.
    pub hand_over: String,
    /// Whether that is whole.
    pub whole: bool,
    /// Its networks.
    pub networks: Vec<Network>,
    /// What came from the wire for no network.
    pub of_no_network: Direction,
}

/// One network.
#[derive(Debug, Serialize, Deserialize)]
pub struct Network {
    /// Its identifier.
    pub vni: u32,
    /// Its TAP.
    pub tap: String,
    /// From the TAP to the wire.
    pub to_wire: Direction,
    /// From the wire to the TAP.
    pub from_wire: Direction,
    /// Configured addresses.
    pub configured: usize,
    /// Learned addresses.
    pub learned: usize,
    /// Configured neighbours.
    pub neighbours_configured: usize,
    /// Learned neighbours.
    pub neighbours_learned: usize,
}

/// One direction: received = forwarded + answered + dropped.
#[derive(Debug, Serialize, Deserialize)]
pub struct Direction {
    /// Packets, a super-packet being one.
    pub received: u64,
    /// Bytes of their frames.
    pub received_bytes: u64,
    /// Of these, how many were passed on.
    pub forwarded: u64,
    /// Their bytes.
    pub forwarded_bytes: u64,
    /// Answered with ICMP, ARP or a neighbour advertisement.
    pub answered: u64,
    /// Pieces in which they were handed to the kernel.
    pub handed_over: u64,
    /// Copies sent besides the first.
    pub replicas: u64,
    /// Copies that could not be sent.
    pub replicas_lost: u64,
    /// Addresses that were not learned for want of room.
    pub unlearned: u64,
    /// Questions for neighbours, by what became of them; those that there were.
    pub resolutions: BTreeMap<String, u64>,
    /// By reason; those that there were.
    pub dropped: BTreeMap<String, u64>,
}

impl Direction {
    fn of(counters: &Counters) -> Direction {
        let reasons = DropReason::ALL.into_iter().map(|r| (r, counters.dropped_by(r)));
        let dropped = reasons.filter(|(_, n)| *n > 0).map(|(r, n)| (r.name().to_owned(), n));
        let outcomes = Resolution::ALL.into_iter().map(|r| (r, counters.resolved(r)));
        let resolutions = outcomes.filter(|(_, n)| *n > 0).map(|(r, n)| (r.name().to_owned(), n));
        Direction {
            received: counters.received,
            received_bytes: counters.received_bytes,
            forwarded: counters.forwarded,
            forwarded_bytes: counters.forwarded_bytes,
            answered: counters.answered,
            handed_over: counters.handed_over,
            replicas: counters.replicas,
            replicas_lost: counters.replicas_lost,
            unlearned: counters.unlearned,
            resolutions: resolutions.collect(),
            dropped: dropped.collect(),
        }
    }

    fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("received_packets", self.received),
            ("received_bytes", self.received_bytes),
            ("forwarded_packets", self.forwarded),
            ("forwarded_bytes", self.forwarded_bytes),
            ("answered_packets", self.answered),
            ("handed_over_pieces", self.handed_over),
            ("replicas", self.replicas),
            ("lost_replicas", self.replicas_lost),
            ("unlearned_addresses", self.unlearned),
        ]
    }

    fn describe(&self, name: &str) -> String {
        let mut line = format!(
            "{name}: received {} packets, {} bytes; forwarded {} packets, {} bytes, in {} pieces",
            self.received,
            self.received_bytes,
            self.forwarded,
            self.forwarded_bytes,
            self.handed_over
        );
        for (what, number) in [
            ("answered", self.answered),
            ("replicas", self.replicas),
            ("replicas lost", self.replicas_lost),
            ("unlearned", self.unlearned),
        ] {
            if number > 0 {
                // Writing to a String cannot fail.
                let _ = write!(line, "; {what} {number}");
            }
        }
        let words = |counted: &BTreeMap<String, u64>| -> Vec<String> {
            counted.iter().map(|(why, n)| format!("{why} {n}")).collect()
        };
        if !self.resolutions.is_empty() {
            let _ = write!(line, "; neighbours asked for: {}", words(&self.resolutions).join(", "));
        }
        let _ = write!(line, "; dropped {}", self.dropped.values().sum::<u64>());
        let reasons = words(&self.dropped);
        if !reasons.is_empty() {
            let _ = write!(line, " ({})", reasons.join(", "));
        }
        line
    }
}

impl Status {
    /// That of an endpoint now.
    pub fn of(config: &Config, way: Way, report: &Report) -> Status {
        let networks = report.networks.iter().map(|network| Network {
            vni: network.vni.get(),
            tap: network.tap.clone(),
            to_wire: Direction::of(&network.out),
            from_wire: Direction::of(&network.back),
            configured: network.configured,
            learned: network.learned,
            neighbours_configured: network.neighbours[0],
            neighbours_learned: network.neighbours[1],
        });
        Status {
            local: SocketAddr::new(config.local, config.port),
            hand_over: way.to_string(),
            whole: matches!(way, Way::TunnelGso { .. }),
            networks: networks.collect(),
            of_no_network: Direction::of(&report.strangers),
        }
    }

    /// Each network's counters, a line a direction, and the endpoint's.
    pub fn describe(&self) -> String {
        let mut lines = Vec::new();
        for network in &self.networks {
            let Network { vni, tap, configured, learned, .. } = network;
            lines.push(network.to_wire.describe(&format!("VNI {vni} {tap} to wire")));
            let back = network.from_wire.describe(&format!("VNI {vni} wire to {tap}"));
            let mut line = format!("{back}; addresses: {configured} configured, {learned} learned");
            let (given, heard) = (network.neighbours_configured, network.neighbours_learned);
            if given + heard > 0 {
                // Writing to a String cannot fail.
                let _ = write!(line, "; neighbours: {given} configured, {heard} learned");
            }
            lines.push(line);
        }
        lines.push(self.of_no_network.describe("of no network"));
        lines.join("\n")
    }

    /// As Prometheus reads it (text format 0.0.4).
    pub fn prometheus(&self) -> String {
        let local = self.local;
        let mut directions = vec![(format!("local=\"{local}\""), &self.of_no_network)];
        for network in &self.networks {
            let labels =
                format!("local=\"{local}\",vni=\"{}\",tap=\"{}\"", network.vni, network.tap);
            directions.push((format!("{labels},direction=\"to_wire\""), &network.to_wire));
            directions.push((format!("{labels},direction=\"from_wire\""), &network.from_wire));
        }
        let mut text = String::new();
        for (at, (name, _)) in self.of_no_network.named().into_iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# TYPE overlane_vtep_{name}_total counter");
            for (labels, direction) in &directions {
                let value = direction.named()[at].1;
                let _ = writeln!(text, "overlane_vtep_{name}_total{{{labels}}} {value}");
            }
        }
        let mut counted = |name: &str, label: &str, words: &[&str], of: Counted| {
            let _ = writeln!(text, "# TYPE overlane_vtep_{name}_total counter");
            for (labels, direction) in &directions {
                for word in words {
                    let value = of(direction).get(*word).copied().unwrap_or(0);
                    let labels = format!("{labels},{label}=\"{word}\"");
                    let _ = writeln!(text, "overlane_vtep_{name}_total{{{labels}}} {value}");
                }
            }
        };
        let reasons = DropReason::ALL.map(DropReason::name);
        counted("dropped_packets", "reason", &reasons, |direction| &direction.dropped);
        let outcomes = Resolution::ALL.map(Resolution::name);
        counted("neighbour_questions", "outcome", &outcomes, |direction| &direction.resolutions);
        for (name, kinds) in [
            ("addresses", (|n| [n.configured, n.learned]) as fn(&Network) -> [usize; 2]),
            ("neighbours", |n| [n.neighbours_configured, n.neighbours_learned]),
        ] {
            let _ = writeln!(text, "# TYPE overlane_vtep_{name} gauge");
            for network in &self.networks {
                let labels =
                    format!("local=\"{local}\",vni=\"{}\",tap=\"{}\"", network.vni, network.tap);
                for (kind, value) in ["configured", "learned"].into_iter().zip(kinds(network)) {
                    let _ =
                        writeln!(text, "overlane_vtep_{name}{{{labels},kind=\"{kind}\"}} {value}");
                }
            }
        }
        text.push_str("# TYPE overlane_vtep_whole gauge\n");
        let _ = writeln!(text, "overlane_vtep_whole{{local=\"{local}\"}} {}", u8::from(self.whole));
        text
    }
}

/// What of a direction is counted by words.
type Counted = fn(&Direction) -> &BTreeMap<String, u64>;

/// What the sockets of endpoints are named, in their network namespaces.
const PREFIX: &str = "overlane-vtep/";

/// Claims the name of an endpoint.
///
/// # Errors
/// When there is one at that address and port.
pub fn claim(config: &Config) -> anyhow::Result<UnixListener> {
    let local = SocketAddr::new(config.local, config.port);
    let taken = format!("there is an endpoint at {local} already (overlane vtep status)");
    let listener = control::claim(&format!("{PREFIX}{local}"), &taken)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers who is waiting.
pub fn answer(listener: &UnixListener, status: impl Fn() -> Status) {
    while let Ok((stream, _)) = listener.accept() {
        let answer = || {
            stream.set_nonblocking(false)?;
            control::read(&stream, &[user()])?;
            control::answer(&stream, &status())
        };
        // Who is slow or gone must not keep the others waiting; nothing is lost.
        let _: anyhow::Result<()> = answer();
    }
}

/// Every endpoint of this network namespace.
///
/// # Errors
/// When the kernel's list of sockets cannot be read, or one does not answer.
pub fn all() -> anyhow::Result<Vec<Status>> {
    let mut found = Vec::new();
    for name in control::names(PREFIX)? {
        let who = format!("endpoint {name}");
        // One may end while it is asked.
        found.extend(control::ask(
            &who,
            &format!("{PREFIX}{name}"),
            &[0, user()],
            "status",
            false,
        )?);
    }
    Ok(found)
}
