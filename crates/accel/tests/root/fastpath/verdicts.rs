//! Flows through packet filters: which flows take the fast path, on what conditions, and until
//! when.

use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use accel::{Accel, Accounting, Options, Wanted};
use netstate::connection::{Entry, connections};
use test_support::{bound, need, require};
use testbed::{Host, Offload, poll};

use super::datagrams::settle_one_way;
use super::exchange::{Exchange, RULES};
use super::pair::{LIMIT, Pair, TENANT_B, sh, since};

pub const PORT: u16 = 5402;

pub fn accelerate(pair: &Pair) -> [Accel; 2] {
    for host in [&pair.a, &pair.b, &pair.tenant_a, &pair.tenant_b] {
        host.settle().unwrap();
    }
    [&pair.a, &pair.b].map(|host| Accel::start(host.netns(), Wanted::All).unwrap())
}

/// Sends until packets of both directions take the fast path in both hosts.
pub fn settle(accels: &[Accel; 2], mut send: impl FnMut()) {
    poll("the fast path for a flow, both ways in both hosts", LIMIT, || {
        let before = accels.each_ref().map(Accel::status);
        (0..12).for_each(|_| send());
        let taken = accels.iter().zip(&before).all(|(accel, before)| {
            let sent = since(accel, before, "encap_hit") + since(accel, before, "encap_shortcut");
            sent > 8 && since(accel, before, "decap_hit") > 8
        });
        let seen = || format!("{:#?}", accels.each_ref().map(Accel::status));
        Ok(taken.then_some(()).ok_or_else(seen))
    })
    .unwrap();
}

/// A pair with these rules in both hosts.
pub fn ruled(bridge: bool, rules: &str) -> Pair {
    let pair = Pair::routed(Offload::Full, false, bridge);
    for host in [&pair.a, &pair.b] {
        sh(host, rules);
    }
    pair
}

pub fn tenant_b(port: u16) -> SocketAddr {
    (TENANT_B, port).into()
}

#[test]
fn a_connection_through_the_rules_of_a_real_node_goes_fast() {
    require!(need::root(), need::tool("iptables-nft"));
    for bridge in [true, false] {
        let pair = ruled(bridge, RULES);
        let accels = accelerate(&pair);
        let mut exchange = Exchange::new(&pair, tenant_b(PORT), tenant_b(PORT));
        settle(&accels, || exchange.go(100));
        settle(&accels, || exchange.go(1_000_000));
        let refusals: Vec<_> = accels.iter().map(Accel::status).collect();
        assert!(refusals.iter().all(|s| s.refusals().next().is_none()), "{refusals:#?}");
        // Pings belong to no connection and stay on the slow path.
        pair.ping(&[]);
    }
}

/// Datagrams with answers.
pub struct Echo {
    pub near: UdpSocket,
    pub far: UdpSocket,
    pub to: SocketAddr,
}

impl Echo {
    /// As [`Exchange::new`].
    pub fn new(pair: &Pair, to: SocketAddr, at: SocketAddr) -> Echo {
        let any = |of: SocketAddr| -> SocketAddr {
            if of.is_ipv4() { "0.0.0.0:0".parse().unwrap() } else { "[::]:0".parse().unwrap() }
        };
        let far = pair.tenant_b.netns().run(|| bound(|| UdpSocket::bind(at))).unwrap();
        let near = pair.tenant_a.netns().run(|| UdpSocket::bind(any(to)).unwrap()).unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(LIMIT)).unwrap();
        }
        Echo { near, far, to }
    }

    pub fn go(&self) {
        let mut bytes = [0; 64];
        self.near.send_to(b"there", self.to).unwrap();
        let (length, from) = self.far.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"there");
        self.far.send_to(b"back again", from).unwrap();
        let (length, from) = self.near.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..length], from), (&b"back again"[..], self.to));
    }
}

/// Flows store that their source is routed to the device that they come from.
#[test]
fn a_source_that_is_routed_elsewhere_is_slow_from_the_change_on() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    let go = || {
        echo.near.send_to(b"there", echo.to).unwrap();
        assert_eq!(echo.far.recv(&mut [0; 8]).unwrap(), 5);
    };
    settle_one_way(&accels, go);
    sh(&pair.a, "ip route replace 10.1.0.11/32 dev vxlan0");
    let before = accels[0].status();
    poll("a packet that is slow for its route", LIMIT, || {
        (0..20).for_each(|_| go());
        let slow = since(&accels[0], &before, "encap_route");
        Ok((slow > 0).then_some(()).ok_or_else(|| format!("{:#?}", accels[0].status())))
    })
    .unwrap();
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0);
    sh(&pair.a, "ip route replace 10.1.0.11/32 dev br0");
    settle_one_way(&accels, go);
}

/// (rule of the sender's host, destination, destination after translation)
const SERVICES: &[(&str, &str, &str)] = &[
    (
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p PROTOCOL --dport 80 \
         -j DNAT --to-destination 10.1.0.12:5402",
        "10.96.0.10:80",
        "10.1.0.12:5402",
    ),
    // Translates only the port, then only the address.
    (
        "iptables-nft -t nat -A PREROUTING -d 10.1.0.12 -p PROTOCOL --dport 80 \
         -j DNAT --to-destination 10.1.0.12:5402",
        "10.1.0.12:80",
        "10.1.0.12:5402",
    ),
    (
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p PROTOCOL \
         -j DNAT --to-destination 10.1.0.12",
        "10.96.0.10:5402",
        "10.1.0.12:5402",
    ),
    // Translates both ends.
    (
        "iptables-nft -t nat -A PREROUTING -d 10.96.0.10 -p PROTOCOL --dport 80 \
         -j DNAT --to-destination 10.1.0.12:5402
         iptables-nft -t nat -A POSTROUTING -s 10.1.0.11 -o vxlan0 -j MASQUERADE",
        "10.96.0.10:80",
        "10.1.0.12:5402",
    ),
    (
        "nft 'table ip6 t { chain c { type nat hook prerouting priority -100; \
         ip6 daddr fd96::10 meta l4proto PROTOCOL dnat to [fd00::12]:5402; }; }'",
        "[fd96::10]:80",
        "[fd00::12]:5402",
    ),
];

fn tcp_entries(host: &Host) -> Vec<Entry> {
    let mut found = Vec::new();
    let each = |entry: &Entry| {
        if entry.tcp_state.is_some() {
            found.push(entry.clone());
        }
    };
    host.netns().run(|| connections(each)).unwrap().unwrap();
    found.sort_by_key(|entry| entry.original.source);
    found
}

#[test]
fn services_are_translated_as_conntrack_says() {
    require!(need::root(), need::tool("iptables-nft"));
    for (rule, to, at) in SERVICES {
        let (to, at) = (to.parse().unwrap(), at.parse().unwrap());
        let pair = ruled(true, RULES);
        // Answers to a masqueraded source are addressed to the router itself.
        sh(&pair.b, "ip route add 10.1.11.0/32 dev vxlan0");
        for protocol in ["tcp", "udp"] {
            sh(&pair.a, &rule.replace("PROTOCOL", protocol));
        }
        let accels = accelerate(&pair);
        eprintln!("{to}");
        let echo = Echo::new(&pair, to, at);
        settle(&accels, || echo.go());
        let mut exchange = Exchange::new(&pair, to, at);
        settle(&accels, || exchange.go(100));
        settle(&accels, || exchange.go(300_000));
        // After the end, conntrack translates as before, and compares segments with windows.
        let before = tcp_entries(&pair.a);
        assert!(before.iter().any(|entry| entry.liberal == [true; 2]), "{before:#?}");
        let [first, second] = accels;
        drop(first);
        let after = tcp_entries(&pair.a);
        let strict =
            |entry: &Entry| Entry { liberal: [false; 2], is_marked: false, ..entry.clone() };
        assert_eq!(after, before.iter().map(strict).collect::<Vec<_>>());
        exchange.go(300_000);
        assert_eq!(tcp_entries(&pair.a), after);
        let accels = [Accel::start(pair.a.netns(), Wanted::All).unwrap(), second];
        settle(&accels, || exchange.go(300_000));
        settle(&accels, || echo.go());
    }
}

#[test]
fn a_rule_that_depends_on_the_packet_keeps_its_flows_slow_and_is_reported() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let mut exchange = Exchange::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || exchange.go(100));
    for (rule, expected) in [
        ("-A FORWARD -p tcp --dport 5402 -m limit --limit 1000/s -j ACCEPT", ": limit"),
        ("-A FORWARD -p tcp --dport 5402 -m length --length 1400: -j LOG", ": length"),
        ("-t mangle -A POSTROUTING -p tcp --dport 5402 -j DSCP --set-dscp 8", ": DSCP"),
        (
            "-A FORWARD -p tcp --dport 5402 -m statistic --mode nth --every 9 --packet 0 -j ACCEPT",
            ": statistic",
        ),
    ] {
        // Inserted before the accepting rules, except for rules in their own table.
        sh(&pair.a, &format!("iptables-nft {}", rule.replace("-A FORWARD", "-I FORWARD")));
        poll(rule, LIMIT, || {
            let before = accels[0].status();
            (0..12).for_each(|_| exchange.go(100));
            let taken = since(&accels[0], &before, "encap_hit");
            let flows = accels[0].status().flows.unwrap_or_default();
            let is_reported = flows.reasons.keys().any(|reason| {
                reason.starts_with("ip ")
                    && reason.contains(" handle ")
                    && reason.ends_with(expected)
            });
            Ok((taken == 0 && is_reported)
                .then_some(())
                .ok_or_else(|| format!("{taken}: {flows:?}")))
        })
        .unwrap();
        sh(&pair.a, &format!("iptables-nft {}", rule.replace("-A ", "-D ")));
        settle(&accels, || exchange.go(100));
    }
}

#[test]
fn a_forbidden_flow_ends_and_comes_back() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    sh(
        &pair.b,
        "nft 'table inet t { set blocked { type ipv4_addr . inet_service; }; \
         chain c { type filter hook forward priority -5; \
         ip saddr . udp dport @blocked counter drop; }; }'",
    );
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || echo.go());
    for (host, forbid, allow) in [
        (
            &pair.a,
            "iptables-nft -I FORWARD -p udp --dport 5402 -j DROP",
            "iptables-nft -D FORWARD -p udp --dport 5402 -j DROP",
        ),
        (
            &pair.b,
            "nft add element inet t blocked '{ 10.1.0.11 . 5402 }'",
            "nft delete element inet t blocked '{ 10.1.0.11 . 5402 }'",
        ),
        (&pair.a, "iptables-nft -F FLANNEL-FWD; iptables-nft -F KUBE-FORWARD", RULES),
    ] {
        sh(host, forbid);
        // The reconciler follows within milliseconds; with a later heartbeat, all packets take the
        // slow path.
        std::thread::sleep(Duration::from_millis(u64::from(STALE_MS)));
        echo.far.set_nonblocking(true).unwrap();
        while echo.far.recv(&mut [0; 64]).is_ok() {}
        let before = accels.each_ref().map(Accel::status);
        for _ in 0..100 {
            echo.near.send_to(b"there", echo.to).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        let arrived = echo.far.recv(&mut [0; 64]);
        assert!(arrived.is_err(), "{forbid}: a datagram arrived");
        let at = usize::from(host.name() == "b");
        let way = ["encap_hit", "decap_hit"][at];
        assert_eq!(since(&accels[at], &before[at], way), 0, "{forbid}");
        echo.far.set_nonblocking(false).unwrap();
        // All rules of a flushed chain are written again.
        let anew =
            "iptables-nft -F; iptables-nft -X; iptables-nft -t nat -F; iptables-nft -t nat -X;";
        sh(host, &if allow == RULES { format!("{anew} {RULES}") } else { allow.to_owned() });
        settle(&accels, || echo.go());
    }
}

/// `STALE_MS` of `bpf/abi.h`.
pub const STALE_MS: u32 = 100;

/// Packets at a counter of `inet t`.
fn counted(host: &Host, name: &str) -> u64 {
    let mut command = std::process::Command::new("nft");
    command.args(["list", "counter", "inet", "t", name]).stdout(std::process::Stdio::piped());
    let listed = host.netns().run(|| command.output()).unwrap().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets").unwrap();
    words[at + 1].parse().unwrap()
}

#[test]
fn a_connection_that_was_fast_is_valid_on_the_slow_path() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    for host in [&pair.a, &pair.b] {
        sh(
            host,
            "nft 'table inet t { counter odd { }; chain c { type filter hook forward priority -5; \
             ct state invalid counter name odd; }; }'",
        );
    }
    let accels = accelerate(&pair);
    let mut exchange = Exchange::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || exchange.go(100));
    // Far beyond any window that conntrack has seen.
    settle(&accels, || exchange.go(3_000_000));
    drop(accels);
    // From now on over the slow path, until the end.
    exchange.go(3_000_000);
    exchange.go(100);
    let Exchange { near, mut far } = exchange;
    drop(near);
    assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
    drop(far);
    for host in [&pair.a, &pair.b] {
        assert_eq!(counted(host, "odd"), 0, "invalid packets in {}", host.name());
    }
}

#[test]
fn an_entry_that_goes_ends_the_verdict_and_one_in_use_is_kept() {
    require!(need::root(), need::tool("iptables-nft"), need::tool("conntrack"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || echo.go());
    // Shorter than the interval between two packets on the slow path, and than the timeout when the
    // verdict was given.
    sh(&pair.a, "sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=3");
    let before = accels[0].status();
    let until = std::time::Instant::now() + Duration::from_secs(7);
    while std::time::Instant::now() < until {
        echo.go();
        std::thread::sleep(Duration::from_millis(20));
    }
    let lost = since(&accels[0], &before, "encap_tracking");
    assert_eq!(lost, 0, "conntrack's entry was gone while in use");
    // FIELDS: protocol, its number, seconds left …
    sh(
        &pair.a,
        "conntrack -L -p udp --dport 5402 2>/dev/null | awk '{ exit !(NR == 1 && $3 <= 3) }'",
    );
    // Without its entry, the flow is untracked. Now and then a packet takes the slow path for
    // another reason; then the next packet must show it.
    poll("a packet without its entry", LIMIT, || {
        sh(&pair.a, "conntrack -D -p udp --dport 5402");
        let before = accels[0].status();
        echo.go();
        assert_eq!(since(&accels[0], &before, "encap_hit"), 0);
        match since(&accels[0], &before, "encap_tracking") {
            1 => Ok(Ok(())),
            other => Ok(Err(format!("{other} counted"))),
        }
    })
    .unwrap();
    settle(&accels, || echo.go());
}

/// Whether programs find the generation of the rules (`net->nft.base_seq`).
fn is_generation_known() -> bool {
    let name = nix::sys::utsname::uname().unwrap();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(17))
}

/// A rule is in force when its call returns, even if the daemon handles the notification late.
#[test]
fn rules_are_obeyed_while_the_daemon_hangs() {
    require!(need::root(), need::tools(&["iptables-nft", "nft"]));
    require!(need::that(is_generation_known(), "Linux 6.17, whose programs find a generation"));
    let pair = ruled(true, RULES);
    let accels = accelerate(&pair);
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    let hits = || accels[0].status().packets("encap_hit");
    poll("a change of rules before the heartbeat is too old", LIMIT, || {
        sh(&pair.a, "nft 'add table inet later'");
        settle(&accels, || echo.go());
        let hanging = Instant::now();
        accels[0].pause(true);
        // A reconciler turn that had started has ended by then.
        std::thread::sleep(Duration::from_millis(30));
        let before = hits();
        (0..3).for_each(|_| echo.go());
        let fast = hits() - before;
        sh(
            &pair.a,
            "nft 'add chain inet later drops { type filter hook forward priority 0; }
                  add rule inet later drops udp dport 5402 drop'",
        );
        let before = hits();
        (0..3).for_each(|_| assert_eq!(echo.near.send_to(b"there", echo.to).unwrap(), 5));
        let taken = hits() - before;
        // Later the expired heartbeat stops the fast path, regardless of rules.
        let soon = hanging.elapsed() < Duration::from_millis(90);
        sh(&pair.a, "nft delete table inet later");
        accels[0].pause(false);
        assert_eq!(taken, 0, "bypassed a rule");
        let is_met = (fast == 3 && soon).then_some(());
        Ok(is_met.ok_or_else(|| format!("{fast} of 3 fast before it, {:?}", hanging.elapsed())))
    })
    .unwrap();
    echo.far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(echo.far.recv(&mut [0; 8]).is_err(), "a datagram that a rule drops arrived");
}

/// Rules of flannel without `--ip-masq`: no rule enables conntrack.
#[test]
fn without_conntrack_rules_flows_without_entries_take_the_fast_path() {
    require!(need::root(), need::tool("iptables-nft"));
    let plain = "iptables-nft -P FORWARD DROP
        iptables-nft -A FORWARD -s 10.1.0.0/16 -j ACCEPT";
    let pair = ruled(true, plain);
    let accels = accelerate(&pair);
    let mut exchange = Exchange::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || exchange.go(100));
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    settle(&accels, || echo.go());
    // Once a rule translates, there may be entries, and no verdict depends on the rules alone.
    let number = || accels[0].status().flows.map(|flows| flows.number);
    let (before, nat) = (number(), "iptables-nft -t nat -A POSTROUTING -d 192.0.2.1 -j MASQUERADE");
    sh(&pair.a, nat);
    poll("other verdicts", LIMIT, || {
        Ok(if number() > before { Ok(()) } else { Err(format!("{before:?}")) })
    })
    .unwrap();
    // Conntrack does not know the windows of a connection that it picks up in progress: it accepts
    // any sequence number, and the connection stays on the slow path.
    exchange.go(100);
    let mut exchange = Exchange::new(&pair, tenant_b(PORT + 1), tenant_b(PORT + 1));
    settle(&accels, || exchange.go(100));
    let before = number();
    sh(&pair.a, nat);
    settle(&accels, || exchange.go(100));
    assert_eq!(number(), before, "one more such rule ends no verdict");
    // A rule enables conntrack.
    sh(&pair.a, "iptables-nft -I FORWARD -m conntrack --ctstate INVALID -j DROP");
    settle(&accels, || exchange.go(100));
    sh(&pair.a, "iptables-nft -I FORWARD -p udp -j DROP");
    echo.near.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    poll("the datagrams to stop", LIMIT, || {
        echo.near.send_to(b"there", echo.to).unwrap();
        let arrived = echo.far.set_read_timeout(Some(Duration::from_millis(100)));
        arrived.unwrap();
        let arrived = echo.far.recv(&mut [0; 8]);
        Ok(if arrived.is_err() { Ok(()) } else { Err("one arrived".to_owned()) })
    })
    .unwrap();
}

#[test]
fn with_accounting_every_packet_comes_to_its_rules() {
    require!(need::root(), need::tool("iptables-nft"));
    let pair = ruled(true, RULES);
    let start = |host: &Host| {
        let options = Options { accounting: Accounting::Exact, ..Options::default() };
        Accel::with(host.netns(), Wanted::All, options).unwrap()
    };
    let accels = [start(&pair.a), start(&pair.b)];
    let echo = Echo::new(&pair, tenant_b(PORT), tenant_b(PORT));
    for host in [&pair.a, &pair.b] {
        sh(
            host,
            "nft 'table inet counted { chain c { type filter hook forward priority 5; udp dport 5402 counter; }; }'",
        );
    }
    (0..200).for_each(|_| echo.go());
    for (host, accel) in [&pair.a, &pair.b].into_iter().zip(&accels) {
        let mut list = std::process::Command::new("nft");
        let rules = host.run(list.args(["list", "chain", "inet", "counted", "c"])).unwrap();
        assert!(rules.contains("counter packets 200 "), "{rules}");
        let status = accel.status();
        assert_eq!(status.devices[0].refused.as_ref().unwrap().code, "AX223", "{status:#?}");
    }
}
