//! A flow, as both ends of a wire name it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::event::{Encapsulation, Flow};
use crate::filter::FlowPattern;
use crate::told::Addresses;

/// A flow in one direction, by its packets' headers on the wire.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowId {
    /// Where from, of the packet in the tunnel where it is in one.
    pub source: IpAddr,
    /// Where to.
    pub destination: IpAddr,
    /// Source and destination port of TCP and UDP; 0 without.
    pub ports: (u16, u16),
    /// IP protocol number.
    pub protocol: u8,
    /// Kind of the tunnel; `None`: it is in none.
    pub encapsulation: Option<Encapsulation>,
    /// Network identifier of VXLAN and Geneve; key of GRE, where it has one.
    pub vni: Option<u32>,
}

impl FlowId {
    /// That of a packet's headers, whatever tunnel it is in.
    pub(crate) fn inner(flow: &Flow) -> FlowId {
        let Flow { source, destination, ports, protocol, .. } = *flow;
        FlowId { source, destination, ports, protocol, encapsulation: None, vni: None }
    }

    /// As they are shown.
    pub fn addresses(&self) -> Addresses {
        Addresses::from(&Flow {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            ports: self.ports,
            tcp_flags: 0,
            sequence: 0,
            id: 0,
            fragment: None,
            length: 0,
        })
    }

    /// Whether it is one of those that are asked for.
    pub(crate) fn is_of(&self, flows: &[FlowPattern], vni: Option<u32>) -> bool {
        let ends = ((self.source, self.ports.0), (self.destination, self.ports.1));
        let is_flow = |flow: &FlowPattern| flow.is_of(ends.0, ends.1, self.protocol);
        // A key of GRE is no network identifier.
        let is_vni = vni == self.vni && self.encapsulation != Some(Encapsulation::Gre);
        (vni.is_none() || is_vni) && (flows.is_empty() || flows.iter().any(is_flow))
    }
}
