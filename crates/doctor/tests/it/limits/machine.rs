//! CPUs, queues, interrupts, memory, tables.

use doctor::host::{Amount, Channels, Host, Reading};
use netstate::reassembly::{Memory, Reassembly};

use super::saved::{device, judge, link, namespace, read, saved};

/// OV023 and other checks for a CPU that only processes softirqs.
#[test]
fn a_cpu_is_busy_from_20_ticks_and_90_percent() {
    fn ticks(host: &mut Host, softirq: u64, user: u64, idle: u64, busy: u64) {
        let pair = read(&mut host.machine.cpu);
        let (before, after) = (pair.before.cpus.clone(), &mut pair.after.cpus);
        *after = before;
        let cpu = after.get_mut(&0).unwrap();
        (cpu.softirq, cpu.user) = (cpu.softirq + softirq, cpu.user + user);
        let cpu = after.get_mut(&1).unwrap();
        (cpu.idle, cpu.system) = (cpu.idle + idle, cpu.system + busy);
    }
    let found: &[&str] = &["a/nic0 0.40"];
    judge(
        "OV023-vxlan",
        "OV023",
        &[
            ("all of it", |h| ticks(h, 20, 0, 20, 0), found),
            ("19 ticks say nothing", |h| ticks(h, 19, 0, 20, 0), &[]),
            ("19 ticks of the other say nothing", |h| ticks(h, 20, 0, 19, 0), &[]),
            ("90%", |h| ticks(h, 90, 10, 100, 0), found),
            ("89%", |h| ticks(h, 89, 11, 100, 0), &[]),
            ("the other is half idle", |h| ticks(h, 100, 0, 50, 50), found),
            ("the other is less than half idle", |h| ticks(h, 100, 0, 49, 51), &[]),
        ],
    );
    judge(
        "OV023-vxlan",
        "OV023",
        &[
            ("packets are spread", |h| device(h, "a", "nic0").rps = Some(vec!["3".into()]), &[]),
            ("two queues", |h| device(h, "a", "nic0").rps = Some(vec!["0".into(); 2]), &[]),
        ],
    );
}

#[test]
fn limits_of_the_machine() {
    fn squeezed(host: &mut Host, times: u32, seconds: f64) {
        host.interval_s = seconds;
        let pair = read(&mut host.machine.softnet);
        pair.after = pair.before.clone();
        let number = *pair.after.cpus.keys().next().unwrap();
        pair.after.cpus.get_mut(&number).unwrap().time_squeeze += times;
    }
    let squeeze: &[&str] = &["machine/network softirq 0.05"];
    judge(
        "OV026-vxlan",
        "OV026",
        &[
            ("10 a second", |h| squeezed(h, 10, 1.0), squeeze),
            ("11 a second", |h| squeezed(h, 11, 1.0), squeeze),
            ("9 a second", |h| squeezed(h, 9, 1.0), &[]),
            ("5 a second", |h| squeezed(h, 10, 2.0), &[]),
            ("20 a second", |h| squeezed(h, 10, 0.5), squeeze),
        ],
    );
    fn stolen(host: &mut Host, steal: u64, idle: u64) {
        let pair = read(&mut host.machine.cpu);
        pair.after.total = pair.before.total;
        pair.after.total.steal += steal;
        pair.after.total.idle += idle;
    }
    judge(
        "OV024-vxlan",
        "OV024",
        &[
            ("5%", |h| stolen(h, 50, 950), &[]),
            ("6%", |h| stolen(h, 60, 940), &["machine/CPUs 0.06"]),
            ("all", |h| stolen(h, 40, 0), &["machine/CPUs 1.00"]),
            ("all of few ticks", |h| stolen(h, 39, 0), &[]),
            ("no tick", |h| stolen(h, 0, 0), &[]),
        ],
    );
    fn table(host: &mut Host, entries: u64, limit: &str, fulls: u64) {
        let key = "net/ipv4/neigh/default/gc_thresh3";
        *read(host.machine.sysctls.get_mut(key).unwrap()) = limit.into();
        let pair = read(&mut host.machine.arp);
        pair.after.entries = entries;
        pair.after.fulls = pair.before.fulls + fulls;
    }
    let full: &[&str] = &["machine/IPv4 neighbour table 0.70"];
    judge(
        "OV040-vxlan",
        "OV040",
        &[
            ("90%", |h| table(h, 900, "1000", 0), &[]),
            ("above 90%", |h| table(h, 901, "1000", 0), full),
            ("no room was found", |h| table(h, 1, "1000", 1), full),
        ],
    );
}

/// From 85% on, the memory for fragments or the connection table is nearly full; a limit of 0 means
/// none.
#[test]
fn nearly_full_begins_at_85_percent() {
    fn memory(host: &mut Host, used: u64, limit: u64, v6: bool) {
        let memory = Memory { used, limit, packets: 3 };
        let reassembly = read(&mut namespace(host, "ns4").reassembly);
        (reassembly.v4, reassembly.v6) = (memory, v6.then_some(memory));
    }
    let v4: &[&str] = &["ns4/IPv4 fragments 0.90"];
    judge(
        "OV066-vxlan",
        "OV066",
        &[
            ("84.9%", |h| memory(h, 849, 1000, false), &[]),
            ("85%", |h| memory(h, 850, 1000, false), v4),
            ("85.1%", |h| memory(h, 851, 1000, false), v4),
            ("reassembly is off", |h| memory(h, 0, 0, false), &[]),
            (
                "both",
                |h| memory(h, 850, 1000, true),
                &["ns4/IPv4 fragments 0.90", "ns4/IPv6 fragments 0.90"],
            ),
        ],
    );
    fn entries(host: &mut Host, count: u64, max: u64) {
        for label in ["a", "b"] {
            let after = &mut read(&mut namespace(host, label).conntrack).after;
            (after.count, after.max) = if label == "a" { (count, max) } else { (0, 1000) };
        }
    }
    judge(
        "OV028-nat",
        "OV028",
        &[
            ("84.9%", |h| entries(h, 849, 1000), &[]),
            ("85%", |h| entries(h, 850, 1000), &["a/conntrack 0.77"]),
            ("full", |h| entries(h, 1000, 1000), &["a/conntrack 0.90"]),
            ("no limit", |h| entries(h, 1000, 0), &[]),
        ],
    );
}

/// OV055, OV058 and OV059.
#[test]
fn queues_and_who_takes_their_interrupts() {
    fn channels(host: &mut Host, rx: Amount, combined: Amount) {
        let tx = rx;
        device(host, "a", "nic0").channels = Some(Channels { rx, tx, combined });
    }
    const NONE: Amount = Amount { now: 0, most: 0 };
    const HALF: Amount = Amount { now: 1, most: 2 };
    const ALL: Amount = Amount { now: 2, most: 2 };
    let found: &[&str] = &["a/nic0 0.40"];
    judge(
        "OV055-vxlan",
        "OV055",
        &[
            ("queues for both ways", |h| channels(h, NONE, HALF), found),
            ("queues of their own", |h| channels(h, HALF, NONE), found),
            ("all queues for both ways", |h| channels(h, HALF, ALL), &[]),
            ("all of their own", |h| channels(h, ALL, NONE), &[]),
            (
                "it is down",
                |h| {
                    channels(h, NONE, HALF);
                    link(h, "a", "nic0").up = false;
                },
                &[],
            ),
        ],
    );
    fn cpus(host: &mut Host, count: usize) {
        read(&mut host.machine.facts).online_cpus = count;
    }
    judge(
        "OV058-vxlan",
        "OV058",
        &[
            ("as saved", |_| (), found),
            ("a single CPU", |h| cpus(h, 1), &[]),
            ("two CPUs", |h| cpus(h, 2), found),
            ("a device of software", |h| link(h, "a", "nic0").bus = None, &[]),
        ],
    );
    let far: &[&str] = &["a/nic0 0.15"];
    judge(
        "OV059-vxlan",
        "OV059",
        &[
            ("as saved", |_| (), far),
            ("a single node", |h| h.machine.nodes.retain(|node, _| *node == 0), &[]),
            ("a node without CPUs", |h| h.machine.nodes.values_mut().for_each(String::clear), &[]),
            (
                "no interrupt came",
                |h| {
                    let pair = read(&mut h.machine.interrupts);
                    pair.after = pair.before.clone();
                },
                &[],
            ),
            (
                "nobody takes them",
                |h| {
                    for interrupt in device(h, "a", "nic0").interrupts.iter_mut().flatten() {
                        interrupt.cpus.clear();
                    }
                },
                &[],
            ),
        ],
    );
}

/// OV023 names the device that receives most. Among devices that the same packets cross, it names
/// the NIC.
#[test]
fn the_busiest_nic_is_steered() {
    fn received(host: &mut Host, name: &str, packets: u64) {
        device(host, "a", name).rps = Some(vec!["0".into()]);
        let link = link(host, "a", name);
        let (index, before) = (link.index, link.counters.rx_packets);
        let later = read(&mut namespace(host, "a").later).get_mut(&index).unwrap();
        later.rx_packets = before + packets;
    }
    fn both(host: &mut Host, nic: u64, port: u64) {
        received(host, "nic0", nic);
        received(host, "veth0", port);
    }
    let (nic, port): (&[&str], &[&str]) = (&["a/nic0 0.40"], &["a/veth0 0.40"]);
    judge(
        "OV023-vxlan",
        "OV023",
        &[
            ("as many", |h| both(h, 1000, 1000), nic),
            ("a tenth less", |h| both(h, 900, 1000), nic),
            ("more than a tenth less", |h| both(h, 899, 1000), port),
            ("most", |h| both(h, 1000, 10), nic),
            ("none", |h| both(h, 0, 10), port),
            ("neither", |h| both(h, 0, 0), &[]),
        ],
    );
}

/// If the memory for fragments is nearly full, OV066 is reported, and its consequence (OV021) is
/// not.
#[test]
fn reassemblies_that_fail_of_lack_of_memory_are_said_once() {
    fn memory(host: &mut Host, used: u64, limit: u64) {
        // The host was saved before this field existed.
        let v4 = Memory { used, limit, packets: 3 };
        namespace(host, "tenant-b").reassembly =
            Reading::Read(Reassembly { v4, v6: None, seconds: 30 });
    }
    let found: &[&str] = &["tenant-b/received fragments 1.00"];
    judge(
        "OV021-vxlan",
        "OV021",
        &[
            ("84.9%", |h| memory(h, 849, 1000), found),
            ("85%", |h| memory(h, 850, 1000), &[]),
            ("reassembly is off", |h| memory(h, 0, 0), found),
        ],
    );
}

/// Failures are part of the evidence only if there are any.
#[test]
fn full_memory_is_said_without_failures_too() {
    let mut host = saved("OV066-vxlan");
    let evidence = |host: &Host| {
        let findings = doctor::diagnose(host).findings.into_iter();
        let mut found = findings.filter(|finding| finding.code == "OV066");
        found.next().unwrap().evidence.len()
    };
    assert_eq!(evidence(&host), 2);
    let snmp = read(&mut namespace(&mut host, "ns4").snmp);
    snmp.after = snmp.before;
    assert_eq!(evidence(&host), 1);
}
