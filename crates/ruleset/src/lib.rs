//! Evaluates rules of nftables, iptables-nft and iptables-legacy: reads them from the kernel and
//! determines their effect on a flow. [`nft_clamps`] and [`legacy_clamps`] list those that clamp the
//! segment size of TCP.
//!
//! [`read`] reads all rules of nftables, [`renew`] only those that notifications name;
//! [`Ruleset::join_legacy`] adds those of iptables-legacy, which have no notifications.
//! [`Ruleset::from_messages`] decodes messages, and [`Ruleset::verdict`] evaluates rules; both are
//! pure. The verdict is accept only if all packets of a flow pass, for reasons of the flow alone.
//!
//! Invariants:
//! - Unknown content is reported as unsupported: no expression, attribute, flag or value is
//!   skipped.
//! - [`Verdict::Accept`] means that no rule on the path drops, changes, logs, or counts against a
//!   limit any packet of the flow. A changed mark is reported separately. Plain counters are
//!   ignored: they do not advance for packets that bypass them.
//! - NAT chains affect only the first packet of a connection, so they are skipped unless the flow
//!   says otherwise ([`Flow::asks_nat`]).
//! - Evaluation terminates: jumps are as deep as the kernel allows, and the number of steps is
//!   limited.
//!
//! Limits: other functions at hooks are not covered (see `netstate::netfilter`).

#![forbid(unsafe_code)]

mod clamp;
mod data;
mod decode;
mod dropping;
mod established_part;
mod evaluate;
mod expression;
pub mod flow;
mod legacy;
pub mod model;
mod names;
mod packet;
mod read;
mod rejecting;
mod renew;
mod set;
mod touched;
mod translation;
mod value;
mod wire;
mod xt;
mod xt_match;

pub use clamp::{Clamp, Match, legacy_clamps, nft_clamp, nft_clamps, table_clamps};
pub use decode::Message;
pub use dropping::{DropCounter, drop_counters};
pub use evaluate::Compared;
pub use expression::SLOW;
pub use flow::{
    Answer, Connection, Flow, Hook, Interface, Place, State, Step, Transport, Tuple, Verdict,
};
pub use legacy::{legacy_drop_counters, legacy_translations};
pub use model::Ruleset;
pub use netstate::netfilter::raw::Nftables;
pub use read::{
    Error, is_behind, messages, read, read_by, read_filters, read_translating, refresh,
};
pub use rejecting::RejectedService;
pub use renew::{Renewed, renew};
pub use touched::Touched;
pub use translation::Translation;
pub use value::{Cause, Comparison, Doubt};
pub use xt::{SLOW_MATCHES, SLOW_TARGETS};
