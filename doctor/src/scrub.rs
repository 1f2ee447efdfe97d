//! Takes addresses out of a saved host, so that it can be shown: equal ones stay
//! equal, and addresses of one network stay on one network. Names stay.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netstate::MacAddr;
use serde_json::Value;

use crate::host::Host;

/// What stands for what.
#[derive(Debug, Default)]
struct Substitutes {
    /// First 24 bits of IPv4 addresses.
    v4: BTreeMap<[u8; 3], u16>,
    /// First 64 bits of IPv6 addresses.
    v6: BTreeMap<u64, u16>,
    /// Last 64 bits.
    v6_host: BTreeMap<u64, u64>,
    macs: BTreeMap<MacAddr, u32>,
}

/// A host without its addresses.
///
/// # Errors
/// When it cannot be written as JSON and read back.
pub fn scrub(host: &Host) -> Result<Host, serde_json::Error> {
    let mut value = serde_json::to_value(host)?;
    Substitutes::default().value(&mut value);
    serde_json::from_value(value)
}

impl Substitutes {
    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(fields) => fields.values_mut().for_each(|value| self.value(value)),
            _ => {}
        }
    }

    /// Addresses within a text.
    fn text(&mut self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
        let mut scrubbed = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let (token, after) = rest.split_at(end);
            // A colon or full stop behind an address belongs to the sentence.
            let word = token.trim_end_matches(['.', ':']);
            match (self.word(token), self.word(word)) {
                (Some(other), _) => scrubbed.push_str(&other),
                (None, Some(other)) => {
                    scrubbed.push_str(&other);
                    scrubbed.push_str(&token[word.len()..]);
                }
                (None, None) => scrubbed.push_str(token),
            }
            let next = after.find(is_part).unwrap_or(after.len());
            scrubbed.push_str(&after[..next]);
            rest = &after[next..];
        }
        scrubbed
    }

    fn word(&mut self, word: &str) -> Option<String> {
        if let Ok(mac) = word.parse::<MacAddr>() {
            return Some(self.mac(mac).to_string());
        }
        match word.parse::<IpAddr>().ok()? {
            IpAddr::V4(address) => Some(self.v4(address).to_string()),
            IpAddr::V6(address) => Some(self.v6(address).to_string()),
        }
    }

    fn mac(&mut self, mac: MacAddr) -> MacAddr {
        if !mac.is_unicast() {
            return mac;
        }
        let next = self.macs.len() as u32 + 1;
        let [_, a, b, c] = self.macs.entry(mac).or_insert(next).to_be_bytes();
        MacAddr([0x02, 0, 0, a, b, c])
    }

    fn v4(&mut self, address: Ipv4Addr) -> Ipv4Addr {
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return address;
        }
        let [a, b, c, last] = address.octets();
        let next = self.v4.len() as u16;
        let [high, low] = self.v4.entry([a, b, c]).or_insert(next).to_be_bytes();
        Ipv4Addr::new(10, high, low, last)
    }

    fn v6(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return address;
        }
        let bits = u128::from(address);
        let (network, host) = ((bits >> 64) as u64, bits as u64);
        let next = self.v6.len() as u16;
        let network_number = *self.v6.entry(network).or_insert(next);
        let next = self.v6_host.len() as u64 + 1;
        let host_number = *self.v6_host.entry(host).or_insert(next);
        // Link-local addresses mean something by being so.
        let prefix: u128 = if address.is_unicast_link_local() {
            0xfe80 << 112
        } else {
            (0xfd00 << 112) | (u128::from(network_number) << 64)
        };
        Ipv6Addr::from(prefix | u128::from(host_number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_stay_equal_and_networks_together() {
        let mut scrubber = Substitutes::default();
        let text = "route 192.0.2.7: via 192.0.2.1, 198.51.100.7; 2001:db8::5 52:54:00:12:34:56";
        assert_eq!(
            scrubber.text(text),
            "route 10.0.0.7: via 10.0.0.1, 10.0.1.7; fd00::1 02:00:00:00:00:01"
        );
        assert_eq!(scrubber.text("192.0.2.7"), "10.0.0.7");
        assert_eq!(scrubber.text("eth0 1500 6.18.44 dead"), "eth0 1500 6.18.44 dead");
        assert_eq!(scrubber.text("127.0.0.1 ff:ff:ff:ff:ff:ff"), "127.0.0.1 ff:ff:ff:ff:ff:ff");
    }
}
