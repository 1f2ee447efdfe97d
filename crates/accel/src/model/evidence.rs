//! What refusals are made of: effects of rules, families.

/// What rules of nftables may do to a tunnel's datagrams, or why that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleEffect {
    /// The chain drops what comes to its end.
    #[error("policy drop")]
    PolicyDrop,
    /// A rule drops.
    #[error("drop")]
    Drop,
    /// A match that depends on the packet, a target or an expression that does something to
    /// each.
    #[error("{0}")]
    Does(String),
    /// The datagrams have a mark behind the rules.
    #[error("a mark")]
    Mark,
    /// Something that is not known here.
    #[error("not understood: {0}")]
    NotUnderstood(String),
}

/// An IP family, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The one that `ipv6` says.
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
