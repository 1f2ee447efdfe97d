//! Broken paths give the right error, in bounded time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use load::{Ends, EngineError, Load, Stage, Watch, Workload, run};

use super::wire::{DEVICE, Wire, ip, nft, run_in};
use super::{PORT, carried, over, over_watched, short, wire_or_skip};
use test_support::require;

/// Time limit of the set-up, in these tests.
const LIMIT: Duration = Duration::from_millis(400);

/// Time limit of any of these runs, which catches a hang, not slowness.
const FAR_TOO_LONG: Duration = Duration::from_secs(20);

fn impatient(workload: Workload) -> Load {
    Load { setup_limit: LIMIT, flows: 2, ..short(workload) }
}

/// Runs every workload and passes each error to `is_right`.
fn each_fails(
    wire: &Wire,
    target: std::net::SocketAddr,
    is_right: impl Fn(Workload, &EngineError) -> bool,
) {
    for workload in Workload::ALL {
        let begun = Instant::now();
        let error = over_watched(wire, &impatient(workload), target, &mut ()).unwrap_err();
        assert!(is_right(workload, &error), "{workload}: {error:?}");
        assert!(begun.elapsed() < FAR_TOO_LONG, "{workload}: {:?}", begun.elapsed());
    }
}

#[test]
fn without_a_route_it_is_unreachable() {
    let wire = require!(wire_or_skip());
    each_fails(&wire, "198.51.100.1:7000".parse().unwrap(), |_, error| {
        matches!(error, EngineError::Unreachable { .. })
            && error.to_string().contains("198.51.100.1:7000")
    });
}

#[test]
fn a_host_that_does_not_answer_arp_is_unreachable() {
    let wire = require!(wire_or_skip());
    // Three probes a second apart by default.
    let path = "net.ipv4.neigh.veth0.retrans_time_ms=20";
    assert!(run_in(&wire.client, "sysctl", &["-w", path]).status.success());
    each_fails(&wire, "192.0.2.99:7000".parse().unwrap(), |_, error| {
        matches!(error, EngineError::Unreachable { .. })
    });
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let wire = require!(wire_or_skip());
    each_fails(&wire, Wire::server_at(PORT + 1), |_, error| {
        matches!(error, EngineError::Refused { .. })
    });
}

#[test]
fn a_router_that_says_unreachable_is_believed() {
    let wire = require!(wire_or_skip());
    let rules = "table ip t { chain c { type filter hook input priority 0; \
                 tcp dport 7000 reject with icmp type host-unreachable; \
                 udp dport 7000 reject with icmp type host-unreachable; }; }";
    nft(&wire.server, rules);
    // By default six in a row and then one a second, for all flows together.
    let unlimited = "net.ipv4.icmp_ratelimit=0";
    assert!(run_in(&wire.server, "sysctl", &["-w", unlimited]).status.success());
    each_fails(&wire, Wire::server_at(PORT), |_, error| {
        matches!(error, EngineError::Unreachable { .. })
    });
}

#[test]
fn a_local_filter_prohibits() {
    let wire = require!(wire_or_skip());
    let rules = "table ip t { chain c { type filter hook output priority 0; \
                 udp dport 7000 drop; }; }";
    nft(&wire.client, rules);
    for workload in [Workload::UdpStream, Workload::UdpRr] {
        let error = over(&wire, &impatient(workload)).unwrap_err();
        assert!(matches!(error, EngineError::Prohibited { .. }), "{error:?}");
    }
}

#[test]
fn a_black_hole_does_not_answer() {
    let wire = require!(wire_or_skip());
    let rules = "table ip t { chain c { type filter hook input priority 0; \
                 meta l4proto { tcp, udp } drop; }; }";
    nft(&wire.server, rules);
    each_fails(&wire, Wire::server_at(PORT), |workload, error| match error {
        EngineError::NoAnswer { stage: Stage::Connect, .. } => workload.is_tcp(),
        EngineError::NoAnswer { stage: Stage::Hello, .. } => !workload.is_tcp(),
        _ => false,
    });
}

/// If small datagrams pass and large ones do not, the error says so.
#[test]
fn lost_fragments_are_distinguished_from_a_dead_path() {
    let wire = require!(wire_or_skip());
    let rules = "table ip t { chain c { type filter hook prerouting priority -450; \
                 ip frag-off & 0x3fff != 0 drop; }; }";
    nft(&wire.server, rules);
    let load = Load { message_bytes: 9000, ..impatient(Workload::UdpStream) };
    let error = over(&wire, &load).unwrap_err();
    assert!(matches!(error, EngineError::NoAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("datagrams of 9000 bytes are not"), "{error}");
    over(&wire, &Load { message_bytes: 1400, ..load }).unwrap();
}

/// Sets the server's link down when measuring starts.
struct Breaks<'a>(&'a Wire);

impl Watch for Breaks<'_> {
    fn begin(&mut self) {
        ip(&self.0.server, &["link", "set", DEVICE, "down"]);
    }
    fn end(&mut self) {}
}

#[test]
fn a_path_that_dies_in_the_middle_is_not_a_slow_one() {
    for workload in Workload::ALL {
        let wire = require!(wire_or_skip());
        let begun = Instant::now();
        let load = impatient(workload);
        let error =
            over_watched(&wire, &load, Wire::server_at(PORT), &mut Breaks(&wire)).unwrap_err();
        let right = match workload {
            Workload::TcpStream | Workload::TcpMaerts | Workload::TcpRr => {
                matches!(error, EngineError::Stalled { .. })
            }
            // At any point of a transaction.
            Workload::TcpCrr => {
                matches!(error, EngineError::Stalled { .. } | EngineError::NoAnswer { .. })
            }
            Workload::UdpStream => {
                matches!(error, EngineError::NoAnswer { stage: Stage::Closing, .. })
            }
            Workload::UdpRr => matches!(error, EngineError::Stalled { .. }),
        };
        // The client's end of the veth pair loses its carrier, too.
        let right = right || matches!(error, EngineError::Unreachable { .. });
        assert!(right, "{workload}: {error:?}");
        assert!(begun.elapsed() < FAR_TOO_LONG, "{workload}: {:?}", begun.elapsed());
    }
}

/// Drops everything, like a broken tunnel, and restores nothing.
struct Swallows<'a>(&'a Wire);

impl Watch for Swallows<'_> {
    fn begin(&mut self) {
        let rules = "table ip t { chain c { type filter hook prerouting priority -450; drop; }; }";
        nft(&self.0.server, rules);
    }
    fn end(&mut self) {}
}

#[test]
fn a_path_that_turns_into_a_black_hole_is_an_error() {
    for workload in Workload::ALL {
        let wire = require!(wire_or_skip());
        let load = impatient(workload);
        let error =
            over_watched(&wire, &load, Wire::server_at(PORT), &mut Swallows(&wire)).unwrap_err();
        let right = match workload {
            Workload::TcpStream | Workload::TcpMaerts | Workload::TcpRr | Workload::UdpRr => {
                matches!(error, EngineError::Stalled { .. })
            }
            Workload::TcpCrr => {
                matches!(error, EngineError::Stalled { .. } | EngineError::NoAnswer { .. })
            }
            Workload::UdpStream => {
                matches!(error, EngineError::NoAnswer { stage: Stage::Closing, .. })
            }
        };
        assert!(right, "{workload}: {error:?}");
    }
}

/// Drops a fragment of every datagram, from the start of the interval on.
struct LosesFragments<'a>(&'a Wire);

impl Watch for LosesFragments<'_> {
    fn begin(&mut self) {
        let rules = "table ip t { chain c { type filter hook prerouting priority -450; \
                     ip frag-off & 0x1fff != 0 drop; }; }";
        nft(&self.0.server, rules);
    }
    fn end(&mut self) {}
}

/// A flood of which nothing arrives has the result 0; its remaining fragments must not affect the
/// next run's path.
#[test]
fn a_flood_that_fills_the_memory_for_fragments_is_a_result() {
    let wire = require!(wire_or_skip());
    for setting in [
        "net.ipv4.ipfrag_low_thresh=131072",
        "net.ipv4.ipfrag_high_thresh=262144",
        "net.ipv4.ipfrag_time=2",
    ] {
        assert!(run_in(&wire.server, "sysctl", &["-w", setting]).status.success());
    }
    let load = Load { message_bytes: 9000, ..impatient(Workload::UdpStream) };
    let mut loses = LosesFragments(&wire);
    let nothing = over_watched(&wire, &load, Wire::server_at(PORT), &mut loses).unwrap();
    let datagrams = nothing.datagrams.unwrap();
    assert!(datagrams.sent > 0 && datagrams.received == 0, "{nothing:?}");
    assert_eq!((nothing.units, nothing.rate()), (0, 0.0));
    let said = nothing.notes.join("\n");
    assert!(said.contains("nothing arrived") && said.contains("ipfrag_high_thresh"), "{said}");

    // Without further loss, stored fragments leave only by their timeout.
    nft(&wire.server, "delete table ip t");
    let arrives = over(&wire, &load).unwrap();
    assert!(arrives.notes.iter().any(|note| note.contains("ipfrag_time")), "{arrives:?}");
    // The first datagrams arrive, unless the sender had no CPU.
    assert!(arrives.units > 0 || arrives.datagrams.unwrap().sent == 0, "{arrives:?}");
    carried(&wire, &load, Wire::server_at(PORT));
    // Datagrams that need no reassembly do not wait.
    nft(
        &wire.server,
        "table ip t { chain c { type filter hook prerouting priority -450; \
                       ip frag-off & 0x1fff != 0 drop; }; }",
    );
    let small = Load { message_bytes: 1400, ..load.clone() };
    let small = carried(&wire, &small, Wire::server_at(PORT));
    assert!(small.notes.iter().all(|note| !note.contains("ipfrag")), "{small:?}");
    // A path that carries no datagram of that size at any rate is a failure.
    let error = over(&wire, &load).unwrap_err();
    assert!(matches!(error, EngineError::NoAnswer { stage: Stage::Hello, .. }), "{error:?}");
}

/// If the first second fails, an hour's measurement ends at once.
#[test]
fn a_long_interval_ends_when_its_path_does() {
    for workload in [Workload::TcpStream, Workload::TcpRr, Workload::UdpRr] {
        let wire = require!(wire_or_skip());
        let load = Load { duration: Duration::from_secs(3600), ..impatient(workload) };
        let begun = Instant::now();
        let error =
            over_watched(&wire, &load, Wire::server_at(PORT), &mut Swallows(&wire)).unwrap_err();
        assert!(matches!(error, EngineError::Stalled { .. }), "{workload}: {error:?}");
        assert!(begun.elapsed() < FAR_TOO_LONG, "{workload}: {:?}", begun.elapsed());
    }
}

#[test]
fn resets_in_the_middle_are_resets() {
    let wire = require!(wire_or_skip());
    struct Resets<'a>(&'a Wire);
    impl Watch for Resets<'_> {
        fn begin(&mut self) {
            let rules = "table ip t { chain c { type filter hook input priority 0; \
                         tcp dport 7000 tcp flags & syn == 0 reject with tcp reset; }; }";
            nft(&self.0.server, rules);
        }
        fn end(&mut self) {}
    }
    for workload in [Workload::TcpStream, Workload::TcpRr] {
        let load = impatient(workload);
        let error =
            over_watched(&wire, &load, Wire::server_at(PORT), &mut Resets(&wire)).unwrap_err();
        assert!(matches!(error, EngineError::Reset { .. }), "{workload}: {error:?}");
        nft(&wire.server, "flush ruleset");
    }
}

/// Behaviour of a proxy whose server is unreachable: it accepts, and closes.
#[test]
fn accepted_and_closed_is_distinguished_from_refused() {
    let wire = require!(wire_or_skip());
    let at = Wire::server_at(PORT + 1);
    let proxy = wire.server.run(|| std::net::TcpListener::bind(at).unwrap()).unwrap();
    std::thread::scope(|scope| {
        // Ends with the listener's last connection, below.
        scope.spawn(|| {
            while let Ok((stream, _)) = proxy.accept() {
                let mut hello = [0; 64];
                let read = std::io::Read::read(&mut &stream, &mut hello);
                if matches!(read, Ok(0)) {
                    return;
                }
            }
        });
        let load = Load { flows: 1, ..impatient(Workload::TcpRr) };
        let error = over_watched(&wire, &load, at, &mut ()).unwrap_err();
        assert!(matches!(error, EngineError::Closed { stage: Stage::Hello, .. }), "{error:?}");
        assert!(error.to_string().contains("proxy"), "{error}");
        wire.client.run(|| drop(std::net::TcpStream::connect(at).unwrap())).unwrap();
    });
}

#[test]
fn an_address_that_is_not_the_servers_is_named() {
    let wire = require!(wire_or_skip());
    for workload in Workload::ALL {
        let at = "198.51.100.1:7000".parse().unwrap();
        let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
        let error = run(&impatient(workload), &ends, &mut (), &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, EngineError::Local(_)), "{error:?}");
        assert!(error.to_string().contains("198.51.100.1:7000"), "{error}");
    }
}

#[test]
fn stop_ends_every_phase() {
    let wire = require!(wire_or_skip());
    /// Stops when measuring starts.
    struct Stops<'a>(&'a AtomicBool);
    impl Watch for Stops<'_> {
        fn begin(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
        fn end(&mut self) {
            panic!("measured to the end");
        }
    }
    for workload in Workload::ALL {
        // During set-up: a black hole, with a distant time limit.
        let load = Load {
            duration: Duration::from_secs(3600),
            setup_limit: Duration::from_secs(3600),
            ..short(workload)
        };
        let at = Wire::server_at(PORT);
        let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
        let stop = AtomicBool::new(false);
        let error = run(&load, &ends, &mut Stops(&stop), &stop).unwrap_err();
        assert!(matches!(error, EngineError::Stopped), "{workload}: {error:?}");

        let hole = Ends { target: "192.0.2.99:7000".parse().unwrap(), ..ends };
        let neigh = ["neigh", "replace", "192.0.2.99", "lladdr", "02:00:00:00:00:99"];
        ip(&wire.client, &[&neigh[..], &["dev", DEVICE]].concat());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run(&load, &hole, &mut (), &stop).unwrap_err());
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(running.join().unwrap(), EngineError::Stopped), "{workload}");
        });
    }
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An untrusted party's connection or datagram neither counts nor disturbs.
#[test]
fn foreign_packets_at_the_port_are_ignored() {
    let wire = require!(wire_or_skip());
    let at = Wire::server_at(PORT);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also ends the untrusted party's thread if a measurement fails.
        let _over = Over(&over);
        scope.spawn(|| {
            wire.client
                .run(|| {
                    let udp = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                    while !over.load(Ordering::Relaxed) {
                        // Refused whenever no load is running.
                        let _ = udp.send_to(b"stranger, and as long as a hello is", at);
                        if let Ok(stream) = std::net::TcpStream::connect(at) {
                            let _ = std::io::Write::write_all(&mut &stream, &[0x5a; 64]);
                        }
                        std::thread::yield_now();
                    }
                })
                .unwrap();
        });
        for workload in [Workload::TcpStream, Workload::TcpRr, Workload::UdpStream, Workload::UdpRr]
        {
            let load = Load { flows: 2, ..short(workload) };
            carried(&wire, &load, Wire::server_at(PORT));
        }
    });
}
