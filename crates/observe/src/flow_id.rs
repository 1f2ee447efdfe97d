//! Identifies a flow in the same way at both ends of a wire.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::event::{Encapsulation, Flow};
use crate::filter::FlowPattern;
use crate::record::Addresses;

/// A flow in one direction, by its packets' headers on the wire.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowId {
    /// Source address; of the inner packet if it is in a tunnel.
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Source and destination port of TCP and UDP; 0 if there are none.
    pub ports: (u16, u16),
    /// IP protocol number.
    pub protocol: u8,
    /// Kind of the tunnel; `None`: no tunnel.
    pub encapsulation: Option<Encapsulation>,
    /// VNI of VXLAN and Geneve; key of GRE, if it has one.
    pub vni: Option<u32>,
}

impl FlowId {
    /// Returns the flow of a packet's headers, without its tunnel.
    pub(crate) fn inner(flow: &Flow) -> FlowId {
        let Flow { source, destination, ports, protocol, .. } = *flow;
        FlowId { source, destination, ports, protocol, encapsulation: None, vni: None }
    }

    pub fn addresses(&self) -> Addresses {
        Addresses::from(&Flow {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            ports: self.ports,
            tcp_flags: 0,
            sequence: 0,
            window: 0,
            id: 0,
            fragment: None,
            length: 0,
        })
    }

    /// Returns whether it matches one of these flows, and the VNI.
    pub(crate) fn is_of(&self, flows: &[FlowPattern], vni: Option<u32>) -> bool {
        let ends = ((self.source, self.ports.0), (self.destination, self.ports.1));
        let is_flow = |flow: &FlowPattern| flow.is_of(ends.0, ends.1, self.protocol);
        // A GRE key is not a VNI.
        let is_vni = vni == self.vni && self.encapsulation != Some(Encapsulation::Gre);
        (vni.is_none() || is_vni) && (flows.is_empty() || flows.iter().any(is_flow))
    }
}
