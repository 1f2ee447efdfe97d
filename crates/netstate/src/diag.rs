//! Counters and sockets in other netlink families: `sock_diag`, and generic netlink of Open vSwitch.

pub mod inet_diag;
pub mod openvswitch;
pub mod packet_diag;
pub mod sock_diag;
