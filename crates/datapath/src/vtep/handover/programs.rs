//! The kernel's part: `bpf/handover.bpf.c`, loaded and attached.
//!
//! Both programs hang on links that go with their descriptors. Filters of tc by
//! netlink (`mirred`) would do the same redirection, but the one at the NIC would
//! stay when the process is killed, and then drop what it can no longer redirect:
//! the tunnel of whoever comes next.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::AsFd;

use libbpf_rs::Object;
use sys::tcx::{self, Hook};

use crate::bpf::load;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/handover.bpf.o"));

/// `struct settings` of the C source.
const SETTINGS: usize = 28;

/// What the programs have to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// Index of the NIC.
    pub(super) nic: u32,
    /// Index of the second TAP.
    pub(super) tap: u32,
    /// Underlay address of the endpoint; the programs compare outer addresses with it.
    pub(super) local: IpAddr,
    /// Destination UDP port of the tunnel, in host byte order.
    pub(super) port: u16,
}

impl Settings {
    fn to_bytes(self) -> [u8; SETTINGS] {
        let mut bytes = [0; SETTINGS];
        bytes[..4].copy_from_slice(&self.nic.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.tap.to_ne_bytes());
        // As in the packet: the program compares without turning bytes round.
        match self.local {
            IpAddr::V4(local) => bytes[8..12].copy_from_slice(&local.octets()),
            IpAddr::V6(local) => bytes[8..24].copy_from_slice(&local.octets()),
        }
        bytes[24..26].copy_from_slice(&self.port.to_be_bytes());
        bytes[26..28].copy_from_slice(&u16::from(self.local.is_ipv6()).to_ne_bytes());
        bytes
    }
}

/// Loads both programs and attaches them in the calling thread's namespace.
/// Returns their links.
///
/// # Errors
/// Why not, in words; nothing is attached then.
pub(super) fn attach(settings: Settings) -> Result<[tcx::Link; 2], String> {
    let object = load(OBJECT, &settings.to_bytes())?;
    // First the way out: a packet that comes in may be answered.
    let send = link(&object, "send", settings.tap)?;
    Ok([send, link(&object, "receive", settings.nic)?])
}

fn link(object: &Object, name: &str, ifindex: u32) -> Result<tcx::Link, String> {
    let program = object
        .progs()
        .find(|program| program.name() == OsStr::new(name))
        .ok_or_else(|| format!("the BPF object has no program {name:?}"))?;
    tcx::attach(program.as_fd(), ifindex, Hook::Ingress).map_err(|e| e.to_string())
}
