//! The kernel's part: `bpf/handover.bpf.c`, loaded and attached.
//!
//! Both programs hang on links that go with their descriptors. Filters of tc by
//! netlink (`mirred`) would do the same redirection, but the one at the NIC would
//! stay when the process is killed, and then drop what it can no longer redirect:
//! the tunnel of whoever comes next.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{ErrorKind, Object, ObjectBuilder, PrintLevel};
use sys::tcx::{self, Hook};

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
    /// The endpoint's address.
    pub(super) local: IpAddr,
    /// The tunnel's port.
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
pub(super) fn attach(settings: Settings) -> Result<[OwnedFd; 2], String> {
    // libbpf would print to stderr.
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, _| {})));
    let mut object = ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(|e| format!("opening the BPF object: {e}"))?;
    object
        .maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(".rodata"))
        .ok_or("the BPF object has no constants")?
        .set_initial_value(&settings.to_bytes())
        .map_err(|e| format!("setting the BPF object's constants: {e}"))?;
    let object = object.load().map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied => {
            format!("loading BPF programs needs CAP_BPF and CAP_NET_ADMIN (root): {e}")
        }
        _ => format!("loading the BPF programs: {e}"),
    })?;
    // First the way out: a packet that comes in may be answered.
    let send = link(&object, "send", settings.tap)?;
    Ok([send, link(&object, "receive", settings.nic)?])
}

fn link(object: &Object, name: &str, ifindex: u32) -> Result<OwnedFd, String> {
    let program = object
        .progs()
        .find(|program| program.name() == OsStr::new(name))
        .ok_or_else(|| format!("the BPF object has no program {name:?}"))?;
    tcx::attach(program.as_fd(), ifindex, Hook::Ingress).map_err(|e| e.to_string())
}
