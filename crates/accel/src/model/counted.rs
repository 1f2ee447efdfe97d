//! Counts of packets.

use serde::{Deserialize, Serialize};

/// Packets (skbs) and their bytes, Ethernet header included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Counted {
    /// Packets as the kernel has them (skbs): a GSO packet is one.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub packets: u64,
    /// Bytes with the Ethernet header, without outer headers.
    pub bytes: u64,
}
