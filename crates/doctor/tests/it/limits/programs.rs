//! OV115 to OV121, and OV051 on loopback devices: programs that are not reached, and the devices
//! between a tenant and its host.

use doctor::Host;
use doctor::host::Reading;
use netstate::entry::Knowledge;

use super::saved::{judge, link, namespace, read};

const BRIDGE_NF: &str = "net/bridge/bridge-nf-call-iptables";

/// Makes all neighbours of a namespace answer.
fn answered(host: &mut Host, label: &str) {
    for known in read(&mut namespace(host, label).neighbours) {
        known.knowledge = Knowledge::Usable;
    }
}

#[test]
fn a_loopback_device_matters_where_programs_are() {
    judge(
        "OV051-case159",
        "OV051",
        &[
            ("as saved", |_| (), &["ns2/lo 0.50"]),
            ("up", |host| link(host, "ns2", "lo").up = true, &[]),
            ("no program", |host| namespace(host, "ns2").member_count = 0, &[]),
            ("no other device", |host| link(host, "ns2", "veth5").up = false, &[]),
        ],
    );
}

#[test]
fn an_answer_bypasses_translation_on_one_bridge_without_br_netfilter() {
    const FOUND: &[&str] = &["ns1/br3 0.90"];
    judge(
        "OV115-case160",
        "OV115",
        &[
            ("as saved", |_| (), FOUND),
            (
                "br_netfilter is not loaded",
                |host| {
                    namespace(host, "ns1").sysctls.remove(BRIDGE_NF);
                },
                FOUND,
            ),
            (
                "the rules see bridged frames",
                |host| {
                    namespace(host, "ns1").sysctls.insert(BRIDGE_NF.to_owned(), "1".to_owned());
                },
                &[],
            ),
            (
                "by a setting of the bridge",
                |host| link(host, "ns1", "br3").bridge.as_mut().unwrap().call_iptables = true,
                &[],
            ),
            (
                "every connection was answered",
                |host| read(&mut namespace(host, "ns1").translations).stalled = Some(Vec::new()),
                &[],
            ),
            (
                "the endpoint is elsewhere",
                |host| {
                    let all = read(&mut namespace(host, "ns1").translations);
                    let stalled = all.stalled.as_mut().unwrap();
                    stalled.iter_mut().for_each(|one| one.now = super::elsewhere());
                },
                &[],
            ),
            (
                "a tenant asks itself",
                |host| {
                    let all = read(&mut namespace(host, "ns1").translations);
                    let stalled = all.stalled.as_mut().unwrap();
                    stalled.iter_mut().for_each(|one| one.from = one.now);
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_queue_is_full_if_connections_are_dropped() {
    judge(
        "OV116-case165",
        "OV116",
        &[
            ("as saved", |_| (), &["ns2/TCP sockets 0.86"]),
            (
                "accepted since",
                |host| read(&mut namespace(host, "ns2").listeners).clear(),
                &["ns2/TCP sockets 0.86"],
            ),
            (
                "nothing dropped",
                |host| {
                    let pair = read(&mut namespace(host, "ns2").snmp);
                    pair.after.tcp_ext.listen_overflows = pair.before.tcp_ext.listen_overflows;
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_program_of_a_tenant_listens_for_itself_only() {
    judge(
        "OV117-case167",
        "OV117",
        &[
            ("as saved", |_| (), &["ns2/TCP sockets 0.25"]),
            (
                "nothing refused",
                |host| {
                    let pair = read(&mut namespace(host, "ns2").snmp);
                    pair.after.tcp.out_rsts = pair.before.tcp.out_rsts;
                },
                &[],
            ),
            (
                "another socket at the port",
                |host| {
                    let all = read(&mut namespace(host, "ns2").listeners);
                    let mut open = all[0].clone();
                    open.address = super::elsewhere();
                    all.push(open);
                },
                &[],
            ),
            ("no socket", |host| read(&mut namespace(host, "ns2").listeners).clear(), &[]),
            (
                "a host, not a tenant",
                |host| link(host, "ns2", "veth5").bridge = Some(Default::default()),
                &[],
            ),
        ],
    );
    judge(
        "OV117-case170",
        "OV117",
        &[
            ("as saved", |_| (), &["ns2/127.0.0.11 port 53 0.90"]),
            (
                "rules lead there",
                |host| read(&mut namespace(host, "ns2").chains).push(super::chain("ip", "nat")),
                &[],
            ),
            (
                "nothing lost",
                |host| {
                    let pair = read(&mut namespace(host, "ns2").snmp);
                    pair.after.udp.no_ports = pair.before.udp.no_ports;
                },
                &[],
            ),
            ("no resolver", |host| read(&mut namespace(host, "ns2").udp_sockets).clear(), &[]),
        ],
    );
}

#[test]
fn ipv6_matters_where_the_network_has_it() {
    const KEY: &str = "net/ipv6/conf/veth5/disable_ipv6";
    judge(
        "OV118-case168",
        "OV118",
        &[
            ("as saved", |_| (), &["ns2/veth5 0.50"]),
            (
                "enabled",
                |host| {
                    namespace(host, "ns2").sysctls.insert(KEY.to_owned(), "0".to_owned());
                },
                &[],
            ),
            ("nobody asks", |host| answered(host, "ns1"), &["ns2/veth5 0.02"]),
            ("the device is down", |host| link(host, "ns2", "veth5").up = false, &[]),
            (
                "the network has IPv4 only",
                |host| read(&mut namespace(host, "ns1").addresses).clear(),
                &[],
            ),
        ],
    );
}

#[test]
fn a_macvlan_and_its_host_are_apart_if_one_asks() {
    judge(
        "OV119-case172",
        "OV119",
        &[
            ("as saved", |_| (), &["ns2/dev5 0.50"]),
            ("nobody asks", |host| answered(host, "ns2"), &[]),
            (
                "the address is another host's",
                |host| read(&mut namespace(host, "ns1").addresses).clear(),
                &[],
            ),
            (
                "another kind of device",
                |host| link(host, "ns2", "dev5").kind = Some("veth".to_owned()),
                &[],
            ),
        ],
    );
}

#[test]
fn noarp_matters_on_devices_with_neighbours() {
    judge(
        "OV120-case164",
        "OV120",
        &[
            ("as saved", |_| (), &["ns2/veth5 1.00"]),
            ("with ARP", |host| link(host, "ns2", "veth5").noarp = false, &[]),
            ("down", |host| link(host, "ns2", "veth5").up = false, &[]),
            (
                "a device that needs no addresses",
                |host| link(host, "ns2", "veth5").kind = Some("ipvlan".to_owned()),
                &[],
            ),
            (
                "no neighbour",
                |host| {
                    for namespace in &mut host.namespaces {
                        namespace.neighbours = Reading::Read(Vec::new());
                    }
                },
                &[],
            ),
        ],
    );
}

#[test]
fn extensions_differ_where_headers_are_refused() {
    judge(
        "OV121-case171",
        "OV121",
        &[
            ("as saved", |_| (), &["ns2/vxlan4 0.33"]),
            (
                "the same at both ends",
                |host| link(host, "ns1", "vxlan4").vxlan.as_mut().unwrap().gbp = false,
                &[],
            ),
            (
                "another network",
                |host| link(host, "ns1", "vxlan4").vxlan.as_mut().unwrap().vni = 7,
                &[],
            ),
            (
                "nothing refused",
                |host| {
                    let index = link(host, "ns2", "vxlan4").index;
                    let before = link(host, "ns2", "vxlan4").counters;
                    read(&mut namespace(host, "ns2").later).insert(index, before);
                },
                &[],
            ),
        ],
    );
}
