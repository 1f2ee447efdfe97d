//! Where an address of a tenant is.

use std::net::IpAddr;

/// Where an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Behind the endpoint's own TAP.
    Local,
    /// Behind that remote end.
    Remote(IpAddr),
}
