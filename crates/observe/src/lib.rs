//! Packets on their way through the kernel, live.
//!
//! [`Tracer`] attaches programs to the kernel's trace points and hands over an [`Event`] for
//! each place where a wanted packet was seen. [`Journeys`] puts the events of one packet
//! together, through bridges, tunnels and namespaces, with the packets that it was cut into, and
//! what was put together of those.
//! [`Capture`] makes a pcapng file of them. [`Watch`] sums up what happens in an interval, and
//! [`peer`] compares what left another host with what came here.
//!
//! Trace points only: no kprobes, and nothing of a packet but its headers is read, and as much
//! of its payload as is asked for. Nothing is written to a packet. What is attached goes with the process.

#![forbid(unsafe_code)]

mod call_cost;
mod called;
mod capture;
mod classic;
mod diary;
mod drops;
mod edges;
mod event;
mod explain;
mod expression;
mod filter;
mod flow_id;
mod flows;
mod journey;
mod journeys;
mod not_told;
mod pace;
mod pcapng;
mod peer_seen;
mod pieces;
mod places;
mod snapshot;
mod snapshot_text;
mod softirqs;
mod told;
mod totals;
mod tracer;
mod translated;
mod watch;
mod ways;
mod windows;

pub mod peer;

pub use call_cost::call_cost;
pub use called::Called;
pub use capture::Capture;
pub use drops::{Dropped, Drops, DropsError, DropsReading};
pub use event::{Checksum, Encapsulation, Event, Flow, Headers, Kind, Link, Tunnel};
pub use explain::{Explanation, explanation};
pub use expression::{Expression, ExpressionError};
pub use filter::{Filter, FlowPattern, PatternError};
pub use flow_id::FlowId;
pub use flows::{Count, FlowCount, Flows, FlowsReading};
pub use journey::{Ending, Journey, Leg, Origin, Step};
pub use journeys::Journeys;
pub use not_told::NotTold;
pub use pace::{Pace, PaceChange};
pub use peer_seen::{ClockSeen, Direction, FlowSeen, PeerSeen};
pub use places::{Place, Places};
pub use snapshot::{CpuSeen, DropSeen, FORMAT, HopSeen, Latency, Rates, Side, Snapshot, WaySeen};
pub use snapshot_text::share;
pub use told::{Addresses, Fragment, Names, Packet, PacketEnding, PacketLeg, PacketStep};
pub use totals::{MOST_DEVICES, MOST_DROPS, MOST_HOPS, MOST_REASONS, MOST_WAYS, Totals};
pub use tracer::{MOST_AT_ONCE, TraceError, Tracer};
pub use watch::{Budget, Watch, WatchError};
