//! BPF programs at hooks that are not bound to a namespace: the machine's BPF links, by id.
//!
//! The kernel does not report the namespace of a link at a netfilter hook, so such a link refuses
//! devices in every namespace. Link ids are assigned in ascending order and reused only after a
//! wrap-around, so a known link is not queried again.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;

use libbpf_rs::btf::types::Func;
use libbpf_rs::btf::{Btf, TypeId};
use libbpf_rs::query::{LinkInfo, LinkTypeInfo, ProgInfoIter, TracingLinkInfo};
use libbpf_rs::{NFPROTO_IPV4, NFPROTO_IPV6, ProgramAttachType};
use nix::errno::Errno;
use sys::bpf_link;

use super::object::GUARD;
use crate::model::{Foreign, Links};
use crate::{Error, Result};

/// Words in the names of LSM hooks that concern packets rather than sockets, files or processes
/// (`include/linux/lsm_hook_defs.h`).
const PACKETS: [&str; 5] = ["skb", "xfrm", "secmark", "flow", "packet"];
/// Prefix of the hooks' functions.
const LSM: &str = "bpf_lsm_";
/// Functions of input devices. Kernels with CONFIG_HID_BPF before 6.11 attach a program of their own
/// there when they boot (`drivers/hid/bpf`), Ubuntu's 6.8 among them.
const INPUT_DEVICES: [&str; 2] = ["__hid_bpf_", "hid_bpf_"];

/// The links of the last scan.
#[derive(Default)]
pub(crate) struct Listing {
    known: BTreeMap<u32, Option<Foreign>>,
    pub(crate) links: Links,
}

impl Listing {
    /// Scans again. Returns whether relevant links have changed.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let mut known = BTreeMap::new();
        let (mut after, mut hidden) = (0, false);
        loop {
            match bpf_link::next(after) {
                Ok(Some(id)) => {
                    let what = match self.known.remove(&id) {
                        Some(what) => what,
                        None => match read(id)? {
                            Read::Is(what) => what,
                            // The next scan queries it again.
                            Read::NotYet => {
                                after = id;
                                continue;
                            }
                        },
                    };
                    known.insert(id, what);
                    after = id;
                }
                Ok(None) => break,
                Err(error) if error.errno == Errno::EPERM => {
                    hidden = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let foreign = known.iter().filter_map(|(id, what)| Some((*id, what.clone()?))).collect();
        self.known = known;
        let links = Links { foreign, hidden };
        let changed = links != self.links;
        self.links = links;
        Ok(changed)
    }
}

enum Read {
    /// Scanned; a foreign program if it is relevant.
    Is(Option<Foreign>),
    /// The link is gone or not complete yet.
    NotYet,
}

fn read(id: u32) -> Result<Read> {
    let Some(link) = bpf_link::open(id)? else { return Ok(Read::NotYet) };
    let info = LinkInfo::from_fd(link.as_fd()).map_err(|error| Error::Bpf {
        operation: "read",
        object: format!("BPF link {id}"),
        problem: error.to_string(),
    })?;
    // The guard of any process of this program, whatever its namespace: it accepts every packet of
    // other connections.
    if matches!(info.info, LinkTypeInfo::Netfilter(_)) && is_guard(info.prog_id) {
        return Ok(Read::Is(None));
    }
    Ok(Read::Is(foreign(&info.info)))
}

/// Whether a program is the guard of a fast path, by its name.
fn is_guard(id: u32) -> bool {
    let mut programs = ProgInfoIter::default();
    let found = programs.find(|program| program.id == id);
    found.is_some_and(|program| program.name.as_bytes() == GUARD.as_bytes())
}

fn foreign(info: &LinkTypeInfo) -> Option<Foreign> {
    match info {
        LinkTypeInfo::Netfilter(at) => {
            let family = at.protocol_family.cast_signed();
            if ![NFPROTO_IPV4, NFPROTO_IPV6].contains(&family) {
                return Some(Foreign::Function(format!("netfilter family {family}")));
            }
            Some(Foreign::Netfilter { ipv6: family == NFPROTO_IPV6, hook: at.hooknum })
        }
        LinkTypeInfo::Tracing(at) => traced(at).map(Foreign::Function),
        LinkTypeInfo::Xdp(_) => Some(Foreign::Device),
        // A link type newer than this program may see any packet.
        LinkTypeInfo::Unknown => Some(Foreign::Function("an unknown kind of hook".to_owned())),
        // Other types only observe, or belong to sockets and control groups, which forwarded
        // packets do not pass. tcx and netkit links are queried per device.
        _ => None,
    }
}

/// Returns the function whose result a tracing program may change, if it concerns packets.
fn traced(at: &TracingLinkInfo) -> Option<String> {
    match at.attach_type {
        ProgramAttachType::LsmMac => decides(function(at.target_btf_id).as_deref()),
        ProgramAttachType::ModifyReturn => modified(function(at.target_btf_id)),
        // fentry, fexit and similar programs only observe.
        _ => None,
    }
}

/// Returns the function, unless packets do not pass it.
fn modified(function: Option<String>) -> Option<String> {
    let name = function.unwrap_or_else(|| "a function".to_owned());
    let is_input = INPUT_DEVICES.iter().any(|prefix| name.starts_with(prefix));
    (!is_input).then(|| format!("{name} (may change its result)"))
}

/// Returns the LSM hook if it concerns packets.
fn decides(function: Option<&str>) -> Option<String> {
    let Some(hook) = function.and_then(|name| name.strip_prefix(LSM)) else {
        return Some("an unknown LSM hook".to_owned());
    };
    PACKETS.iter().any(|word| hook.contains(word)).then(|| format!("security hook {hook}"))
}

/// Returns the kernel's name of a function.
fn function(id: u32) -> Option<String> {
    let btf = Btf::from_vmlinux().ok()?;
    let function: Func<'_> = btf.type_by_id(TypeId::from(id))?;
    Some(function.name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_about_packets_are_reasons_and_others_none() {
        for hook in ["bpf_lsm_socket_sock_rcv_skb", "bpf_lsm_xfrm_decode_session"] {
            assert!(decides(Some(hook)).is_some(), "{hook}");
        }
        for hook in ["bpf_lsm_file_open", "bpf_lsm_socket_connect", "bpf_lsm_bprm_check_security"] {
            assert_eq!(decides(Some(hook)), None, "{hook}");
        }
        assert!(decides(None).is_some() && decides(Some("other")).is_some());
    }

    #[test]
    fn functions_of_input_devices_are_no_reason() {
        assert_eq!(modified(Some("__hid_bpf_tail_call".to_owned())), None);
        assert_eq!(modified(Some("hid_bpf_device_event".to_owned())), None);
        assert!(modified(Some("bpf_modify_return_test".to_owned())).is_some());
        assert!(modified(None).is_some());
    }
}
