//! Packets on their way through the kernel, live.
//!
//! [`Tracer`] attaches programs to the kernel's trace points and hands over an [`Event`] for
//! each place where a wanted packet was seen. [`Journeys`] puts the events of one packet
//! together, through bridges, tunnels and namespaces, with the packets that it was cut into.
//!
//! Trace points only: no kprobes, and nothing of a packet but its headers is read. Nothing is
//! written to a packet. What is attached goes with the process.

#![forbid(unsafe_code)]

mod called;
mod diary;
mod drops;
mod event;
mod explain;
mod filter;
mod journey;
mod places;
mod snapshot;
mod snapshot_text;
mod told;
mod totals;
mod tracer;
mod translated;
mod watch;
mod ways;

pub use called::Called;
pub use drops::{Dropped, Drops, DropsError, DropsReading};
pub use event::{Checksum, Event, Flow, Kind, Tunnel};
pub use explain::{Explanation, explanation};
pub use filter::{Filter, FlowPattern, PatternError};
pub use journey::{Ending, Journey, Journeys, Leg, Origin, Step};
pub use places::{Place, Places};
pub use snapshot::{DropSeen, FORMAT, HopSeen, Latency, Rates, Side, Snapshot, WaySeen};
pub use told::{Addresses, Names, Packet, PacketEnding, PacketLeg, PacketStep};
pub use totals::{MOST_DEVICES, MOST_DROPS, MOST_HOPS, MOST_REASONS, MOST_WAYS, Totals};
pub use tracer::{TraceError, Tracer};
pub use watch::{Budget, Watch, WatchError};
