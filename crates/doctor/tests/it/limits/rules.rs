//! OV111 to OV114, and what other checks read of counters, filters of traffic control, marks and
//! ARP.

use doctor::Host;
use doctor::host::{DropRule, Filtered, Reading};
use netstate::route::Routed;
use netstate::tc_filter::{Effect, Filter};

use super::saved::{judge, link, namespace, read};

fn drops(host: &mut Host) -> &mut Vec<DropRule> {
    &mut read(&mut namespace(host, "ns1").drop_rules).after
}

/// The filters of the second reading.
fn filters(host: &mut Host) -> &mut Vec<Filter> {
    &mut read(&mut namespace(host, "ns2").filters).after
}

#[test]
fn a_rule_that_drops_between_the_readings_is_a_remark() {
    const INVALID: &str = "ns1/ip table2 chain2 0.30";
    judge(
        "OV111-case136",
        "OV111",
        &[
            ("as saved", |_| (), &[INVALID]),
            (
                "nothing moved",
                |host| {
                    let pair = read(&mut namespace(host, "ns1").drop_rules);
                    pair.after = pair.before.clone();
                },
                &[],
            ),
            (
                "a new rule",
                |host| drops(host).iter_mut().for_each(|one| one.handle = Some(99)),
                &[],
            ),
            (
                "for the host, and the tunnel's packets pass",
                |host| drops(host).iter_mut().for_each(|one| one.for_host = true),
                &[],
            ),
            (
                "nobody depends on the rules",
                |host| namespace(host, "ns1").passages = Reading::Read(Vec::new()),
                &[],
            ),
        ],
    );
    judge(
        "OV111-case135",
        "OV111",
        &[
            ("as saved", |_| (), &["ns1/ip table1 chain1 0.30"]),
            (
                "nothing is translated",
                |host| read(&mut namespace(host, "ns1").translations).rules.clear(),
                &[],
            ),
            ("any destination", |host| drops(host).iter_mut().for_each(|one| one.to = None), &[]),
            (
                "the host's own address",
                |host| {
                    let own = read(&mut namespace(host, "ns1").addresses);
                    let own = own.iter().find(|known| known.link == 2).unwrap().address;
                    drops(host).iter_mut().for_each(|one| one.to = Some(own));
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_service_without_endpoints_needs_refused_connections() {
    judge(
        "OV112-case151",
        "OV112",
        &[
            ("as saved", |_| (), &["ns1/ip table1 chain3 0.25"]),
            (
                "nothing refused",
                |host| {
                    for namespace in &mut host.namespaces {
                        let pair = read(&mut namespace.snmp);
                        pair.after = pair.before;
                    }
                },
                &[],
            ),
            (
                "with endpoints",
                |host| read(&mut namespace(host, "ns1").translations).rejected.clear(),
                &[],
            ),
        ],
    );
}

#[test]
fn tenants_without_masquerading_get_nothing_back() {
    fn moved(host: &mut Host, label: &str, device: &str, change: fn(&mut netstate::Counters)) {
        let index = link(host, label, device).index;
        change(read(&mut namespace(host, label).later).get_mut(&index).unwrap());
    }
    judge(
        "OV113-case137",
        "OV113",
        &[
            ("as saved", |_| (), &["ns1/br3 0.28"]),
            ("answered", |host| moved(host, "ns1", "veth4", |one| one.tx_packets += 9), &[]),
            ("by the tunnel", |host| moved(host, "ns1", "vxlan2", |one| one.tx_packets += 9), &[]),
            (
                "a rule may translate",
                |host| {
                    let chains = &mut namespace(host, "ns1").chains;
                    *chains = Reading::Read(vec![super::chain("ip", "nat")]);
                },
                &[],
            ),
            (
                "no forwarding",
                |host| {
                    namespace(host, "ns1").sysctls.insert("net/ipv4/ip_forward".into(), "0".into());
                },
                &[],
            ),
        ],
    );
}

#[test]
fn tenants_in_the_network_of_the_uplink_need_an_answer() {
    fn on(host: &mut Host) {
        let key = "net/ipv6/conf/veth1/proxy_ndp";
        namespace(host, "ns1").sysctls.insert(key.into(), "1".into());
    }
    judge(
        "OV114-case152",
        "OV114",
        &[
            ("as saved", |_| (), &["ns1/br2 0.30"]),
            ("without an entry", on, &["ns1/br2 0.30"]),
            (
                "with an entry",
                |host| {
                    on(host);
                    let link = link(host, "ns1", "veth1").index;
                    let known = read(&mut namespace(host, "ns2").addresses);
                    let global = known.iter().find(|one| one.prefix == 112).unwrap().address;
                    namespace(host, "ns1").proxied = Reading::Read(vec![(link, global)]);
                },
                &[],
            ),
            (
                "a network of its own",
                |host| {
                    let index = link(host, "ns1", "veth1").index;
                    let known = read(&mut namespace(host, "ns1").addresses);
                    known.retain(|one| one.link != index);
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_filter_that_loses_packets_is_named() {
    judge(
        "OV048-case146",
        "OV048",
        &[
            ("as saved", |_| (), &["ns2/veth5 1.00"]),
            (
                "another effect",
                |host| filters(host).iter_mut().for_each(|one| one.effect = Effect::Drops),
                // All of its packets: the device sent none.
                &["ns2/veth5 1.00"],
            ),
        ],
    );
}

#[test]
fn a_rule_for_a_mark_takes_forwarded_packets() {
    fn routed(host: &mut Host, value: Option<Reading<Routed>>) {
        let all = read(&mut namespace(host, "ns1").passages);
        all.iter_mut().for_each(|one| one.routed = value.clone());
    }
    let here: &[&str] = &["ns1/vxlan2 1.00"];
    judge(
        "OV104-case143",
        "OV104",
        &[
            ("as saved", |_| (), here),
            ("not asked", |host| routed(host, None), &[]),
            (
                "no route",
                |host| routed(host, Some(Reading::Unread("find route: ENETUNREACH".into()))),
                here,
            ),
            (
                "the source is refused",
                |host| routed(host, Some(Reading::Unread("find route: EINVAL".into()))),
                &[],
            ),
            (
                "by the right device",
                |host| {
                    let index = link(host, "ns1", "br3").index;
                    routed(host, Some(Reading::Read(Routed::Out(index))));
                },
                &[],
            ),
            ("no rule for it", |host| read(&mut namespace(host, "ns1").rules).clear(), &[]),
        ],
    );
}

#[test]
fn rules_for_arp_are_asked_about_the_tunnel() {
    judge(
        "OV071-case149",
        "OV071",
        &[
            ("as saved", |_| (), &["ns1/arp table1 chain1 1.00"]),
            (
                "accepted",
                |host| {
                    let all = read(&mut namespace(host, "ns1").passages);
                    all.iter_mut().for_each(|one| one.verdict = Filtered::Passed);
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_port_without_hairpin_keeps_a_tenant_from_its_own_service() {
    judge(
        "OV075-case138",
        "OV075",
        &[
            ("as saved", |_| (), &["ns1/veth4 0.29"]),
            (
                "hairpin",
                |host| link(host, "ns1", "veth4").port.as_mut().unwrap().hairpin = true,
                &[],
            ),
            (
                "no rule leads to it",
                |host| read(&mut namespace(host, "ns1").translations).rules.clear(),
                &[],
            ),
        ],
    );
}

#[test]
fn one_of_several_next_hops_is_dead() {
    judge(
        "OV078-case141",
        "OV078",
        &[
            ("as saved", |_| (), &["ns1/veth1 0.50"]),
            (
                "it answers",
                |host| read(&mut namespace(host, "ns1").neighbours).retain(|one| one.mac.is_some()),
                &[],
            ),
        ],
    );
}

#[test]
fn a_route_to_a_remote_leads_by_another_nic() {
    judge(
        "OV036-case144",
        "OV036",
        &[
            ("as saved", |_| (), &["ns1/vxlan2 1.00"]),
            (
                "an address of loopback",
                |host| {
                    let own = read(&mut namespace(host, "ns1").addresses);
                    own.iter_mut().for_each(|known| known.link = 1);
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_host_loses_its_own_messages_about_large_packets() {
    judge(
        "OV073-case158",
        "OV073",
        &[
            ("as saved", |_| (), &["ns1/ip table1 chain1 1.00"]),
            (
                "nobody sends large packets",
                |host| {
                    let pair = read(&mut namespace(host, "ns1").snmp);
                    pair.after = pair.before;
                },
                &["ns1/ip table1 chain1 0.20"],
            ),
        ],
    );
}

#[test]
fn a_tenant_answers_by_its_other_network() {
    judge("OV103-case154", "OV103", &[("as saved", |_| (), &["ns2/veth5 0.90"])]);
}
