//! Counters in other netlink families: `sock_diag`, and generic netlink of Open vSwitch.

pub mod openvswitch;
pub mod packet_diag;
