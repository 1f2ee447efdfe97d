//! Rules as the kernel has them, with the names in them resolved.

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
    /// The generation that was read, where it was read from the kernel.
    pub generation: u32,
    /// Chains; what jumps names them by their place in here.
    pub chains: Vec<Arc<Chain>>,
    /// Sets and maps; what looks up names them by their place in here.
    pub sets: Vec<Arc<Set>>,
    /// What was told and is not understood, and concerns no chain in particular. No verdict
    /// is given where there is any.
    pub odd: Vec<String>,
    /// Base chains by their place, in ascending order of priority.
    pub(crate) bases: Vec<usize>,
}

/// A chain of rules, as nftables or iptables-nft keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Table that has it, unique in its family.
    pub table: String,
    /// Name, unique in its table.
    pub name: String,
    /// Where packets are handed to it, for a base chain.
    pub base: Option<Base>,
    /// Whether its table is dormant: its hook is not registered.
    pub is_dormant: bool,
    /// What was told of it and is not understood.
    pub odd: Option<String>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Number of the hook (`NF_INET_*`, `NF_BR_*`, `NF_NETDEV_*`).
    pub hook: u32,
    /// Chains of a hook come in ascending order of it.
    pub priority: i32,
    /// The devices it is for, of those hooks that belong to devices.
    pub devices: Vec<String>,
    /// `filter`, `nat`, `route`.
    pub kind: String,
    /// Whether a packet that comes to its end is dropped.
    pub drops: bool,
}

/// What a chain does in turn to a packet that its expressions match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What `nft -a` shows.
    pub handle: u64,
    /// In the order of evaluation.
    pub expressions: Vec<Expression>,
}

/// What is done to a packet that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `NF_ACCEPT`: the hook's next base chain.
    Accept,
    /// `NF_DROP`.
    Drop,
    /// `NFT_CONTINUE`: the next expression.
    Continue,
    /// `NFT_BREAK`: the next rule.
    Break,
    /// Back to where was jumped from.
    Return,
    /// To a chain, and back.
    Jump(usize),
    /// To a chain for good.
    Goto(usize),
    /// Not decided here: `NF_QUEUE`.
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
    /// `NFT_PAYLOAD_INNER_HEADER`: what the transport header is followed by.
    Inner,
}

/// A byte's offset in the 64 bytes of registers.
pub type Register = usize;

/// A step of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of nf_tables.h by their names")]
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
    /// Packets change this set.
    Dynset {
        set: usize,
    },
    Fib {
        result: u32,
        flags: u32,
        to: Register,
    },
    /// `counter` and what else takes notice of packets without a bearing on any.
    Nothing,
    /// `reject`: drops, and says so.
    Reject,
    /// What is known, and keeps every flow slow that reaches it.
    Slow(Doubt),
    Match(Match),
    Target(Target),
    /// Not understood: an expression, an attribute or a value.
    Odd(String),
}

/// What is looked up in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// `NFPROTO_*`.
    pub family: u8,
    /// Table that has it, unique in its family.
    pub table: String,
    /// Name, unique in its table; an anonymous set has one such as `__set0`.
    pub name: String,
    /// `NFTA_SET_KEY_LEN`, bytes.
    pub key_length: usize,
    /// How its elements are told.
    pub shape: Shape,
    /// Bytes of each field of a concatenation with ranges; empty otherwise.
    pub fields: Vec<usize>,
    /// Why it cannot be remembered what it holds.
    pub doubt: Option<Doubt>,
    /// What was told of it and is not understood.
    pub odd: Option<String>,
    pub(crate) elements: Elements,
}

/// What the elements of a set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Single keys: each element is one.
    Keys,
    /// Ranges, told by their edges.
    Ranges,
    /// Ranges in each field of a concatenation, told by both corners.
    Boxes,
}

/// Elements of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    /// Elements that are single keys.
    pub(crate) exact: HashMap<Vec<u8>, Value>,
    /// Of ranges of concatenated keys, both ends included.
    pub(crate) boxes: Vec<(Vec<u8>, Vec<u8>, Value)>,
    /// Begins of ranges, and their ends (`None`), which are not included; sorted. The
    /// first of two at one key is the begin.
    pub(crate) edges: Vec<(Vec<u8>, Option<Value>)>,
    /// For every key that is not there.
    pub(crate) otherwise: Option<Value>,
}

/// What an element maps to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing: the set is not a map.
    Member,
    Data(Vec<u8>),
    Verdict(Action),
}

impl Chain {
    /// In the place of one that has gone.
    pub(crate) fn nothing() -> Chain {
        Chain {
            family: 0,
            table: String::new(),
            name: String::new(),
            base: None,
            is_dormant: false,
            odd: None,
            rules: Vec::new(),
        }
    }

    /// Whether it is for IP packets at one of IP's own hooks, so that a bridge's frames come
    /// to it by br_netfilter only.
    pub fn is_of_ip(&self) -> bool {
        /// `NF_INET_POST_ROUTING`: `inet` has ingress behind it.
        const LAST: u32 = 4;
        [INET, IPV4, IPV6].contains(&self.family)
            && self.base.as_ref().is_some_and(|base| base.hook <= LAST)
    }
}

impl Set {
    /// In the place of one that has gone.
    pub(crate) fn nothing() -> Set {
        Set {
            family: 0,
            table: String::new(),
            name: String::new(),
            key_length: 0,
            shape: Shape::Keys,
            fields: Vec::new(),
            doubt: None,
            odd: None,
            elements: Elements::default(),
        }
    }
}

impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Chain { family, table, name, .. } = self;
        let (family, table, chain) = (*family, table.clone(), name.clone());
        Place { family, table, chain, handle: None }.fmt(f)
    }
}

impl Ruleset {
    /// Of these chains, which name no sets.
    pub fn of_chains(chains: Vec<Chain>) -> Ruleset {
        let chains = chains.into_iter().map(Arc::new).collect();
        let mut rules = Ruleset { chains, ..Ruleset::default() };
        rules.order();
        rules
    }

    /// Puts the base chains in order.
    pub(crate) fn order(&mut self) {
        let base = |at: &usize| self.chains[*at].base.as_ref();
        let mut bases: Vec<usize> =
            (0..self.chains.len()).filter(|at| base(at).is_some()).collect();
        bases.sort_by_key(|at| base(at).map(|base| base.priority));
        self.bases = bases;
    }

    /// Chains that packets are handed to, but for those of ARP.
    pub fn base_chains(&self) -> impl Iterator<Item = &Chain> {
        let chains = self.bases.iter().map(|at| &*self.chains[*at]);
        chains.filter(|chain| !chain.is_dormant && chain.family != ARP)
    }

    /// Whether packets of a family that this host forwards come to any rule.
    pub fn concerns_forwarded(&self, ipv6: bool) -> bool {
        /// `NF_INET_PRE_ROUTING`, `NF_INET_FORWARD`, `NF_INET_POST_ROUTING`.
        const FORWARDED: [u32; 3] = [0, 2, 4];
        !self.odd.is_empty()
            || self.base_chains().any(|chain| {
                chain.is_of_ip()
                    && chain.family != if ipv6 { IPV4 } else { IPV6 }
                    && chain.base.as_ref().is_some_and(|base| FORWARDED.contains(&base.hook))
            })
    }

    /// Whether rules may translate connections of a family: conntrack sees its packets then.
    pub fn translates(&self, ipv6: bool) -> bool {
        self.base_chains().any(|chain| {
            chain.is_of_ip()
                && chain.family != if ipv6 { IPV4 } else { IPV6 }
                && chain.base.as_ref().is_some_and(|base| base.kind == "nat")
                && !chain.rules.is_empty()
        })
    }

    /// Rules of all chains.
    pub fn rules(&self) -> usize {
        self.chains.iter().map(|chain| chain.rules.len()).sum()
    }
}
