//! Counters of packets that the fast path bypasses.

/// When packets take the slow path, so that counters of rules and of conntrack count each of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Accounting {
    /// If there are rules, or conntrack tracks packets.
    Exact,
    /// If conntrack counts packets (`nf_conntrack_acct`): rules may match its counters, also rules
    /// that are added later.
    #[default]
    AsConntrack,
    Never,
}
