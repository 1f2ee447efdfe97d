//! Packet counts.

use serde::{Deserialize, Serialize};

/// Packets (skbs) and bytes, Ethernet header included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Counted {
    /// Packets (skbs): a GSO packet counts as one.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub packets: u64,
    /// Bytes with the Ethernet header, without outer headers.
    pub bytes: u64,
}
