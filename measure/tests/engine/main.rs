//! The load engine between two namespaces joined by a veth pair. Needs root;
//! skipped by name without.

mod broken;
mod buffers;
mod ending;
mod pipelined;
mod placement;
mod stall;
mod translated;
mod wire;
mod workloads;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use measure::engine::{Ends, EngineError, Load, Measured, Watch, Workload, run};
use wire::Wire;

const PORT: u16 = 7000;

/// The wire, or the reason why there is none.
fn wire_or_skip(test: &str) -> Option<Wire> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let root = status
        .lines()
        .find_map(|l| l.strip_prefix("Uid:"))
        .is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"));
    if !root {
        eprintln!("{test}: skipped: needs root to create network namespaces");
        return None;
    }
    Some(Wire::new())
}

/// A short load that still has every phase.
fn short(workload: Workload) -> Load {
    Load {
        warmup: Duration::from_millis(20),
        duration: Duration::from_millis(100),
        ..Load::new(workload)
    }
}

/// The workloads that can be pipelined.
const RR: [Workload; 2] = [Workload::TcpRr, Workload::UdpRr];

/// Runs a load over the wire, to where the server listens.
fn over(wire: &Wire, load: &Load) -> Result<Measured, EngineError> {
    over_watched(wire, load, Wire::server_at(PORT), &mut ())
}

fn over_watched(
    wire: &Wire,
    load: &Load,
    target: SocketAddr,
    watch: &mut dyn Watch,
) -> Result<Measured, EngineError> {
    let listen = if target.is_ipv6() {
        "[2001:db8::2]:7000".parse().unwrap()
    } else {
        Wire::server_at(PORT)
    };
    let ends = Ends { client: &wire.client, server: &wire.server, target, listen };
    run(load, &ends, watch, &AtomicBool::new(false))
}
