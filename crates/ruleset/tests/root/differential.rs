//! Compares the kernel and the evaluation on random rules: accepted packets arrive, dropped packets
//! do not.

use crate::common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{CLIENT, Row, SERVER, back, flow, path};
use rand::seq::IndexedRandom as _;
use rand::{Rng, RngExt as _, SeedableRng as _};
use ruleset::{Flow, Transport, Verdict};
use test_support::bound;
use testbed::Host;

/// A service's address. The rules of some rounds translate it to the server's.
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));
/// Time limit for the kernel to forward a packet on an idle wire.
const STOPPED: Duration = Duration::from_millis(15);
const ARRIVED: Duration = Duration::from_secs(5);
const MARK: u32 = 7;

fn pick<'a>(rng: &mut impl Rng, of: &[&'a str]) -> &'a str {
    of.choose(rng).unwrap()
}

fn nft_match(rng: &mut impl Rng) -> String {
    pick(
        rng,
        &[
            "ip saddr 10.0.1.2",
            "ip daddr 10.0.2.0/24",
            "ip saddr != 10.0.1.0/30",
            "ip daddr 10.0.1.0-10.0.2.1",
            "ip protocol udp",
            "meta l4proto tcp",
            "th dport 80-90",
            "th sport > 40000",
            "th dport != 80",
            "th sport { 80, 443 }",
            "th dport { 1-79, 85, 100-40500 }",
            "ip daddr { 10.0.0.0/16, 10.9.0.0/24 }",
            "ip saddr . th dport { 10.0.1.2 . 80, 10.0.2.2 . 80 }",
            "ip saddr . th dport { 10.0.1.0/24 . 70-90, 10.9.9.0-10.9.9.20 . 1-65535 }",
            "ip saddr @addresses",
            "iifname \"in0\"",
            "oifname \"out*\"",
            "iif != \"in0\"",
            "iifname . oifname { \"in0\" . \"out0\", \"out0\" . \"in1\" }",
            "ct state established",
            "ct state new,invalid",
            "ct state vmap { invalid : drop, established : jump other }",
            "ct direction reply",
            "ct status dnat",
            "ct status & (snat|dnat) == 0",
            "ct mark 7",
            "ct mark and 0x4 == 0",
            "ct mark 5-9",
            "ct original saddr 10.0.1.2",
            "ct reply saddr 10.0.2.0/24",
            "ct original proto-dst 80",
            "ct zone 0",
            "meta mark 0",
            "meta mark & 0x3 == 0x1",
            "ip frag-off & 0x1fff == 0",
            "ip version 4",
            "fib daddr type unicast",
            "fib saddr type local",
            "counter",
        ],
    )
    .to_owned()
}

fn nft_verdict(rng: &mut impl Rng) -> &'static str {
    pick(
        rng,
        &[
            "accept",
            "drop",
            "return",
            "jump other",
            "goto other",
            "jump third",
            "meta mark set 5",
            "meta mark set ct mark",
            "meta mark set meta mark | 0x1",
            "ct mark set 7",
            "reject",
            "th dport vmap { 80 : goto other, 1-79 : drop, 40000-60000 : jump third }",
            "ip daddr vmap { 10.0.2.0/24 : jump other, 10.0.1.2 : accept }",
            "continue",
            "meta mark set ip saddr map { 10.0.1.2 : 9, 10.0.2.2 : 4 }",
        ],
    )
}

/// A ruleset as a command of nft.
fn nft_rules(rng: &mut impl Rng) -> String {
    let mut text = String::from(
        "add table ip x; flush table ip x; delete table ip x; add table ip x; \
         add set ip x addresses { type ipv4_addr; flags interval; elements = { 10.0.1.0/25, 10.0.2.2 }; }; \
         add chain ip x third; add chain ip x other; ",
    );
    let hooks = [
        ("prerouting", -300),
        ("prerouting", -150),
        ("prerouting", 0),
        ("forward", 0),
        ("forward", 10),
        ("postrouting", -150),
        ("postrouting", 200),
    ];
    let mut chains = vec!["third".to_owned(), "other".to_owned()];
    for at in 0..rng.random_range(1..4) {
        let (hook, priority) = hooks.choose(rng).unwrap();
        let policy = pick(rng, &["accept", "accept", "drop"]);
        text += &format!(
            "add chain ip x base{at} {{ type filter hook {hook} priority {priority}; policy {policy}; }}; "
        );
        chains.push(format!("base{at}"));
    }
    for (depth, chain) in chains.iter().enumerate() {
        for _ in 0..rng.random_range(0..5) {
            let matches: Vec<String> =
                (0..rng.random_range(0..3)).map(|_| nft_match(rng)).collect();
            let rule = format!("{} {}", matches.join(" "), nft_verdict(rng));
            // No loops: third has no jumps, other jumps to third only.
            let jumps_other = rule.contains("other");
            if depth == 0 && (jumps_other || rule.contains("third")) || depth == 1 && jumps_other {
                continue;
            }
            // One verdict a rule.
            if rule.contains("} ") && rule.matches("vmap").count() > 0 && !rule.ends_with('}')
                || rule.matches("vmap").count() > 1
            {
                continue;
            }
            // Reject only where the hook allows it.
            let rule = rule.replace("reject", "drop");
            text += &format!("add rule ip x {chain} {rule}; ");
        }
    }
    text
}

/// Rules as iptables-nft-restore reads them.
fn iptables_rules(rng: &mut impl Rng) -> String {
    let mut text =
        String::from("*mangle\n:PREROUTING ACCEPT\n-A PREROUTING -j MARK --set-xmark 0x3/0xff\n");
    if rng.random() {
        text += "-A PREROUTING -m connmark --mark 7 -j CONNMARK --restore-mark\n";
    }
    text += "COMMIT\n*filter\n:FORWARD ";
    text += pick(rng, &["ACCEPT", "ACCEPT", "DROP"]);
    text += "\n:OTHER -\n:THIRD -\n";
    for chain in ["THIRD", "OTHER", "FORWARD"] {
        for _ in 0..rng.random_range(0..5) {
            let mut rule = format!("-A {chain}");
            for _ in 0..rng.random_range(0..3) {
                rule += " ";
                rule += pick(
                    rng,
                    &[
                        "-s 10.0.1.0/24",
                        "! -d 10.0.2.2",
                        "-i in0",
                        "-o out+",
                        "-m conntrack --ctstate RELATED,ESTABLISHED",
                        "-m conntrack ! --ctstate INVALID,NEW",
                        "-m conntrack --ctstate DNAT",
                        "-m conntrack --ctdir REPLY",
                        "-m conntrack --ctorigdst 10.0.2.0/24",
                        "-m conntrack --ctorigsrc 10.0.1.2 ! --ctreplsrc 10.0.9.9",
                        "-m conntrack --ctproto 6",
                        "-m conntrack --ctproto 17 --ctorigdstport 80",
                        "-m conntrack --ctproto 6 --ctreplsrcport 80:90",
                        "-m conntrack --ctstatus SEEN_REPLY",
                        "-m state --state ESTABLISHED",
                        "-m mark --mark 0x3/0x3",
                        "-m mark ! --mark 0x7",
                        "-m connmark --mark 7",
                        "-m addrtype --dst-type LOCAL",
                        "-m addrtype ! --src-type LOCAL --dst-type UNICAST",
                        "-p tcp",
                        "-p udp --dport 80",
                        "-p tcp --syn",
                        "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK ACK",
                        "-p tcp -m multiport --dports 22,80:90",
                        "-p udp -m multiport --ports 443,80",
                        "-p udp -m multiport ! --sports 80",
                        "-p icmp --icmp-type echo-request",
                        "-m iprange --src-range 10.0.1.1-10.0.1.9",
                        "-m iprange ! --dst-range 10.0.1.0-10.0.2.1",
                        "-m physdev --physdev-is-bridged",
                        "-m physdev ! --physdev-is-in",
                        "-m comment --comment x",
                        "-f",
                        "! -f",
                    ],
                );
            }
            let target = match chain {
                "THIRD" => pick(rng, &["ACCEPT", "DROP", "RETURN", "REJECT"]),
                "OTHER" => pick(rng, &["ACCEPT", "DROP", "RETURN", "THIRD"]),
                _ => pick(rng, &["ACCEPT", "DROP", "OTHER", "THIRD"]),
            };
            let go = if rng.random_range(0..4) == 0 && ["OTHER", "THIRD"].contains(&target) {
                "-g"
            } else {
                "-j"
            };
            // One protocol per rule, and each match once.
            let once = |what: &str| rule.matches(what).count() <= 1;
            if once("-p ")
                && once(" -m conntrack")
                && once("-m mark")
                && once("-m addrtype")
                && once("iprange")
                && once("physdev")
                && once("-d ")
                && once("-f")
                && once("-s ")
            {
                text += &format!("{rule} {go} {target}\n");
            }
        }
    }
    text + "COMMIT\n"
}

/// A connection through the node.
enum Talk {
    Udp(UdpSocket, UdpSocket),
    Tcp(TcpStream, TcpStream),
}

impl Talk {
    /// Establishes a connection, and returns its flow.
    fn new(row: &Row, is_tcp: bool, to: IpAddr) -> (Talk, Flow) {
        let (client, server) = (row.client.netns(), row.server.netns());
        let to = SocketAddr::new(to, 80);
        let (talk, port) = if is_tcp {
            let listener = server.run(|| bound(|| TcpListener::bind((SERVER, 80)))).unwrap();
            let near = client.run(|| TcpStream::connect_timeout(&to, ARRIVED)).unwrap().unwrap();
            let (far, _) = listener.accept().unwrap();
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let port = near.local_addr().unwrap().port();
            (Talk::Tcp(near, far), port)
        } else {
            let far = server.run(|| bound(|| UdpSocket::bind((SERVER, 80)))).unwrap();
            let near = client.run(|| UdpSocket::bind((CLIENT, 0))).unwrap().unwrap();
            near.connect(to).unwrap();
            near.send(b"hello").unwrap();
            far.set_read_timeout(Some(ARRIVED)).unwrap();
            let (_, from) = far.recv_from(&mut [0; 9]).unwrap();
            far.connect(from).unwrap();
            far.send(b"hello").unwrap();
            near.set_read_timeout(Some(ARRIVED)).unwrap();
            near.recv(&mut [0; 9]).unwrap();
            let port = near.local_addr().unwrap().port();
            (Talk::Udp(near, far), port)
        };
        let transport = if is_tcp { Transport::Tcp } else { Transport::Udp };
        let mut flow = flow(transport, port, 80);
        if let Some(connection) = &mut flow.connection {
            connection.mark = Some(MARK);
            // IPS_SEEN_REPLY and IPS_CONFIRMED, plus the flags of a translation.
            connection.status = Some(0xa);
        }
        if to.ip() == SERVICE {
            // Masqueraded and translated to the server.
            flow.tuple.destination.0 = SERVICE;
            flow.other.source.0 = SERVER;
            flow.other.destination.0 = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));
            if let Some(connection) = &mut flow.connection {
                connection.status = Some(0xa | 0x30 | 0x180);
            }
        }
        flow.address_types.extend([
            (SERVICE, 1),
            (IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1)), 2),
            (IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)), 2),
        ]);
        (talk, flow)
    }

    /// Whether a packet from one end arrives at the other within a time.
    fn arrives(&mut self, is_reply: bool, within: Duration) -> bool {
        let mut bytes = [0; 9];
        match self {
            Talk::Udp(near, far) => {
                let (from, to) = if is_reply { (far, near) } else { (near, far) };
                // A rejected packet returns as an error.
                let _ = from.take_error();
                let _ = from.send(b"more");
                let end = Instant::now() + within;
                to.set_read_timeout(Some(within)).unwrap();
                loop {
                    match to.recv(&mut bytes) {
                        Ok(_) => return true,
                        Err(_) if Instant::now() >= end => return false,
                        Err(_) => {}
                    }
                }
            }
            Talk::Tcp(near, far) => {
                let (from, to) = if is_reply { (far, near) } else { (near, far) };
                from.write_all(b"more").unwrap();
                to.set_read_timeout(Some(within)).unwrap();
                to.read(&mut bytes).is_ok_and(|length| length > 0)
            }
        }
    }
}

/// The program whose rules are compared.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    Nft,
    IptablesNft,
    IptablesLegacy,
}

impl Program {
    fn load(self, host: &Host, rules: &str) -> Result<(), testbed::Error> {
        match self {
            Program::Nft => host.nft(rules),
            Program::IptablesNft => restore(host, "iptables-nft-restore", rules),
            Program::IptablesLegacy => restore(host, "iptables-legacy-restore", rules),
        }
    }
}

fn restore(host: &Host, program: &str, rules: &str) -> Result<(), testbed::Error> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    host.run(Command::new(program).arg(file.path())).map(drop)
}

/// Runs rounds of random rules; `Err` names the first difference.
fn compare(seed: u64, rounds: usize, program: Program) {
    let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(seed);
    let row = Row::new();
    row.node
        .nft(&format!(
            "add table ip base; \
             add chain ip base f {{ type filter hook forward priority -200; }}; \
             add rule ip base f ct state new ct mark set {MARK}; \
             add chain ip base d {{ type nat hook prerouting priority -100; }}; \
             add rule ip base d ip daddr 10.9.9.9 dnat to 10.0.2.2; \
             add chain ip base s {{ type nat hook postrouting priority 100; }}; \
             add rule ip base s ct status dnat masquerade"
        ))
        .unwrap();
    let links = row.node.netlink().links().unwrap();
    let index = |name: &str| links.iter().find(|link| link.name == name).unwrap().index;
    let (inner, outer) = ((index("in0"), "in0"), (index("out0"), "out0"));
    let (mut accepted, mut dropped, mut others, mut refused) = (0, 0, 0, 0);
    for round in 0..rounds {
        if program == Program::Nft {
            let _ = row.node.nft("delete table ip x");
        } else {
            let none = "*mangle\nCOMMIT\n*filter\n:FORWARD ACCEPT\nCOMMIT\n";
            program.load(&row.node, none).unwrap();
        }
        let to = if rng.random() { SERVER } else { SERVICE };
        let is_tcp = rng.random();
        let (mut talk, flow) = Talk::new(&row, is_tcp, to);
        let rules = match program {
            Program::Nft => nft_rules(&mut rng),
            _ => iptables_rules(&mut rng),
        };
        if let Err(error) = program.load(&row.node, &rules) {
            refused += 1;
            assert!(refused < rounds / 3, "{refused} of {round} refused: {error}\n{rules}");
            continue;
        }
        let read = row.rules();
        let is_reply: bool = rng.random();
        let (asked, path) =
            if is_reply { (back(&flow), path(outer, inner)) } else { (flow, path(inner, outer)) };
        let answer = read.verdict(&asked, &path);
        let what = || format!("seed {seed}, round {round}: {answer:?} of {asked:?}\n{rules}");
        match &answer.verdict {
            Verdict::Accept => {
                accepted += 1;
                assert!(talk.arrives(is_reply, ARRIVED), "stopped, but {}", what());
            }
            Verdict::Drop { .. } => {
                dropped += 1;
                assert!(!talk.arrives(is_reply, STOPPED), "arrived, but {}", what());
            }
            _ => {
                others += 1;
                assert!(others < 5 + round / 4, "{}", what());
            }
        }
    }
    println!(
        "seed {seed}: {accepted} accepted, {dropped} dropped, {others} not decided, {refused} refused"
    );
    assert!(accepted > rounds / 8 && dropped > rounds / 8, "{accepted}, {dropped} of {rounds}");
}

/// Number of rounds, set by OVERLANE_ROUNDS.
fn rounds() -> usize {
    std::env::var("OVERLANE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300)
}

fn seed() -> u64 {
    std::env::var("OVERLANE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn random_rules_of_nft_are_judged_as_the_kernel_does() {
    test_support::require!(test_support::need::root(), test_support::need::tool("nft"));
    compare(seed(), rounds(), Program::Nft);
}

#[test]
fn random_rules_of_iptables_are_judged_as_the_kernel_does() {
    test_support::require!(
        test_support::need::root(),
        test_support::need::tools(&["nft", "iptables-nft-restore"])
    );
    compare(seed(), rounds(), Program::IptablesNft);
}

#[test]
fn random_rules_of_iptables_legacy_are_judged_as_the_kernel_does() {
    test_support::require!(
        test_support::need::root(),
        test_support::need::tools(&["nft", "iptables-legacy-restore"])
    );
    compare(seed(), rounds(), Program::IptablesLegacy);
}
