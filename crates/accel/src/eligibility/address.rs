//! Addresses of tunnel endpoints.

use std::net::IpAddr;

/// Returns the kind of an address that is unsupported as a tunnel endpoint, because the kernel's
/// handling depends on more than its routes.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    let IpAddr::V6(six) = address else { return None };
    if six.is_unicast_link_local() {
        // Link-local addresses are ambiguous without a link; the kernel creates separate devices
        // for them.
        return Some("link-local");
    }
    six.to_ipv4_mapped().map(|_| "IPv4-mapped")
}
