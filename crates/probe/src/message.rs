//! Requests of the end that runs a probe, and the answers of the other end.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::tally::Tally;

/// Version of these messages. Both ends must have the same.
pub const VERSION: u16 = 1;
/// Most classes of a request: they must fit a frame of the channel.
pub const MOST_CLASSES: usize = 200;
/// Most repetitions of a class in a request.
pub const MOST_REPETITIONS: u16 = 4096;
/// Most bytes that an end sends for one request.
pub const MOST_BYTES: u64 = 4_000_000;
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
    /// Classes.
    pub classes: Vec<Class>,
    /// Packets of each class.
    pub repetitions: u16,
    /// Time to live of the packets.
    pub ttl: u8,
    /// Most bytes per second.
    pub rate: u32,
}

impl Batch {
    /// Creates a batch with the usual time to live.
    pub fn new(first: u16, classes: Vec<Class>, repetitions: u16, rate: u32) -> Batch {
        Batch { first, classes, repetitions, ttl: 64, rate }
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
        if self.classes.len() > MOST_CLASSES || self.repetitions > MOST_REPETITIONS {
            return Err(format!("more than {MOST_CLASSES} classes or {MOST_REPETITIONS} packets"));
        }
        if usize::from(self.first) + self.classes.len() > usize::from(MOST_NUMBER) {
            return Err(format!("class numbers above {MOST_NUMBER}"));
        }
        for class in &self.classes {
            class.validate()?;
        }
        if self.wire_bytes() > MOST_BYTES {
            return Err(format!("{} bytes in a request, above {MOST_BYTES}", self.wire_bytes()));
        }
        // A slow sender would occupy a session's thread.
        if self.wire_bytes() > u64::from(self.rate) * MOST_SECONDS {
            return Err(format!("sending takes more than {MOST_SECONDS} s"));
        }
        Ok(())
    }
}

/// Largest number of a class, so that source ports do not overflow.
pub const MOST_NUMBER: u16 = 20_000;

/// Answer.
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
    /// Features of the device that are on.
    pub features_on: Vec<String>,
    /// Its address of the IP version that the control connection does not use.
    pub other: Option<IpAddr>,
    /// Whether the path to the other end has no router.
    pub on_link: bool,
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
}

/// An ICMP error about a probe packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IcmpError {
    /// Router that sent it.
    pub from: IpAddr,
    /// Number of the class.
    pub class: u16,
    /// Kind of the error.
    pub kind: IcmpKind,
}

/// Kind of an ICMP error.
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
}
