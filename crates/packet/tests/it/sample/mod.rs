//! A tunnel for tests that depend on parts of it only.

use packet::ecn::Ingress;
use packet::encap::{Addresses, Dscp, OuterChecksum, SOURCE_PORTS, Tunnel};
use packet::ethernet::MacAddr;
use packet::vxlan::{self, Vni};

/// VNI 77 from 10.0.0.1 to 10.0.0.2, with outer checksums.
pub fn tunnel() -> Tunnel {
    Tunnel {
        link: (MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 8])),
        addresses: Addresses::V4 {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
        },
        vni: Vni::new(77).unwrap(),
        port: vxlan::PORT,
        source_ports: SOURCE_PORTS,
        ttl: 64,
        dscp: Dscp::Inherit,
        ecn: Ingress::Normal,
        dont_fragment: true,
        flow_label: 0,
        checksum: OuterChecksum::Full,
    }
}
