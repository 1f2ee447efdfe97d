//! Guards of OV100 to OV114: states that only look like the fault.

use super::saved::{judge, link, namespace, read};

#[test]
fn a_bridge_that_is_down_filters_nothing() {
    let down: fn(&mut doctor::Host) = |host| link(host, "here", "br5").up = false;
    judge("OV100-guest", "OV100", &[("down", down, &[])]);
}

#[test]
fn a_route_that_does_not_name_the_tenant_leads_nowhere_wrong() {
    judge(
        "OV103-case108",
        "OV103",
        &[
            ("as saved", |_| (), &["ns1/veth4 1.00"]),
            (
                "a default route",
                |host| {
                    let to = link(host, "ns1", "veth4").index;
                    let routes = read(&mut namespace(host, "ns1").routes);
                    routes.retain(|route| route.link == Some(to) && route.to.is_ipv4());
                    for route in routes {
                        (route.to, route.prefix) = ("0.0.0.0".parse().unwrap(), 0);
                    }
                },
                &[],
            ),
        ],
    );
    judge(
        "OV103-case154",
        "OV103",
        &[(
            "the other network answers",
            |host| {
                let other = link(host, "ns2", "veth6").index;
                let later = read(&mut namespace(host, "ns2").later);
                later.get_mut(&other).unwrap().rx_packets += 5;
            },
            &[],
        )],
    );
}

#[test]
fn a_rule_whose_table_leads_to_the_tunnel_ends_the_search() {
    judge(
        "OV104-case101",
        "OV104",
        &[
            ("as saved", |_| (), &["ns1/vxlan2 1.00"]),
            (
                "an earlier rule to the tunnel",
                |host| {
                    let here = namespace(host, "ns1");
                    let rules = read(&mut here.rules);
                    let mut earlier =
                        rules.iter().find(|rule| rule.priority == 5270).unwrap().clone();
                    (earlier.priority, earlier.table) = (5000, 77);
                    rules.insert(0, earlier);
                    let routes = read(&mut here.routes);
                    let tunnel = routes.iter().find(|route| route.table == 52).unwrap().to;
                    let through =
                        routes.iter().find(|route| route.table == 254 && route.to == tunnel);
                    let mut own = through.unwrap().clone();
                    own.table = 77;
                    routes.push(own);
                },
                &[],
            ),
        ],
    );
}

#[test]
fn a_program_on_a_device_that_is_no_nic_is_its_owners() {
    judge(
        "OV106-case119",
        "OV106",
        &[(
            "on the tunnel itself",
            |host| {
                let id = link(host, "ns1", "veth1").xdp.take();
                link(host, "ns1", "vxlan2").xdp = id;
            },
            &[],
        )],
    );
}

#[test]
fn one_rule_is_reported_once() {
    judge(
        "OV107-case117",
        "OV107",
        &[(
            "for two remote ends",
            |host| {
                let all = read(&mut namespace(host, "ns1").passages);
                let again: Vec<_> = all.clone();
                all.extend(again);
            },
            &["ns1/ip filter INPUT 0.20"],
        )],
    );
}

#[test]
fn the_first_packet_of_an_ipsec_connection_is_always_dropped() {
    judge(
        "OV110-case133",
        "OV110",
        &[(
            "acquired",
            |host| {
                let pair = read(&mut namespace(host, "ns1").xfrm);
                pair.after = pair.before.clone();
                pair.after.insert("XfrmAcquireError".to_owned(), 9);
            },
            &[],
        )],
    );
}

#[test]
fn a_host_that_does_not_forward_announces_nobody() {
    judge(
        "OV114-case152",
        "OV114",
        &[(
            "forwarding off",
            |host| {
                let key = "net/ipv6/conf/all/forwarding".to_owned();
                namespace(host, "ns1").sysctls.insert(key, "0".to_owned());
            },
            &[],
        )],
    );
}

#[test]
fn a_tenants_own_neighbour_is_no_endpoint() {
    judge(
        "OV109-case173",
        "OV109",
        &[(
            "only a tenant asks for the address",
            |host| {
                let bridge = link(host, "ns2", "br3").index;
                let all = read(&mut namespace(host, "ns2").neighbours);
                let lost = all.iter().position(|known| known.link == bridge).unwrap();
                let mut known = all.remove(lost);
                let tenants = host.namespaces.iter_mut().filter(|other| other.tunnels.is_empty());
                for tenant in tenants {
                    let own = read(&mut tenant.interfaces).iter().find(|link| !link.loopback);
                    let Some(own) = own.filter(|own| own.bridge.is_none()) else { continue };
                    known.link = own.index;
                    read(&mut tenant.neighbours).push(known.clone());
                }
            },
            &[],
        )],
    );
}
