//! Place of a tenant's hardware address.

use std::net::IpAddr;

/// Place of a tenant's hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Behind the endpoint's own TAP.
    Local,
    /// Behind that remote endpoint.
    Remote(IpAddr),
}
