//! OV100 to OV108: VLANs, policers, gateways, routes and rules of tenants, tunnels' packets on the
//! way.

use doctor::host::{Filtered, Reading};
use netstate::policer::Policer;

use super::saved::{judge, link, namespace, read};

#[test]
fn ports_without_their_vlan_are_found() {
    judge(
        "OV100-guest",
        "OV100",
        &[
            (
                "as saved",
                |_| (),
                &["here/veth7 1.00", "here/veth8 1.00", "here/veth9 1.00", "here/veth10 1.00"],
            ),
            (
                "without filtering",
                |host| {
                    let links = read(&mut namespace(host, "here").interfaces);
                    links.iter_mut().filter_map(|link| link.bridge.as_mut()).for_each(|bridge| {
                        bridge.vlan_filtering = false;
                    });
                },
                &[],
            ),
            (
                "all untagged in the tunnel's VLAN",
                |host| {
                    let all = read(&mut namespace(host, "here").vlans);
                    for vlans in all {
                        (vlans.first, vlans.last) = (1, 1);
                        (vlans.pvid, vlans.untagged) = (true, true);
                    }
                },
                // It is a member of no VLAN.
                &["here/veth7 1.00"],
            ),
            (
                "down",
                |host| link(host, "here", "veth7").up = false,
                &["here/veth8 1.00", "here/veth9 1.00", "here/veth10 1.00"],
            ),
        ],
    );
}

/// The policers of the second reading.
fn policers(host: &mut doctor::Host) -> &mut Vec<Policer> {
    &mut read(&mut namespace(host, "here").policers).after
}

#[test]
fn a_policer_needs_the_burst_of_a_gso_packet() {
    let both: &[&str] = &["here/veth5 0.90", "here/veth6 0.90"];
    judge(
        "OV101-guest",
        "OV101",
        &[
            ("as saved", |_| (), both),
            (
                "a burst that fits",
                |host| policers(host)[0].burst = 65_536,
                &["here/veth6 0.90", "here/veth5 0.10"],
            ),
            ("nearly", |host| policers(host)[0].burst = 65_535, both),
            ("marks", |host| policers(host).iter_mut().for_each(|one| one.exceed = 3), &[]),
        ],
    );
}

#[test]
fn the_bridge_has_the_gateway_of_its_tenants() {
    judge(
        "OV102-case104",
        "OV102",
        &[
            ("as saved", |_| (), &["ns1/br3 1.00"]),
            ("no gateway", |host| read(&mut namespace(host, "ns3").routes).clear(), &[]),
            ("a guest's device", |host| link(host, "ns1", "veth4").kind = Some("tun".into()), &[]),
            ("without a bridge", |host| link(host, "ns1", "veth4").master = None, &[]),
        ],
    );
}

#[test]
fn a_route_leads_to_the_tenant_with_the_address() {
    judge(
        "OV103-case108",
        "OV103",
        &[
            ("as saved", |_| (), &["ns1/veth4 1.00"]),
            ("no route", |host| read(&mut namespace(host, "ns1").routes).clear(), &[]),
            (
                "the tenant's device",
                |host| {
                    let right = link(host, "ns1", "veth3").index;
                    let wrong = link(host, "ns1", "veth4").index;
                    let routes = read(&mut namespace(host, "ns1").routes);
                    routes.iter_mut().filter(|route| route.link == Some(wrong)).for_each(|route| {
                        route.link = Some(right);
                    });
                },
                &[],
            ),
            ("no longer there", |host| link(host, "ns3", "veth5").up = false, &[]),
        ],
    );
}

#[test]
fn rules_before_the_main_table_are_judged_by_addresses_alone() {
    judge(
        "OV104-case101",
        "OV104",
        &[
            ("as saved", |_| (), &["ns1/vxlan2 1.00"]),
            ("no rule", |host| read(&mut namespace(host, "ns1").rules).clear(), &[]),
            ("of IPv6", |host| read(&mut namespace(host, "ns1").rules)[0].ipv6 = true, &[]),
            ("a mark", |host| read(&mut namespace(host, "ns1").rules)[0].marked = true, &[]),
            ("later", |host| read(&mut namespace(host, "ns1").rules)[0].priority = 32_766, &[]),
            (
                "suppressed",
                |host| read(&mut namespace(host, "ns1").rules)[0].suppress = Some(24),
                &[],
            ),
            (
                "for others",
                |host| {
                    let from = Some(([203, 0, 113, 0].into(), 24));
                    read(&mut namespace(host, "ns1").rules)[0].from = from;
                },
                &[],
            ),
            ("of another table", |host| read(&mut namespace(host, "ns1").rules)[0].table = 9, &[]),
            ("not read", |host| namespace(host, "ns1").rules = Reading::Unread("no".into()), &[]),
        ],
    );
}

#[test]
fn one_hop_is_too_few_behind_a_router() {
    judge(
        "OV105-case111",
        "OV105",
        &[
            ("as saved", |_| (), &["ns3/vxlan5 1.00"]),
            ("two", |host| link(host, "ns3", "vxlan5").vxlan.as_mut().unwrap().ttl = 2, &[]),
            (
                "the default",
                |host| link(host, "ns3", "vxlan5").vxlan.as_mut().unwrap().ttl = 0,
                &[],
            ),
            (
                "without a router",
                |host| {
                    for tunnel in &mut namespace(host, "ns3").tunnels {
                        tunnel.ways.iter_mut().for_each(|(_, way)| read(way).via = None);
                    }
                },
                &[],
            ),
        ],
    );
}

#[test]
fn an_xdp_program_of_an_underlay_is_named() {
    judge(
        "OV106-case119",
        "OV106",
        &[
            ("as saved", |_| (), &["ns1/veth1 0.20"]),
            ("none", |host| link(host, "ns1", "veth1").xdp = None, &[]),
        ],
    );
}

#[test]
fn a_rule_that_cannot_be_decided_is_named_once() {
    judge(
        "OV107-case117",
        "OV107",
        &[
            ("as saved", |_| (), &["ns1/ip filter INPUT 0.20"]),
            (
                "decided",
                |host| {
                    let passages = read(&mut namespace(host, "ns1").passages);
                    passages.iter_mut().for_each(|one| one.verdict = Filtered::Passed);
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_duplicate_address_is_an_error() {
    judge(
        "OV108-case113",
        "OV108",
        &[
            ("as saved", |_| (), &["ns4/veth6 1.00"]),
            (
                "of the link",
                |host| {
                    for known in read(&mut namespace(host, "ns4").addresses) {
                        if known.duplicate {
                            known.address = "fe80::1".parse().unwrap();
                        }
                    }
                },
                &["ns4/veth6 0.10"],
            ),
            (
                "in use",
                |host| {
                    for known in read(&mut namespace(host, "ns4").addresses) {
                        known.duplicate = false;
                    }
                },
                &[],
            ),
        ],
    );
}

/// The verdicts on packets to the outside and to the host's servers.
fn verdicts(host: &mut doctor::Host, change: fn(&mut Filtered)) {
    let passages = read(&mut namespace(host, "ns1").passages);
    passages.iter_mut().for_each(|one| change(&mut one.verdict));
}

#[test]
fn a_bridge_needs_no_tunnel_to_be_cut_off_from_the_uplink() {
    judge(
        "OV073-case120",
        "OV073",
        &[
            ("as saved", |_| (), &["ns1/ip table2 chain4 1.00", "ns1/ip table2 chain4 1.00"]),
            (
                "a rule for an isolated network",
                |host| {
                    verdicts(host, |verdict| {
                        if let Filtered::Dropped { is_meant, .. } = verdict {
                            *is_meant = true;
                        }
                    });
                },
                &["ns1/ip table2 chain4 0.10", "ns1/ip table2 chain4 0.10"],
            ),
            (
                "beside an open tunnel",
                |host| {
                    let all = read(&mut namespace(host, "ns1").passages);
                    let mut way = all
                        .iter()
                        .find(|one| one.kind == doctor::host::PassageKind::Outside)
                        .unwrap()
                        .clone();
                    way.kind = doctor::host::PassageKind::Forward;
                    way.verdict = Filtered::Passed;
                    all.push(way);
                },
                &["ns1/ip table2 chain4 0.30", "ns1/ip table2 chain4 0.30"],
            ),
            ("accepted", |host| verdicts(host, |verdict| *verdict = Filtered::Passed), &[]),
        ],
    );
}

#[test]
fn each_server_of_the_host_that_guests_cannot_reach_is_named() {
    const ONE: &str = "ns1/ip table2 chain4 0.50";
    judge(
        "OV073-case121",
        "OV073",
        &[
            ("as saved", |_| (), &[ONE, ONE]),
            (
                "DNS alone",
                |host| read(&mut namespace(host, "ns1").passages).retain(|one| one.port != 67),
                &[ONE],
            ),
            ("accepted", |host| verdicts(host, |verdict| *verdict = Filtered::Passed), &[]),
        ],
    );
}

#[test]
fn a_stale_connection_leads_where_no_rule_does() {
    fn translations(host: &mut doctor::Host) -> &mut doctor::host::Translations {
        read(&mut namespace(host, "ns1").translations)
    }
    judge(
        "OV109-case124",
        "OV109",
        &[
            ("as saved", |_| (), &["ns1/conntrack 0.90"]),
            (
                "TCP",
                |host| {
                    translations(host).stalled.iter_mut().flatten().for_each(|one| one.protocol = 6)
                },
                &[],
            ),
            ("a map may lead to it", |host| translations(host).all_constant = false, &[]),
            ("answered", |host| translations(host).stalled = None, &[]),
            ("without rules", |host| translations(host).rules.clear(), &[]),
            (
                "a rule leads to it",
                |host| {
                    let all = translations(host);
                    let now = all.stalled.as_ref().unwrap()[0].now;
                    all.rules[0].to = now;
                },
                // Then that rule is the fault: its address does not answer.
                &["ns1/ip nat-table1 chain2 0.90"],
            ),
        ],
    );
}

#[test]
fn a_rule_that_takes_the_port_of_a_tunnel_is_named_once() {
    judge(
        "OV109-case125",
        "OV109",
        &[
            (
                "as saved",
                |_| (),
                &["ns1/ip nat-table1 chain2 1.00", "ns1/ip nat-table1 chain2 0.90"],
            ),
            (
                "the target answers",
                |host| read(&mut namespace(host, "ns1").neighbours).clear(),
                &["ns1/ip nat-table1 chain2 1.00"],
            ),
            (
                "the tunnel keeps its port",
                |host| verdicts(host, |verdict| *verdict = Filtered::Passed),
                &["ns1/ip nat-table1 chain2 0.90"],
            ),
        ],
    );
}

#[test]
fn a_tunnel_bound_to_the_wrong_nic_is_named() {
    judge(
        "OV036-case128",
        "OV036",
        &[
            ("as saved", |_| (), &["ns1/vxlan5 1.00"]),
            (
                "unbound",
                |host| link(host, "ns1", "vxlan5").vxlan.as_mut().unwrap().device = None,
                &[],
            ),
            (
                "the remote answers",
                |host| read(&mut namespace(host, "ns1").neighbours).clear(),
                &[],
            ),
        ],
    );
}

#[test]
fn arp_ignore_matters_from_eight() {
    fn set(host: &mut doctor::Host, value: &str) {
        let all = &mut namespace(host, "ns1").sysctls;
        all.insert("net/ipv4/conf/all/arp_ignore".into(), value.into());
    }
    judge(
        "OV036-case131",
        "OV036",
        &[
            ("as saved", |_| (), &["ns1/veth1 1.00"]),
            ("as LVS sets it", |host| set(host, "1"), &[]),
            ("for scopes", |host| set(host, "3"), &[]),
        ],
    );
}

#[test]
fn groups_of_one_overlay_are_the_same() {
    judge(
        "OV083-case129",
        "OV083",
        &[
            ("as saved", |_| (), &["ns1/vxlan4 1.00", "ns2/vxlan4 1.00"]),
            (
                "another overlay",
                |host| link(host, "ns1", "vxlan4").vxlan.as_mut().unwrap().vni = 7,
                &[],
            ),
            (
                "one remote",
                |host| {
                    let remote = Some("10.0.0.99".parse().unwrap());
                    link(host, "ns1", "vxlan4").vxlan.as_mut().unwrap().remote = remote;
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_tenant_in_a_closed_bridge_is_missed_by_its_network() {
    judge(
        "OV097-case130",
        "OV097",
        &[
            ("as saved", |_| (), &["ns2/veth4 1.00"]),
            ("nobody asks", |host| read(&mut namespace(host, "ns3").neighbours).clear(), &[]),
            ("the host's end is down", |host| link(host, "ns2", "veth4").up = false, &[]),
        ],
    );
}

#[test]
fn a_tenant_ignores_echo_requests_that_come() {
    judge(
        "OV098-case132",
        "OV098",
        &[
            ("as saved", |_| (), &["ns2/net.ipv4.icmp_echo_ignore_all 0.40"]),
            (
                "nobody asks",
                |host| {
                    let pair = read(&mut namespace(host, "ns2").snmp);
                    pair.after = pair.before;
                },
                &[],
            ),
            (
                "off",
                |host| {
                    let all = &mut namespace(host, "ns2").sysctls;
                    all.insert("net/ipv4/icmp_echo_ignore_all".into(), "0".into());
                },
                &[],
            ),
        ],
    );
}

#[test]
fn ipsec_drops_are_counted_between_the_readings() {
    judge(
        "OV110-case133",
        "OV110",
        &[
            ("as saved", |_| (), &["ns1/xfrm 0.90"]),
            (
                "earlier",
                |host| {
                    let pair = read(&mut namespace(host, "ns1").xfrm);
                    pair.before = pair.after.clone();
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_source_of_an_idle_bridge_has_no_way_back() {
    judge(
        "OV078-case122",
        "OV078",
        &[
            ("as saved", |_| (), &["ns1/vxlan2 0.90"]),
            (
                "no source",
                |host| {
                    let routes = read(&mut namespace(host, "ns1").routes);
                    routes.iter_mut().for_each(|route| route.source = None);
                },
                &[],
            ),
            ("a NIC's", |host| link(host, "ns1", "br5").kind = None, &[]),
        ],
    );
}
