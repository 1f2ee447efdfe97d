//! Packet counters of rules that drop packets, or exempt them from connection tracking.
//!
//! The evaluation of a flow cannot decide every rule. A counter that increases between two readings
//! shows that a rule applies to packets now, whatever it compares. Rules without a counter are left
//! out. `legacy::counted` reads those of iptables-legacy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netstate::netfilter::raw::Nftables;

use crate::decode::{Message, NEWCHAIN, NEWRULE};
use crate::flow::Place;
use crate::read::{GETCHAIN, GETRULE, filter_tables};
use crate::wire::{Fields, UnsupportedContent, each, text};

/// A rule with a counter that drops packets, or exempts them from connection tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropCounter {
    /// The rule.
    pub at: Place,
    /// Whether it exempts packets from tracking instead of dropping them.
    pub untracks: bool,
    /// Packets that its counter has counted.
    pub packets: u64,
    /// Destination address that it compares, if it is a constant address of IPv4.
    pub to: Option<IpAddr>,
    /// Comment of the rule.
    pub comment: Option<String>,
    /// Whether every base chain that leads to it sees packets for this host only.
    pub for_host: bool,
}

/// Family, table and chain.
type Name = (u8, String, String);

/// Reads the counters of the calling thread's namespace. Tables that only translate addresses are
/// left out.
pub fn drop_counters(nftables: &mut Nftables) -> Result<Vec<DropCounter>, netstate::Error> {
    let mut chains = Vec::new();
    nftables.objects(GETCHAIN, 0, &[], "nftables chains", |kind, payload| {
        chains.push(Message { kind, payload: payload.to_vec() });
    })?;
    let mut found = Found::default();
    for chain in chains.iter().filter(|chain| chain.kind == NEWCHAIN) {
        // A chain that cannot be decoded only keeps a rule from being told apart.
        let _ = found.chain(&chain.payload);
    }
    for (family, table) in filter_tables(&chains) {
        nftables.objects(GETRULE, family, &table, "nftables rules", |kind, payload| {
            if kind == NEWRULE {
                // A rule that cannot be decoded has no counter that is known.
                let _ = found.rule(payload);
            }
        })?;
    }
    Ok(found.finish())
}

#[derive(Default)]
struct Found {
    counters: Vec<DropCounter>,
    /// Hooks of the base chains.
    hooks: Vec<(Name, u32)>,
    /// Chains to which each chain jumps.
    jumps: BTreeMap<Name, BTreeSet<String>>,
}

/// Effect of an expression on a packet.
enum Effect {
    Drops,
    Untracks,
    Jumps(String),
    Other,
}

impl Found {
    fn chain(&mut self, payload: &[u8]) -> Result<(), UnsupportedContent> {
        let (family, all) = head(payload)?;
        // NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK; NFTA_HOOK_HOOKNUM.
        let Some(hook) = find(&all, 4) else { return Ok(()) };
        let number = each(hook)?.into_iter().find(|(kind, _)| *kind == 1);
        let number = number.and_then(|(_, value)| value.try_into().ok()).map(u32::from_be_bytes);
        let name = |kind| find(&all, kind).map(text).unwrap_or_default();
        self.hooks.extend(number.map(|number| ((family, name(1), name(3)), number)));
        Ok(())
    }

    fn rule(&mut self, payload: &[u8]) -> Result<(), UnsupportedContent> {
        let (family, all) = head(payload)?;
        let name = |kind| find(&all, kind).map(text).unwrap_or_default();
        let (mut packets, mut drops, mut untracks) = (None, false, false);
        // Registers that hold the destination address.
        let (mut loaded, mut to) = (None, None);
        for (_, bytes) in each(find(&all, 4).unwrap_or_default())? {
            let fields = Fields::new(bytes, &[1, 2])?;
            let data = fields.get(2).unwrap_or_default();
            match fields.text(1).as_str() {
                "counter" => {
                    // NFTA_COUNTER_PACKETS.
                    let value = each(data)?.into_iter().find(|(kind, _)| *kind == 2);
                    packets = value.and_then(|(_, value)| value.try_into().ok());
                }
                // NFTA_PAYLOAD_DREG, _BASE, _OFFSET, _LEN: the destination in a header of IPv4.
                "payload" => {
                    let number = |wanted| {
                        let all = each(data).ok()?;
                        let value = all.into_iter().find(|(kind, _)| *kind == wanted)?.1;
                        value.try_into().ok().map(u32::from_be_bytes)
                    };
                    let is_address =
                        (number(2), number(3), number(4)) == (Some(1), Some(16), Some(4));
                    loaded = number(1).filter(|_| is_address);
                }
                "cmp" => {
                    // NFTA_CMP_SREG, _OP (0: equal), _DATA with NFTA_DATA_VALUE.
                    let fields = Fields::new(data, &[1, 2, 3])?;
                    let value = Fields::new(fields.need(3)?, &[1, 2])?;
                    let octets: Option<[u8; 4]> =
                        value.get(1).and_then(|value| value.try_into().ok());
                    if loaded.is_some()
                        && fields.number(1)? == loaded
                        && fields.number(2)? == Some(0)
                    {
                        (to, loaded) = (octets.map(IpAddr::from), None);
                    }
                }
                kind => match effect(kind, data)? {
                    Effect::Drops => drops = true,
                    Effect::Untracks => untracks = true,
                    Effect::Jumps(chain) => {
                        self.jumps.entry((family, name(1), name(2))).or_default().insert(chain);
                    }
                    Effect::Other => {}
                },
            }
        }
        let (Some(packets), true) = (packets, drops || untracks) else { return Ok(()) };
        let handle = find(&all, 3).and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
        let at = Place { family, table: name(1), chain: name(2), handle, is_legacy: false };
        self.counters.push(DropCounter {
            at,
            untracks,
            packets: u64::from_be_bytes(packets),
            to,
            comment: find(&all, 7).and_then(comment),
            for_host: false,
        });
        Ok(())
    }

    fn finish(self) -> Vec<DropCounter> {
        /// `NF_INET_LOCAL_IN`, also of the bridge family.
        const INPUT: u32 = 1;
        const ARP: u8 = 3;
        let Found { mut counters, hooks, jumps } = self;
        let mut reached: BTreeMap<Name, BTreeSet<u32>> = BTreeMap::new();
        let mut waiting = hooks;
        while let Some((name, hook)) = waiting.pop() {
            // Chains may be reached from a hook by several ways.
            if !reached.entry(name.clone()).or_default().insert(hook) {
                continue;
            }
            let next = jumps.get(&name).into_iter().flatten();
            waiting.extend(next.map(|chain| ((name.0, name.1.clone(), chain.clone()), hook)));
        }
        for one in &mut counters {
            let name = (one.at.family, one.at.table.clone(), one.at.chain.clone());
            // A chain that only a map leads to has no known hook.
            one.for_host = one.at.family != ARP
                && reached.get(&name).is_some_and(|hooks| hooks.iter().all(|hook| *hook == INPUT));
        }
        counters
    }
}

type Attributes<'a> = Vec<(u16, &'a [u8])>;

/// Family and attributes of an answer.
fn head(payload: &[u8]) -> Result<(u8, Attributes<'_>), UnsupportedContent> {
    let family = payload.first().ok_or("no header")?;
    Ok((*family, each(payload.get(4..).unwrap_or_default())?))
}

fn find<'a>(all: &[(u16, &'a [u8])], wanted: u16) -> Option<&'a [u8]> {
    all.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value)
}

fn effect(kind: &str, data: &[u8]) -> Result<Effect, UnsupportedContent> {
    Ok(match kind {
        "reject" => Effect::Drops,
        "notrack" => Effect::Untracks,
        "immediate" => {
            // NFTA_IMMEDIATE_DATA, NFTA_DATA_VERDICT, NFTA_VERDICT_CODE and _CHAIN.
            let fields = Fields::new(data, &[1, 2])?;
            let Some(verdict) = Fields::new(fields.need(2)?, &[1, 2])?.get(2) else {
                return Ok(Effect::Other);
            };
            let verdict = Fields::new(verdict, &[1, 2, 3])?;
            match verdict.need_number(1)?.cast_signed() {
                0 => Effect::Drops,
                -3 | -4 => Effect::Jumps(verdict.text(2)),
                _ => Effect::Other,
            }
        }
        "target" => {
            let fields = Fields::new(data, &[1, 2, 3])?;
            let info = fields.get(3).unwrap_or_default();
            match fields.text(1).as_str() {
                "REJECT" | "DROP" => Effect::Drops,
                "NOTRACK" => Effect::Untracks,
                // XT_CT_NOTRACK of `struct xt_ct_target_info`.
                "CT" if info.first().is_some_and(|flags| flags & 1 != 0) => Effect::Untracks,
                _ => Effect::Other,
            }
        }
        _ => Effect::Other,
    })
}

/// Comment in the data of user space: type, length and a zero-terminated text.
fn comment(data: &[u8]) -> Option<String> {
    let (header, rest) = data.split_first_chunk::<2>()?;
    let value = rest.get(..usize::from(header[1]))?;
    (header[0] == 0).then(|| text(value)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use netstate::netfilter::to_attribute;

    use super::*;

    fn numbered(kind: u16, value: u32) -> Vec<u8> {
        to_attribute(kind, &value.to_be_bytes())
    }

    fn expression(name: &str, data: &[u8]) -> Vec<u8> {
        let name = to_attribute(1, format!("{name}\0").as_bytes());
        to_attribute(1, &[name, to_attribute(2, data)].concat())
    }

    fn counter(packets: u64) -> Vec<u8> {
        let bytes = to_attribute(1, &9_u64.to_be_bytes());
        expression("counter", &[bytes, to_attribute(2, &packets.to_be_bytes())].concat())
    }

    fn verdict(code: i32, chain: Option<&str>) -> Vec<u8> {
        let mut verdict = numbered(1, code.cast_unsigned());
        if let Some(chain) = chain {
            verdict.extend(to_attribute(2, format!("{chain}\0").as_bytes()));
        }
        let data = to_attribute(2, &to_attribute(2, &verdict));
        expression("immediate", &[numbered(1, 0), data].concat())
    }

    fn rule(chain: &str, handle: u64, expressions: &[Vec<u8>], more: &[u8]) -> Vec<u8> {
        let mut payload = vec![2, 0, 0, 0];
        payload.extend(to_attribute(1, b"filter\0"));
        payload.extend(to_attribute(2, format!("{chain}\0").as_bytes()));
        payload.extend(to_attribute(3, &handle.to_be_bytes()));
        payload.extend(to_attribute(4, &expressions.concat()));
        payload.extend(more);
        payload
    }

    fn base(name: &str, hook: u32) -> Vec<u8> {
        let mut payload = vec![2, 0, 0, 0];
        payload.extend(to_attribute(1, b"filter\0"));
        payload.extend(to_attribute(3, format!("{name}\0").as_bytes()));
        payload.extend(to_attribute(4, &numbered(1, hook)));
        payload
    }

    #[test]
    fn rules_that_drop_are_counted_with_their_hooks() {
        let mut found = Found::default();
        found.chain(&base("INPUT", 1)).unwrap();
        found.chain(&base("FORWARD", 2)).unwrap();
        let load = [numbered(1, 8), numbered(2, 1), numbered(3, 16), numbered(4, 4)].concat();
        let address = to_attribute(3, &to_attribute(1, &[10, 96, 0, 10]));
        let same = [numbered(1, 8), numbered(2, 0), address].concat();
        let comment = to_attribute(7, b"\0\x05gone\0");
        for payload in [
            rule("INPUT", 1, &[verdict(-3, Some("both"))], &[]),
            rule("INPUT", 2, &[counter(3), verdict(0, None)], &[]),
            rule("FORWARD", 3, &[verdict(-4, Some("both"))], &[]),
            rule("both", 4, &[counter(5), expression("reject", &[])], &comment),
            rule("FORWARD", 5, &[counter(7), verdict(1, None)], &[]),
            rule("FORWARD", 6, &[verdict(0, None)], &[]),
            rule(
                "FORWARD",
                7,
                &[
                    expression("payload", &load),
                    expression("cmp", &same),
                    counter(8),
                    expression("notrack", &[]),
                ],
                &[],
            ),
        ] {
            found.rule(&payload).unwrap();
        }
        let seen: Vec<_> = found
            .finish()
            .into_iter()
            .map(|one| {
                (
                    one.at.handle.unwrap(),
                    one.packets,
                    one.for_host,
                    one.untracks,
                    one.to,
                    one.comment,
                )
            })
            .collect();
        let service = Some(IpAddr::from([10, 96, 0, 10]));
        let expected = [
            (2, 3, true, false, None, None),
            (4, 5, false, false, None, Some("gone".to_owned())),
            (7, 8, false, true, service, None),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn targets_of_iptables_drop_or_exempt() {
        let target = |name: &str, info: &[u8]| {
            let name = to_attribute(1, format!("{name}\0").as_bytes());
            effect("target", &[name, numbered(2, 0), to_attribute(3, info)].concat()).unwrap()
        };
        assert!(matches!(target("REJECT", &[0; 4]), Effect::Drops));
        assert!(matches!(target("CT", &[1, 0]), Effect::Untracks));
        assert!(matches!(target("CT", &[0, 0]), Effect::Other));
        assert!(matches!(target("MARK", &[1, 0]), Effect::Other));
    }
}
