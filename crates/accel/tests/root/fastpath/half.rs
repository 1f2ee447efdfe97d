//! Flows without a verdict: rules see every packet of them, and only the tunnel's own path is
//! bypassed.

use std::process::Command;

use accel::{Accel, Accounting, Options, Wanted};
use test_support::{need, require};
use testbed::{Host, NIC, Offload, poll};

use super::pair::{DEVICE, LIMIT, Pair, TENANT_B, sh};
use super::underlay::Underlay;
use super::verdicts::accelerate;
use super::wire::captures_of;

/// A rule that depends on the packet, so that no flow gets a verdict.
const HOLDS: &str = "
    nft add table inet held
    nft 'add chain inet held c { type filter hook forward priority 0; }'
    nft add rule inet held c ip protocol icmp counter
    nft add rule inet held c ct state invalid drop
    nft add rule inet held c meta length 1-65535 accept";

/// A routed pair with the rules in both hosts.
fn held(underlay: Underlay, offload: Offload, udp_csum: bool, bridge: bool) -> Pair {
    let pair = Pair::routed_over(underlay, offload, udp_csum, bridge);
    for host in [&pair.a, &pair.b] {
        sh(host, HOLDS);
    }
    pair
}

fn sent(accel: &Accel) -> u64 {
    accel.status().sent_half().packets
}

fn received(accel: &Accel) -> u64 {
    accel.status().packets("decap_half")
}

fn counts([a, b]: &[Accel; 2]) -> [u64; 4] {
    [sent(a), received(a), sent(b), received(b)]
}

/// Sends until packets of both directions take the partial bypass in both hosts. With outer
/// checksums, pings do not take it: BPF cannot compute their checksums.
fn settle(pair: &Pair, accels: &[Accel; 2]) {
    poll("the half path, both ways", LIMIT, || {
        let before = counts(accels);
        pair.stream(TENANT_B.into(), 100);
        let now = counts(accels);
        let all = now.iter().zip(before).all(|(now, before)| *now > before);
        let seen = || format!("{:#?}", accels.each_ref().map(Accel::status));
        Ok(all.then_some(()).ok_or_else(seen))
    })
    .unwrap();
}

/// Number of answered pings out of `of`; waits `wait` seconds for the last answer.
fn answered(pair: &Pair, of: usize, wait: &str, more: &[&str]) -> usize {
    let mut ping = Command::new("ping");
    ping.args(["-n", "-q", "-i", "0.002", "-W", wait, "-c", &of.to_string()]).args(more);
    ping.arg(TENANT_B.to_string());
    // Its exit status is not 0 if an answer is missing.
    let output = pair.tenant_a.netns().run(|| ping.output().unwrap()).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words.iter().position(|word| word.starts_with("received")).expect(&said);
    words[at - 1].parse().unwrap()
}

#[test]
fn bytes_go_both_ways_past_the_device_only() {
    passes(&[
        (Underlay::V4, Offload::Full, false, false),
        (Underlay::V6, Offload::None, false, true),
        (Underlay::V4, Offload::Full, true, true),
    ]);
}

#[test]
fn bytes_go_both_ways_over_the_other_underlay() {
    passes(&[
        (Underlay::V6, Offload::Full, false, false),
        (Underlay::V4, Offload::None, false, true),
        (Underlay::V6, Offload::Full, true, true),
    ]);
}

fn passes(paths: &[(Underlay, Offload, bool, bool)]) {
    require!(need::root(), need::tool("nft"));
    for &(underlay, offload, udp_csum, bridge) in paths {
        let pair = held(underlay, offload, udp_csum, bridge);
        let accels = accelerate(&pair);
        let counters = |host: &Host, device| host.netlink().link(device).unwrap().counters;
        settle(&pair, &accels);
        let (nic, device) = (counters(&pair.b, NIC), counters(&pair.b, DEVICE));
        let before = counts(&accels);
        let what = format!("{offload} over {underlay:?}, checksum {udp_csum}");
        // The number of GSO packets among them varies; those from the wire do not take this
        // path.
        poll(&format!("packets of {what}"), LIMIT, || {
            pair.stream(TENANT_B.into(), 3_000_000);
            pair.stream("fd00::12".parse().unwrap(), 3_000_000);
            for size in ["0", "1", "1000", "1399"] {
                pair.ping(&["-s", size]);
            }
            pair.ping6();
            let all = counts(&accels).iter().zip(before).all(|(now, before)| now - before > 20);
            Ok(all
                .then_some(())
                .ok_or_else(|| format!("{:#?}", accels.each_ref().map(Accel::status))))
        })
        .unwrap();
        // The device has not seen packets that were delivered directly.
        let half = received(&accels[1]) - before[3];
        let slow = counters(&pair.b, DEVICE).since(&device);
        let all = counters(&pair.b, NIC).since(&nic);
        assert!(slow.rx_packets + half <= all.rx_packets, "{what}: {slow:?} {half} {all:?}");
        let hits = accels.iter().map(|a| a.status().packets("encap_hit")).sum::<u64>();
        assert_eq!(hits, 0, "{what}: rules see all of it");
    }
}

#[test]
fn on_the_wire_it_looks_as_the_kernel_s() {
    require!(need::root(), need::tool("nft"));
    for underlay in Underlay::BOTH {
        for udp_csum in [false, true] {
            let pair = held(underlay, Offload::None, udp_csum, true);
            captures_of(&pair, underlay, udp_csum, sent);
        }
    }
}

/// Rules that forbid packets; `true` for rules in the sender's host.
const FORBIDS: [(&str, bool); 6] = [
    ("iptables-nft -I FORWARD -p icmp -j DROP", true),
    ("iptables-nft -I FORWARD -p icmp -j DROP", false),
    ("iptables-nft -t raw -I PREROUTING -i DEVICE -p icmp -j DROP", false),
    ("iptables-nft -t mangle -I POSTROUTING -o DEVICE -p icmp -j DROP", true),
    // A rule for the tunnel's datagrams.
    ("iptables-nft -I OUTPUT -p udp --dport 4789 -j DROP", true),
    ("iptables-nft -I INPUT -p udp --dport 4789 -j DROP", false),
];

#[test]
fn packets_that_a_rule_forbids_do_not_arrive() {
    require!(need::root(), need::tool("nft"), need::tool("iptables-nft"));
    let pair = held(Underlay::V4, Offload::Full, false, true);
    let accels = accelerate(&pair);
    for (rule, in_a) in FORBIDS {
        settle(&pair, &accels);
        let host = if in_a { &pair.a } else { &pair.b };
        let rule = rule.replace("DEVICE", DEVICE);
        sh(host, &rule);
        assert_eq!(answered(&pair, 20, "0.2", &[]), 0, "{rule}");
        sh(host, &rule.replace(" -I ", " -D "));
    }
    settle(&pair, &accels);
    // Every packet reaches the rules.
    let before = [&pair.a, &pair.b].map(|host| seen(host, "held"));
    assert_eq!(answered(&pair, 50, "10", &[]), 50);
    for (host, before) in [&pair.a, &pair.b].into_iter().zip(before) {
        assert_eq!(seen(host, "held") - before, 100, "there and back");
    }
}

/// Packets that the first rule of a table's chain has counted.
fn seen(host: &Host, table: &str) -> u64 {
    let mut list = Command::new("nft");
    let rules = host.run(list.args(["list", "chain", "inet", table, "c"])).unwrap();
    let words: Vec<&str> = rules.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets").unwrap();
    words[at + 1].parse().unwrap()
}

/// The tunnel's datagrams inherit marks of inner packets, which other rules may match.
#[test]
fn packets_with_a_mark_take_the_whole_way() {
    require!(need::root(), need::tool("nft"), need::tool("iptables-nft"));
    let pair = held(Underlay::V4, Offload::Full, false, true);
    let accels = accelerate(&pair);
    sh(
        &pair.a,
        "iptables-nft -t mangle -I FORWARD -p icmp -m length --length 528 -j MARK --set-mark 1
         iptables-nft -I OUTPUT -m mark --mark 1 -j DROP",
    );
    settle(&pair, &accels);
    assert_eq!(answered(&pair, 20, "0.2", &["-s", "500"]), 0);
    assert_eq!(answered(&pair, 20, "10", &["-s", "501"]), 20);
}

/// With --accounting, rules must count each of the tunnel's datagrams, also of packets that pass no
/// rule inside the tunnel.
#[test]
fn with_accounting_it_is_not_taken() {
    require!(need::root(), need::tool("nft"));
    for pair in [held(Underlay::V4, Offload::Full, false, true), Pair::new(Offload::Full, false)] {
        for host in [&pair.a, &pair.b] {
            sh(
                host,
                "nft 'table inet outer { chain c { type filter hook output priority 0; \
                 udp dport 4789 counter; }; }'",
            );
        }
        for host in [&pair.a, &pair.b, &pair.tenant_a, &pair.tenant_b] {
            host.settle().unwrap();
        }
        let start = |host: &Host| {
            let options = Options { accounting: Accounting::Exact, ..Options::default() };
            Accel::with(host.netns(), Wanted::All, options).unwrap()
        };
        let accels = [start(&pair.a), start(&pair.b)];
        let before = [&pair.a, &pair.b].map(|host| seen(host, "outer"));
        assert_eq!(answered(&pair, 50, "10", &[]), 50);
        for (host, before) in [&pair.a, &pair.b].into_iter().zip(before) {
            assert!(seen(host, "outer") >= before + 50, "{}", seen(host, "outer"));
        }
        assert_eq!(counts(&accels), [0; 4]);
        for accel in &accels {
            let refused = accel.status().devices[0].refused.clone();
            assert_eq!(refused.map(|refused| refused.code).as_deref(), Some("AX223"));
        }
    }
}
