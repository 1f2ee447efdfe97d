//! Links, addresses, routes, neighbours and forwarding entries: routing netlink (rtnetlink(7)).

pub mod addr;
pub mod bridge_vlan;
pub mod control_plane;
pub(crate) mod dump;
pub mod entry;
pub mod interface;
pub mod link;
pub mod mdb;
pub mod neigh;
pub mod netlink;
pub mod overlay;
pub mod policer;
pub mod policy_rule;
pub mod qdisc;
pub mod route;
mod route_fields;
pub mod route_table;
pub mod tc_filter;
pub mod watch;
pub mod xfrm;
