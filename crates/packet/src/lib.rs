//! Wire formats as bytes: views, emitters, checksums, segmentation, coalescing.
//!
//! A packet's way through this crate:
//! - [`vnet_hdr`] says what the kernel left undone.
//! - [`ethernet`] … [`vxlan`] are one module per format.
//! - [`frame`] walks them from the Ethernet header to the payload.
//! - [`flow`] hashes what it found.
//! - [`encap`] and [`decap`] put a frame into VXLAN and take it out.
//! - [`segment`] cuts a GSO packet as the kernel's GSO does.
//! - [`coalesce`] merges packets as the kernel's GRO does.
//! - [`checksum`] is what all of them sum with.
//!
//! Invariants:
//! - Nothing here does I/O, reads a clock, or allocates per packet.
//! - A view is checked when it is made; its methods cannot fail. What cannot be
//!   viewed is answered with a [`ParseError`]: layer, offset, wanted, got.
//! - No input, however malformed, causes a panic.
//!
//! Field names are those of the RFCs and of the kernel's headers.

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

/// The big-endian 16-bit field at a constant place of a fixed-size header.
const fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The big-endian 32-bit field at a constant place of a fixed-size header.
const fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The big-endian 16-bit field at `at`, which the caller has checked to exist.
fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The big-endian 32-bit field at `at`, which the caller has checked to exist.
fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores a big-endian 16-bit field at `at`, which the caller has checked to exist.
fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Stores a big-endian 32-bit field at `at`, which the caller has checked to exist.
fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
