//! Rules that translate addresses, with the addresses that they set.
//!
//! The evaluation knows only that such a rule has an effect. This module decodes the effect, as far
//! as it is constant: a rule that takes the address from a map has none.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::decode::{Message, NEWRULE};
use crate::flow::Place;
use crate::wire::{Fields, UnsupportedContent, each, text};

/// A rule that translates addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translation {
    /// The rule.
    pub at: Place,
    /// Whether it sets the source address; else the destination.
    pub is_source: bool,
    /// Address that it sets, if it is constant. `None` also for `masquerade` and `redirect`, which
    /// take it from a device.
    pub to: Option<IpAddr>,
    /// Whether the address belongs to a device (`masquerade`, `redirect`).
    pub of_device: bool,
}

/// Returns the rules of nftables and iptables-nft that translate addresses. A rule that cannot be
/// decoded is left out.
pub(crate) fn translations(messages: &[Message]) -> Vec<Translation> {
    let rules = messages.iter().filter(|message| message.kind == NEWRULE);
    rules.filter_map(|message| rule(message).ok().flatten()).collect()
}

fn rule(message: &Message) -> Result<Option<Translation>, UnsupportedContent> {
    // A message without its header describes no rule.
    let (Some(family), Some(payload)) = (message.payload.first(), message.payload.get(4..)) else {
        return Ok(None);
    };
    let all = each(payload)?;
    let find = |wanted| all.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
    // Constant addresses by the register that holds them.
    let mut constants: HashMap<u32, &[u8]> = HashMap::new();
    for (_, bytes) in each(find(4).unwrap_or_default())? {
        let fields = Fields::new(bytes, &[1, 2])?;
        let data = fields.get(2).unwrap_or_default();
        let effect = match fields.text(1).as_str() {
            "immediate" => {
                let fields = Fields::new(data, &[1, 2])?;
                // A verdict has no value.
                if let Some(value) = Fields::new(fields.need(2)?, &[1, 2])?.get(1) {
                    constants.insert(fields.need_number(1)?, value);
                }
                None
            }
            "nat" => {
                let fields = Fields::new(data, &[1, 2, 3, 4, 5, 6, 7])?;
                let register = fields.number(3)?;
                let to = register.and_then(|register| address(constants.get(&register)?));
                Some((fields.need_number(1)? == 0, to, false))
            }
            "masq" => Some((true, None, true)),
            "redir" => Some((false, None, true)),
            "target" => {
                let fields = Fields::new(data, &[1, 2, 3])?;
                let info = fields.get(3).unwrap_or_default();
                target(&fields.text(1), fields.need_number(2)?, *family == 10, info)
            }
            // Other expressions do not translate.
            _ => None,
        };
        if let Some((is_source, to, of_device)) = effect {
            let name = |kind| find(kind).map(text).unwrap_or_default();
            let handle = find(3).and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
            let at =
                Place { family: *family, table: name(1), chain: name(2), handle, is_legacy: false };
            return Ok(Some(Translation { at, is_source, to, of_device }));
        }
    }
    Ok(None)
}

/// Decodes a target of iptables-nft or iptables-legacy: whether it sets the source, the address, and
/// whether the address is a device's.
pub(crate) fn target(
    name: &str,
    revision: u32,
    ipv6: bool,
    info: &[u8],
) -> Option<(bool, Option<IpAddr>, bool)> {
    /// `NF_NAT_RANGE_MAP_IPS`.
    const ADDRESSES: u32 = 1;
    let is_source = match name {
        "SNAT" => true,
        "DNAT" => false,
        "MASQUERADE" => return Some((true, None, true)),
        "REDIRECT" => return Some((false, None, true)),
        _ => return None,
    };
    let word = |at: usize| info.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    // Revision 0, for IPv4 only: `struct nf_nat_ipv4_multi_range_compat`, whose count comes first.
    // Later revisions begin as `struct nf_nat_range` (net/netfilter/xt_nat.c).
    let old = !ipv6 && revision == 0;
    let (flags, first) = if old { (word(4), 8) } else { (word(0), 4) };
    let length = if ipv6 { 16 } else { 4 };
    let bytes = info.get(first..first + length).filter(|_| flags.unwrap_or(0) & ADDRESSES != 0);
    Some((is_source, bytes.and_then(address), false))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_iptables_are_decoded_by_revision() {
        let four = IpAddr::from([10, 244, 2, 9]);
        let mut new = vec![0; 40];
        new[0] = 1;
        new[4..8].copy_from_slice(&[10, 244, 2, 9]);
        let mut old = vec![0; 20];
        (old[0], old[4]) = (1, 1);
        old[8..12].copy_from_slice(&[10, 244, 2, 9]);
        assert_eq!(target("DNAT", 2, false, &new), Some((false, Some(four), false)));
        assert_eq!(target("DNAT", 1, false, &new), Some((false, Some(four), false)));
        assert_eq!(target("SNAT", 1, false, &new), Some((true, Some(four), false)));
        assert_eq!(target("DNAT", 0, false, &old), Some((false, Some(four), false)));
        assert_eq!(target("SNAT", 0, false, &old), Some((true, Some(four), false)));
        assert_eq!(target("MASQUERADE", 0, false, &old), Some((true, None, true)));
        // Ports only.
        new[0] = 2;
        assert_eq!(target("DNAT", 2, false, &new), Some((false, None, false)));
        assert_eq!(target("DNAT", 2, false, &[1, 0]), Some((false, None, false)));
        assert_eq!(target("ACCEPT", 0, false, &[]), None);
    }
}
