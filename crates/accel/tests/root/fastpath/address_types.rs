//! Rules that match the type of an address, and routes that change it.

use std::time::Duration;

use test_support::{need, require};
use testbed::poll;

use super::exchange::RULES;
use super::pair::{LIMIT, sh, since};
use super::verdicts::{Echo, accelerate, ruled, settle};

/// A datagram that has not arrived after this time was dropped.
const SILENCE: Duration = Duration::from_millis(200);

const IPV4: (&str, &str, &str) = (
    "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p udp --dport 80 \
     -j DNAT --to-destination 10.1.0.12:5402",
    "10.96.0.10:80",
    "10.1.0.12:5402",
);
const IPV6: (&str, &str, &str) = (
    "nft 'table ip6 nat { chain c { type nat hook prerouting priority -100; \
     ip6 daddr fd96::10 udp dport 80 dnat to [fd00::12]:5402; }; }'",
    "[fd96::10]:80",
    "[fd00::12]:5402",
);

const NFT: &str = "nft 'table inet types { chain c { type filter hook prerouting priority -300; \
                   iifname br0 meta l4proto udp fib daddr type { local, broadcast } drop; }; }'";
const IPTABLES: &str = "iptables-nft -t raw -A PREROUTING -i br0 -p udp -m addrtype --dst-type LOCAL,BROADCAST -j DROP";
const IP6TABLES: &str =
    "ip6tables-nft -t raw -A PREROUTING -i br0 -p udp -m addrtype --dst-type LOCAL -j DROP";

const LOCAL: &str = "local 10.96.0.10/32 dev lo";
const WIDER: &str = "local 10.96.0.0/16 dev lo";
const BROADCAST: &str = "broadcast 10.96.0.10/32 dev br0";
const LOCAL6: &str = "-6 local fd96::10/128 dev lo";

#[test]
fn a_service_address_that_becomes_local_by_a_route_is_no_longer_reached() {
    are_dropped(&[(NFT, IPV4, &[LOCAL, WIDER, BROADCAST]), (IP6TABLES, IPV6, &[LOCAL6])]);
}

#[test]
fn other_rules_on_types_of_addresses_are_followed() {
    are_dropped(&[(IPTABLES, IPV4, &[LOCAL, BROADCAST]), (NFT, IPV6, &[LOCAL6])]);
}

/// A rule that drops packets to local addresses, a service, and routes that make its address local.
type Case = (&'static str, (&'static str, &'static str, &'static str), &'static [&'static str]);

fn are_dropped(cases: &[Case]) {
    require!(need::root(), need::tools(&["iptables-nft", "ip6tables-nft", "nft"]));
    for &(drop, (translate, to, at), routes) in cases {
        let pair = ruled(true, RULES);
        sh(&pair.a, translate);
        sh(&pair.a, drop);
        let accels = accelerate(&pair);
        let echo = Echo::new(&pair, to.parse().unwrap(), at.parse().unwrap());
        settle(&accels, || echo.go());
        for route in routes {
            let (family, route) = match route.strip_prefix("-6 ") {
                Some(route) => ("-6", route),
                None => ("-4", *route),
            };
            sh(&pair.a, &format!("ip {family} route add {route}"));
            echo.far.set_read_timeout(Some(SILENCE)).unwrap();
            poll("datagrams to the address to be dropped", LIMIT, || {
                while echo.far.recv(&mut [0; 8]).is_ok() {}
                let before = accels[0].status();
                for _ in 0..15 {
                    echo.near.send_to(b"there", echo.to).unwrap();
                }
                let arrived = std::iter::from_fn(|| echo.far.recv(&mut [0; 8]).ok()).count();
                let fast = since(&accels[0], &before, "encap_hit");
                let text = || format!("{drop}: {route}: {arrived} arrived, {fast} fast");
                Ok((arrived == 0 && fast == 0).then_some(()).ok_or_else(text))
            })
            .unwrap();
            sh(&pair.a, &format!("ip {family} route del {route}"));
            echo.far.set_read_timeout(Some(LIMIT)).unwrap();
            settle(&accels, || echo.go());
        }
    }
}

/// Routes that change no type that a rule matches leave verdicts in force.
#[test]
fn verdicts_outlast_routes_if_no_rule_matches_types_of_addresses() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let to = "10.1.0.12:5402".parse().unwrap();
    let echo = Echo::new(&pair, to, to);
    settle(&accels, || echo.go());
    let number = || accels[0].status().flows.unwrap().number;
    let (before, generation) = (number(), accels[0].status().generation);
    sh(&pair.a, "ip route add local 10.97.0.10/32 dev lo");
    poll("the route to be followed", LIMIT, || {
        let status = accels[0].status();
        let is_followed = status.generation > generation && status.generation & 1 == 0;
        Ok(is_followed.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
    assert_eq!(number(), before);
}
