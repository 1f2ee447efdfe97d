//! Typed access to the kernel's network state: links, addresses, routes, neighbours, forwarding
//! entries, counters, and facts about the machine.
//!
//! Invariant: a reader or writer serves a single network namespace, that of the thread that opened
//! it.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod addr;
pub mod bridge_vlan;
pub mod cgroup;
pub mod connection;
pub mod conntrack;
pub mod control_plane;
pub mod cpu;
mod dump;
pub mod entry;
pub mod hop;
pub mod interface;
pub mod interrupts;
pub mod link;
mod mac_text;
pub mod machine;
pub mod namespace;
pub mod neigh;
pub mod neighbour_table;
pub mod netfilter;
pub mod netlink;
pub mod openvswitch;
pub mod overlay;
pub mod packet_diag;
pub mod proc;
pub mod process;
pub mod qdisc;
pub mod reassembly;
pub mod route;
pub mod snmp;
pub mod softnet;
pub mod udp_socket;
pub mod watch;
pub mod xfrm;

pub use hop::{Bypass, Connections, Hop, HopKind, Meter, Metered, Program, Side, Way};
pub use interface::{Counters, Interface};
pub use netlink::{Error, Netlink, Result};
pub use packet::ethernet::MacAddr;
