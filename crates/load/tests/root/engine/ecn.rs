//! ECN: codepoints of datagrams, connections that negotiate it, and counts of congestion marks.

use load::{EngineError, Load, Measured, Watch, Workload};
use results::EcnCounts;
use sys::netns::NetNs;
use test_support::require;

use super::wire::{Wire, nft, run_in};
use super::{PORT, carried, over, over_watched, short, wire_or_skip};

/// The client's kernel replaces the codepoint of each packet by `by` on its way out.
fn rewrite(wire: &Wire, by: &str) {
    let rules = ["tcp", "udp"]
        .map(|protocol| format!("{protocol} dport {PORT} ip ecn ect0 ip ecn set {by};"));
    let chain = "type filter hook postrouting priority 0;";
    nft(&wire.client, &format!("table ip t {{ chain c {{ {chain} {} }}; }}", rules.join(" ")));
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

/// Difference of a kernel's counter over the measured interval.
struct Counting<'a> {
    netns: &'a NetNs,
    counter: [&'static str; 2],
    begin: u64,
    end: u64,
}

/// Runs a load until packets have arrived, which may take several short intervals on a busy machine.
/// Returns the last measurement, and the difference of a kernel's counter over its interval.
fn counted(
    wire: &Wire,
    load: &Load,
    netns: &NetNs,
    counter: [&'static str; 2],
    right: impl Fn(&EcnCounts) -> bool,
) -> (Measured, EcnCounts, u64) {
    for _ in 0..50 {
        let mut kernel = Counting { netns, counter, begin: 0, end: 0 };
        let measured = over_watched(wire, load, Wire::server_at(PORT), &mut kernel).unwrap();
        if let Some(ecn) = measured.ecn.filter(&right) {
            return (measured, ecn, kernel.end - kernel.begin);
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
        let (measured, ecn, ect) = counted(load, "InECT0Pkts");
        assert_eq!((ecn.ce, ecn.not_ect), (0, Some(0)), "{measured:?}");
        assert_eq!(ecn.arrived, measured.datagrams.unwrap().received, "{measured:?}");
        // The socket may lose datagrams that the kernel has counted.
        assert!(ect >= ecn.arrived, "{ect}, {measured:?}");
    }
    rewrite(&wire, "ce");
    for load in &loads {
        let (measured, ecn, ce) = counted(load, "InCEPkts");
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
        assert_eq!((ecn.ce, kernel), (0, 0), "{ecn:?}");
    }
    rewrite(&wire, "ce");
    for workload in [Workload::TcpStream, Workload::TcpRr] {
        let right = |ecn: &EcnCounts| ecn.ce > 0;
        let (_, ecn, kernel) = counted(&wire, &load(workload), &wire.client, name, right);
        assert!(ecn.ce <= ecn.arrived && ecn.not_ect.is_none(), "{ecn:?}");
        // The kernel's counter is read a little earlier and later.
        assert!(kernel >= ecn.ce, "{kernel}, {ecn:?}");
    }
    // The client sends no data, or its connections no longer exist.
    for workload in [Workload::TcpMaerts, Workload::TcpCrr] {
        assert_eq!(over(&wire, &load(workload)).unwrap().ecn, None);
    }
}
