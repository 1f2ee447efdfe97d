//! A namespace during planning.

use netstate::interface::Interface;

use super::{DeviceId, Domain, NetnsSnapshot, PortPlan, Refusal, SandboxSnapshot};

/// A namespace with VXLAN devices, during planning.
#[derive(Clone, Copy)]
pub(crate) struct NetnsView<'a> {
    /// State of this namespace.
    pub(crate) snapshot: &'a NetnsSnapshot,
    /// State of the namespace with the NICs.
    pub(crate) underlay: &'a NetnsSnapshot,
    /// Number of this namespace.
    pub(crate) number: u16,
    /// Veth pair to the NICs' namespace: interface index of the local end, of the other end.
    crossing: Option<(u32, u32)>,
    /// Why there is no such pair.
    pub(crate) problem: Option<&'a str>,
}

impl<'a> NetnsView<'a> {
    /// A view of the NICs' namespace.
    pub(crate) fn home(snapshot: &'a NetnsSnapshot) -> NetnsView<'a> {
        NetnsView { snapshot, underlay: snapshot, number: 0, crossing: None, problem: None }
    }

    pub(crate) fn sandbox(
        number: u16,
        sandbox: &'a SandboxSnapshot,
        underlay: &'a NetnsSnapshot,
    ) -> NetnsView<'a> {
        NetnsView {
            snapshot: &sandbox.snapshot,
            underlay,
            number,
            crossing: sandbox.crossing,
            problem: sandbox.problem.as_deref(),
        }
    }

    pub(crate) fn domain(&self, index: u32) -> Domain {
        let id = DeviceId { netns: self.number, index };
        let checked = self.snapshot.filters_bridged(index);
        let rules = &self.snapshot.ruleset;
        Domain {
            id,
            crossing: self.crossing,
            checked,
            rules: rules.concerns_forwarded(false),
            rules_ipv6: rules.concerns_forwarded(true),
        }
    }

    pub(crate) fn port(&self, index: u32, link: &Interface, refused: Option<Refusal>) -> PortPlan {
        let id = DeviceId { netns: self.number, index };
        PortPlan { name: link.name.clone(), id, refused }
    }
}
