//! Pseudonyms of addresses. Equal addresses stay equal, and two addresses share a prefix of the
//! same length as before, so that networks of every length stay networks.
//!
//! Each bit is flipped or kept according to a hash of all bits before it. The scheme is from J. Xu,
//! J. Fan, M. Ammar and S. Moon, "Prefix-preserving IP address anonymization", ICNP 2002, with
//! SipHash and a random key that is discarded afterwards. Leading bits that give an address its
//! meaning (private, link-local, multicast) stay.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netstate::MacAddr;

/// Networks with a special meaning (IANA's special-purpose address registries). An address inside
/// stays inside, and one outside stays outside.
const SPECIAL_V4: [([u8; 4], u32); 12] = [
    // Prefixes of addresses that stay unchanged: neighbours must keep sharing them.
    ([0, 0, 0, 0], 32),
    ([255, 255, 255, 255], 32),
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 168, 0, 0], 16),
    ([224, 0, 0, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

const SPECIAL_V6: [(Ipv6Addr, u32); 5] = [
    // `::`, `::1`, and prefixes that embed IPv4 addresses.
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 64),
    // Solicited-node groups (RFC 4291) end with the last bits of an address.
    (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0), 104),
];

/// Leading bits of an IPv6 address that stay: they show registry and kind.
const KEPT_V6: u32 = 16;

/// Pseudonyms of addresses.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    key: RandomState,
    macs: BTreeMap<MacAddr, MacAddr>,
    /// Replaced addresses.
    real: BTreeSet<IpAddr>,
    given: BTreeSet<IpAddr>,
    taken: BTreeSet<MacAddr>,
}

impl Addresses {
    /// Whether a pseudonym is also a real address of this host. Another key may avoid that.
    pub(super) fn overlap(&self) -> bool {
        self.given.intersection(&self.real).next().is_some()
            || self.taken.iter().any(|mac| self.macs.contains_key(mac))
    }

    /// The pseudonym of an address.
    pub(super) fn ip(&mut self, address: IpAddr) -> IpAddr {
        let other = match address {
            IpAddr::V4(address) if says_all_v4(address) => return address.into(),
            IpAddr::V6(address) if says_all_v6(address) => return address.into(),
            IpAddr::V4(address) => IpAddr::V4(self.v4(address)),
            IpAddr::V6(address) => IpAddr::V6(self.v6(address)),
        };
        self.real.insert(address);
        self.given.insert(other);
        other
    }

    fn v4(&self, address: Ipv4Addr) -> Ipv4Addr {
        let special = |prefix: u32, length: u32| {
            SPECIAL_V4.iter().any(|(network, of)| {
                let network = u32::from(Ipv4Addr::from(*network));
                length < *of && first(network.into(), 32, length) == u128::from(prefix)
            })
        };
        let bits = u128::from(u32::from(address));
        let kept = |prefix: u128, length| special(prefix as u32, length);
        Ipv4Addr::from(self.flipped(4, bits, 32, kept) as u32)
    }

    fn v6(&self, address: Ipv6Addr) -> Ipv6Addr {
        let bits = u128::from(address);
        let holds_v4 = SPECIAL_V6[..3].iter().any(|(network, length)| {
            first(bits, 128, *length) == first(u128::from(*network), 128, *length)
        });
        if holds_v4 {
            let inner = self.v4(Ipv4Addr::from(bits as u32));
            return Ipv6Addr::from(bits >> 32 << 32 | u128::from(u32::from(inner)));
        }
        let kept = |prefix: u128, length: u32| {
            length < KEPT_V6
                || leads_to_known_group(prefix, length)
                || SPECIAL_V6.iter().any(|(network, of)| {
                    length < *of && first(u128::from(*network), 128, length) == prefix
                })
        };
        Ipv6Addr::from(self.flipped(6, bits, 128, kept))
    }

    /// Flips each bit according to a hash of the bits before it, unless it is `kept`.
    fn flipped(&self, kind: u8, bits: u128, width: u32, kept: impl Fn(u128, u32) -> bool) -> u128 {
        (0..width).fold(0, |done, length| {
            let prefix = first(bits, width, length);
            let bit = bits >> (width - 1 - length) & 1;
            let flip = !kept(prefix, length) && self.key.hash_one((kind, length, prefix)) & 1 == 1;
            done << 1 | (bit ^ u128::from(flip))
        })
    }

    /// Returns the pseudonym of a MAC address: locally administered, and unicast or multicast as
    /// before.
    pub(super) fn mac(&mut self, mac: MacAddr) -> MacAddr {
        // All zeros, broadcast, and addresses reserved by IEEE 802.1 stay.
        if mac.0 == [0; 6] || mac.0 == [0xff; 6] || mac.0[..5] == [0x01, 0x80, 0xc2, 0, 0] {
            return mac;
        }
        if let Some(known) = self.macs.get(&mac) {
            return *known;
        }
        let kept: &[u8] = match mac.0 {
            // IPv6 and IPv4 groups (RFC 2464, RFC 1112): the rest derives from an IP address.
            [0x33, 0x33, ..] => &[0x33, 0x33],
            [0x01, 0x00, 0x5e, ..] => &[0x01, 0x00, 0x5e],
            [first, ..] if first & 1 == 1 => &[0x03],
            _ => &[0x02],
        };
        let other = (0_u32..).map(|attempt| {
            let random = self.key.hash_one((48_u8, attempt, mac.0)).to_be_bytes();
            let mut other = [random[0], random[1], random[2], random[3], random[4], random[5]];
            other[..kept.len()].copy_from_slice(kept);
            MacAddr(other)
        });
        let mut free = other.filter(|other| !self.taken.contains(other));
        // Even IPv4 groups leave 2^24 pseudonyms, more than a saved host has entries.
        let other = free.next().unwrap_or(MacAddr([0x02, 0, 0, 0, 0, 0]));
        self.taken.insert(other);
        self.macs.insert(mac, other);
        other
    }
}

/// Returns the first `length` bits of `width`, as a number.
fn first(bits: u128, width: u32, length: u32) -> u128 {
    if length == 0 { 0 } else { bits >> (width - length) }
}

/// Whether an address is the same on every host.
fn says_all_v4(address: Ipv4Addr) -> bool {
    let octets = address.octets();
    address.is_unspecified()
        || address.is_loopback()
        || address.is_broadcast()
        || octets[..3] == [224, 0, 0]
}

fn says_all_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let is_known_group = segments[0] >> 8 == 0xff && segments[1..7] == [0; 6];
    address.is_unspecified() || address.is_loopback() || is_known_group
}

/// Whether a well-known group, which stays unchanged, begins with these bits. They are kept, so
/// that neighbouring addresses still share as many bits with it.
fn leads_to_known_group(prefix: u128, length: u32) -> bool {
    let segments = Ipv6Addr::from(prefix << (128 - length)).segments();
    length < 112 && segments[0] >> 8 == 0xff && segments[1..7] == [0; 6]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shared(a: IpAddr, b: IpAddr) -> u32 {
        match (a, b) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
            _ => 0,
        }
    }

    fn kind(address: IpAddr) -> [bool; 5] {
        let [a, b] = match address {
            IpAddr::V4(v4) => [v4.is_private(), v4.is_link_local()],
            IpAddr::V6(v6) => [v6.is_unique_local(), v6.is_unicast_link_local()],
        };
        [address.is_loopback(), address.is_multicast(), address.is_unspecified(), a, b]
    }

    fn any_address() -> impl Strategy<Value = IpAddr> {
        let near = prop_oneof![
            Just("10.0.0.0"),
            Just("192.168.1.0"),
            Just("172.16.5.0"),
            Just("192.0.2.0"),
            Just("127.0.0.0"),
            Just("224.0.0.0"),
            Just("239.1.1.0"),
            Just("169.254.0.0"),
        ];
        let v4 = (near, any::<u16>()).prop_map(|(network, host)| {
            let network: Ipv4Addr = network.parse().unwrap();
            IpAddr::V4(Ipv4Addr::from(u32::from(network) ^ u32::from(host)))
        });
        let near = prop_oneof![
            Just("2001:db8::"),
            Just("fe80::"),
            Just("fd00:1::"),
            Just("ff02::1:ff00:0"),
            Just("::ffff:192.0.2.0"),
            Just("::"),
            Just("ff02::"),
        ];
        let v6 = (near, any::<u64>()).prop_map(|(network, host)| {
            let network: Ipv6Addr = network.parse().unwrap();
            IpAddr::V6(Ipv6Addr::from(u128::from(network) ^ u128::from(host >> (host % 60))))
        });
        prop_oneof![
            v4,
            v6,
            any::<u32>().prop_map(|n| IpAddr::V4(n.into())),
            any::<u128>().prop_map(|n| IpAddr::V6(n.into()))
        ]
    }

    /// An unchanged address shares as many bits with its neighbours as before, for any key.
    #[test]
    fn neighbours_of_addresses_that_stay_keep_their_prefix() {
        for (a, b) in [
            ("ff02::8942:b7cc", "ff02::2"),
            ("ff05::1:3", "ff05::2"),
            ("ff02::1:ff00:1", "ff02::1"),
            ("::2", "::1"),
            ("::8000:1", "::"),
            ("0.0.0.5", "0.0.0.0"),
            ("0.128.0.1", "0.0.0.0"),
            ("255.255.255.254", "255.255.255.255"),
            ("255.0.0.1", "255.255.255.255"),
        ] {
            let (a, b): (IpAddr, IpAddr) = (a.parse().unwrap(), b.parse().unwrap());
            for _ in 0..32 {
                let mut addresses = Addresses::default();
                let (x, y) = (addresses.ip(a), addresses.ip(b));
                assert_eq!(y, b);
                assert_eq!(shared(a, b), shared(x, y), "{a} {b} {x} {y}");
            }
        }
    }

    proptest! {
        #[test]
        fn prefixes_and_kinds_stay(a in any_address(), b in any_address()) {
            let mut addresses = Addresses::default();
            let (x, y) = (addresses.ip(a), addresses.ip(b));
            prop_assert_eq!(shared(a, b), shared(x, y), "{} {} {} {}", a, b, x, y);
            prop_assert_eq!(kind(a), kind(x), "{} {}", a, x);
            prop_assert_eq!(addresses.ip(a), x);
        }

        #[test]
        fn macs_stay_apart(macs in prop::collection::btree_set(any::<[u8; 6]>(), 1..50)) {
            let mut addresses = Addresses::default();
            let given: BTreeSet<MacAddr> =
                macs.iter().map(|mac| addresses.mac(MacAddr(*mac))).collect();
            prop_assert_eq!(given.len(), macs.len());
            for mac in macs {
                let mac = MacAddr(mac);
                prop_assert_eq!(mac.is_unicast(), addresses.mac(mac).is_unicast());
            }
        }
    }
}
