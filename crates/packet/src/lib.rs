//! Wire formats as bytes: views, emitters, checksums, segmentation, coalescing.
//!
//! The modules, in the order of a packet's path:
//!
//! - [`vnet_hdr`]: metadata from the kernel, such as partial checksums and segment sizes.
//! - [`ethernet`] … [`vxlan`]: one module per format.
//! - [`frame`]: finds the headers from Ethernet to the payload.
//! - [`flow`]: hashes flows.
//! - [`encap`] and [`decap`]: VXLAN encapsulation and decapsulation.
//! - [`segment`]: segments a GSO packet as the kernel's GSO does.
//! - [`coalesce`]: merges packets as the kernel's GRO does.
//! - [`checksum`]: Internet checksums.
//!
//! Invariants:
//! - Nothing here does I/O, reads a clock, or allocates per packet.
//! - A view is validated when it is created; its methods cannot fail. Invalid input gives a
//!   [`ParseError`] with layer, offset, expected and actual value.
//! - No input, however malformed, causes a panic.
//!
//! Field names follow the RFCs and the kernel's headers.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod coalesce;
pub mod decap;
pub mod ecn;
pub mod encap;
mod error;
pub mod ethernet;
pub mod flow;
pub mod frame;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod segment;
pub mod tcp;
pub mod udp;
pub mod vlan;
pub mod vnet_hdr;
pub mod vxlan;

pub use error::{EmitError, Layer, ParseError, Wanted};

/// Reads the big-endian 16-bit field at a constant offset of a fixed-size header.
const fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads the big-endian 32-bit field at a constant offset of a fixed-size header.
const fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads the big-endian 16-bit field at `at`. The caller has checked that it exists.
fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Reads the big-endian 32-bit field at `at`. The caller has checked that it exists.
fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes a big-endian 16-bit field at `at`. The caller has checked that it exists.
fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes a big-endian 32-bit field at `at`. The caller has checked that it exists.
fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
