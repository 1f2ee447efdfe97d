//! Timeouts of conntrack's entries while packets take the fast path.

use std::time::{Duration, Instant};

use accel::Accel;
use test_support::{need, require};
use testbed::poll;

use super::exchange::RULES;
use super::pair::{LIMIT, sh, since};
use super::verdicts::{Echo, PORT, accelerate, ruled, settle, tenant_b};

/// The longest pause between packets with which an entry of a second must stay.
const PAUSE: Duration = Duration::from_millis(300);

#[test]
fn an_entry_with_a_timeout_of_a_second_stays_while_it_is_used() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let names = ["udp_timeout", "udp_timeout_stream"];
    for (host, name) in
        [&pair.a, &pair.b].into_iter().flat_map(|host| names.map(|name| (host, name)))
    {
        host.sysctl(&format!("net/netfilter/nf_conntrack_{name}"), "1").unwrap();
    }
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || echo.go());
    // The entry of a flow that waits for a CPU ends rightly.
    let _real_time = sys::priority::real_time();
    poll("packets without a long pause", LIMIT, || {
        let before = accels.each_ref().map(Accel::status);
        let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
        // Shorter than the interval between two packets on the slow path.
        while begun.elapsed() < Duration::from_secs(4) {
            echo.go();
            longest = longest.max(last.elapsed());
            last = Instant::now();
            std::thread::sleep(Duration::from_millis(10));
        }
        if longest > PAUSE {
            settle(&accels, || echo.go());
            return Ok(Err(format!("{longest:?}")));
        }
        for (accel, before) in accels.iter().zip(&before) {
            for name in ["encap_tracking", "decap_tracking"] {
                assert_eq!(since(accel, before, name), 0, "the entry expired: {name}");
            }
        }
        Ok(Ok(()))
    })
    .unwrap();
}

/// The fast path renews an entry's timeout to the value that conntrack set last.
#[test]
fn other_timeouts_end_verdicts() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || echo.go());
    let number = || accels[0].status().flows.map(|flows| flows.number);
    for name in ["tcp_timeout_established", "udp_timeout_stream"] {
        let before = number();
        sh(&pair.a, &format!("sysctl -qw net.netfilter.nf_conntrack_{name}=7"));
        poll(name, LIMIT, || {
            Ok(if number() > before { Ok(()) } else { Err(format!("{before:?}")) })
        })
        .unwrap();
        settle(&accels, || echo.go());
    }
}
