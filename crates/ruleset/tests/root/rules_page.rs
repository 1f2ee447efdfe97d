//! The page on rules matches the evaluation: each of its rules is loaded into the kernel, read back
//! and evaluated.

use crate::common;

use std::process::Command;

use common::{class, flow, path};
use ruleset::{Transport, Verdict};
use testbed::Host;

const PAGE: &str = include_str!("../../../../docs/src/reference/accel-rules.md");

/// Name, program, rule and verdict of each row.
fn rows() -> Vec<(String, String, String, String)> {
    let row = |line: &str| {
        let cells: Vec<String> = line
            .replace("\\|", "\u{1}")
            .split('|')
            .map(|cell| cell.trim().replace('\u{1}', "|"))
            .collect();
        let [_, name, rule, verdict, _] = &cells[..] else { return None };
        let rule = rule.strip_prefix('`')?.strip_suffix('`')?;
        let (program, rule) = rule.split_once(' ')?;
        Some((name.clone(), program.to_owned(), rule.to_owned(), verdict.clone()))
    };
    PAGE.lines().filter_map(row).collect()
}

#[test]
fn each_rule_of_the_page_is_judged_as_it_says() {
    test_support::require!(
        test_support::need::root(),
        test_support::need::tools(&["nft", "iptables-nft"])
    );
    let rows = rows();
    assert!(rows.len() > 110, "{} rows", rows.len());
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for (name, program, rule, expected) in rows {
        let host = Host::new("node").unwrap();
        let loaded = match program.as_str() {
            "nft" => host
                .nft(
                    "add table ip t; add chain ip t c { type filter hook forward priority 0; }; \
                     add set ip t seen { type ipv4_addr; flags dynamic; }; \
                     add set ip t brief { type ipv4_addr; timeout 1m; }; \
                     add element ip t brief { 10.9.9.9 }",
                )
                .and_then(|()| host.nft(&format!("add rule ip t c {rule}"))),
            _ => {
                let (table, rest) = match rule.strip_prefix("-t ") {
                    Some(rest) => rest.split_once(' ').unwrap(),
                    None => ("filter", rule.as_str()),
                };
                let chain = match table {
                    "raw" => "PREROUTING",
                    "nat" => "POSTROUTING",
                    _ => "FORWARD",
                };
                // Through a shell, for the quotes.
                let line = format!("iptables-nft -t {table} -A {chain} {rest}");
                host.run(Command::new("sh").args(["-c", &line])).map(drop)
            }
        };
        if let Err(error) = loaded {
            // Missing modules and libraries.
            test_support::left_out(&format!("{name}: {error}").replace('\n', " "));
            continue;
        }
        tried += 1;
        let rules = host.netns().run(ruleset::read).unwrap().unwrap();
        assert!(rules.unsupported.is_empty(), "{name}: {:?}", rules.unsupported);
        assert!(rules.rules() > 0, "{name}: no rule was read");
        let flow = flow(Transport::Tcp, 40000, 80);
        let answer = rules.verdict(&flow, &path((2, "in0"), (3, "out0")));
        if class(&answer.verdict) != expected {
            wrong.push(format!("{name}: {program} {rule}: expected {expected}, got {answer:?}"));
        }
        if let Verdict::Depends { at, .. } = &answer.verdict {
            assert!(at.handle.is_some(), "{name}: {answer:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 70, "only {tried} rules could be loaded");
}

#[test]
fn each_name_that_keeps_slow_is_known() {
    // A match with its own row is in the lists, or is supported.
    for (name, _) in ruleset::SLOW_MATCHES {
        assert_eq!(ruleset::SLOW_MATCHES.iter().filter(|(other, _)| *other == name).count(), 1);
    }
    for (name, _) in ruleset::SLOW {
        let row = format!("`{name}`");
        let others = ["inner", "tunnel", "xfrm", "tproxy", "flow_offload", "fwd", "secmark"];
        assert!(PAGE.contains(&row) || others.contains(&name), "{name} is not on the page");
    }
}
