//! The load engine between two namespaces joined by a veth pair. Needs root; otherwise skipped by
//! name.

mod beside;
mod broken;
mod buffers;
mod ecn;
mod ending;
mod pipelined;
mod placement;
mod resting;
mod stall;
mod translated;
pub mod wire;
mod workloads;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use load::{Ends, EngineError, Load, Measured, Watch, Workload, run};
use wire::{Wire, nft, wire_or_skip};

const PORT: u16 = 7000;

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

/// Runs a load over the wire until it has carried something.
fn carried(wire: &Wire, load: &Load, target: SocketAddr) -> Measured {
    tried(wire, load, target, |measured| measured.units > 0)
}

/// Runs a load over the wire until the measurement is `right`: in such a short interval, a busy
/// machine may give the threads of one end no CPU time, or too late.
fn tried(
    wire: &Wire,
    load: &Load,
    target: SocketAddr,
    right: impl Fn(&Measured) -> bool,
) -> Measured {
    let mut wrong = None;
    for _ in 0..50 {
        let measured = over_watched(wire, load, target, &mut ());
        let measured = measured.unwrap_or_else(|e| panic!("{load:?}: {e}"));
        if right(&measured) {
            return measured;
        }
        wrong = Some(measured);
    }
    panic!("{load:?}: never as it should be, at last {wrong:?}");
}

/// Drops one of `every` datagrams at the server.
fn lose_one_of(wire: &Wire, every: u32) {
    let rule = format!("udp dport 7000 numgen inc mod {every} == 7 drop");
    let rules =
        format!("table ip t {{ chain c {{ type filter hook input priority 0; {rule}; }}; }}");
    nft(&wire.server, &rules);
}
