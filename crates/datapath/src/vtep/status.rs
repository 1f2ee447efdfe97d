//! Status of an endpoint, as JSON, as text, and as Prometheus metrics.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::handover::HandOverMode;
use super::{Config, Report};
use crate::counters::{Counters, DropReason, Learning, Resolution};
use crate::vhost_user::GuestStatus;

/// State and counters of one endpoint, as `overlane vtep status` prints them.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// Its address and port on the underlay.
    pub local: SocketAddr,
    /// How GSO packets are passed to the kernel.
    pub hand_over: String,
    /// The privileges that the process still has, as text.
    #[serde(default)]
    pub confinement: String,
    /// Whether GSO packets are passed to the kernel unsegmented.
    pub whole: bool,
    /// Its virtual networks, in the order of the configuration.
    pub networks: Vec<NetworkStatus>,
    /// Packets from the wire that belong to no network.
    pub of_no_network: DirectionStatus,
}

/// State and counters of one virtual network.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkStatus {
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// Name of the tenants' TAP; for a guest, `vhost-user:` and the path of its socket.
    pub tap: String,
    /// From the TAP to the wire.
    pub to_wire: DirectionStatus,
    /// From the wire to the TAP.
    pub from_wire: DirectionStatus,
    /// Static FDB entries.
    pub configured: usize,
    /// Learned FDB entries. Expired ones are included until their room is needed.
    pub learned: usize,
    /// The remote endpoint with the most learned addresses, and their number.
    pub largest: Option<(IpAddr, usize)>,
    /// Static neighbour entries.
    pub neighbours_configured: usize,
    /// Learned neighbour entries. Expired ones are included until their room is needed.
    pub neighbours_learned: usize,
    /// State of the guest, if the tenants' side is a guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestStatus>,
}

/// One direction: received = forwarded + answered + dropped.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectionStatus {
    /// Packets; a GSO packet counts as one.
    pub received: u64,
    /// Bytes of their frames.
    pub received_bytes: u64,
    /// Number of these that were forwarded.
    pub forwarded: u64,
    /// Bytes of the Ethernet frames of `forwarded`.
    pub forwarded_bytes: u64,
    /// Answered with ICMP, ARP or a neighbour advertisement.
    pub answered: u64,
    /// Packets passed to the kernel for the forwarded ones, after segmentation.
    pub handed_over: u64,
    /// Additional copies sent.
    pub replicas: u64,
    /// Additional copies that could not be sent.
    pub replicas_lost: u64,
    /// Addresses not learned because there was no room.
    pub unlearned: u64,
    /// Source addresses that were new or had moved, by outcome. Outcomes with a count of 0 are left
    /// out.
    pub learnings: BTreeMap<String, u64>,
    /// Requests for neighbours, by outcome. Outcomes with a count of 0 are left out.
    pub resolutions: BTreeMap<String, u64>,
    /// Drops by reason. Reasons with a count of 0 are left out.
    pub dropped: BTreeMap<String, u64>,
}

impl DirectionStatus {
    fn of(counters: &Counters) -> DirectionStatus {
        let reasons = DropReason::ALL.into_iter().map(|r| (r, counters.dropped_by(r)));
        let dropped = reasons.filter(|(_, n)| *n > 0).map(|(r, n)| (r.name().to_owned(), n));
        let outcomes = Resolution::ALL.into_iter().map(|r| (r, counters.resolved(r)));
        let resolutions = outcomes.filter(|(_, n)| *n > 0).map(|(r, n)| (r.name().to_owned(), n));
        let learned = Learning::ALL.into_iter().map(|l| (l, counters.learned(l)));
        let learnings = learned.filter(|(_, n)| *n > 0).map(|(l, n)| (l.name().to_owned(), n));
        DirectionStatus {
            received: counters.received,
            received_bytes: counters.received_bytes,
            forwarded: counters.forwarded,
            forwarded_bytes: counters.forwarded_bytes,
            answered: counters.answered,
            handed_over: counters.handed_over,
            replicas: counters.replicas,
            replicas_lost: counters.replicas_lost,
            unlearned: counters.unlearned(),
            learnings: learnings.collect(),
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
            "{name}: received {} packets, {} bytes; forwarded {} packets, {} bytes, passed to the \
             kernel as {} packets",
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
        ] {
            if number > 0 {
                // Writing to a String cannot fail.
                let _ = write!(line, "; {what} {number}");
            }
        }
        let words = |counted: &BTreeMap<String, u64>| -> Vec<String> {
            counted.iter().map(|(why, n)| format!("{why} {n}")).collect()
        };
        if !self.learnings.is_empty() {
            let _ = write!(line, "; source addresses: {}", words(&self.learnings).join(", "));
        }
        if !self.resolutions.is_empty() {
            let _ = write!(line, "; neighbour requests: {}", words(&self.resolutions).join(", "));
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
    /// Builds the status. `confinement` describes the privileges of the process.
    pub fn of(config: &Config, way: HandOverMode, report: &Report, confinement: String) -> Status {
        let networks = report.networks.iter().map(|network| NetworkStatus {
            vni: network.vni.get(),
            tap: network.tap.clone(),
            to_wire: DirectionStatus::of(&network.out),
            from_wire: DirectionStatus::of(&network.back),
            configured: network.configured,
            learned: network.learned,
            largest: network.largest,
            neighbours_configured: network.neighbours[0],
            neighbours_learned: network.neighbours[1],
            guest: network.guest.clone(),
        });
        Status {
            local: SocketAddr::new(config.local, config.port),
            hand_over: way.to_string(),
            whole: matches!(way, HandOverMode::TunnelGso { .. }),
            confinement,
            networks: networks.collect(),
            of_no_network: DirectionStatus::of(&report.unassigned),
        }
    }

    /// Describes the counters as text, a line per direction.
    pub fn describe(&self) -> String {
        let mut lines = Vec::new();
        for network in &self.networks {
            let NetworkStatus { vni, tap, configured, learned, .. } = network;
            lines.push(network.to_wire.describe(&format!("VNI {vni} {tap} to wire")));
            let back = network.from_wire.describe(&format!("VNI {vni} wire to {tap}"));
            let mut line = format!("{back}; addresses: {configured} configured, {learned} learned");
            if let Some((remote, most)) = network.largest {
                // Writing to a String cannot fail.
                let _ = write!(line, ", {most} of them from {remote}");
            }
            let (given, heard) = (network.neighbours_configured, network.neighbours_learned);
            if given + heard > 0 {
                // Writing to a String cannot fail.
                let _ = write!(line, "; neighbours: {given} configured, {heard} learned");
            }
            lines.push(line);
            lines.extend(network.guest.iter().map(ToString::to_string));
        }
        lines.push(self.of_no_network.describe("without network"));
        lines.join("\n")
    }

    /// Renders the metrics for Prometheus (text format 0.0.4).
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
        let outcomes = Learning::ALL.map(Learning::name);
        counted("source_addresses", "outcome", &outcomes, |direction| &direction.learnings);
        for (name, kinds) in [
            ("addresses", (|n| [n.configured, n.learned]) as fn(&NetworkStatus) -> [usize; 2]),
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

/// Selects a map of counters by word.
type Counted = fn(&DirectionStatus) -> &BTreeMap<String, u64>;
