//! Inputs of a run: a subject over a pair of hosts, and a plan.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use measure::path_netns::PathNetns;
use measure::path_under_test::{PathUnderTest, ServerEnd};
use measure::plan::{Plan, PlannedCell, Stopping};
use measure::sampler::Limits;
use netstate::Hop;
use results::Placement;
use testbed::{Host, NIC, Wire};

use crate::pair::Pair;

const PORT: u16 = 7000;

/// The path from a to b, where the server listens.
pub fn subject(pair: &Pair) -> PathUnderTest {
    subject_at(pair, SocketAddr::from((Wire::B, PORT)))
}

/// The same, with another address for b.
pub fn subject_at(pair: &Pair, target: SocketAddr) -> PathUnderTest {
    let place =
        |host: &Host| PathNetns { name: host.name().to_owned(), netns: Arc::clone(host.netns()) };
    PathUnderTest {
        datagram_warmup: Duration::ZERO,
        mode: "pair".to_owned(),
        offload: "full".parse().unwrap(),
        mtu: 1500,
        client: 0,
        server: ServerEnd::Here { place: 1, target, listen: SocketAddr::from((Wire::B, PORT)) },
        hops: vec![Hop::tx("a", NIC), Hop::rx("b", NIC)],
        places: vec![place(&pair.a), place(&pair.b)],
        damage: None,
    }
}

/// A plan with this number of blocks of these cells.
pub fn plan(cells: Vec<PlannedCell>, blocks: u32, duration: Duration) -> Plan {
    Plan {
        seed: 1,
        cells,
        stopping: Stopping {
            level: 0.95,
            blocks,
            half_width: None,
            proof: false,
            max_blocks: blocks,
        },
        settings: Vec::new(),
        duration,
        warmup: duration / 6,
        placement: Placement {
            policy: "none".parse().unwrap(),
            client_cpus: Vec::new(),
            server_cpus: Vec::new(),
        },
        // Other tests share the machine.
        rule: measure::sampler::Rule::Strict(Limits::LIFTED),
        before: Vec::new(),
        impact: None,
        idle_load: 0.0,
        setup_limit: Duration::from_secs(5),
        hopeless_after: measure::plan::HOPELESS_AFTER,
    }
}
