//! Two hosts joined by a wire.

use testbed::{Host, Offload, Wire};

/// Whether this process may make them.
pub fn root() -> bool {
    let root = sys::userns::may_administer_networks();
    if !root {
        eprintln!("skipped: needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) for network namespaces");
    }
    root
}

pub struct Pair {
    pub a: Host,
    pub b: Host,
}

impl Pair {
    pub fn new() -> Pair {
        let [a, b] = Wire { mtu: 1500, offload: Offload::Full }.hosts().unwrap();
        Pair { a, b }
    }
}
