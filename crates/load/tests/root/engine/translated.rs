//! Published ports: the client connects to another address than the server binds, and the server
//! sees another source than the client's.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use load::{Load, Workload};

use super::wire::{SERVER, ip, nft};
use super::{carried, short, wire_or_skip};
use test_support::require;

/// The published address.
const PUBLISHED: &str = "203.0.113.1:8080";

#[test]
fn every_workload_goes_through_nat() {
    let wire = require!(wire_or_skip());
    // The client's namespace does both translations: the destination as Docker publishes a port,
    // and the source with other ports, so that neither end sees the other's address.
    ip(&wire.client, &["route", "add", "203.0.113.0/24", "via", SERVER]);
    let rules = "table ip t { \
        chain o { type nat hook output priority -100; \
                  ip daddr 203.0.113.1 tcp dport 8080 dnat to 192.0.2.2:7000; \
                  ip daddr 203.0.113.1 udp dport 8080 dnat to 192.0.2.2:7000; }; \
        chain p { type nat hook postrouting priority 100; \
                  ip daddr 192.0.2.2 masquerade fully-random; }; }";
    nft(&wire.client, rules);
    for workload in Workload::ALL {
        for (flows, message_bytes) in [(1, 1), (4, 1), (4, 1400), (2, 9000)] {
            let load = Load { flows, message_bytes, ..short(workload) };
            carried(&wire, &load, PUBLISHED.parse().unwrap());
        }
    }
}

/// Ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The proxy runs at the client's end, so that its own connections cross the wire; the client
/// connects to its loopback address.
#[test]
fn every_workload_goes_through_docker_proxy() {
    let wire = require!(wire_or_skip());
    let program = ["/usr/sbin/docker-proxy", "/usr/bin/docker-proxy"]
        .into_iter()
        .find(|p| std::path::Path::new(p).exists());
    let program = require!(program.ok_or("docker-proxy is not installed"));
    for workload in Workload::ALL {
        let protocol = if workload.is_tcp() { "tcp" } else { "udp" };
        let _proxy = Running(
            wire.client
                .run(|| {
                    // It reports to its parent on descriptor 3 and closes it. Without that
                    // descriptor, it would close its listener.
                    let line = format!(
                        "exec 3>/dev/null; exec {program} -proto {protocol} -host-ip 127.0.0.1 \
                         -host-port 8080 -container-ip {SERVER} -container-port 7000"
                    );
                    Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).spawn()
                })
                .unwrap()
                .unwrap(),
        );
        let bound = || {
            let table =
                std::fs::read_to_string(format!("/proc/thread-self/net/{protocol}")).unwrap();
            table.lines().any(|l| l.contains("0100007F:1F90 00000000:0000"))
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !wire.client.run(bound).unwrap() {
            assert!(Instant::now() < deadline, "docker-proxy does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        for (flows, message_bytes) in [(1, 1), (3, 1400)] {
            let load = Load { flows, message_bytes, ..short(workload) };
            carried(&wire, &load, "127.0.0.1:8080".parse().unwrap());
        }
    }
}
