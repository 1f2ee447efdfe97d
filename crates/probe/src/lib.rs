//! Tests whether an offload corrupts, drops or black-holes packets on a path between two machines.
//!
//! One end sends packets of every [`Class`] that an offload touches. The other end compares them
//! byte for byte on a packet socket, before its network stack drops damaged ones. The modules, in
//! the order of a packet's path:
//!
//! - [`class`] and [`catalogue`]: the classes of a run.
//! - `content`, `frame`, `tunnel`: their bytes, vnet headers, and temporary tunnel devices.
//! - [`wire`]: sending at a limited rate (`rate_limit`), and receiving.
//! - [`end`]: either `wire` or, without the right to use packet sockets, `datagrams`.
//! - [`seen`] and [`tally`]: what arrived, and what is wrong with it.
//! - [`mod@judge`] gives verdicts.
//! - [`message`] and [`answering`]: the requests of one end, and the other end that answers them.
//! - [`exchange`]: batches of classes between both ends.
//! - [`run`]: a run with its [`options`], and the [`path_mtu`] in both directions.
//! - [`local`]: both ends in one process.
//! - [`features`] and [`culprit`]: the settings that can cause a verdict.
//! - [`mod@search`], [`switch`] and [`switcher`]: the search for the cause, and the settings that it
//!   switches here and at the other end.
//!
//! Invariants:
//! - Packets are sent only to the hardware address of the next hop to the peer of an authenticated
//!   session, at a limited rate.
//! - No setting is changed except by [`switch`], through the journal. The other end chooses only
//!   among [`features`], and only if the administrator of this end has allowed it.
//! - Verdicts are functions of tallies: nothing in `judge` does I/O.

#![forbid(unsafe_code)]

pub mod answering;
pub mod catalogue;
pub mod class;
pub mod content;
pub mod culprit;
mod datagrams;
pub mod end;
pub mod exchange;
pub mod features;
pub mod frame;
pub mod judge;
pub mod local;
pub mod message;
pub mod options;
pub mod path_mtu;
mod rate_limit;
pub mod report;
pub mod run;
pub mod search;
pub mod seen;
pub mod switch;
pub mod switcher;
pub mod tally;
mod tunnel;
pub mod wire;

pub use class::Class;
