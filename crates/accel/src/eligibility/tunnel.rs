//! Rules about a VXLAN device beside the other ones, and all its remote VTEPs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Verdict;
use crate::model::{Refusal, VtepKey};

/// A VXLAN device whose remote VTEPs are known.
pub(crate) struct TunnelCase<'a> {
    /// By what its datagrams are known.
    pub(crate) key: VtepKey,
    /// Another device of the plan is known by the same.
    pub(crate) is_taken: bool,
    /// NICs by which its remote VTEPs are reached.
    pub(crate) nics: &'a BTreeSet<u32>,
    /// Own addresses that they are sent from.
    pub(crate) locals: &'a BTreeSet<IpAddr>,
}

pub(super) fn vni_taken(case: &TunnelCase<'_>) -> Verdict {
    let VtepKey { vni, port, .. } = case.key;
    if case.is_taken { Err(Refusal::VniTaken { vni, port }) } else { Ok(()) }
}

pub(super) fn several_underlays(case: &TunnelCase<'_>) -> Verdict {
    let several = case.nics.len() > 1 || case.locals.len() > 1;
    if several { Err(Refusal::SeveralUnderlays {}) } else { Ok(()) }
}
