//! Requests of the end that runs a probe, and the answers of the other end.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::features::candidate_features;
use crate::tally::Tally;

/// Version of these messages. Both ends must have the same.
pub const VERSION: u16 = 7;
/// Most classes of a request: they must fit a frame of the channel.
pub const MOST_CLASSES: usize = 200;
/// Most repetitions of a class in a request.
pub const MOST_REPETITIONS: u16 = 4096;
/// Most bytes that an end sends for one request.
pub const MOST_BYTES: u64 = 4_000_000;
/// Most bytes of single packets that an end sends without a pause: those of a GSO packet
/// with their headers, and one more.
pub const MOST_AT_ONCE: u64 = 72 << 10;
/// Default rate, bytes/s, and the limit of an end that answers. Only one end sends at a time.
pub const RATE: u32 = 1_000_000;
/// Longest time for sending a request's packets, s: less than a client waits for an answer.
pub const MOST_SECONDS: u64 = 10;

/// Request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Ask {
    /// Begins a probe.
    Open(Open),
    /// Prepares to receive these classes. Discards packets received so far.
    Listen(Batch),
    /// Returns the packets received since [`Ask::Listen`].
    Collect,
    /// Sends these classes.
    Send(Batch),
    /// Switches these features of the other end's device off, until [`Ask::Restore`].
    SwitchOff(Vec<String>),
    /// Switches them on again.
    Restore,
}

/// Start of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Version of the client's messages.
    pub version: u16,
    /// Secret of the session's payloads.
    pub session: u64,
    /// Destination port.
    pub own_port: u16,
    /// Source port of the first class.
    pub source_base: u16,
    /// VNI of encapsulated packets.
    pub vni: u32,
    /// The client's address of the IP version that the connection does not use.
    pub other: Option<IpAddr>,
}

impl Open {
    /// Checks numbers of the other end: no port or VNI may overflow.
    ///
    /// # Errors
    /// The number that is out of range, as text.
    pub fn validate(&self) -> Result<(), String> {
        // The port after it is used, too.
        if !(1..u16::MAX).contains(&self.own_port) {
            return Err(format!("destination port {}: expected 1 to 65534", self.own_port));
        }
        // Classes are numbered by ports above the base: all of them must be valid ports.
        if self.source_base == 0 || self.source_base > u16::MAX - MOST_NUMBER {
            let most = u16::MAX - MOST_NUMBER;
            return Err(format!("source port {}: expected 1 to {most}", self.source_base));
        }
        if self.vni >= 1 << 24 {
            return Err(format!("VNI {}: expected 24 bits", self.vni));
        }
        Ok(())
    }
}

/// Classes that are sent together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Number of the first class in the session. Numbers are not used twice.
    pub first: u16,
    pub classes: Vec<Class>,
    /// Packets of each class.
    pub repetitions: u16,
    /// Time to live of the packets.
    pub ttl: u8,
    /// Most bytes per second.
    pub rate: u32,
    /// Sends all packets of a class without a pause between them, like the segments of a GSO
    /// packet.
    pub at_once: bool,
}

impl Batch {
    /// Creates a batch with the usual time to live.
    pub fn new(first: u16, classes: Vec<Class>, repetitions: u16, rate: u32) -> Batch {
        Batch { first, classes, repetitions, ttl: 64, rate, at_once: false }
    }

    /// Bytes on the wire, about.
    pub fn wire_bytes(&self) -> u64 {
        let once: u64 = self.classes.iter().map(Class::wire_bytes).sum();
        once * u64::from(self.repetitions)
    }

    /// Checks a batch of the other end against the limits.
    ///
    /// # Errors
    /// The limit that is exceeded, as text.
    pub fn validate(&self) -> Result<(), String> {
        // The server sends what a client requests: without limits a client could make it flood a
        // host.
        if self.classes.len() > MOST_CLASSES || self.repetitions > MOST_REPETITIONS {
            return Err(format!("more than {MOST_CLASSES} classes or {MOST_REPETITIONS} packets"));
        }
        if usize::from(self.first) + self.classes.len() > usize::from(MOST_NUMBER) {
            return Err(format!("class numbers above {MOST_NUMBER}"));
        }
        for class in &self.classes {
            class.validate()?;
        }
        // The bytes on the wire count, not the packets: a GSO packet stands for many.
        if self.wire_bytes() > MOST_BYTES {
            return Err(format!("{} bytes in a request, above {MOST_BYTES}", self.wire_bytes()));
        }
        let repetitions = u64::from(self.repetitions);
        let at_once = self.classes.iter().map(|class| class.wire_bytes() * repetitions).max();
        // As many as a GSO packet has, and one more: others would overflow queues that an offload
        // does not.
        if self.at_once && at_once.is_some_and(|bytes| bytes > MOST_AT_ONCE) {
            return Err(format!("more than {MOST_AT_ONCE} bytes at once"));
        }
        // A slow sender would occupy a session's thread.
        if self.wire_bytes() > u64::from(self.rate) * MOST_SECONDS {
            return Err(format!("sending takes more than {MOST_SECONDS} s"));
        }
        Ok(())
    }
}

/// Checks the features that a client asks to switch off: only settings that can cause a verdict.
///
/// # Errors
/// The name that is none of them, as text.
pub fn validate_features(features: &[String]) -> Result<(), String> {
    let most = candidate_features().count();
    // An empty list would switch nothing, and a longer one names features twice or unknown ones.
    if features.is_empty() || features.len() > most {
        return Err(format!("{} features to switch off: expected 1 to {most}", features.len()));
    }
    for (at, feature) in features.iter().enumerate() {
        // The client chose the name: neither show nor use others.
        if !candidate_features().any(|known| known == feature) {
            let name = shortened(feature.escape_debug().to_string());
            return Err(format!("feature {name}: a probe does not switch it"));
        }
        if features[..at].contains(feature) {
            return Err(format!("feature {feature} is named twice"));
        }
    }
    Ok(())
}

/// Largest number of a class, so that source ports do not overflow.
pub const MOST_NUMBER: u16 = 20_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Answer {
    /// Answer to [`Ask::Open`].
    Opened(Box<Opened>),
    /// Answer to [`Ask::Listen`].
    Listening,
    /// Answer to [`Ask::Collect`].
    Collected(Collected),
    /// Answer to [`Ask::Send`].
    Sent(Sent),
    /// Answer to [`Ask::SwitchOff`].
    SwitchedOff,
    /// Answer to [`Ask::Restore`].
    Restored,
}

/// The other end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// Version of its program.
    pub overlane: String,
    /// Its end of the path.
    pub end: EndFacts,
    /// Its address that the client connected to, and the address of the client there.
    pub addresses: (IpAddr, IpAddr),
    /// Why it switches no settings for a client; `None`: its administrator allows it.
    pub locked: Option<String>,
}

/// One end of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EndFacts {
    /// Device of the path.
    pub device: String,
    /// Kind of the device (`veth`, `vxlan` …), if its driver has one.
    pub kind: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// Its layer-3 MTU, bytes.
    pub mtu: u32,
    /// Release of the kernel.
    pub kernel: String,
    /// Hypervisor, if the machine is a guest.
    pub hypervisor: Option<String>,
    /// Features of the device that are on.
    pub features_on: Vec<String>,
    /// Its address of the IP version that the control connection does not use.
    pub other: Option<IpAddr>,
    /// Whether the path to the other end has no router.
    pub on_link: bool,
    /// Why only UDP is tested: the process may not use packet sockets, for example.
    pub limited: Option<String>,
}

impl EndFacts {
    /// Checks facts of the other end, which has this address.
    ///
    /// # Errors
    /// The fact that is impossible, as text.
    pub fn validate(&self, address: IpAddr) -> Result<(), String> {
        // With less, packets of all classes would be larger than the MTU.
        if !(LEAST_MTU..=MOST_MTU).contains(&self.mtu) {
            return Err(format!("MTU {}: expected {LEAST_MTU} to {MOST_MTU}", self.mtu));
        }
        // The list comes from the peer and is printed: its length must be bounded.
        if self.features_on.len() > MOST_FEATURES {
            return Err(format!("{} features: at most {MOST_FEATURES}", self.features_on.len()));
        }
        let optional = [&self.kind, &self.driver, &self.hypervisor, &self.limited];
        let texts = [&self.device, &self.kernel].into_iter().chain(optional.into_iter().flatten());
        for text in texts.chain(&self.features_on) {
            // The text comes from the peer and is printed: its length must be bounded.
            if text.len() > MOST_TEXT {
                return Err(format!("a text of {} bytes: at most {MOST_TEXT}", text.len()));
            }
        }
        self.other.map_or(Ok(()), |other| other_address(other, address))
    }
}

/// Longest text of the other end that is shown, bytes.
const MOST_TEXT: usize = 256;
/// Most features of a device: the kernel has fewer than 64 (`NETDEV_FEATURE_COUNT`).
const MOST_FEATURES: usize = 128;

/// Returns the beginning of a text of the other end, which may have any length.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MOST_TEXT {
        let end = (0..=MOST_TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Smallest MTU of a device that can be probed (RFC 791, section 3.2).
const LEAST_MTU: u32 = 576;
/// Largest MTU: that of IP packets, and of the loopback device.
const MOST_MTU: u32 = 65_536;

/// Checks an address of the other IP version that the other end claims: packets are sent to it.
///
/// # Errors
/// An address that is no single host's, or has the IP version of `address`, as text.
pub fn other_address(other: IpAddr, address: IpAddr) -> Result<(), String> {
    let is_single = match other {
        IpAddr::V4(other) => !other.is_multicast() && !other.is_broadcast(),
        IpAddr::V6(other) => !other.is_multicast() && other.to_ipv4_mapped().is_none(),
    };
    let is_single = is_single && !other.is_unspecified();
    // A machine may probe itself.
    let is_single = is_single && (!other.is_loopback() || address.is_loopback());
    // A client must not make the server send to a third party.
    if !is_single || other.is_ipv4() == address.is_ipv4() {
        return Err(format!(
            "address {other}: expected one of a host, and not {address}'s version"
        ));
    }
    Ok(())
}

/// Received packets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collected {
    /// By class, in the order of the batch.
    pub tallies: Vec<Tally>,
    /// Packets of earlier batches: they were late.
    pub late: BTreeMap<u16, u32>,
    /// Packets that found the receive buffer full.
    pub missed: u32,
    /// Classes that this end cannot see, by their place in the batch, with the reason.
    pub blind: BTreeMap<u16, String>,
}

/// SendOutcome of sending one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum SendOutcome {
    /// The kernel accepted this number of packets.
    Sent(u16),
    /// The kernel refused a packet, with this errno.
    Refused {
        /// Error number.
        errno: i32,
        /// Packets that it accepted before.
        sent: u16,
    },
    /// Not sent, with the reason.
    Skipped(String),
}

/// Report of a sender.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// By class, in the order of the batch.
    pub outcomes: Vec<SendOutcome>,
    /// Packets as the device got them, by class.
    pub handed: Vec<Tally>,
    /// ICMP errors about these packets.
    pub errors: Vec<IcmpError>,
    /// Bytes sent, about.
    pub bytes: u64,
    /// Longest time in which the packets of a class were sent at once, µs.
    pub burst_us: u32,
}

impl Sent {
    /// Notes how long a class took that was sent at once.
    pub(crate) fn note_burst(&mut self, begun: Instant) {
        let took = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.burst_us = self.burst_us.max(took);
    }
}

/// An ICMP error about a probe packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcmpError {
    /// Router that sent it.
    pub from: IpAddr,
    pub class: u16,
    pub kind: IcmpKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum IcmpKind {
    /// The packet is larger than this MTU.
    TooBig(u32),
    /// The time to live has expired.
    TimeExceeded,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_that_overflow_are_refused() {
        let good = Open {
            version: VERSION,
            session: 1,
            own_port: 5211,
            source_base: 25_000,
            vni: 7 << 5,
            other: None,
        };
        assert_eq!(good.validate(), Ok(()));
        for own_port in [0, u16::MAX] {
            let error = Open { own_port, ..good.clone() }.validate().unwrap_err();
            assert!(error.contains(&format!("destination port {own_port}")), "{error}");
        }
        for source_base in [0, u16::MAX - MOST_NUMBER + 1, u16::MAX] {
            let error = Open { source_base, ..good.clone() }.validate().unwrap_err();
            assert!(error.contains(&format!("source port {source_base}")), "{error}");
        }
        let error = Open { vni: 1 << 24, ..good }.validate().unwrap_err();
        assert!(error.contains("VNI 16777216"), "{error}");
    }

    #[test]
    fn each_limit_of_a_batch_refuses_more_by_name() {
        let plain = Batch::new(0, vec![Class::PLAIN], 1, RATE);
        assert_eq!(plain.validate(), Ok(()));
        let huge = Class { payload: 65_000, extra: crate::class::Extra::Fragments, ..Class::PLAIN };
        for (batch, word) in [
            (Batch { classes: vec![Class::PLAIN; MOST_CLASSES + 1], ..plain.clone() }, "classes"),
            (Batch { repetitions: MOST_REPETITIONS + 1, ..plain.clone() }, "packets"),
            (Batch { first: MOST_NUMBER, ..plain.clone() }, "class numbers"),
            (Batch { classes: vec![huge; MOST_CLASSES], ..plain.clone() }, "bytes in a request"),
            (Batch { repetitions: 600, at_once: true, ..plain.clone() }, "at once"),
            (Batch { rate: 0, ..plain.clone() }, "takes more than"),
            (Batch { rate: 1, ..plain.clone() }, "takes more than"),
            (
                Batch { classes: vec![Class { payload: 70_000, ..Class::PLAIN }], ..plain.clone() },
                "payload is not",
            ),
        ] {
            let refused = batch.validate().unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn a_peer_cannot_name_third_parties_or_impossible_devices() {
        let v4: IpAddr = "192.0.2.7".parse().unwrap();
        let facts = |mtu, other: &str| EndFacts {
            device: "eth0".to_owned(),
            kind: None,
            driver: None,
            mtu,
            kernel: "6.1".to_owned(),
            hypervisor: None,
            features_on: Vec::new(),
            other: Some(other.parse().unwrap()),
            on_link: true,
            limited: None,
        };
        assert_eq!(facts(1500, "fe80::1").validate(v4), Ok(()));
        for other in ["192.0.2.9", "ff02::1", "::1", "::", "::ffff:192.0.2.9"] {
            let error = facts(1500, other).validate(v4).unwrap_err();
            assert!(error.contains(&format!("address {other}")), "{error}");
        }
        for other in ["255.255.255.255", "224.0.0.1", "127.0.0.1", "0.0.0.0"] {
            facts(1500, other).validate("fd00::7".parse().unwrap()).unwrap_err();
        }
        assert_eq!(facts(65_536, "::1").validate("127.0.0.1".parse().unwrap()), Ok(()));
        let good = facts(1500, "fe80::1");
        let long = "x".repeat(MOST_TEXT + 1);
        for wrong in [
            EndFacts { device: long.clone(), ..good.clone() },
            EndFacts { limited: Some(long.clone()), ..good.clone() },
            EndFacts { features_on: vec![long.clone()], ..good.clone() },
            EndFacts { features_on: vec![String::new(); MOST_FEATURES + 1], ..good.clone() },
        ] {
            let error = wrong.validate(v4).unwrap_err();
            assert!(error.contains("at most") && error.len() < 100, "{error}");
        }
        assert_eq!(shortened("short".to_owned()), "short");
        let cut = shortened("ä".repeat(MOST_TEXT));
        assert!(cut.len() <= MOST_TEXT + '…'.len_utf8() && cut.ends_with("ä…"), "{cut}");
        for mtu in [0, 68, 575, 65_537, u32::MAX] {
            let error = facts(mtu, "fe80::1").validate(v4).unwrap_err();
            assert!(error.contains(&format!("MTU {mtu}: expected 576")), "{error}");
        }
    }

    #[test]
    fn only_candidates_can_be_switched_off_by_a_client() {
        let all: Vec<String> = candidate_features().map(str::to_owned).collect();
        assert_eq!(validate_features(&all), Ok(()));
        let owned = |names: &[&str]| names.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        for (features, word) in [
            (owned(&[]), "0 features"),
            ([all.clone(), owned(&["rx-gro"])].concat(), "features to switch off"),
            (owned(&["rx-gro", "rx-vlan-filter"]), "rx-vlan-filter: a probe does not switch it"),
            (owned(&["rx-gro", "rx-gro"]), "named twice"),
            (owned(&["\u{1b}[2J"]), "\\u{1b}"),
        ] {
            let error = validate_features(&features).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    fn class() -> impl Strategy<Value = Class> {
        use crate::class::{Checksum, Extra, Family, Port, Transport, Tunnel, TunnelKind};
        let family = || prop::sample::select(vec![Family::V4, Family::V6]);
        let kind = vec![TunnelKind::Vxlan, TunnelKind::Geneve, TunnelKind::Gre];
        let tunnel = (prop::sample::select(kind), any::<bool>(), family(), any::<bool>())
            .prop_map(|(kind, checksum, inner, nested)| Tunnel { kind, checksum, inner, nested });
        let transport = vec![Transport::Tcp, Transport::Udp, Transport::Icmp];
        let checksum = vec![Checksum::Finished, Checksum::Partial, Checksum::Zero, Checksum::Wrong];
        let extra = vec![
            Extra::Plain,
            Extra::Ecn,
            Extra::Dscp,
            Extra::Options,
            Extra::Fragments,
            Extra::ZeroSum,
        ];
        (
            (family(), prop::option::of(tunnel), prop::sample::select(transport)),
            (any::<u16>(), prop::sample::select(checksum)),
            (any::<u32>(), prop::sample::select(Port::ALL.to_vec())),
            prop::sample::select(extra),
        )
            .prop_map(
                |((family, tunnel, transport), (segment, checksum), (payload, port), extra)| {
                    // Mostly within the limits, so that the other rules are reached.
                    let payload = if payload % 4 == 0 { payload } else { payload % 70_000 };
                    let segment = if segment % 3 == 0 { 0 } else { segment };
                    Class { family, tunnel, transport, segment, checksum, payload, port, extra }
                },
            )
    }

    proptest! {
        #[test]
        fn a_batch_that_passes_is_within_every_limit(
            first: u16, classes in prop::collection::vec(class(), 0..8), repetitions: u16,
            ttl: u8, rate: u32, at_once: bool,
        ) {
            let batch = Batch { first, classes, repetitions, ttl, rate, at_once };
            let text = serde_json::to_vec(&Ask::Send(batch.clone())).unwrap();
            prop_assert_eq!(&serde_json::from_slice::<Ask>(&text).unwrap(), &Ask::Send(batch.clone()));
            if batch.validate().is_ok() {
                prop_assert!(batch.wire_bytes() <= MOST_BYTES);
                prop_assert!(batch.wire_bytes() <= u64::from(rate) * MOST_SECONDS);
                prop_assert!(usize::from(first) + batch.classes.len() <= MOST_NUMBER.into());
                prop_assert!(batch.classes.iter().all(|class| class.payload <= crate::class::MOST_BIG_PAYLOAD));
            }
        }

        #[test]
        fn features_that_pass_are_candidates_each_once(
            mut features in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(candidate_features().collect::<Vec<_>>())
                        .prop_map(str::to_owned),
                    "[a-z-]{0,40}",
                    ".{0,400}",
                ],
                0..30,
            ),
        ) {
            let ask = Ask::SwitchOff(features.clone());
            let text = serde_json::to_vec(&ask).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Ask>(&text).unwrap(), ask);
            match validate_features(&features) {
                Ok(()) => {
                    let count = features.len();
                    prop_assert!(features.iter().all(|one| candidate_features().any(|f| f == one)));
                    features.sort();
                    features.dedup();
                    prop_assert!(count >= 1 && count == features.len());
                }
                Err(reason) => {
                    prop_assert!(reason.len() < 2 * MOST_TEXT, "{}", reason);
                    prop_assert!(!reason.contains(char::is_control), "{:?}", reason);
                }
            }
        }

        #[test]
        fn any_json_is_parsed_or_refused(text in "[\\[\\]{}\",:0-9a-z_]{0,200}") {
            let _ = serde_json::from_str::<Ask>(&text);
            let _ = serde_json::from_str::<Answer>(&text);
        }
    }
}
