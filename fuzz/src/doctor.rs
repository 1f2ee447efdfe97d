//! Fuzz targets for `overlane doctor`: arbitrary bytes as a saved host (`--from`), as a file below
//! `/proc`, as an answer of the kernel or of a daemon.
//!
//! They have a file of their own, because the doctor crate's test `fuzz_bounded` also includes it,
//! for a bounded number of cases with a stable compiler.

use doctor::{CHECKS, Host, diagnose, dump, scrub};
use netstate::conntrack;
use netstate::cpu::{self, CpuStat};
use netstate::interrupts::Interrupts;
use netstate::neighbour_table::NeighbourTable;
use netstate::openvswitch;
use netstate::process::Process;
use netstate::snmp::{Netstat, Snmp, Snmp6};
use netstate::softnet::SoftnetStat;
use netstate::udp_socket;
use ruleset::{nft_clamp, table_clamps};
use sys::xtables::Table;

/// Reads a saved host, packed or as text. Diagnoses it, and diagnoses it again without its
/// addresses.
pub fn saved(data: &[u8]) {
    if let Ok(host) = dump::read(data) {
        judged(&host);
    }
    if let Ok(host) = dump::parse(data) {
        judged(&host);
        let scrubbed = scrub::scrub(&host).unwrap();
        // The scrubbed host can be read again.
        let mut packed = Vec::new();
        dump::write(&scrubbed, &mut packed).unwrap();
        assert!(dump::read(packed.as_slice()).is_ok());
    }
}

/// Findings belong to their check, costs are shares, and the largest costs come first.
fn judged(host: &Host) {
    let diagnosis = diagnose(host);
    for finding in &diagnosis.findings {
        assert!(CHECKS.iter().any(|check| check.code == finding.code), "{}", finding.code);
        assert!((0.0..=1.0).contains(&finding.cost.share), "{finding:?}");
    }
    assert!(diagnosis.findings.is_sorted_by(|a, b| a.cost.share >= b.cost.share));
}

/// Parses a file below `/proc` by each of its readers, and as two answers of a daemon. Two readings
/// of the same text show no change.
pub fn text(data: &[u8]) {
    const FILE: &str = "fuzz";
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(stat) = SoftnetStat::parse(text) {
        assert_eq!(stat.since(&stat), netstate::softnet::SoftnetDelta::default());
    }
    if let Ok(stat) = CpuStat::parse(text) {
        for ticks in stat.cpus.values().chain([&stat.total]) {
            assert_eq!(ticks.since(ticks).total(), 0);
            let _ = ticks.total();
        }
    }
    if let Ok(counts) = Interrupts::parse(FILE, text) {
        for name in counts.counts.keys() {
            assert!(counts.since(&counts, name).values().all(|moved| *moved == 0));
        }
    }
    if let Some(cpus) = cpu::parse_list(text) {
        assert!(cpus.len() <= 1 << 16);
    }
    let _ = conntrack::parse_stat(text);
    let _ = NeighbourTable::parse(FILE, text);
    let _ = Process::parse(FILE, text);
    let _ = (Snmp::parse(text), Netstat::parse(text), Snmp6::parse(text));
    let _ = udp_socket::parse(FILE, text);
    let _ = openvswitch::shown(text);
    let _ = openvswitch::reply(data);
}

/// An answer of nftables or of Open vSwitch, and a table of iptables-legacy, which starts with the
/// places of its chains.
pub fn answer(data: &[u8]) {
    let _ = nft_clamp(data);
    let _ = openvswitch::kernel_datapath(data);
    let Some((places, entries)) = data.split_first_chunk::<5>() else { return };
    let hooks = places.map(|place| (place & 1 != 0).then(|| (u32::from(place >> 1), 112)));
    let table = Table { hooks, entries: entries.to_vec() };
    for ipv6 in [false, true] {
        let clamps = table_clamps(ipv6, "mangle", &table);
        // An entry has at least its target.
        assert!(clamps.len() <= entries.len() / 32);
    }
}
