//! Packet filters in the host of a bridge or of a sandbox: rules that provably do not affect the
//! tunnel's datagrams are no reason for the slow path, all others are.

use std::process::Command;

use accel::Accel;
use test_support::{need, require};
use testbed::{Offload, poll};

use super::pair::{DEVICE, LIMIT, Pair, sh, since};
use super::refusals::refused;
use super::underlay::Underlay;

/// Rules that dockerd 20.10 and its Swarm add to a host, with a published port of each protocol.
const DOCKER: &str = "
    iptables-nft -P FORWARD DROP
    for chain in DOCKER DOCKER-USER DOCKER-INGRESS DOCKER-ISOLATION-STAGE-1 \
        DOCKER-ISOLATION-STAGE-2; do iptables-nft -N $chain; done
    iptables-nft -A FORWARD -j DOCKER-USER
    iptables-nft -A FORWARD -j DOCKER-INGRESS
    iptables-nft -A FORWARD -j DOCKER-ISOLATION-STAGE-1
    iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    iptables-nft -A FORWARD -o docker0 -j DOCKER
    iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
    iptables-nft -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
    iptables-nft -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
    iptables-nft -A DOCKER-USER -j RETURN
    iptables-nft -t nat -N DOCKER
    iptables-nft -t nat -N DOCKER-INGRESS
    iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER-INGRESS
    iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
    iptables-nft -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER-INGRESS
    iptables-nft -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
    iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
    iptables-nft -t nat -A POSTROUTING -o docker_gwbridge -m addrtype --src-type LOCAL -j MASQUERADE
    iptables-nft -t nat -A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp --dport 80 -j MASQUERADE
    iptables-nft -t nat -A DOCKER -i docker0 -j RETURN
    iptables-nft -t nat -A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
    iptables-nft -t nat -A DOCKER ! -i docker0 -p udp --dport 5353 -j DNAT --to-destination 172.17.0.2:53
    iptables-nft -t nat -A DOCKER-INGRESS -p tcp --dport 8081 -j DNAT --to-destination 172.18.0.2:8081
    iptables-nft -t nat -A DOCKER-INGRESS -j RETURN";

/// A base chain of `t` with these words.
fn chain(family: &str, words: &str) -> String {
    format!("nft 'table {family} t {{ chain c {{ type {words} }}; }}'")
}

/// Asserts that no packet takes the fast path. The rule decides whether any arrives.
fn is_slow(pair: &Pair, accel: &Accel) {
    let before = accel.status();
    let mut ping = Command::new("ping");
    let _ = pair.tenant_a.run(ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "0.1", "10.1.0.12"]));
    assert_eq!(since(accel, &before, "encap_hit"), 0);
    assert_eq!(since(accel, &before, "decap_hit"), 0);
}

/// A change after this generation is in force, and causes no refusal.
fn followed(accel: &Accel, generation: u64, change: &str) {
    poll(&format!("{change} to be followed"), LIMIT, || {
        let status = accel.status();
        let refused: Vec<_> = status.refusals().collect();
        assert!(refused.is_empty(), "{change}: {refused:?}");
        let done = status.generation > generation && status.generation & 1 == 0;
        Ok(done.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
}

/// Bridges in the hosts, and bridges in sandboxes.
const SHAPES: [fn(Underlay) -> Pair; 2] = [
    |underlay| Pair::over(underlay, Offload::Full, true),
    |underlay| Pair::sandboxed_over(underlay, Offload::Full, true),
];

#[test]
fn docker_s_own_chains_are_no_reason() {
    require!(need::root());
    SHAPES.iter().for_each(|shape| docker_s_own_chains(&shape(Underlay::V4)));
}

fn docker_s_own_chains(pair: &Pair) {
    let accels = pair.accelerate();
    let read = pair.a.run(Command::new("iptables-nft").arg("-L"));
    require!(read.map_err(|e| format!("iptables-nft does not work here: {e}")));
    let generation = accels[0].status().generation;
    sh(&pair.a, DOCKER);
    followed(&accels[0], generation, "Docker's chains");
    pair.settle(&accels);
    // The same rules are a reason if they match the tunnel's port.
    for (rule, expected) in [
        (
            "-t nat -A DOCKER -p udp --sport 1 --dport 4789 -j DNAT --to-destination 172.17.0.2",
            "source port",
        ),
        (
            "-t nat -A DOCKER -p udp --sport 1 --dport 4000:5000 -j DNAT --to-destination 172.17.0.2",
            "source port",
        ),
        (
            "-t nat -A POSTROUTING -s 10.0.0.0/8 ! -o docker0 -p udp --sport 1 -j MASQUERADE",
            "source port",
        ),
        (
            "-t nat -A POSTROUTING -o nic0 -p udp --sport 1 -m addrtype --src-type LOCAL -j MASQUERADE",
            "source port",
        ),
        ("-A INPUT -p udp -m policy --dir in --pol none -j DROP", "policy"),
        ("-A INPUT -p udp -m statistic --mode random --probability 0.5 -j ACCEPT", "statistic"),
        ("-t mangle -A OUTPUT -p udp --dport 4789 -j MARK --set-mark 1", "a mark"),
    ] {
        sh(&pair.a, &format!("iptables-nft {rule}"));
        refused(&accels[0], &format!(": {expected}]"), rule);
        is_slow(pair, &accels[0]);
        sh(&pair.a, &format!("iptables-nft {}", rule.replace("-A ", "-D ")));
        pair.settle(&accels);
    }
}

/// A chain in the sender's host that keeps datagrams to `remote` on the slow path while it exists.
fn concerns(
    pair: &Pair,
    accels: &[Accel; 2],
    remote: &str,
    (family, words): (&str, &str),
    expected: &str,
) {
    sh(&pair.a, &chain(family, words));
    // Several rules can set a mark.
    let rule = if expected == "a mark" { "rules".into() } else { format!("{family} t c") };
    let reason = format!("[{remote}: packet filter: nftables {rule}: {expected}]");
    refused(&accels[0], &reason, words);
    is_slow(pair, &accels[0]);
    sh(&pair.a, &format!("nft delete table {family} t"));
    pair.settle(accels);
}

#[test]
fn rules_that_may_do_something_to_the_tunnel_are_a_reason() {
    require!(need::root());
    SHAPES.iter().for_each(|shape| rules_that_may_do_something(&shape(Underlay::V4)));
}

fn rules_that_may_do_something(pair: &Pair) {
    let accels = pair.accelerate();
    for (family, words, expected) in [
        ("ip", "filter hook output priority 0; udp dport 4789 drop;", "drop"),
        ("ip", "filter hook output priority 0; udp dport != 53 drop;", "drop"),
        ("inet", "filter hook input priority 0; policy drop;", "policy drop"),
        ("inet", "filter hook input priority 0; policy drop; ct state new accept;", "policy drop"),
        (
            "ip",
            "nat hook postrouting priority 100; ip saddr 10.0.0.0/24 udp sport 1 masquerade;",
            "source port",
        ),
        (
            "ip",
            "nat hook prerouting priority -100; iifname nic0 udp sport 1 dnat to 10.9.0.1;",
            "source port",
        ),
        ("ip", "filter hook output priority 0; meta mark set 1;", "a mark"),
        ("ip", "filter hook output priority 0; ip dscp set 1;", "payload set"),
        ("ip", "filter hook prerouting priority -300; notrack;", "notrack"),
        ("ip", "filter hook output priority 0; limit rate 1/second accept;", "limit"),
        ("ip", "filter hook input priority 0; log;", "log"),
        (
            "ip",
            "filter hook output priority 0; ip saddr 10.0.0.1 ip daddr { 10.0.0.2, 10.0.0.3 } drop;",
            "drop",
        ),
        ("ip", "filter hook output priority 0; oif nic0 reject;", "drop"),
        ("ip", "filter hook output priority 0; ip daddr vmap { 10.0.0.2 : drop };", "drop"),
        (
            "inet",
            "filter hook input priority 0; udp dport vmap { 53 : accept, 4789 : drop };",
            "drop",
        ),
    ] {
        concerns(pair, &accels, "10.0.0.2", (family, words), expected);
    }
    // A bridge in its own host can have them at any device, a sandbox at the tunnel's.
    let at = if pair.sandboxes.is_some() { "10.0.0.2" } else { DEVICE };
    let reason = |family| format!("[{at}: packet filter: nftables {family} t c]");
    sh(&pair.a, &chain("netdev", "filter hook ingress device nic0 priority 0;"));
    refused(&accels[0], &reason("netdev"), "netdev");
    is_slow(pair, &accels[0]);
    sh(&pair.a, "nft delete table netdev t");
    pair.settle(&accels);
    sh(&pair.a, &chain("inet", "filter hook ingress device nic0 priority 0;"));
    refused(&accels[0], &reason("inet"), "ingress of inet");
}

#[test]
fn rules_that_do_nothing_to_the_tunnel_are_none() {
    require!(need::root());
    SHAPES.iter().for_each(|shape| rules_that_do_nothing(&shape(Underlay::V4)));
}

fn rules_that_do_nothing(pair: &Pair) {
    let accels = pair.accelerate();
    for (family, words) in [
        ("ip", "filter hook forward priority 0; policy drop;"),
        ("ip6", "filter hook output priority 0; policy drop;"),
        ("ip", "filter hook output priority 0; ip daddr 10.9.0.0/16 drop;"),
        ("ip", "filter hook output priority 0; oifname \"docker0\" drop;"),
        ("ip", "filter hook output priority 0; oifname \"docker*\" drop;"),
        ("ip", "filter hook input priority 0; iifname != \"nic0\" drop;"),
        ("ip", "filter hook input priority 0; tcp dport 4789 drop;"),
        ("ip", "filter hook input priority 0; udp dport 4790-5000 drop;"),
        ("ip", "filter hook input priority 0; policy drop; ip saddr 10.0.0.2 counter accept;"),
        (
            "inet",
            "filter hook input priority 0; policy drop; meta nfproto ipv4 udp dport 4789 accept;",
        ),
        ("inet", "filter hook input priority 0; ct state established accept;"),
        ("inet", "filter hook input priority 0; ct state invalid drop;"),
        (
            "ip",
            "nat hook postrouting priority 100; ip saddr 10.0.0.0/24 oifname \"eth9\" masquerade;",
        ),
    ] {
        let generation = accels[0].status().generation;
        sh(&pair.a, &chain(family, words));
        followed(&accels[0], generation, words);
        pair.settle(&accels);
        sh(&pair.a, &format!("nft delete table {family} t"));
        pair.settle(&accels);
    }
}

#[test]
fn rules_are_followed_for_datagrams_over_ipv6_too() {
    require!(need::root());
    SHAPES.iter().for_each(|shape| rules_of_ipv6(&shape(Underlay::V6)));
}

fn rules_of_ipv6(pair: &Pair) {
    let accels = pair.accelerate();
    for (family, words, expected) in [
        ("ip6", "filter hook output priority 0; udp dport 4789 drop;", "drop"),
        (
            "ip6",
            "filter hook input priority 0; ip6 saddr fd07::/64 udp sport 1 drop;",
            "source port",
        ),
        (
            "ip6",
            "filter hook output priority 0; ip6 daddr fd07::2 udp sport 1 drop;",
            "source port",
        ),
        (
            "inet",
            "filter hook output priority 0; meta nfproto ipv6 udp sport 1 drop;",
            "source port",
        ),
        (
            "inet",
            "filter hook output priority 0; meta protocol ip6 udp sport 1 drop;",
            "source port",
        ),
        ("ip6", "filter hook input priority 0; policy drop;", "policy drop"),
    ] {
        concerns(pair, &accels, "fd07::2", (family, words), expected);
    }
    for (family, words) in [
        ("ip", "filter hook output priority 0; policy drop;"),
        ("ip6", "filter hook forward priority 0; policy drop;"),
        ("ip6", "filter hook output priority 0; ip6 daddr fd07::3 drop;"),
        ("ip6", "filter hook input priority 0; ip6 saddr fd08::/16 drop;"),
        ("ip6", "filter hook input priority 0; tcp dport 4789 drop;"),
        ("inet", "filter hook input priority 0; meta nfproto ipv4 drop;"),
        ("inet", "filter hook input priority 0; ip saddr 10.0.0.2 drop;"),
        (
            "inet",
            "filter hook input priority 0; policy drop; ip6 nexthdr icmpv6 accept; \
             ip6 saddr fd07::2 udp dport 4789 accept;",
        ),
    ] {
        let generation = accels[0].status().generation;
        sh(&pair.a, &chain(family, words));
        followed(&accels[0], generation, words);
        pair.settle(&accels);
        sh(&pair.a, &format!("nft delete table {family} t"));
        pair.settle(&accels);
    }
}
