//! Rules of real programs (`scripts/cluster/record`) are fully supported, and accept established
//! connections of pods for reasons of the flow alone.

use crate::common;
#[path = "../../../../fuzz/src/ruleset.rs"]
mod entries;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use common::{back, flow, path};
use proptest::prelude::*;
use ruleset::{Answer, Flow, Message, Ruleset, State, Step, Transport, Tuple, Verdict};
use testbed::Host;

const CASES: [&str; 5] =
    ["flannel", "flannel-masq", "kube-proxy-iptables", "kube-proxy-nftables", "docker"];

fn file(case: &str, ending: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded/{case}.{ending}"))
}

fn messages(case: &str) -> Vec<Message> {
    let text = std::fs::read_to_string(file(case, "messages")).unwrap();
    let byte = |at: usize, hex: &str| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (kind, hex) = line.split_once(' ').unwrap();
            let payload = (0..hex.len()).step_by(2).map(|at| byte(at, hex)).collect();
            Message { kind: kind.parse().unwrap(), payload }
        })
        .collect()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A flow from a pod of this node to one of the other, and the hooks on its path.
fn pods(transport: Transport) -> (Flow, Vec<Step>) {
    let tuple = Tuple {
        source: (address("10.244.1.10"), 40000),
        destination: (address("10.244.2.10"), 8080),
    };
    let flow = Flow { tuple, other: tuple.reversed(), ..flow(transport, 0, 0) };
    (flow, path((7, "cni0"), (6, "flannel.1")))
}

/// The same over the address of a service.
fn service(transport: Transport) -> (Flow, Vec<Step>) {
    let (mut flow, path) = pods(transport);
    flow.tuple.destination = (address("10.96.0.10"), 80);
    if let Some(connection) = &mut flow.connection {
        // IPS_DST_NAT, and the flags of completed translations.
        connection.status = Some(0xe | 0x20 | 0x180);
    }
    (flow, path)
}

fn turned(path: &[Step]) -> Vec<Step> {
    let device = |of: &Option<ruleset::Interface>| of.clone();
    let (input, output) = (device(&path[2].input), device(&path[2].output));
    path.iter()
        .cloned()
        .map(|step| Step {
            input: step.input.and(output.clone()),
            output: step.output.and(input.clone()),
            ..step
        })
        .collect()
}

fn accepted(answer: &Answer) -> bool {
    answer.verdict == Verdict::Accept && answer.mark == 0
}

/// Asserts that both directions of established connections pass.
fn all_pass(case: &str, rules: &Ruleset) {
    for transport in [Transport::Tcp, Transport::Udp] {
        for (what, (flow, path)) in [("pod", pods(transport)), ("service", service(transport))] {
            let there = rules.verdict(&flow, &path);
            assert!(accepted(&there), "{case}: {what}, {transport:?}: {there:?}");
            let and_back = rules.verdict(&back(&flow), &turned(&path));
            assert!(accepted(&and_back), "{case}: {what} back, {transport:?}: {and_back:?}");
        }
    }
}

#[test]
fn recorded_rules_are_understood_whole() {
    for case in CASES {
        let rules = Ruleset::from_messages(&messages(case));
        assert_eq!(rules.unsupported, Vec::<String>::new(), "{case}");
        for chain in &rules.chains {
            assert_eq!(chain.unsupported, None, "{case}: {}", chain.name);
            for rule in &chain.rules {
                for expression in &rule.expressions {
                    let unsupported =
                        matches!(expression, ruleset::model::Expression::UnsupportedContent(_));
                    assert!(!unsupported, "{case}: {} {}: {expression:?}", chain.name, rule.handle);
                }
            }
        }
        for set in &rules.sets {
            assert_eq!(set.unsupported, None, "{case}: {}", set.name);
        }
        assert!(rules.rules() > 2, "{case}: {} rules", rules.rules());
    }
}

#[test]
fn established_connections_of_pods_pass_on_real_nodes() {
    for case in CASES.iter().filter(|case| **case != "docker") {
        all_pass(case, &Ruleset::from_messages(&messages(case)));
    }
}

#[test]
fn packets_that_kube_proxy_drops_are_dropped() {
    // A service without endpoints: first packets are rejected, in both modes.
    for case in ["kube-proxy-iptables", "kube-proxy-nftables"] {
        let rules = Ruleset::from_messages(&messages(case));
        let (mut flow, path) = pods(Transport::Tcp);
        flow.tuple.destination = (address("10.96.0.12"), 80);
        flow.other = flow.tuple.reversed();
        if let Some(connection) = &mut flow.connection {
            connection.state = State::New;
        }
        let Verdict::Drop { at } = rules.verdict(&flow, &path).verdict else {
            panic!("{case}: {:?}", rules.verdict(&flow, &path));
        };
        assert!(at.handle.is_some(), "{case}: {at}");
        // KUBE-FORWARD drops invalid packets, and counts them in a named object.
        if case == "kube-proxy-iptables" {
            let (mut flow, path) = pods(Transport::Tcp);
            flow.connection = None;
            let verdict = rules.verdict(&flow, &path).verdict;
            let text = verdict.to_string();
            assert!(text.starts_with("ip filter KUBE-FORWARD handle"), "{text}");
            assert!(text.ends_with(": nfacct"), "{text}");
        }
    }
}

#[test]
fn docker_lets_established_connections_pass_and_isolates_networks() {
    let rules = Ruleset::from_messages(&messages("docker"));
    let text = std::fs::read_to_string(file("docker", "iptables")).unwrap();
    let bridge = text.split("-o ").find(|rest| rest.starts_with("br-")).unwrap();
    let bridge = bridge.split_whitespace().next().unwrap();
    let tuple =
        Tuple { source: (address("10.0.0.2"), 40000), destination: (address("172.18.0.2"), 80) };
    let mut flow =
        Flow { tuple, other: tuple.reversed(), ..common::flow(Transport::Tcp, 40000, 80) };
    let inward = path((2, "eth0"), (5, bridge));
    assert!(accepted(&rules.verdict(&flow, &inward)), "{:?}", rules.verdict(&flow, &inward));
    // Between two of its networks nothing passes, established or not.
    let across = path((4, "docker0"), (5, bridge));
    flow.connection = None;
    let verdict = rules.verdict(&flow, &across).verdict;
    assert!(matches!(verdict, Verdict::Drop { .. }), "{verdict:?}");
}

#[test]
fn recorded_rules_say_the_same_when_the_kernel_has_them_anew() {
    test_support::require!(
        test_support::need::root(),
        test_support::need::tools(&["nft", "iptables-nft-restore"])
    );
    for case in CASES {
        let host = Host::new("node").unwrap();
        if case == "kube-proxy-nftables" {
            let path = file(case, "nft");
            host.run(Command::new("nft").arg("-f").arg(path)).unwrap();
        } else {
            // Removes objects of nfnetlink_acct, which no program here creates: a word and its
            // name.
            let text = std::fs::read_to_string(file(case, "iptables")).unwrap();
            let mut parts = text.split("-m nfacct --nfacct-name");
            let mut text = parts.next().unwrap().to_owned();
            for part in parts {
                text += part.trim_start().split_once(' ').unwrap().1;
            }
            let copy = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(copy.path(), text).unwrap();
            host.run(Command::new("iptables-nft-restore").arg(copy.path())).unwrap();
        }
        let rules = host.netns().run(ruleset::read).unwrap().unwrap();
        assert!(rules.generation > 0, "{case}");
        assert_eq!(rules.unsupported, Vec::<String>::new(), "{case}");
        if case != "docker" {
            all_pass(case, &rules);
        }
    }
}

/// Rules of kube-proxy in nftables mode for this number of services, each with an endpoint, and a
/// policy for each as kube-router writes it: a chain on the path of an established flow.
fn services(count: usize) -> String {
    let mut text = String::from(
        "table ip t {\n map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; \
         }\n map policies { type ipv4_addr : verdict; }\n",
    );
    for at in 0..count {
        let (high, low) = (at / 250, at % 250 + 1);
        text += &format!(
            " chain endpoint{at} {{ meta l4proto tcp dnat to 10.244.{high}.{low}:8080; }}\n \
             chain service{at} {{ ip saddr != 10.244.0.0/16 meta mark set mark or 0x4000; numgen random mod 1 vmap {{ 0 : goto endpoint{at} }}; }}\n \
             chain policy{at} {{ ip saddr 10.245.0.0/16 drop; tcp dport 22 drop; }}\n"
        );
    }
    text += " chain nat { type nat hook prerouting priority -100; ip daddr . meta l4proto . th dport vmap @service-ips; }\n \
             chain forward { type filter hook forward priority 0; ip daddr vmap @policies; }\n}\n";
    for (map, element) in [("service-ips", "ip"), ("policies", "pod")] {
        text += &format!("add element ip t {map} {{ ");
        for at in 0..count {
            let (high, low) = (at / 250, at % 250 + 1);
            text += &match element {
                "ip" => format!("10.96.{high}.{low} . tcp . 80 : goto service{at}, "),
                _ => format!("10.244.{high}.{low} : jump policy{at}, "),
            };
        }
        text += "}\n";
    }
    text
}

#[test]
fn five_thousand_services_are_read_and_evaluated_in_bounded_time() {
    test_support::require!(test_support::need::root(), test_support::need::tool("nft"));
    let host = Host::new("node").unwrap();
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), services(5000)).unwrap();
    host.run(Command::new("nft").arg("-f").arg(copy.path())).unwrap();
    let begin = Instant::now();
    let rules = host.netns().run(ruleset::read).unwrap().unwrap();
    let read = begin.elapsed();
    assert!(rules.chains.len() > 15_000 && rules.unsupported.is_empty(), "{:?}", rules.unsupported);
    let (flow, path) = pods(Transport::Tcp);
    let begin = Instant::now();
    for _ in 0..1000 {
        let answer = rules.verdict(&flow, &path);
        assert!(accepted(&answer), "{answer:?}");
    }
    println!(
        "{} chains, {} rules: read in {read:?}, evaluated in {:?}",
        rules.chains.len(),
        rules.rules(),
        begin.elapsed() / 1000
    );
    // A rule of its own policy accepted it; with another source it is dropped.
    let mut other = flow.clone();
    other.tuple.source.0 = address("10.245.0.1");
    assert!(matches!(rules.verdict(&other, &path).verdict, Verdict::Drop { .. }));
}

#[test]
fn a_set_that_packets_change_is_one_whatever_its_flags_say() {
    test_support::require!(test_support::need::root(), test_support::need::tool("nft"));
    let host = Host::new("node").unwrap();
    let text = "table ip t {\n set seen { type ipv4_addr; }\n \
                chain f { type filter hook forward priority 0; ip saddr @seen drop; }\n \
                chain i { type filter hook input priority 0; add @seen { ip saddr }; }\n}\n";
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), text).unwrap();
    host.run(Command::new("nft").arg("-f").arg(copy.path())).unwrap();
    let rules = host.netns().run(ruleset::read).unwrap().unwrap();
    let (flow, path) = pods(Transport::Tcp);
    let verdict = rules.verdict(&flow, &path).verdict;
    assert_eq!(common::class(&verdict), "keeps slow", "{verdict:?}");
}

#[test]
fn long_chains_and_deep_jumps_end() {
    test_support::require!(test_support::need::root(), test_support::need::tool("nft"));
    let host = Host::new("node").unwrap();
    // Each chain jumps twice to the next: 2^14 paths through them.
    let mut text = String::from("table ip t {\n chain c15 { counter; }\n");
    for at in (1..15).rev() {
        text += &format!(" chain c{at} {{ jump c{0}; jump c{0}; }}\n", at + 1);
    }
    text += " chain f { type filter hook forward priority 0; jump c1; }\n}\n";
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(copy.path(), text).unwrap();
    host.run(Command::new("nft").arg("-f").arg(copy.path())).unwrap();
    let rules = host.netns().run(ruleset::read).unwrap().unwrap();
    let (flow, path) = pods(Transport::Tcp);
    let answer = rules.verdict(&flow, &path);
    assert!(accepted(&answer), "{answer:?}");
}

proptest! {
    /// Arbitrary bytes: no panic, and every evaluation terminates.
    #[test]
    fn any_bytes_are_decoded_and_evaluated(
        text in prop::collection::vec((0u16..24, prop::collection::vec(any::<u8>(), 0..80)), 0..12),
    ) {
        let messages: Vec<Message> =
            text.into_iter().map(|(kind, payload)| Message { kind, payload }).collect();
        let (flow, path) = pods(Transport::Tcp);
        let _ = Ruleset::from_messages(&messages).verdict(&flow, &path);
    }

    /// Runs the fuzz target on its seeds with some bytes changed.
    #[test]
    fn seeds_of_the_fuzz_target_with_changes(
        case in 1..CASES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/ruleset");
        let mut data = std::fs::read(format!("{corpus}/{}", CASES[case])).unwrap();
        for (at, byte) in changes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        entries::rules(&data);
    }

    /// Real messages with a few bytes changed, truncated, doubled or reordered.
    #[test]
    fn broken_messages_are_decoded_and_evaluated(
        case in 0..CASES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        swap in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let mut all = messages(CASES[case]);
        for (which, at, byte) in changes {
            let payload = &mut which.get_mut(&mut all).payload;
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
        }
        let length = all.len();
        let payload = &mut all[cut.index(length)].payload;
        payload.truncate(cut.index(payload.len() + 1));
        all.swap(swap.0.index(length), swap.1.index(length));
        let rules = Ruleset::from_messages(&all);
        for transport in [Transport::Tcp, Transport::Udp, Transport::Icmp { kind: 8, code: 0 }] {
            let (flow, path) = service(transport);
            let _ = rules.verdict(&flow, &path);
        }
    }
}

/// Rules outside the established part do not affect verdicts on established connections.
#[test]
fn the_lasting_part_of_real_rules_says_the_same_and_is_small() {
    for case in CASES {
        let whole = Ruleset::from_messages(&messages(case));
        let part = whole.established_part();
        // flannel alone translates nothing.
        assert_eq!(part.rules() < whole.rules(), case != "flannel", "{case}");
        assert_eq!(part, part.established_part(), "{case}");
        for transport in [Transport::Tcp, Transport::Udp] {
            let (mut flow, path) = pods(transport);
            for port in [80, 53, 22] {
                flow.tuple.destination.1 = port;
                flow.other.source.1 = port;
                let (one, other) = (whole.verdict(&flow, &path), part.verdict(&flow, &path));
                // Only the whole ruleset has places of rules.
                let words = |verdict: &Verdict| match verdict {
                    Verdict::Drop { .. } => "drop".to_owned(),
                    Verdict::Depends { what, .. } => what.clone(),
                    other => other.to_string(),
                };
                assert_eq!(words(&one.verdict), words(&other.verdict), "{case}");
                assert_eq!(one.marks, other.marks, "{case}");
            }
        }
    }
}
