//! Options of a run.

use crate::message::RATE;
use crate::report::HopFacts;

/// Default destination port of probe packets: the default data port of `measure serve`, which must
/// be reachable in any case.
pub const OWN_PORT: u16 = 5211;

/// Number of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A few, for a path that is about to be measured.
    Sample,
    /// The most important ones.
    Quick,
    /// Each pair of properties, and packets sent often.
    Default,
    /// All combinations.
    Full,
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of classes.
    pub extent: Extent,
    /// Seed of the list of classes.
    pub seed: u64,
    /// Device that must be used.
    pub via: Option<String>,
    /// Bytes per second of the sending end.
    pub rate: u32,
    /// Destination port of packets, below 65,535: the next one is used, too.
    pub port: u16,
    /// Devices between the ends whose settings take part in the search, in the order of packets to
    /// the peer.
    pub hops: Vec<HopFacts>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            extent: Extent::Default,
            seed: 1,
            via: None,
            rate: RATE,
            port: OWN_PORT,
            hops: Vec::new(),
        }
    }
}
