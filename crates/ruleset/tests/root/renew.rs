//! Rules updated from notifications equal the kernel's rules.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use netstate::watch::{Notified, StateWatch};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use ruleset::{Nftables, Renewed, Touched};
use test_support::{need, require};
use testbed::{Host, poll};

const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// The initial rules of kube-proxy, flannel, kube-router and Docker: (program that reads them,
/// text).
const BEGIN: &str = "
table inet t {
    set blocked { type ipv4_addr . inet_service; }
    set ranges { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/24 }; }
    map ways { type ipv4_addr : verdict; }
    chain one { counter; }
    chain two { tcp dport { 80, 443 } accept; }
    chain forward { type filter hook forward priority -5;
        ip saddr . udp dport @blocked drop; ip daddr @ranges jump one; ip daddr vmap @ways; }
    chain prerouting { type nat hook prerouting priority -100; jump two; }
}
table ip kube {
    chain services { ip daddr 10.96.0.1 tcp dport 443 jump s0; }
    chain s0 { meta l4proto tcp dnat to 10.1.0.12:6443; }
    chain pre { type nat hook prerouting priority -90; jump services; }
}";

/// One change of some rules.
fn change(random: &mut Pcg64) -> String {
    let at: u32 = random.random_range(0..6);
    let chain = ["one", "two", "forward"].choose(random).copied().unwrap_or("one");
    let octet: u8 = random.random_range(1..200);
    match random.random_range(0..17) {
        0 => format!("add rule inet t {chain} ip saddr 10.9.{at}.{octet} counter drop"),
        1 => format!("insert rule inet t {chain} udp dport {octet} accept"),
        2 => format!("add rule inet t {chain} ip daddr {{ 10.9.0.{octet}, 10.9.1.0/24 }} accept"),
        3 => format!("add element inet t blocked {{ 10.9.0.{octet} . {at} }}"),
        4 => format!("delete element inet t blocked {{ 10.9.0.{octet} . {at} }}"),
        5 => format!("add element inet t ranges {{ 10.8.{octet}.0/24 }}"),
        6 => format!("delete element inet t ranges {{ 10.8.{octet}.0/24 }}"),
        7 => format!("add chain inet t c{at}; add rule inet t c{at} counter"),
        8 => format!("add element inet t ways {{ 10.9.0.{octet} : jump c{at} }}"),
        9 => format!("delete chain inet t c{at}"),
        10 => format!("flush chain inet t {chain}"),
        11 => format!("add rule inet t {chain} jump c{at}"),
        12 => format!(
            "add chain ip kube s{at}; flush chain ip kube s{at}; \
             add rule ip kube s{at} meta l4proto tcp dnat to 10.1.0.{octet}:8080"
        ),
        13 => format!("add rule ip kube services ip daddr 10.96.0.{octet} tcp dport 80 goto s{at}"),
        14 => "flush chain ip kube services".to_owned(),
        15 => format!(
            "add set inet t n{at} {{ type ipv4_addr; }}; \
             add element inet t n{at} {{ 10.7.0.{octet} }}; \
             add rule inet t one ip saddr @n{at} drop"
        ),
        _ => format!(
            "flush chain inet t forward; delete set inet t n{at}; \
             add rule inet t forward ip daddr vmap @ways"
        ),
    }
}

/// Whether the kernel accepts the whole transaction.
fn nft(host: &Host, text: &str) -> bool {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = host.netns().run(|| command.spawn()).unwrap().unwrap();
    child.stdin.take().unwrap().write_all(text.replace("; add", "\nadd").as_bytes()).unwrap();
    child.wait().unwrap().success()
}

/// Reads pending notifications.
fn add_notified(watch: &StateWatch, touched: &mut Touched) -> bool {
    match watch.notified(100, |_| true) {
        Notified::Nothing => true,
        Notified::These { rules, .. } => rules.iter().all(|datagram| touched.add(datagram)),
        Notified::Anything => false,
    }
}

#[test]
fn renewed_rules_equal_a_full_read() {
    require!(need::root(), need::tool("nft"));
    let host = Host::new("rules").unwrap();
    let watch = StateWatch::open_in(host.netns()).unwrap();
    let mut nftables = host.netns().run(|| Nftables::open().unwrap()).unwrap();
    assert!(nft(&host, BEGIN));
    let seed: u64 = rand::rng().next_u64();
    eprintln!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let (mut renewed, mut taken) = (0, 0);
    let mut known = Arc::new(ruleset::read_by(&mut nftables).unwrap());
    assert!(known.unsupported.is_empty(), "{:?}", known.unsupported);
    add_notified(&watch, &mut Touched::default());
    for _ in 0..400 {
        let changes: Vec<String> =
            (0..random.random_range(1..4)).map(|_| change(&mut random)).collect();
        let done: Vec<bool> = changes.iter().map(|text| nft(&host, text)).collect();
        taken += done.iter().filter(|done| **done).count();
        let mut touched = Touched::default();
        let now = ruleset::read_by(&mut nftables).unwrap();
        if now.generation == known.generation {
            continue;
        }
        let mut answer = Renewed::Behind;
        poll("the notifications", LIMIT, || {
            assert!(add_notified(&watch, &mut touched), "{changes:?}");
            answer = ruleset::renew(&mut nftables, &known, &touched).unwrap();
            Ok(if answer == Renewed::Behind { Err(format!("{touched:?}")) } else { Ok(()) })
        })
        .unwrap();
        if let Renewed::Rules(answer) = answer {
            let all = |_: &ruleset::model::Base| true;
            assert_eq!(answer.reached(all), now.reached(all), "{changes:#?} {touched:#?}");
            assert_eq!(answer.established_part(), now.established_part());
            assert_eq!(answer.generation, now.generation);
            renewed += 1;
            known = Arc::new(answer);
        } else {
            known = Arc::new(now);
        }
    }
    eprintln!("{taken} changes, {renewed} times renewed");
    assert!(renewed > 200, "only {renewed} of 400 were renewed");
}

#[test]
fn new_and_removed_hooks_are_more_than_rule_changes() {
    require!(need::root(), need::tool("nft"));
    let host = Host::new("rules").unwrap();
    let watch = StateWatch::open_in(host.netns()).unwrap();
    let mut nftables = host.netns().run(|| Nftables::open().unwrap()).unwrap();
    assert!(nft(&host, BEGIN));
    for (change, is_simple) in [
        ("add chain inet t c { type filter hook input priority 0; }", false),
        ("add rule inet t c drop", true),
        ("flush chain inet t c", true),
        ("delete chain inet t c", false),
        ("add table inet u", false),
        ("add counter inet t c { }", false),
        ("add table inet t { flags dormant; }", false),
    ] {
        add_notified(&watch, &mut Touched::default());
        let known = ruleset::read_by(&mut nftables).unwrap();
        assert!(nft(&host, change), "{change}");
        let mut simple = None;
        poll("a notification", LIMIT, || {
            simple = match watch.notified(100, |_| true) {
                Notified::Nothing => None,
                Notified::These { rules, .. } => {
                    let mut touched = Touched::default();
                    let understood = rules.iter().all(|datagram| touched.add(datagram));
                    let renewed = ruleset::renew(&mut nftables, &known, &touched).unwrap();
                    Some(understood && matches!(renewed, Renewed::Rules(_)))
                }
                Notified::Anything => Some(false),
            };
            Ok(simple.map(drop).ok_or_else(|| "none".to_owned()))
        })
        .unwrap();
        assert_eq!(simple, Some(is_simple), "{change}");
    }
}
