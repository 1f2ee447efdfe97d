//! Bulk traffic beside timed requests.

use load::{EngineError, Load, Workload};
use results::Beside;

use super::wire::{Wire, nft, wire_or_skip};
use super::{PORT, RR, over, short, tried};
use test_support::require;

const ALL: [Beside; 3] = [Beside::TcpStream, Beside::TcpMaerts, Beside::Both];

#[test]
fn requests_are_counted_apart_from_the_bulk_traffic_beside_them() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        for beside in ALL {
            for (flows, outstanding) in [(1, 1), (2, 4)] {
                let beside = Some(beside);
                let load = Load { flows, outstanding, beside, ..short(workload) };
                let measured = tried(&wire, &load, Wire::server_at(PORT), |measured| {
                    let bulk = measured.beside.iter().all(|bulk| bulk.payload_bytes > 0);
                    measured.units > 0 && bulk
                });
                let what = format!("{load:?}: {measured:?}");
                assert_eq!(measured.flows.len(), flows as usize, "{what}");
                assert_eq!(measured.payload_bytes, measured.units, "{what}");
                let answered = measured.latency.unwrap().count + u64::from(flows * outstanding);
                assert!(answered >= measured.units, "{what}");
                let besides: Vec<_> = measured.beside.iter().map(|bulk| bulk.workload).collect();
                assert_eq!(besides, load.workloads_beside(), "{what}");
                for bulk in &measured.beside {
                    assert!(bulk.bits_per_s() > 0.0 && bulk.seconds > 0.0, "{what}");
                }
            }
        }
    }
}

/// All packets of the bulk traffic carry the same mark as the requests.
#[test]
fn bulk_traffic_has_the_mark_of_the_requests() {
    let wire = require!(wire_or_skip());
    let rule = "tcp dport 7000 ip dscp != ef drop; udp dport 7000 ip dscp != ef drop;";
    let rules =
        format!("table ip t {{ chain c {{ type filter hook input priority 0; {rule} }}; }}");
    nft(&wire.server, &rules);
    for workload in RR {
        let load = Load { dscp: Some(46), beside: Some(Beside::Both), ..short(workload) };
        tried(&wire, &load, Wire::server_at(PORT), |measured| {
            measured.beside.iter().all(|bulk| bulk.payload_bytes > 0)
        });
    }
}

/// A path that carries the requests but not the bulk traffic is an error.
#[test]
fn bulk_traffic_that_cannot_connect_is_an_error() {
    let wire = require!(wire_or_skip());
    let rules = "table ip t { chain c { type filter hook input priority 0; \
                 tcp dport 7000 drop; }; }";
    nft(&wire.server, rules);
    let setup_limit = std::time::Duration::from_millis(200);
    let load = Load { setup_limit, beside: Some(Beside::TcpStream), ..short(Workload::UdpRr) };
    let refused = over(&wire, &load);
    assert!(matches!(refused, Err(EngineError::NoAnswer { .. })), "{refused:?}");
    for workload in [Workload::TcpStream, Workload::TcpCrr, Workload::UdpStream] {
        let refused = over(&wire, &Load { beside: Some(Beside::Both), ..short(workload) });
        assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{refused:?}");
    }
}
