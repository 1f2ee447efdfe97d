//! The wire: a veth pair whose ends are the NICs of two test hosts.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{Host, Offload, Result};

/// Name of a test host's NIC.
pub const NIC: &str = "nic0";
/// Name of the second NIC, in a host between two others.
pub const SECOND_NIC: &str = "nic1";

/// The wire between the hosts of a testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// Layer-3 MTU of the NICs, bytes.
    pub mtu: u32,
    pub offload: Offload,
}

impl Wire {
    /// Underlay address of the first host; the network is a /24.
    pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    /// Underlay address of the second host.
    pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    /// IPv6 underlay address of the first host; the network is a /64.
    pub const A6: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 1);
    /// IPv6 underlay address of the second host.
    pub const B6: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 2);

    /// Creates the hosts `a` and `b`, joined and with their underlay addresses.
    ///
    /// # Errors
    /// The first step that failed.
    pub fn hosts(&self) -> Result<[Host; 2]> {
        let (a, b) = (Host::new("a")?, Host::new("b")?);
        self.join(&a, &b)?;
        self.address(&a, &b)?;
        Ok([a, b])
    }

    /// Joins two hosts. The NICs are up and have no addresses.
    ///
    /// # Errors
    /// If a NIC already exists or the kernel refuses the offload profile.
    pub fn join(&self, a: &Host, b: &Host) -> Result<()> {
        a.connect(NIC, b, NIC, self.mtu)?;
        a.set_offload(NIC, self.offload)?;
        b.set_offload(NIC, self.offload)
    }

    /// Adds the underlay addresses of both NICs.
    ///
    /// # Errors
    /// If they already have them.
    pub fn address(&self, a: &Host, b: &Host) -> Result<()> {
        a.address(NIC, Wire::A, 24)?;
        b.address(NIC, Wire::B, 24)
    }

    /// Enables IPv6 on both NICs, without router discovery, and adds their IPv6 underlay addresses.
    ///
    /// # Errors
    /// If they already have them, or the kernel has no IPv6.
    pub fn address6(&self, a: &Host, b: &Host) -> Result<()> {
        for (host, address) in [(a, Wire::A6), (b, Wire::B6)] {
            // `accept_ra` comes first: otherwise enabling IPv6 sends router solicitations at once.
            for (setting, value) in [("accept_ra", "0"), ("disable_ipv6", "0")] {
                host.sysctl(&format!("net/ipv6/conf/{NIC}/{setting}"), value)?;
            }
            host.address(NIC, address, 64)?;
        }
        Ok(())
    }
}
