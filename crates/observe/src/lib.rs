//! Live observation of packets on their way through the kernel.
//!
//! [`Tracer`] attaches programs to the kernel's trace points and returns an [`Event`] for each
//! place where a packet matched the filter. [`Journeys`] assembles the events of one packet,
//! through bridges, tunnels and namespaces, including the packets that it was segmented or
//! fragmented into and their reassembly. [`Capture`] writes journeys to a pcapng file. [`Watch`]
//! sums up an interval, and [`peer`] compares the packets that left another host with those that
//! arrived here.
//!
//! It uses trace points only, no kprobes. It reads the headers of a packet, and payload only if
//! asked to. It writes nothing to packets. All programs are detached when the process ends.

#![forbid(unsafe_code)]

mod call_cost;
mod called;
mod capture;
mod classic;
mod drops;
mod edges;
mod event;
mod explain;
mod expression;
mod filter;
mod flow_drops;
mod flow_id;
mod flows;
mod fragments;
mod hop_table;
mod journey;
mod journey_text;
mod journeys;
mod paths;
mod pcapng;
mod peer_seen;
mod places;
mod record;
mod sample_rate;
mod snapshot;
mod snapshot_text;
mod softirqs;
mod suppressed;
mod totals;
mod trace_session;
mod tracer;
mod translated;
mod watch;
mod windows;

pub mod peer;

pub use call_cost::call_cost;
pub use called::Called;
pub use capture::Capture;
pub use drops::{Dropped, Drops, DropsError, DropsReading};
pub use event::{Checksum, Encapsulation, Event, Flow, Headers, Kind, Link, Tunnel};
pub use explain::{EXPLANATIONS, Explanation, explanation, is_one_of, is_used};
pub use expression::{Expression, ExpressionError};
pub use filter::{Filter, FlowPattern, PatternError};
pub use flow_id::FlowId;
pub use flows::{Count, FlowCount, Flows, FlowsReading};
pub use journey::{Ending, Journey, Leg, Origin, Step};
pub use journeys::Journeys;
pub use peer_seen::{ClockSeen, Direction, FlowSeen, PeerSeen};
pub use places::{Place, Places};
pub use record::{
    Addresses, Fragment, Names, Packet, PacketEnding, PacketLeg, PacketStep, TcpHeader,
};
pub use sample_rate::{SampleRate, SampleRateChange};
pub use snapshot::{CpuSeen, DropSeen, FORMAT, HopSeen, Latency, PathSeen, Rates, Side, Snapshot};
pub use snapshot_text::{clock, per_second, share};
pub use suppressed::Suppressed;
pub use totals::{MOST_DEVICES, MOST_DROPS, MOST_HOPS, MOST_PATHS, MOST_REASONS, Totals};
pub use trace_session::{Finished, TraceOptions, TraceSession};
pub use tracer::{MOST_AT_ONCE, TraceError, Tracer};
pub use watch::{Budget, Watch, WatchError};
