//! Tenants of one bridge whose frames br_netfilter passes to IP rules.

use std::time::Duration;

use test_support::{need, require};
use testbed::{Offload, poll};

use super::exchange::{Exchange, RULES};
use super::pair::{LIMIT, Pair, TENANT_B, sh, since};
use super::verdicts::{Echo, STALE_MS, accelerate, settle};

const PORT: u16 = 5402;
const CALLS: &str = "sysctl -qw net.bridge.bridge-nf-call-iptables=1 \
                     net.bridge.bridge-nf-call-ip6tables=1";

/// A pair with these rules in both hosts. The rules apply to packets that cross the bridges.
fn ruled(rules: &str) -> Pair {
    let pair = Pair::new(Offload::Full, false);
    for host in [&pair.a, &pair.b] {
        sh(host, CALLS);
        sh(host, rules);
    }
    pair
}

/// Whether a datagram arrives.
fn arrives(echo: &Echo) -> bool {
    echo.far.set_nonblocking(true).unwrap();
    while echo.far.recv(&mut [0; 8]).is_ok() {}
    echo.far.set_nonblocking(false).unwrap();
    echo.near.send_to(b"there", echo.to).unwrap();
    echo.far.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let is_there = echo.far.recv(&mut [0; 8]).is_ok();
    echo.far.set_read_timeout(Some(LIMIT)).unwrap();
    is_there
}

#[test]
fn connections_across_a_bridge_go_fast_where_the_rules_let_them() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(RULES);
    let accels = accelerate(&pair);
    let to = (TENANT_B, PORT).into();
    let mut exchange = Exchange::new(&pair, to, to);
    settle(&accels, || exchange.go(100));
    settle(&accels, || exchange.go(1_000_000));
    let echo = Echo::new(&pair, to, to);
    settle(&accels, || echo.go());
    let status = accels.each_ref().map(accel::Accel::status);
    assert!(status.iter().all(|status| status.refusals().next().is_none()), "{status:#?}");
    pair.ping(&[]);
    // Drops datagrams in one host by port device, then in the other by address.
    for (host, rule) in [
        (&pair.a, "FORWARD -p udp -m physdev --physdev-is-bridged --physdev-out vxlan0 -j DROP"),
        (&pair.b, "FORWARD -p udp -d 10.1.0.12 -j DROP"),
    ] {
        sh(host, &format!("iptables-nft -I {rule}"));
        // As in `verdicts`: the reconciler follows within milliseconds, or all packets take the
        // slow path.
        std::thread::sleep(Duration::from_millis(u64::from(STALE_MS)));
        assert!(!(0..20).any(|_| arrives(&echo)), "{rule}: a datagram arrived");
        // The other flows continue.
        settle(&accels, || exchange.go(100));
        sh(host, &format!("iptables-nft -D {rule}"));
        settle(&accels, || echo.go());
    }
    // Packets that no rule sees need no verdict.
    for host in [&pair.a, &pair.b] {
        sh(host, "iptables-nft -P FORWARD DROP; iptables-nft -F FORWARD");
        sh(host, &CALLS.replace("=1", "=0"));
    }
    pair.settle(&accels);
}

/// The rules see the bridge as device, and the ports by `physdev`.
#[test]
fn rules_are_evaluated_with_the_ports_that_the_kernel_passes() {
    require!(need::root(), need::tool("iptables-nft"));
    let ports = "iptables-nft -P FORWARD DROP
        iptables-nft -A FORWARD -m physdev --physdev-in veth0 --physdev-out vxlan0 -j ACCEPT
        iptables-nft -A FORWARD -m physdev --physdev-in vxlan0 --physdev-out veth0 -j ACCEPT";
    let devices = "iptables-nft -P FORWARD DROP
        iptables-nft -A FORWARD -i br0 -o br0 -j ACCEPT
        iptables-nft -t raw -A PREROUTING -s 10.1.0.0/24 ! -i br0 -j DROP
        iptables-nft -t mangle -A POSTROUTING -s 10.1.0.0/24 ! -o br0 -j DROP";
    for rules in [ports, devices] {
        let pair = ruled(rules);
        let accels = accelerate(&pair);
        let to = (TENANT_B, PORT).into();
        let echo = Echo::new(&pair, to, to);
        settle(&accels, || echo.go());
        let mut exchange = Exchange::new(&pair, to, to);
        settle(&accels, || exchange.go(100));
    }
}

/// br_netfilter routes packets whose destination it has translated.
#[test]
fn flows_translated_on_a_bridge_stay_slow_and_are_reported() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(RULES);
    sh(
        &pair.a,
        "iptables-nft -t nat -A PREROUTING -d 10.1.0.12 -p udp --dport 80 \
         -j DNAT --to-destination 10.1.0.12:5402",
    );
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, (TENANT_B, 80).into(), (TENANT_B, PORT).into());
    poll("the reason", LIMIT, || {
        let before = accels[0].status();
        (0..12).for_each(|_| echo.go());
        assert_eq!(since(&accels[0], &before, "encap_hit"), 0);
        // Absent until the rules are read.
        let flows = accels[0].status().flows.unwrap_or_default();
        let is_reported =
            flows.reasons.keys().any(|reason| reason.contains("translated on a bridge"));
        Ok(is_reported.then_some(()).ok_or_else(|| format!("{flows:?}")))
    })
    .unwrap();
}
