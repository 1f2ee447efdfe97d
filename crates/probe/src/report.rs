//! The result of a run.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::judge::Verdict;
use crate::message::EndFacts;
use crate::tally::Tally;

/// Version of the JSON form.
pub const FORMAT: u32 = 1;

/// Direction of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From this machine to the peer.
    Out,
    /// From the peer to this machine.
    Back,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::Out, Direction::Back];

    /// Returns a phrase for people.
    pub fn text(self) -> &'static str {
        match self {
            Direction::Out => "to the peer",
            Direction::Back => "from the peer",
        }
    }
}

/// Result of one class in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct ClassResult {
    /// Direction.
    pub way: Direction,
    /// Name of the class.
    pub name: String,
    /// The class.
    pub class: Class,
    /// Verdict.
    pub verdict: Verdict,
    /// Packets as the sender's device got them. It cuts GSO packets that it gets whole.
    pub handed: Tally,
    /// Packets as they arrived.
    pub arrived: Tally,
}

/// Path MTU in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct PathMtu {
    /// Direction.
    pub way: Direction,
    /// MTU of the sender's device, bytes.
    pub device: u32,
    /// Largest packet that arrives, bytes; `None` if no probe arrived.
    pub path: Option<u32>,
    /// MTU that a router reported by ICMP, and its address.
    pub reported: Option<(u32, IpAddr)>,
    /// Whether larger packets vanish without an ICMP error.
    pub black_hole: bool,
    /// Last router that large packets reach, and its distance in hops.
    pub narrows_after: Option<(u8, IpAddr)>,
    /// The same inside VXLAN over this path; `None`: no such packet arrived at port 4789, or an end
    /// has no packet sockets.
    pub inner: Option<InnerMtu>,
}

/// Largest single packet that is tested, bytes.
pub const LARGEST_TESTED: u32 = 9500;

/// Path MTU of the packets in a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct InnerMtu {
    /// Largest inner IP packet that arrives, bytes.
    pub path: u32,
    /// Whether tunnel packets that the path's MTU allows vanish without an ICMP error.
    pub black_hole: bool,
}

impl PathMtu {
    /// Whether larger packets vanish without an ICMP error, inside a tunnel or not.
    pub fn has_black_hole(&self) -> bool {
        self.black_hole || self.inner.is_some_and(|inner| inner.black_hole)
    }
}

/// Setting that can cause a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Candidate {
    /// Machine that has it.
    pub end: End,
    /// Namespace of a hop, as it was named; `null`: that of the end.
    pub netns: Option<String>,
    /// Device that has the setting.
    pub device: String,
    /// Feature, as in `ethtool -k`.
    pub feature: String,
    /// How well it explains the bad classes and only these, 0 to 1.
    pub fit: f64,
    /// Reports of this fault with this kernel, driver or hypervisor.
    pub reported: Option<String>,
}

impl Candidate {
    pub fn setting(&self) -> Setting {
        Setting {
            end: self.end,
            netns: self.netns.clone(),
            device: self.device.clone(),
            feature: self.feature.clone(),
        }
    }
}

/// A feature of a device on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Setting {
    /// Machine that has it.
    pub end: End,
    /// Namespace of a hop, as it was named; `null`: that of the end.
    pub netns: Option<String>,
    /// Device that has it.
    pub device: String,
    /// Feature, as in `ethtool -k`.
    pub feature: String,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.feature, self.device)?;
        match (&self.netns, self.end) {
            (Some(netns), _) => write!(f, " in {netns}"),
            (None, End::Peer) => f.write_str(" at the peer"),
            (None, End::Here | End::Hop) => Ok(()),
        }
    }
}

/// Place of a device on the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// This machine.
    Here,
    /// A hop between the ends, on this machine.
    Hop,
    /// The peer.
    Peer,
}

/// A device between the ends, on this machine, whose settings take part in the search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct HopFacts {
    /// Its namespace, as it was named; `null`: that of this end.
    pub netns: Option<String>,
    /// The device.
    pub device: String,
    /// Features of the device that are on.
    pub features_on: Vec<String>,
}

/// Whether a setting was found by switching it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Search {
    /// No setting was switched, with the reason.
    NotDone(String),
    /// With this setting off, and only this one, the packets arrive.
    Guilty(Setting),
    /// Only with all of these off, the packets arrive.
    Together(Vec<Setting>),
    /// With all candidates off that may be switched, the packets are still damaged or lost.
    None,
}

/// Classes with the same fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct BadPath {
    /// Direction.
    pub way: Direction,
    /// Word of the verdict.
    pub verdict: String,
    /// Damage, for people.
    pub detail: String,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Settings that can be the cause, most likely first.
    pub candidates: Vec<Candidate>,
    /// Result of the search for the setting.
    pub search: Search,
}

/// Whether an offload is really used for this path's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct InUse {
    /// Direction.
    pub way: Direction,
    /// Kind of traffic.
    pub traffic: String,
    /// Whether the sender's device gets GSO packets whole; otherwise its kernel cuts them. `None`:
    /// the sender has no packet sockets.
    pub handed_whole: Option<bool>,
    /// Whether the receiver's network stack gets several segments at once. `None`: the receiver has
    /// no packet sockets.
    pub merged: Option<bool>,
}

/// Frequent packets of one kind, to find rare faults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Rare {
    /// Direction.
    pub way: Direction,
    /// Name of the class.
    pub name: String,
    /// Packets sent.
    pub sent: u32,
    /// Packets lost.
    pub lost: u32,
    /// Packets damaged.
    pub damaged: u32,
    /// Upper limit of the share of damaged packets, with 95% confidence.
    pub at_most: f64,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Report {
    /// Version of this form: 1.
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Seed of the list of classes.
    pub seed: u64,
    /// This end.
    pub here: EndFacts,
    /// The other end.
    pub there: EndFacts,
    /// Devices between the ends that were named, in the order of packets to the peer.
    pub hops: Vec<HopFacts>,
    /// Why the peer switches no settings for the search; `null`: its administrator allows it.
    pub peer_locked: Option<String>,
    /// Whether an address is translated on the path.
    pub translated: bool,
    /// Path MTU, by direction.
    pub mtu: Vec<PathMtu>,
    /// Classes, by direction.
    pub classes: Vec<ClassResult>,
    /// Packets sent often.
    pub rare: Vec<Rare>,
    /// Use of offloads.
    pub in_use: Vec<InUse>,
    /// Faults.
    pub bad: Vec<BadPath>,
    /// Remarks on the run.
    pub notes: Vec<String>,
    /// Bytes sent by both ends, about.
    pub bytes: u64,
    /// Duration, s.
    pub seconds: f64,
}

impl Report {
    /// Whether anything is wrong with the path.
    pub fn has_findings(&self) -> bool {
        !self.bad.is_empty() || self.mtu.iter().any(PathMtu::has_black_hole)
    }
}
