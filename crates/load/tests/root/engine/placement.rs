//! Threads run on the requested CPUs, and errors name bad arguments.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use load::{
    Ends, EngineError, Load, MAX_FLOWS, MAX_MESSAGE_BYTES, MAX_OUTSTANDING, Stall, Workload, run,
};

use super::wire::Wire;
use super::{over, short, wire_or_skip};
use test_support::require;

const STALL: Stall = Stall { every: Duration::from_millis(10), length: Duration::from_millis(1) };

#[test]
fn each_flow_runs_on_the_cpu_asked_for() {
    let wire = require!(wire_or_skip());
    let all = sys::affinity::of_this_thread().unwrap();
    let (first, last) = (all[0], *all.last().unwrap());
    for workload in Workload::ALL {
        let load = Load {
            flows: 3,
            client_cpus: vec![first],
            server_cpus: vec![last, first],
            ..short(workload)
        };
        let measured = over(&wire, &load).unwrap();
        for (i, flow) in measured.flows.iter().enumerate() {
            assert_eq!(flow.client_cpus, [first], "{workload} flow {i}");
            assert_eq!(flow.server_cpus, [[last, first][i % 2]], "{workload} flow {i}");
        }
        let measured = over(&wire, &short(workload)).unwrap();
        assert_eq!(measured.flows[0].client_cpus, all, "{workload}: not pinned");
        assert_eq!(measured.flows[0].server_cpus, all, "{workload}: not pinned");
    }
    assert_eq!(sys::affinity::of_this_thread().unwrap(), all, "the caller's is left alone");
}

#[test]
fn an_argument_that_cannot_be_carried_out_is_named() {
    let load = Load::new(Workload::TcpRr);
    let stream = Load::new(Workload::UdpStream);
    for (wrong, name) in [
        (Load { message_bytes: 0, ..load.clone() }, "message_bytes"),
        (Load { message_bytes: MAX_MESSAGE_BYTES + 1, ..load.clone() }, "message_bytes"),
        (Load { flows: 0, ..load.clone() }, "flows"),
        (Load { flows: MAX_FLOWS + 1, ..load.clone() }, "flows"),
        (Load { gso: true, ..load.clone() }, "gso"),
        (Load { datagrams_per_s: Some(1), ..load.clone() }, "datagrams_per_s"),
        (Load { datagrams_per_s: Some(0), ..stream.clone() }, "datagrams_per_s"),
        (Load { outstanding: 0, ..load.clone() }, "outstanding"),
        (Load { outstanding: MAX_OUTSTANDING + 1, ..load.clone() }, "outstanding"),
        (Load { outstanding: 2, ..stream.clone() }, "outstanding"),
        (Load { transactions_per_s: Some(0.0), ..load.clone() }, "transactions_per_s"),
        (Load { transactions_per_s: Some(f64::NAN), ..load.clone() }, "transactions_per_s"),
        (Load { transactions_per_s: Some(1.0), ..stream.clone() }, "transactions_per_s"),
        (Load { server_stall: Some(STALL), ..stream.clone() }, "server_stall"),
        (
            Load { server_stall: Some(Stall { length: STALL.every, ..STALL }), ..load.clone() },
            "server_stall",
        ),
        (Load { rest: Duration::from_millis(51), ..load.clone() }, "rest"),
        (Load { rest: STALL.length, outstanding: 2, ..load.clone() }, "rest"),
        (Load { rest: STALL.length, ..Load::new(Workload::TcpCrr) }, "rest"),
        (Load { duration: Duration::ZERO, ..load.clone() }, "duration"),
        (Load { setup_limit: Duration::ZERO, ..load.clone() }, "setup_limit"),
        (Load { client_cpus: vec![1023], ..load.clone() }, "client_cpus"),
        (Load { server_cpus: vec![0, 1023], ..load.clone() }, "server_cpus"),
    ] {
        match wrong.validate() {
            Err(EngineError::Invalid { argument, .. }) => assert_eq!(argument, name),
            other => panic!("{wrong:?}: {other:?}"),
        }
    }
    for fine in [load, Load { gso: true, datagrams_per_s: Some(1), ..stream }] {
        fine.validate().unwrap();
    }
    let error = "tcp_storm".parse::<Workload>().unwrap_err().to_string();
    assert!(error.contains("tcp_storm") && error.contains("udp_rr"), "{error}");
    for workload in Workload::ALL {
        assert_eq!(workload.to_string().parse::<Workload>().unwrap(), workload);
    }
}

#[test]
fn addresses_must_be_ones_that_can_be_answered_from() {
    let here = sys::netns::NetNs::current().unwrap();
    let good = Wire::server_at(7000);
    for bad in ["0.0.0.0:7000", "[::]:7000", "192.0.2.2:0", "224.0.0.1:7000"] {
        let bad = bad.parse().unwrap();
        for (target, listen, name) in [(bad, good, "target"), (good, bad, "listen")] {
            let ends = Ends { client: &here, server: &here, target, listen };
            let outcome = run(&Load::new(Workload::UdpRr), &ends, &mut (), &AtomicBool::new(false));
            match outcome {
                Err(EngineError::Invalid { argument, .. }) => assert_eq!(argument, name),
                other => panic!("{bad}: {other:?}"),
            }
        }
    }
}
