//! Rules of nftables, those of iptables-nft among them: read from the kernel, and asked
//! what they do to a flow.
//!
//! [`read`] asks the kernel; [`renew`] asks it again for what notifications name. [`Ruleset::from_messages`] decodes its answers, and
//! [`Ruleset::verdict`] evaluates them; both are pure. The verdict tells whether all
//! packets of a flow pass, for reasons that lie in the flow alone.
//!
//! Invariants:
//! - What is not known here is not understood, and said: no expression, attribute, flag or
//!   value is passed over.
//! - [`Verdict::Accept`] means that no rule of the path stops, changes (its mark excepted,
//!   which is told), counts against a bound or reports any packet of the flow. Plain
//!   counters are no obstacle: they stand still for packets that do not pass them.
//! - Chains of the type nat concern the first packets of connections only. They are passed by
//!   unless the flow says that they are asked ([`Flow::asks_nat`]).
//! - An evaluation ends: jumps are as deep as the kernel allows, steps are bounded.
//!
//! Limits: tables of iptables-legacy and other functions at the hooks are not in here
//! (`netstate::netfilter` knows of them).

#![forbid(unsafe_code)]

mod data;
mod decode;
mod evaluate;
mod expression;
pub mod flow;
mod lasting;
pub mod model;
mod names;
mod packet;
mod read;
mod renew;
mod set;
mod touched;
mod value;
mod wire;
mod xt;
mod xt_match;

pub use decode::Message;
pub use expression::SLOW;
pub use flow::{
    Answer, Connection, Flow, Hook, Interface, Place, State, Step, Transport, Tuple, Verdict,
};
pub use model::Ruleset;
pub use netstate::netfilter::raw::Nftables;
pub use read::{Error, is_behind, messages, read, read_by, refresh};
pub use renew::{Renewed, renew};
pub use touched::Touched;
pub use value::{Cause, Comparison, Doubt};
pub use xt::{SLOW_MATCHES, SLOW_TARGETS};
