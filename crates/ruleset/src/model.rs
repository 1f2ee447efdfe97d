//! Rules as the kernel stores them, with names resolved.

use std::collections::HashMap;
use std::sync::Arc;

use crate::flow::Place;
use crate::value::{Comparison, Doubt};
use crate::xt::{Match, Target};

/// `NFPROTO_*`.
const INET: u8 = 1;
const IPV4: u8 = 2;
const ARP: u8 = 3;
const IPV6: u8 = 10;

/// All tables of a namespace, of every family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// Generation of the rules, if they were read from the kernel.
    pub generation: u32,
    /// Chains. Jumps refer to them by index.
    pub chains: Vec<Arc<Chain>>,
    /// Sets and maps. Lookups refer to them by index.
    pub sets: Vec<Arc<Set>>,
    /// Unsupported content that belongs to no particular chain. If there is any, no flow gets a
    /// verdict.
    pub unsupported: Vec<String>,
    /// Indices of base chains, in ascending order of priority.
    pub(crate) bases: Vec<usize>,
}

/// A chain of rules, as nftables, iptables-nft or iptables-legacy keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Table, unique in its family.
    pub table: String,
    /// Name, unique in its table.
    pub name: String,
    pub base: Option<Base>,
    /// Whether the table is dormant, so that its hooks are not registered.
    pub is_dormant: bool,
    /// Whether it is a chain of iptables-legacy or ip6tables-legacy, which number their rules.
    pub is_legacy: bool,
    /// Unsupported content of the chain.
    pub unsupported: Option<String>,
    /// Rules in order.
    pub rules: Vec<Rule>,
}

/// Registration of a base chain at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Number of the hook (`NF_INET_*`, `NF_BR_*`, `NF_NETDEV_*`).
    pub hook: u32,
    /// Chains of a hook run in ascending order of priority.
    pub priority: i32,
    /// Devices, for hooks that belong to devices.
    pub devices: Vec<String>,
    /// `filter`, `nat`, `route`.
    pub kind: String,
    /// Whether the policy drops packets.
    pub drops: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Handle, shown by `nft -a`; for iptables-legacy the number in its chain, from 1.
    pub handle: u64,
    /// Expressions in the order of evaluation.
    pub expressions: Vec<Expression>,
}

/// Action on a packet that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `NF_ACCEPT`: continue with the hook's next base chain.
    Accept,
    /// `NF_DROP`.
    Drop,
    /// `NFT_CONTINUE`: continue with the next expression.
    Continue,
    /// `NFT_BREAK`: continue with the next rule.
    Break,
    /// Return to the calling chain.
    Return,
    /// Call a chain.
    Jump(usize),
    /// Continue in a chain without returning.
    Goto(usize),
    /// `NF_QUEUE`: user space decides.
    Queue,
}

/// `NFTA_PAYLOAD_BASE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// `NFT_PAYLOAD_LL_HEADER`: Ethernet.
    Link,
    /// `NFT_PAYLOAD_NETWORK_HEADER`: IP.
    Network,
    /// `NFT_PAYLOAD_TRANSPORT_HEADER`: TCP, UDP, ICMP.
    Transport,
    /// `NFT_PAYLOAD_INNER_HEADER`: data after the transport header.
    Inner,
}

/// Byte offset into the 64 bytes of registers.
pub type Register = usize;

/// A step of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of nf_tables.h")]
pub enum Expression {
    Meta {
        key: u32,
        to: Register,
    },
    MetaSet {
        key: u32,
        from: Register,
    },
    Payload {
        base: Header,
        offset: usize,
        length: usize,
        to: Register,
    },
    Compare {
        from: Register,
        how: Comparison,
        with: Vec<u8>,
    },
    Range {
        from: Register,
        inverted: bool,
        least: Vec<u8>,
        most: Vec<u8>,
    },
    MaskXor {
        from: Register,
        to: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    ByteOrder {
        from: Register,
        to: Register,
        length: usize,
        size: usize,
    },
    Immediate {
        to: Register,
        value: Vec<u8>,
    },
    Verdict(Action),
    Lookup {
        set: usize,
        from: Register,
        to: Option<Register>,
        inverted: bool,
    },
    VerdictMap {
        set: usize,
        from: Register,
    },
    Ct {
        key: u32,
        direction: Option<u8>,
        to: Register,
    },
    CtSet {
        key: u32,
        from: Register,
    },
    /// Lets packets change the set.
    Dynset {
        set: usize,
    },
    Fib {
        result: u32,
        flags: u32,
        to: Register,
    },
    /// `counter` and other expressions that only observe.
    Nothing,
    /// `reject`: drops and answers.
    Reject,
    /// A known expression that forces the slow path.
    Slow(Doubt),
    Match(Match),
    Target(Target),
    /// Unsupported: an expression, an attribute or a value.
    UnsupportedContent(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Table, unique in its family.
    pub table: String,
    /// Name, unique in its table. Anonymous sets have names such as `__set0`.
    pub name: String,
    /// `NFTA_SET_KEY_LEN`, bytes.
    pub key_length: usize,
    /// How its elements are described.
    pub shape: Shape,
    /// Bytes of each field of a concatenation with ranges; empty otherwise.
    pub fields: Vec<usize>,
    /// Why results of a lookup cannot be cached.
    pub doubt: Option<Doubt>,
    /// Unsupported content of the set.
    pub unsupported: Option<String>,
    pub(crate) elements: Elements,
}

/// Kind of the elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Keys,
    /// Ranges, described by their edges.
    Ranges,
    /// Ranges per field of a concatenation, described by both corners.
    Boxes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    /// Single keys.
    pub(crate) exact: HashMap<Vec<u8>, Value>,
    /// Ranges of concatenated keys, both ends included.
    pub(crate) boxes: Vec<(Vec<u8>, Vec<u8>, Value)>,
    /// Starts of ranges, and their exclusive ends (`None`), sorted. At the same key, the start
    /// comes first.
    pub(crate) edges: Vec<(Vec<u8>, Option<Value>)>,
    /// Value for all other keys.
    pub(crate) otherwise: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// None: the set is not a map.
    Member,
    Data(Vec<u8>),
    Verdict(Action),
}

impl Chain {
    /// Placeholder for a removed chain.
    pub(crate) fn nothing() -> Chain {
        Chain {
            family: 0,
            table: String::new(),
            name: String::new(),
            base: None,
            is_dormant: false,
            is_legacy: false,
            unsupported: None,
            rules: Vec::new(),
        }
    }

    /// Whether it is for IP packets at an IP hook, which bridged frames reach only with
    /// br_netfilter.
    pub fn is_of_ip(&self) -> bool {
        /// `NF_INET_POST_ROUTING`. In `inet`, ingress follows it.
        const LAST: u32 = 4;
        [INET, IPV4, IPV6].contains(&self.family)
            && self.base.as_ref().is_some_and(|base| base.hook <= LAST)
    }
}

impl Set {
    /// Placeholder for a removed set.
    pub(crate) fn nothing() -> Set {
        Set {
            family: 0,
            table: String::new(),
            name: String::new(),
            key_length: 0,
            shape: Shape::Keys,
            fields: Vec::new(),
            doubt: None,
            unsupported: None,
            elements: Elements::default(),
        }
    }
}

impl Place {
    /// Returns the place of a rule, or of a chain without one.
    pub(crate) fn of(chain: &Chain, rule: Option<&Rule>) -> Place {
        Place {
            family: chain.family,
            table: chain.table.clone(),
            chain: chain.name.clone(),
            handle: rule.map(|rule| rule.handle),
            is_legacy: chain.is_legacy,
        }
    }
}

impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Place::of(self, None).fmt(f)
    }
}

impl Ruleset {
    pub fn of_chains(chains: Vec<Chain>) -> Ruleset {
        let chains = chains.into_iter().map(Arc::new).collect();
        let mut rules = Ruleset { chains, ..Ruleset::default() };
        rules.order();
        rules
    }

    /// Sorts the base chains.
    pub(crate) fn order(&mut self) {
        let base = |at: &usize| self.chains[*at].base.as_ref();
        let mut bases: Vec<usize> =
            (0..self.chains.len()).filter(|at| base(at).is_some()).collect();
        bases.sort_by_key(|at| base(at).map(|base| base.priority));
        self.bases = bases;
    }

    /// Returns the active base chains, except those of ARP.
    pub fn base_chains(&self) -> impl Iterator<Item = &Chain> {
        let chains = self.bases.iter().map(|at| &*self.chains[*at]);
        chains.filter(|chain| !chain.is_dormant && chain.family != ARP)
    }

    /// Whether forwarded packets of a family pass any chain.
    pub fn concerns_forwarded(&self, ipv6: bool) -> bool {
        /// `NF_INET_PRE_ROUTING`, `NF_INET_FORWARD`, `NF_INET_POST_ROUTING`.
        const FORWARDED: [u32; 3] = [0, 2, 4];
        !self.unsupported.is_empty()
            || self.base_chains().any(|chain| {
                chain.is_of_ip()
                    && chain.family != if ipv6 { IPV4 } else { IPV6 }
                    && chain.base.as_ref().is_some_and(|base| FORWARDED.contains(&base.hook))
            })
    }

    /// Whether rules may translate connections of a family. If so, conntrack sees its packets.
    pub fn translates(&self, ipv6: bool) -> bool {
        self.base_chains().any(|chain| {
            chain.is_of_ip()
                && chain.family != if ipv6 { IPV4 } else { IPV6 }
                && chain.base.as_ref().is_some_and(|base| base.kind == "nat")
                && !chain.rules.is_empty()
        })
    }

    /// Number of rules in all chains.
    pub fn rules(&self) -> usize {
        self.chains.iter().map(|chain| chain.rules.len()).sum()
    }
}
