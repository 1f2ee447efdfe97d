//! Loads and attaches `bpf/handover.bpf.c`.
//!
//! Both programs are attached with BPF links, which end with their descriptors. tc filters
//! (`mirred`) could do the same redirection. But the one on the NIC would survive a killed process
//! and then drop packets that it can no longer redirect, including those of the next user of the
//! tunnel.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::AsFd;

use libbpf_rs::Object;
use sys::tcx::{self, Hook};

use crate::bpf::load;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/handover.bpf.o"));

/// Size of `struct settings` in the C source.
const SETTINGS: usize = 28;

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) nic: u32,
    /// Index of the second TAP.
    pub(super) tap: u32,
    /// Underlay address of the endpoint, which the programs compare with outer addresses.
    pub(super) local: IpAddr,
    /// Destination UDP port of the tunnel, in host byte order.
    pub(super) port: u16,
}

impl Settings {
    fn to_bytes(self) -> [u8; SETTINGS] {
        let mut bytes = [0; SETTINGS];
        bytes[..4].copy_from_slice(&self.nic.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.tap.to_ne_bytes());
        // In network byte order, so that the program compares without converting.
        match self.local {
            IpAddr::V4(local) => bytes[8..12].copy_from_slice(&local.octets()),
            IpAddr::V6(local) => bytes[8..24].copy_from_slice(&local.octets()),
        }
        bytes[24..26].copy_from_slice(&self.port.to_be_bytes());
        bytes[26..28].copy_from_slice(&u16::from(self.local.is_ipv6()).to_ne_bytes());
        bytes
    }
}

/// Loads both programs and attaches them in the calling thread's namespace; returns their links.
///
/// # Errors
/// Returns the reason as text; nothing is attached.
pub(super) fn attach(settings: Settings) -> Result<[tcx::Link; 2], String> {
    let object = load(OBJECT, &settings.to_bytes())?;
    // Attach for sending first: a received packet may be answered at once.
    let send = link(&object, "send", settings.tap)?;
    Ok([send, link(&object, "receive", settings.nic)?])
}

fn link(object: &Object, name: &str, ifindex: u32) -> Result<tcx::Link, String> {
    let program = object
        .progs()
        .find(|program| program.name() == OsStr::new(name))
        .ok_or_else(|| format!("the BPF object does not have a program {name:?}"))?;
    tcx::attach(program.as_fd(), ifindex, Hook::Ingress).map_err(|e| e.to_string())
}
