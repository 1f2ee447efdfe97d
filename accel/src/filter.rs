//! Whether nftables' rules leave a tunnel's datagrams alone.
//!
//! Each rule is asked with what is known of the datagrams: addresses, port, device. A
//! match on anything else may or may not hold, and then both is followed. Rules that
//! may come to do more than count and accept concern the flow; so does an expression
//! that is not known here.

use std::net::IpAddr;

use netstate::netfilter::{BaseChain, Expression, Rule, attribute, text};

/// Chains and rules of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Where packets enter.
    pub chains: Vec<BaseChain>,
    /// Of all chains.
    pub rules: Vec<Rule>,
}

/// The datagrams between this host's VTEP and another.
#[derive(Debug, Clone, Copy)]
pub struct Flow<'a> {
    /// Own address.
    pub local: IpAddr,
    /// The other VTEP's, of the same family.
    pub remote: IpAddr,
    /// UDP port of both.
    pub port: u16,
    /// NIC: index and name.
    pub nic: (u32, &'a str),
}

// include/uapi/linux/netfilter.h, netfilter/nf_tables.h.
const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_LOCAL_IN: u32 = 1;
const NF_INET_FORWARD: u32 = 2;
const NF_INET_LOCAL_OUT: u32 = 3;
const NF_INET_POST_ROUTING: u32 = 4;
const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_CONTINUE: i32 = -1;
const NFT_BREAK: i32 = -2;
const NFT_JUMP: i32 = -3;
const NFT_GOTO: i32 = -4;
const NFT_RETURN: i32 = -5;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;
const IPPROTO_UDP: u8 = 17;
/// `NFT_JUMP_STACK_SIZE`: the kernel takes no deeper rule set.
const DEPTH: usize = 16;

/// Expressions that match and change nothing, of which nothing more is known here.
const MATCHES: [&str; 7] = ["ct", "fib", "rt", "lookup", "range", "byteorder", "exthdr"];
/// Those of them that write a register's value somewhere where they have this attribute:
/// `NFTA_CT_SREG`, `NFTA_EXTHDR_SREG`, `NFTA_META_SREG`, `NFTA_PAYLOAD_SREG`.
const WRITES: [(&str, u16); 4] = [("ct", 4), ("exthdr", 7), ("meta", 3), ("payload", 5)];
/// Matches of iptables without a state of their own.
const EXTENSIONS: [&str; 9] =
    ["addrtype", "comment", "conntrack", "iprange", "mark", "multiport", "policy", "state", "tcp"];

/// Bytes of a register, as far as they are known.
type Value = Vec<Option<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Yes,
    Maybe,
    No,
}

impl Holds {
    fn and(self, other: Holds) -> Holds {
        match (self, other) {
            (Holds::No, _) | (_, Holds::No) => Holds::No,
            (Holds::Yes, Holds::Yes) => Holds::Yes,
            _ => Holds::Maybe,
        }
    }
}

/// How a chain is left for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Accepted,
    Other,
}

/// A datagram in one direction.
struct Datagram<'a> {
    flow: &'a Flow<'a>,
    sent: bool,
}

impl Ruleset {
    /// Whether no rule does anything to the flow, either way, but count it.
    ///
    /// # Errors
    /// The chain, and what it may do.
    pub fn passes(&self, flow: &Flow<'_>) -> Result<(), String> {
        let (ours, others) = if flow.local.is_ipv4() { ("ip", "ip6") } else { ("ip6", "ip") };
        for chain in &self.chains {
            // The datagrams are of one family, and the host's own.
            let sent = match (chain.family, chain.hook) {
                ("bridge", _) => continue,
                (family, _) if family == others => continue,
                (family, hook) if family == ours || family == "inet" => match hook {
                    NF_INET_LOCAL_OUT | NF_INET_POST_ROUTING => true,
                    NF_INET_PRE_ROUTING | NF_INET_LOCAL_IN => false,
                    NF_INET_FORWARD => continue,
                    _ => return Err(format!("packet filter: nftables {chain}")),
                },
                _ => return Err(format!("packet filter: nftables {chain}")),
            };
            let concerns = |what| format!("packet filter: nftables {chain}: {what}");
            let datagram = Datagram { flow, sent };
            let end = self
                .follow(chain.family, &chain.table, &chain.chain, &datagram, 0)
                .map_err(concerns)?;
            if chain.drops && end != End::Accepted {
                return Err(concerns("policy drop".to_owned()));
            }
        }
        Ok(())
    }

    fn follow(
        &self,
        family: &str,
        table: &str,
        chain: &str,
        datagram: &Datagram<'_>,
        depth: usize,
    ) -> Result<End, String> {
        if depth > DEPTH {
            return Err("too many chains".to_owned());
        }
        let of = |rule: &&Rule| rule.family == family && rule.table == table && rule.chain == chain;
        for rule in self.rules.iter().filter(of) {
            let Some((holds, verdict, to)) = datagram.verdict(&rule.expressions)? else { continue };
            let mut end = End::Other;
            match verdict {
                NF_ACCEPT => end = End::Accepted,
                NFT_CONTINUE | NFT_BREAK => continue,
                NFT_RETURN => {}
                NFT_JUMP | NFT_GOTO => {
                    end = self.follow(family, table, &to, datagram, depth + 1)?;
                    if verdict == NFT_JUMP && end == End::Other {
                        continue;
                    }
                }
                NF_DROP => return Err("drop".to_owned()),
                other => return Err(format!("verdict {other}")),
            }
            if holds == Holds::Yes {
                return Ok(end);
            }
        }
        Ok(End::Other)
    }
}

impl Datagram<'_> {
    /// The verdict that a rule may come to, whether it does for certain, and its chain.
    fn verdict(&self, expressions: &[Expression]) -> Result<Option<(Holds, i32, String)>, String> {
        let mut holds = Holds::Yes;
        // One register at a time: they overlap.
        let mut register: Option<(u32, Value)> = None;
        for expression in expressions {
            let find = |wanted: u16| attribute(&expression.data, wanted);
            let value = |wanted| find(wanted).and_then(number);
            let name = expression.name.as_str();
            if WRITES.iter().any(|(writer, kind)| *writer == name && find(*kind).is_some()) {
                return Err(format!("{name} set"));
            }
            match name {
                "counter" => {}
                "meta" => {
                    let (Some(to), Some(key)) = (value(1), value(2)) else { return odd(name) };
                    register = Some((to, self.meta(key)));
                }
                "payload" => {
                    let (Some(to), Some(base), Some(offset), Some(len)) =
                        (value(1), value(2), value(3), value(4))
                    else {
                        return odd(name);
                    };
                    register = Some((to, self.payload(base, offset as usize, len as usize)));
                }
                "bitwise" => {
                    let (from, to) = (value(1), value(2));
                    let known = register.take().filter(|(at, _)| Some(*at) == from);
                    let (mask, xor) = (find(4).and_then(data), find(5).and_then(data));
                    if let (Some((_, bytes)), Some(to), Some(mask), Some(xor)) =
                        (known, to, mask, xor)
                        && value(6).unwrap_or(0) == 0
                    {
                        register = Some((to, masked(&bytes, mask, xor)));
                    }
                }
                "cmp" => {
                    let known = register.as_ref().filter(|(at, _)| Some(*at) == value(1));
                    let with = find(3).and_then(data).unwrap_or_default();
                    let (Some(operation), false) = (value(2), with.is_empty()) else {
                        return odd(name);
                    };
                    holds =
                        holds
                            .and(known.map_or(Holds::Maybe, |(_, bytes)| {
                                compare(operation, bytes, with)
                            }));
                }
                "match" => {
                    let extension = text(find(1).unwrap_or_default());
                    match (extension.as_str(), find(3)) {
                        ("udp", Some(info)) => holds = holds.and(self.udp(info)),
                        _ if EXTENSIONS.contains(&extension.as_str()) => {
                            holds = holds.and(Holds::Maybe)
                        }
                        _ => return Err(format!("match {extension}")),
                    }
                }
                "immediate" => {
                    // NFTA_IMMEDIATE_DATA, NFTA_DATA_VERDICT.
                    let verdict = find(2).and_then(|data| attribute(data, 2));
                    let Some(verdict) = verdict else {
                        register = None;
                        continue;
                    };
                    let Some(code) = attribute(verdict, 1).and_then(number) else {
                        return odd(name);
                    };
                    let to = attribute(verdict, 2).unwrap_or_default();
                    return Ok(Some((holds, code.cast_signed(), text(to))));
                }
                // NFTA_LOOKUP_DREG, NFT_REG_VERDICT: what it comes to is in the map.
                "lookup" if value(3) == Some(0) => return Err("verdict map".to_owned()),
                _ if MATCHES.contains(&name) => {
                    register = None;
                    holds = holds.and(Holds::Maybe);
                }
                "target" => return Err(text(find(1).unwrap_or_default())),
                other => return Err(other.to_owned()),
            }
            if holds == Holds::No {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn meta(&self, key: u32) -> Value {
        let known = |bytes: &[u8]| bytes.iter().map(|byte| Some(*byte)).collect();
        let (index, name) = self.flow.nic;
        let mut padded = [0; 16];
        for (to, from) in padded.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        // NFT_META_*; what a datagram that is sent came by depends on the kernel.
        match (key, self.sent) {
            (1, _) => known(if self.flow.local.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] }),
            (4, false) | (5, true) => known(&index.to_ne_bytes()),
            (6, false) | (7, true) => known(&padded),
            (15, _) => {
                known(&[if self.flow.local.is_ipv4() { NFPROTO_IPV4 } else { NFPROTO_IPV6 }])
            }
            (16, _) => known(&[IPPROTO_UDP]),
            _ => vec![None; 16],
        }
    }

    fn payload(&self, base: u32, offset: usize, len: usize) -> Value {
        let Flow { local, remote, port, .. } = self.flow;
        let (from, to) = if self.sent { (local, remote) } else { (remote, local) };
        let mut header: Value = vec![None; 40];
        let mut put = |at: usize, bytes: &[u8]| {
            for (to, from) in header[at..].iter_mut().zip(bytes) {
                *to = Some(*from);
            }
        };
        match (base, from, to) {
            (1, IpAddr::V4(from), IpAddr::V4(to)) => {
                put(0, &[0x45]);
                put(9, &[IPPROTO_UDP]);
                put(12, &from.octets());
                put(16, &to.octets());
            }
            (1, IpAddr::V6(from), IpAddr::V6(to)) => {
                put(6, &[IPPROTO_UDP]);
                put(8, &from.octets());
                put(24, &to.octets());
            }
            (2, ..) => put(2, &port.to_be_bytes()),
            _ => {}
        }
        (offset..offset.saturating_add(len).min(offset.saturating_add(64)))
            .map(|at| header.get(at).copied().flatten())
            .collect()
    }

    /// `struct xt_udp`: source ports, destination ports, inverted.
    fn udp(&self, info: &[u8]) -> Holds {
        let port = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
        match (port(4), port(6), info.get(8)) {
            (Some(first), Some(last), Some(0)) if !(first..=last).contains(&self.flow.port) => {
                Holds::No
            }
            _ => Holds::Maybe,
        }
    }
}

fn odd<T>(name: &str) -> Result<T, String> {
    Err(format!("{name} without what it has elsewhere"))
}

/// A number as nftables sends it.
fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*value.first_chunk()?))
}

/// `NFTA_DATA_VALUE`.
fn data(bytes: &[u8]) -> Option<&[u8]> {
    attribute(bytes, 1)
}

fn masked(bytes: &Value, mask: &[u8], xor: &[u8]) -> Value {
    let keep = |(at, byte): (usize, &Option<u8>)| {
        let mask = mask.get(at).copied().unwrap_or(0);
        let xor = xor.get(at).copied().unwrap_or(0);
        match byte {
            Some(byte) => Some(byte & mask ^ xor),
            None => (mask == 0).then_some(xor),
        }
    };
    bytes.iter().enumerate().map(keep).collect()
}

fn compare(operation: u32, bytes: &Value, with: &[u8]) -> Holds {
    if bytes.len() < with.len() {
        return Holds::Maybe;
    }
    let pairs = || bytes.iter().zip(with);
    let differs = pairs().any(|(byte, with)| byte.is_some_and(|byte| byte != *with));
    let known: Option<Vec<u8>> = pairs().map(|(byte, _)| *byte).collect();
    let of = |holds| if holds { Holds::Yes } else { Holds::No };
    // NFT_CMP_*: memcmp of the two.
    match (operation, known) {
        (0, _) if differs => Holds::No,
        (1, _) if differs => Holds::Yes,
        (_, None) => Holds::Maybe,
        (0, Some(_)) => Holds::Yes,
        (1, Some(_)) => Holds::No,
        (2, Some(known)) => of(&known[..] < with),
        (3, Some(known)) => of(&known[..] <= with),
        (4, Some(known)) => of(&known[..] > with),
        (5, Some(known)) => of(&known[..] >= with),
        _ => Holds::Maybe,
    }
}
