//! OV095 to OV099: links that flap, prefixes, filters and routes of tenants.

use std::net::{IpAddr, Ipv4Addr};

use doctor::Host;
use doctor::host::{Filtered, Passage, PassageKind, Reading};
use netstate::entry::{Knowledge, Neighbour};

use super::saved::{judge, link, namespace, read};

fn carrier(host: &mut Host, changes: u64) {
    let nic = link(host, "a", "nic0").index;
    read(&mut namespace(host, "a").later).get_mut(&nic).unwrap().carrier_changes += changes;
}

#[test]
fn a_nic_that_loses_its_carrier_flaps() {
    judge(
        "vxlan",
        "OV095",
        &[
            ("as saved", |_| (), &[]),
            ("once", |host| carrier(host, 1), &["a/nic0 1.00"]),
            (
                "it came up",
                |host| {
                    link(host, "a", "nic0").carrier = false;
                    carrier(host, 1);
                },
                &[],
            ),
            (
                "it came up and went down",
                |host| {
                    link(host, "a", "nic0").carrier = false;
                    carrier(host, 2);
                },
                &["a/nic0 1.00"],
            ),
        ],
    );
}

/// Sets the prefix length of a tenant's IPv4 address, and returns the address.
fn prefix(host: &mut Host, label: &str, length: u8) -> IpAddr {
    let eth0 = link(host, label, "eth0").index;
    let all = read(&mut namespace(host, label).addresses).iter_mut();
    let mut own = all.filter(|known| known.link == eth0);
    let known = own.find(|known| known.address.is_ipv4()).unwrap();
    known.prefix = length;
    known.address
}

/// Lets tenant-a seek an address of its own /16 that is outside its /24.
fn seeks(host: &mut Host) {
    let link = link(host, "tenant-a", "eth0").index;
    let IpAddr::V4(own) = prefix(host, "tenant-a", 16) else { unreachable!() };
    let address = IpAddr::from(Ipv4Addr::from(u32::from(own) ^ 0x100));
    let (mac, knowledge) = (None, Knowledge::Failed);
    let failed = Neighbour { link, address, mac, knowledge, external: false, noarp: false };
    read(&mut namespace(host, "tenant-a").neighbours).push(failed);
}

#[test]
fn different_prefixes_are_a_fault_if_packets_are_lost() {
    judge(
        "vxlan",
        "OV096",
        &[
            ("as saved", |_| (), &[]),
            (
                "both have it",
                |host| {
                    prefix(host, "tenant-a", 16);
                    prefix(host, "tenant-b", 16);
                },
                &[],
            ),
            ("nothing is lost", |host| _ = prefix(host, "tenant-a", 16), &["tenant-b/eth0 0.02"]),
            ("a single address", |host| _ = prefix(host, "tenant-b", 32), &[]),
            ("a neighbour is sought", seeks, &["tenant-a/eth0 0.90"]),
        ],
    );
}

fn passage(host: &mut Host, kind: PassageKind, verdict: Filtered) {
    let [from, to] = [3, 2].map(|last| IpAddr::from([192, 0, 2, last]));
    let input = link(host, "tenant-a", "eth0").index;
    let (port, output, longest, mark, routed) = (80, 0, None, 0, None);
    let passage = Passage { kind, from, to, port, input, output, verdict, longest, mark, routed };
    namespace(host, "tenant-a").passages = Reading::Read(vec![passage]);
}

fn dropped() -> Filtered {
    let [family, table, chain] = ["ip", "filter", "INPUT"].map(str::to_owned);
    Filtered::Dropped { family, table, chain, handle: Some(4), is_meant: false }
}

#[test]
fn filters_of_tenants_are_remarks() {
    judge(
        "vxlan",
        "OV098",
        &[
            (
                "echo requests",
                |host| passage(host, PassageKind::TenantEcho, dropped()),
                &["tenant-a/ip filter INPUT 0.40"],
            ),
            (
                "a port",
                |host| passage(host, PassageKind::TenantService, dropped()),
                &["tenant-a/ip filter INPUT 0.40"],
            ),
            ("passed", |host| passage(host, PassageKind::TenantEcho, Filtered::Passed), &[]),
            ("not its own", |host| passage(host, PassageKind::ForwardEcho, dropped()), &[]),
        ],
    );
}

#[test]
fn packets_without_a_route_are_counted() {
    judge(
        "vxlan",
        "OV099",
        &[
            ("as saved", |_| (), &[]),
            (
                "a program's",
                |host| {
                    let snmp = read(&mut namespace(host, "tenant-a").snmp);
                    snmp.after.ip.out_no_routes = snmp.before.ip.out_no_routes + 3;
                },
                &["tenant-a/routes 0.30"],
            ),
            (
                "forwarded",
                |host| {
                    let snmp = read(&mut namespace(host, "a").snmp);
                    snmp.after.ip_ext.in_no_routes = snmp.before.ip_ext.in_no_routes + 3;
                },
                &["a/routes 0.30"],
            ),
            ("echo requests", |host| echoes(host, 3, 0), &["tenant-a/routes 0.50"]),
            (
                "routes unread",
                |host| {
                    echoes(host, 3, 0);
                    namespace(host, "tenant-a").routes = Reading::Unread("no right".to_owned());
                },
                &[],
            ),
            (
                "to a broadcast address",
                |host| {
                    echoes(host, 3, 0);
                    let snmp = read(&mut namespace(host, "tenant-a").snmp);
                    snmp.after.ip_ext.in_bcast_pkts = snmp.before.ip_ext.in_bcast_pkts + 3;
                },
                &[],
            ),
            ("one under way", |host| echoes(host, 3, 2), &[]),
            (
                "ignored on purpose",
                |host| {
                    echoes(host, 3, 0);
                    let setting = "net/ipv4/icmp_echo_ignore_all".to_owned();
                    namespace(host, "tenant-a").sysctls.insert(setting, "1".to_owned());
                },
                &[],
            ),
        ],
    );
}

/// Adds echo requests that tenant-a received and answered.
fn echoes(host: &mut Host, asked: u64, answered: u64) {
    let snmp = read(&mut namespace(host, "tenant-a").snmp);
    snmp.after.icmp.in_echos = snmp.before.icmp.in_echos + asked;
    snmp.after.icmp.out_echo_reps = snmp.before.icmp.out_echo_reps + answered;
    namespace(host, "tenant-a").routes = Reading::Read(Vec::new());
}

#[test]
fn a_tenant_outside_all_bridges_is_found_while_it_seeks_neighbours() {
    judge(
        "OV097-case82",
        "OV097",
        &[
            ("as saved", |_| (), &["ns2/veth4 1.00"]),
            ("down", |host| link(host, "ns2", "veth4").up = false, &[]),
            (
                "served by other means",
                |host| {
                    let port = link(host, "ns2", "veth4").index;
                    read(&mut namespace(host, "ns2").later).get_mut(&port).unwrap().tx_packets += 1;
                },
                &[],
            ),
            ("without bridges", |host| link(host, "ns2", "br3").up = false, &[]),
            ("it seeks nobody", |host| read(&mut namespace(host, "ns4").neighbours).clear(), &[]),
            (
                "routed",
                |host| {
                    let port = link(host, "ns2", "veth4").index;
                    read(&mut namespace(host, "ns2").routes)[0].link = Some(port);
                },
                &[],
            ),
        ],
    );
}
