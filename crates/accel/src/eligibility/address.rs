//! Addresses of tunnels' ends.

use std::net::IpAddr;

/// The kind of an address that is none for a tunnel's end here: what the kernel makes of it
/// depends on more than its routes.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    let IpAddr::V6(six) = address else { return None };
    if six.is_unicast_link_local() {
        // It is another's on each link; the kernel has devices of their own for them.
        return Some("link-local");
    }
    six.to_ipv4_mapped().map(|_| "an IPv4 address in IPv6")
}
