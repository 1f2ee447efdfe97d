//! Datagrams through packet filters: unanswered, answered, and in conntrack's state assured.

use std::time::Duration;

use accel::Accel;
use test_support::{need, require};
use testbed::{Host, poll};

use super::exchange::RULES;
use super::pair::{LIMIT, TENANT_B, sh, since};
use super::verdicts::{Echo, PORT, accelerate, ruled, settle, tenant_b};

/// Sends packets from the first host to the other only, until they take the fast path in both.
pub fn settle_one_way(accels: &[Accel; 2], send: impl Fn()) {
    poll("the fast path for datagrams one way", LIMIT, || {
        let before = accels.each_ref().map(Accel::status);
        (0..20).for_each(|_| send());
        let fast = [
            since(&accels[0], &before[0], "encap_hit"),
            since(&accels[1], &before[1], "decap_hit"),
        ];
        let seen = || format!("{fast:?} {:#?}", accels.each_ref().map(Accel::status));
        Ok(fast.iter().all(|fast| *fast > 16).then_some(()).ok_or_else(seen))
    })
    .unwrap();
}

#[test]
fn datagrams_that_nobody_answers_go_fast_by_the_rules_for_first_packets() {
    require!(need::root(), need::tool("iptables-nft"));
    // With conntrack, with a translated service, and without any hook for conntrack.
    let service = "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p udp --dport 80 \
                   -j DNAT --to-destination 10.1.0.12:5402";
    let plain = "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -s 10.1.0.0/16 -j ACCEPT";
    for (rules, to) in [
        (RULES.to_owned(), tenant_b(PORT)),
        (format!("{RULES}\n{service}"), "10.96.0.10:80".parse().unwrap()),
        (plain.to_owned(), tenant_b(PORT)),
    ] {
        let pair = ruled(true, &rules);
        let accels = accelerate(&pair);
        let echo = Echo::new(&pair, to, tenant_b(PORT));
        let go = || {
            echo.near.send_to(b"there", echo.to).unwrap();
            assert_eq!(echo.far.recv(&mut [0; 8]).unwrap(), 5);
        };
        settle_one_way(&accels, go);
        // An answer changes the flow: no earlier verdict is valid, until both directions have new
        // ones.
        settle(&accels, || echo.go());
        // Without the rule that accepts first packets, established flows continue, others do not.
        sh(&pair.a, "iptables-nft -I FORWARD -m conntrack --ctstate NEW -j DROP");
        if rules == plain {
            // Conntrack sees the flow as established with the first answer that it tracks.
            continue;
        }
        settle(&accels, || echo.go());
        let other = Echo::new(&pair, to, (TENANT_B, PORT + 1).into());
        for _ in 0..20 {
            other.near.send_to(b"there", other.to).unwrap();
        }
        echo.far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(echo.far.recv(&mut [0; 8]).is_err(), "a first packet passed");
    }
}

/// Like a load whose receiver answers once to show that it is there.
#[test]
fn datagrams_that_were_answered_once_go_fast_in_both_hosts() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    echo.go();
    settle_one_way(&accels, || {
        echo.near.send_to(b"there", echo.to).unwrap();
        assert_eq!(echo.far.recv(&mut [0; 8]).unwrap(), 5);
    });
}

/// Whether conntrack's entry of this source port is assured.
fn is_assured(host: &Host, port: u16) -> bool {
    let mut command = std::process::Command::new("conntrack");
    command.args(["-L", "-p", "udp", "--orig-port-src", &port.to_string()]);
    let listed = host.netns().run(|| command.output()).unwrap().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.contains("[ASSURED]")
}

/// Conntrack marks answered datagrams as assured after two seconds.
#[test]
fn answered_datagrams_go_fast_before_conntrack_calls_them_assured() {
    require!(need::root(), need::tool("iptables-nft"), need::tool("conntrack"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    settle(&accels, {
        let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
        move || echo.go()
    });
    // On a slow machine the entry may be assured by then: try another flow.
    poll("a connection on the fast path that is not assured", LIMIT, || {
        let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
        let before = accels[0].status();
        poll("the fast path for a connection", LIMIT, || {
            (0..20).for_each(|_| echo.go());
            let is_fast = since(&accels[0], &before, "encap_hit") > 0;
            Ok(is_fast.then_some(()).ok_or_else(|| format!("{:#?}", accels[0].status())))
        })?;
        let port = echo.near.local_addr().unwrap().port();
        Ok((!is_assured(&pair.a, port)).then_some(()).ok_or_else(|| "assured".to_owned()))
    })
    .unwrap();
}

/// The rules accept such datagrams at first, and drop them later, so no verdict may cover both
/// states.
#[test]
fn datagrams_that_rules_stop_once_they_are_assured_stay_slow() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    sh(
        &pair.a,
        "iptables-nft -I FORWARD -p udp --sport 5402 -m conntrack --ctstatus ASSURED -j DROP",
    );
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    let fast = || since(&accels[0], &Default::default(), "decap_hit");
    echo.near.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    poll("the rule to stop answers", LIMIT, || {
        echo.near.send_to(b"there", echo.to).unwrap();
        let (_, from) = echo.far.recv_from(&mut [0; 8]).unwrap();
        echo.far.send_to(b"back", from).unwrap();
        let arrived = echo.near.recv(&mut [0; 8]).is_ok();
        Ok((!arrived).then_some(()).ok_or_else(|| "they arrive".to_owned()))
    })
    .unwrap();
    assert_eq!(fast(), 0, "answers went past the rule: {:#?}", accels[0].status());
}
