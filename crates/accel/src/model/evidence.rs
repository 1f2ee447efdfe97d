//! Parts of a refusal: effects of rules, IP families.

/// Why an nftables rule may change or drop a tunnel's packets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleEffect {
    /// The chain's policy drops packets that no rule decided.
    #[error("policy drop")]
    PolicyDrop,
    /// A rule drops packets.
    #[error("drop")]
    Drop,
    /// A match on packet content, or a target or expression with a side effect.
    #[error("{0}")]
    Does(String),
    /// The rules set a mark on the packets.
    #[error("a mark")]
    Mark,
    /// A part of the rule that overlane does not support.
    #[error("unsupported: {0}")]
    NotUnderstood(String),
}

/// An IP family, displayed by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub fn of(ipv6: bool) -> Family {
        if ipv6 { Family::V6 } else { Family::V4 }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}
