//! Typed access to the kernel's network state: links, addresses, routes, neighbours, forwarding
//! entries, counters, and facts about the machine.
//!
//! Invariant: a reader or writer serves a single network namespace, that of the thread that opened
//! it.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod defects;
mod diag;
pub mod hop;
mod mac_text;
pub mod netfilter;
mod procfs;
mod rtnetlink;

pub use diag::{inet_diag, openvswitch, packet_diag, sock_diag};
pub use hop::{Bypass, Connections, Hop, HopKind, Meter, Metered, Program, Side, TrafficDirection};
pub use netfilter::{connection, conntrack};
pub use packet::ethernet::MacAddr;
pub use procfs::{
    cgroup, container, cpu, interrupts, kernel_symbols, machine, memory_limit, namespace,
    neighbour_table, netns_holder, proc, process, reassembly, snmp, softnet, udp_socket,
};
pub use rtnetlink::interface::{Counters, Interface};
pub use rtnetlink::netlink::{Error, Netlink, Result};
pub use rtnetlink::{
    addr, bridge_vlan, control_plane, entry, interface, link, mdb, neigh, netlink, overlay,
    policer, policy_rule, qdisc, route, route_table, tc_filter, watch, xfrm,
};

use rtnetlink::dump;
