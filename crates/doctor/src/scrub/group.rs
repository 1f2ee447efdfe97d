//! Pseudonyms of the groups of neighbour solicitations, which have the last bits of an address.

use std::net::{IpAddr, Ipv6Addr};

use netstate::mdb::Member;

use super::Scrubber;

/// First words of groups of neighbour solicitations (RFC 4291, section 2.7.1).
const SOLICITED: [u16; 6] = [0xff02, 0, 0, 0, 0, 1];

/// The bits of an address that its group of neighbour solicitations has.
pub(super) fn last_bits(address: Ipv6Addr) -> u32 {
    let [.., high, low] = address.segments();
    u32::from(high & 0xff) << 16 | u32::from(low)
}

impl Scrubber {
    /// Returns a member of the groups of the pseudonyms of all addresses that the group may stand
    /// for.
    pub(super) fn groups(&mut self, member: &Member) -> Vec<Member> {
        let Member { port, group } = *member;
        let known = match group {
            IpAddr::V6(group) if group.segments()[..6] == SOLICITED => {
                self.solicited.get(&last_bits(group)).cloned().unwrap_or_default()
            }
            _ => Vec::new(),
        };
        if known.is_empty() {
            return vec![Member { port, group: self.addresses.ip(group) }];
        }
        let of = |address: Ipv6Addr| {
            let IpAddr::V6(other) = self.addresses.ip(address.into()) else { return None };
            let [.., high, low] = other.segments();
            let [a, b, c, d, e, f] = SOLICITED;
            let group = Ipv6Addr::new(a, b, c, d, e, f, 0xff00 | high & 0xff, low);
            Some(Member { port, group: group.into() })
        };
        known.into_iter().filter_map(of).collect()
    }
}
