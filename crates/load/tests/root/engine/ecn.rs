//! ECN: codepoints of datagrams, connections that negotiate it, and counts of congestion marks.

use load::{EngineError, Load, Measured, Watch, Workload};
use results::EcnCounts;
use sys::netns::NetNs;
use test_support::require;

use super::wire::{Wire, nft, run_in};
use super::{PORT, carried, over, over_watched, short, wire_or_skip};

/// The client's kernel replaces the codepoint of each packet by `by` on its way out.
fn rewrite(wire: &Wire, by: &str) {
    rewrite_at(&wire.client, "dport", by);
}

fn rewrite_at(netns: &NetNs, port: &str, by: &str) {
    let rules = ["tcp", "udp"]
        .map(|protocol| format!("{protocol} {port} {PORT} ip ecn ect0 ip ecn set {by};"));
    let chain = "type filter hook postrouting priority 0;";
    nft(netns, &format!("table ip t {{ chain c {{ {chain} {} }}; }}", rules.join(" ")));
}

/// Counts the datagrams that the server's kernel receives from now on. Returns a reader.
fn count_datagrams(wire: &Wire) -> impl Fn() -> u64 {
    let chain = "type filter hook input priority 0;";
    let rule = format!("udp dport {PORT} counter name datagrams;");
    nft(
        &wire.server,
        &format!("table ip n {{ counter datagrams {{}}; chain c {{ {chain} {rule} }}; }}"),
    );
    || {
        let listed = run_in(&wire.server, "nft", &["list", "counters"]).stdout;
        let listed = String::from_utf8(listed).unwrap();
        let mut words = listed.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).unwrap().parse().unwrap()
    }
}

fn ask_for_ecn(netns: &NetNs) {
    netns.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1")).unwrap().unwrap();
}

/// A counter of `/proc/net/netstat`.
fn counter(netns: &NetNs, group: &str, name: &str) -> u64 {
    let text = String::from_utf8(run_in(netns, "cat", &["/proc/net/netstat"]).stdout).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{group}: ")));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|known| known == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// Readings of a kernel's counter around the measured interval.
struct Counting<'a> {
    netns: &'a NetNs,
    counter: [&'static str; 2],
    begin: u64,
    end: u64,
}

/// Runs a load until packets have arrived, which may take several short intervals on a busy machine.
/// Returns the last measurement, and the differences of a kernel's counter over its interval, and from
/// its start to the end of the load.
fn counted(
    wire: &Wire,
    load: &Load,
    netns: &NetNs,
    counter: [&'static str; 2],
    right: impl Fn(&EcnCounts) -> bool,
) -> (Measured, EcnCounts, [u64; 2]) {
    for _ in 0..50 {
        let mut kernel = Counting { netns, counter, begin: 0, end: 0 };
        let measured = over_watched(wire, load, Wire::server_at(PORT), &mut kernel).unwrap();
        if let Some(ecn) = measured.ecn.filter(&right) {
            let last = kernel.read();
            return (measured, ecn, [kernel.end, last].map(|read| read - kernel.begin));
        }
    }
    panic!("{load:?}: no packet arrived");
}

impl Counting<'_> {
    fn read(&self) -> u64 {
        counter(self.netns, self.counter[0], self.counter[1])
    }
}

impl Watch for Counting<'_> {
    fn begin(&mut self) {
        self.begin = self.read();
    }

    fn end(&mut self) {
        self.end = self.read();
    }
}

#[test]
fn a_connection_without_ecn_is_an_error_that_names_the_setting() {
    let wire = require!(wire_or_skip());
    let load = |workload| Load { ecn: true, ..short(workload) };
    for workload in [Workload::TcpStream, Workload::TcpRr, Workload::TcpCrr] {
        let refused = over(&wire, &load(workload)).unwrap_err();
        assert!(matches!(refused, EngineError::NoEcn { .. }), "{refused:?}");
        assert!(refused.to_string().contains("net.ipv4.tcp_ecn is 2"), "{refused}");
    }
    ask_for_ecn(&wire.client);
    for workload in Workload::ALL {
        assert!(carried(&wire, &load(workload), Wire::server_at(PORT)).units > 0);
    }
    let plain = over(&wire, &short(Workload::UdpStream)).unwrap();
    assert_eq!(plain.ecn, None);
    let none = wire.server.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "0"));
    none.unwrap().unwrap();
    let refused = over(&wire, &load(Workload::TcpRr)).unwrap_err().to_string();
    assert!(refused.contains("the server's net.ipv4.tcp_ecn is 0"), "{refused}");
}

#[test]
fn marks_on_datagrams_are_those_that_the_kernel_counts() {
    let wire = require!(wire_or_skip());
    let loads = [
        Load { ecn: true, ..short(Workload::UdpStream) },
        Load { ecn: true, gso: true, message_bytes: 1400, ..short(Workload::UdpStream) },
        Load {
            ecn: true,
            numbered: true,
            datagrams_per_s: Some(5000),
            ..short(Workload::UdpStream)
        },
    ];
    let counted = |load: &Load, name| {
        counted(&wire, load, &wire.server, ["IpExt", name], |ecn| ecn.arrived > 0)
    };
    for load in &loads {
        let (measured, ecn, [ect, _]) = counted(load, "InECT0Pkts");
        assert_eq!((ecn.ce, ecn.not_ect), (0, Some(0)), "{measured:?}");
        assert_eq!(ecn.arrived, measured.datagrams.unwrap().received, "{measured:?}");
        // The socket may lose datagrams that the kernel has counted.
        assert!(ect >= ecn.arrived, "{ect}, {measured:?}");
    }
    rewrite(&wire, "ce");
    for load in &loads {
        let (measured, ecn, [ce, _]) = counted(load, "InCEPkts");
        assert_eq!((ecn.ce, ecn.not_ect), (ecn.arrived, Some(0)), "{measured:?}");
        assert!(ce >= ecn.ce, "{ce}, {measured:?}");
    }
    nft(&wire.client, "delete table ip t");
    rewrite(&wire, "not-ect");
    let (measured, ecn, _) = counted(&loads[0], "InCEPkts");
    assert_eq!((ecn.ce, ecn.not_ect), (0, Some(ecn.arrived)), "{measured:?}");
}

#[test]
fn marks_on_segments_are_those_that_the_kernel_counts() {
    let wire = require!(wire_or_skip());
    ask_for_ecn(&wire.client);
    let load = |workload| Load { ecn: true, ..short(workload) };
    let name = ["TcpExt", "TCPDeliveredCE"];
    for workload in [Workload::TcpStream, Workload::TcpRr] {
        let right = |ecn: &EcnCounts| ecn.arrived > 0;
        let (_, ecn, kernel) = counted(&wire, &load(workload), &wire.client, name, right);
        assert_eq!((ecn.ce, kernel), (0, [0, 0]), "{ecn:?}");
    }
    rewrite(&wire, "ce");
    for workload in [Workload::TcpStream, Workload::TcpRr] {
        let right = |ecn: &EcnCounts| ecn.ce > 0;
        let (_, ecn, [kernel, _]) = counted(&wire, &load(workload), &wire.client, name, right);
        assert!(ecn.ce <= ecn.arrived && ecn.not_ect.is_none(), "{ecn:?}");
        // The kernel's counter is read a little earlier and later.
        assert!(kernel >= ecn.ce, "{kernel}, {ecn:?}");
    }
}

#[test]
fn marks_on_requests_of_datagrams_are_those_that_the_kernel_counts() {
    let wire = require!(wire_or_skip());
    let loads = [
        Load { ecn: true, ..short(Workload::UdpRr) },
        Load { ecn: true, flows: 2, outstanding: 4, ..short(Workload::UdpRr) },
    ];
    let arrived = |ecn: &EcnCounts| ecn.arrived > 0;
    for by in [None, Some("ce"), Some("not-ect")] {
        by.iter().for_each(|by| rewrite(&wire, by));
        for load in &loads {
            // Requests that the server's kernel has received and its thread has not read.
            let under_way = u64::from(load.flows * load.outstanding);
            let name = ["IpExt", if by == Some("ce") { "InCEPkts" } else { "InECT0Pkts" }];
            let (measured, ecn, [kernel, _]) = counted(&wire, load, &wire.server, name, arrived);
            let what = format!("{by:?}, {kernel} by the kernel: {measured:?}");
            // The server's interval contains the client's.
            assert!(ecn.arrived + under_way >= measured.units, "{what}");
            let expected = match by {
                None => (0, 0),
                Some("ce") => (ecn.arrived, 0),
                Some(_) => (0, ecn.arrived),
            };
            assert_eq!((ecn.ce, ecn.not_ect), (expected.0, Some(expected.1)), "{what}");
            match by {
                Some("not-ect") => assert_eq!(kernel, 0, "{what}"),
                _ => assert!(kernel + under_way >= ecn.arrived, "{what}"),
            }
        }
        by.iter().for_each(|_| nft(&wire.client, "delete table ip t"));
    }
}

#[test]
fn packets_beside_the_requests_are_left_out() {
    let wire = require!(wire_or_skip());
    ask_for_ecn(&wire.client);
    let received = count_datagrams(&wire);
    let beside = Some(results::Beside::TcpMaerts);
    let load = Load { ecn: true, beside, ..short(Workload::UdpRr) };
    let proves = (0..50).any(|_| {
        let before = received();
        let measured = over(&wire, &load).unwrap();
        let (ecn, kernel) = (measured.ecn.unwrap(), received() - before);
        assert!(ecn.arrived <= kernel, "{kernel} datagrams by the kernel: {measured:?}");
        // More segments than all datagrams: with them, the count would be too high.
        let segments = measured.beside[0].payload_bytes / 1448;
        ecn.arrived > 0 && segments > kernel
    });
    assert!(proves, "{load:?}: no packet arrived");
}

/// The server's segments, which the client's kernel receives.
#[test]
fn marks_on_segments_of_a_sending_server_are_those_that_its_kernel_counts() {
    let wire = require!(wire_or_skip());
    ask_for_ecn(&wire.client);
    let load = Load { ecn: true, flows: 2, ..short(Workload::TcpMaerts) };
    let name = ["TcpExt", "TCPDeliveredCE"];
    let arrived = |ecn: &EcnCounts| ecn.arrived > 0;
    let (_, ecn, kernel) = counted(&wire, &load, &wire.server, name, arrived);
    assert_eq!((ecn.ce, ecn.not_ect, kernel), (0, None, [0, 0]), "{ecn:?}");
    rewrite_at(&wire.server, "sport", "ce");
    let (_, ecn, [_, kernel]) = counted(&wire, &load, &wire.server, name, |ecn| ecn.ce > 0);
    assert!(ecn.ce <= ecn.arrived && ecn.not_ect.is_none(), "{ecn:?}");
    // A thread may learn of the interval's end later than the counter is read.
    assert!(kernel >= ecn.ce, "{kernel} by the kernel, {ecn:?}");
}

#[test]
fn marks_on_short_connections_are_those_that_the_kernel_counts() {
    let wire = require!(wire_or_skip());
    ask_for_ecn(&wire.client);
    let load = Load { ecn: true, ..short(Workload::TcpCrr) };
    let name = ["TcpExt", "TCPDeliveredCE"];
    let arrived = |ecn: &EcnCounts| ecn.arrived > 0;
    let (_, ecn, kernel) = counted(&wire, &load, &wire.client, name, arrived);
    assert_eq!((ecn.ce, ecn.not_ect, kernel), (0, None, [0, 0]), "{ecn:?}");
    rewrite(&wire, "ce");
    // A request of one byte is one segment. A retransmitted one cannot be marked.
    let all = |ecn: &EcnCounts| ecn.arrived > 0 && ecn.ce == ecn.arrived;
    let (measured, ecn, [_, kernel]) = counted(&wire, &load, &wire.client, name, all);
    assert!(ecn.arrived <= measured.latency.unwrap().count, "{measured:?}");
    assert!(kernel >= ecn.ce, "{kernel} by the kernel, {measured:?}");
}
