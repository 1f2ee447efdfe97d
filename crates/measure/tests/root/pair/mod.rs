//! Two hosts joined by a wire.

use testbed::{Host, Offload, Wire};

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
