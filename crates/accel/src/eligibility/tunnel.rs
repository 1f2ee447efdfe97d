//! Rules about a VXLAN device in relation to other devices and all its remote VTEPs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Verdict;
use crate::model::{Refusal, VtepKey};

/// A VXLAN device with known remote VTEPs.
pub(crate) struct TunnelCase<'a> {
    /// Fields that identify the device of a received packet.
    pub(crate) key: VtepKey,
    /// Another device of the plan has the same key.
    pub(crate) is_taken: bool,
    /// NICs that lead to the remote VTEPs.
    pub(crate) nics: &'a BTreeSet<u32>,
    /// Local addresses of packets to the remote VTEPs.
    pub(crate) locals: &'a BTreeSet<IpAddr>,
}

pub(super) fn vni_taken(case: &TunnelCase<'_>) -> Verdict {
    let VtepKey { vni, port, .. } = case.key;
    // A received packet could belong to either device.
    if case.is_taken { Err(Refusal::VniTaken { vni, port }) } else { Ok(()) }
}

pub(super) fn several_underlays(case: &TunnelCase<'_>) -> Verdict {
    // `struct vtep` has a single NIC and a single local address.
    let several = case.nics.len() > 1 || case.locals.len() > 1;
    if several { Err(Refusal::SeveralUnderlays {}) } else { Ok(()) }
}
