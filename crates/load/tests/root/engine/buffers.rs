//! Requested socket buffers are set on every socket of the data path.

use load::{Load, Watch, Workload};
use sys::netns::NetNs;
use test_support::require;

use super::wire::{Wire, run_in};
use super::{PORT, over_watched, short, wire_or_skip};

const BYTES: u32 = 40 << 10;

/// Lists the sockets of both ends while the load runs.
struct Sockets<'a> {
    wire: &'a Wire,
    arguments: [&'a str; 2],
    seen: Vec<String>,
}

impl Sockets<'_> {
    fn list(&self, netns: &NetNs) -> String {
        String::from_utf8(run_in(netns, "ss", &self.arguments).stdout).unwrap()
    }
}

impl Watch for Sockets<'_> {
    fn begin(&mut self) {
        self.seen = vec![self.list(&self.wire.client), self.list(&self.wire.server)];
    }

    fn end(&mut self) {}
}

#[test]
fn both_ends_have_the_buffers_asked_for() {
    let wire = require!(wire_or_skip());
    for (workload, list) in [
        (Workload::TcpStream, "-tnm"),
        (Workload::TcpRr, "-tnm"),
        (Workload::UdpStream, "-unm"),
        (Workload::UdpRr, "-unm"),
    ] {
        for asked in [Some(BYTES), None] {
            let load = Load { socket_buffer_bytes: asked, ..short(workload) };
            let mut sockets = Sockets { wire: &wire, arguments: ["-O", list], seen: Vec::new() };
            let target = Wire::server_at(PORT);
            let mut all =
                (0..50).map(|_| over_watched(&wire, &load, target, &mut sockets).unwrap());
            let measured = all.find(|measured| measured.units > 0).expect("something carried");
            assert!(measured.notes.is_empty(), "{:?}", measured.notes);
            for seen in &sockets.seen {
                // The kernel accounts for twice the size.
                let both = [format!("rb{},", BYTES * 2), format!("tb{},", BYTES * 2)];
                let own: Vec<&str> = seen.lines().filter(|l| l.contains(":7000")).collect();
                assert!(!own.is_empty(), "{workload}: {seen}");
                let sized = |line: &&str| both.iter().all(|text| line.contains(text));
                assert_eq!(own.iter().all(sized), asked.is_some(), "{workload} {asked:?}: {seen}");
            }
        }
    }
}
