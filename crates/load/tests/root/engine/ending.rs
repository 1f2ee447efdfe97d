//! Regular ends of a load.

use std::time::{Duration, Instant};

use load::{Endpoint, Phase, Workload};
use sys::netns::NetNs;

use super::short;

/// The client gets the command first. Over a network, the server sees the end of its connections
/// before it gets the command to end the load.
#[test]
fn a_client_that_ends_first_is_no_failure_of_the_server() {
    let netns = NetNs::current().unwrap();
    for (workload, port) in [(Workload::TcpStream, 7101), (Workload::TcpRr, 7102)] {
        let load = short(workload);
        let address = ([127, 0, 0, 1], port).into();
        let server = Endpoint::server(&load, &netns, address, 1, None).unwrap();
        let client = Endpoint::client(&load, &netns, address, 1).unwrap();
        let begun = Instant::now();
        while client.waits_for().or(server.waits_for()).is_some() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{workload}: not ready");
            std::thread::sleep(Duration::from_millis(1));
        }
        for phase in [Phase::Warmup, Phase::Measure, Phase::Closing] {
            server.turn_to(phase);
            client.turn_to(phase);
        }
        drop(client);
        let ended = Instant::now();
        while ended.elapsed() < Duration::from_millis(100) {
            let failure = server.failure();
            assert!(failure.is_none(), "{workload}: {failure:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.finish_serving().unwrap();
    }
}
