//! Tests requests and answers: alone, damaged, and compared with the kernel's bridge.

mod frames;
#[path = "../../../../lab/tests/guest/qemu.rs"]
#[allow(dead_code, reason = "lab/tests/guest.rs asks other things of it")]
mod qemu;

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use test_support::{need, require};

use packet::vxlan::Vni;
use proptest::prelude::*;
use sys::tap::{Tap, TapOptions};
use testbed::Host;

use super::*;
use crate::counters::Resolution;
use crate::vtep::config::{Entries, NetworkConfig};
use crate::vtep::network::{Network, Policy};
use crate::vtep::place::Place;
use frames::*;

const REMOTE: [u8; 4] = [10, 0, 0, 2];

/// Returns a network that knows an owner at a remote endpoint, and hosts on the requester's side.
fn network(config: &NetworkConfig) -> (Network, Arc<Policy>) {
    let entries = Entries { fdb: vec![(OWNER, REMOTE.into())], ..Entries::default() };
    let network = Network::new(config, &entries, Policy::without_paths(config), 1450);
    let policy = network.policy();
    network.learn(&policy, BESIDE, Place::Local, 0);
    (network, policy)
}

fn config() -> NetworkConfig {
    NetworkConfig {
        remotes: vec![REMOTE.into()],
        neigh_suppress: true,
        max_neighbours: 3,
        max_learned_per_remote: Some(100),
        ..NetworkConfig::new(Vni::new(10).unwrap(), "tap0")
    }
}

/// Processes a frame from a remote endpoint.
fn learn_from(network: &Network, policy: &Policy, frame: &[u8], now: u32) {
    let claim = examine(frame).and_then(|resolving| resolving.claim).expect("a claim");
    network.notice(policy, claim, Place::Remote(REMOTE.into()), now);
}

/// Returns the answer to a frame of the TAP, or why there is none; `None`: not a request.
fn asked(network: &Network, frame: &[u8], now: u32) -> Option<Result<Vec<u8>, Resolution>> {
    match examine(frame)?.question? {
        Question::Duplicate => Some(Err(Resolution::Duplicate)),
        Question::Who(who) => Some(network.resolve(&network.policy(), &who, now).map(|owner| {
            let mut out = [0; ANSWER_LEN];
            let length = who.answer(&owner, &mut out);
            out[..length].to_vec()
        })),
    }
}

/// Returns the same frame with these tags in front, each with protocol and control information.
#[test]
fn learned_neighbours_are_answered_until_they_expire() {
    let (network, policy) = network(&config());
    let who4 = request(MacAddr::BROADCAST, ip4(1), ip4(2));
    let who6 = solicitation(ip6(1), ip6(2));
    assert_eq!(asked(&network, &who4, 0), Some(Err(Resolution::Unknown)));
    assert_eq!(asked(&network, &who6, 0), Some(Err(Resolution::Unknown)));
    let announced = framed(ASKER, OWNER, EtherType::ARP, &reply_of(OWNER, ip4(2))[14..]);
    learn_from(&network, &policy, &announced, 10);
    // A router, with the R flag set.
    learn_from(&network, &policy, &advertisement(OWNER, ip6(2), 0xe0), 10);
    assert_eq!(asked(&network, &who4, 310), Some(Ok(reply_of(OWNER, ip4(2)))));
    let answer = asked(&network, &who6, 310).unwrap().unwrap();
    assert_eq!(answer, advertisement(OWNER, ip6(2), 0xe0));
    assert_eq!(asked(&network, &who4, 311), Some(Err(Resolution::Unknown)), "it has aged");

    // Its hardware address is elsewhere, or is claimed from the requester's own side.
    learn_from(&network, &policy, &announced, 320);
    network.fdb.configure([], |_| true);
    assert_eq!(asked(&network, &who4, 320), Some(Err(Resolution::Unknown)));
    network.learn(&policy, OWNER, Place::Local, 320);
    assert_eq!(asked(&network, &who4, 320), Some(Err(Resolution::OwnSide)));
    network.learn(&policy, OWNER, Place::Remote(REMOTE.into()), 325);
    assert!(asked(&network, &who4, 325).unwrap().is_ok());
    let claim = examine(&announced).unwrap().claim.unwrap();
    network.notice(&policy, claim, Place::Local, 325);
    assert_eq!(asked(&network, &who4, 325), Some(Err(Resolution::Unknown)));
}

#[test]
fn a_solicitation_does_not_show_whether_its_sender_routes() {
    let (network, policy) = network(&config());
    let asks = |mac: MacAddr| {
        let group = icmpv6::solicited_node(ip6(1));
        let link = (group_mac(group), mac);
        discovery(link, (ip6(2), group), 135, 0, ip6(1), Some((1, mac)))
    };
    let who = solicitation(ip6(1), ip6(2));
    learn_from(&network, &policy, &asks(OWNER), 0);
    assert_eq!(asked(&network, &who, 0), Some(Err(Resolution::Unknown)));
    learn_from(&network, &policy, &advertisement(OWNER, ip6(2), 0x60), 0);
    // It confirms its known address.
    learn_from(&network, &policy, &asks(OWNER), 200);
    assert!(asked(&network, &who, 400).unwrap().is_ok());
    // Another host claims the address without the O flag: an anycast address.
    learn_from(&network, &policy, &advertisement(BESIDE, ip6(2), 0x40), 400);
    assert_eq!(asked(&network, &who, 400).unwrap().unwrap()[6..12], OWNER.0);
    // Another host uses the address. The current owner will answer when asked.
    learn_from(&network, &policy, &asks(BESIDE), 400);
    assert_eq!(asked(&network, &who, 400), Some(Err(Resolution::Unknown)));
}

#[test]
fn each_vlan_has_neighbours_of_its_own() {
    let (network, policy) = network(&NetworkConfig { max_neighbours: 4, ..config() });
    let vlan_6 = [0x81, 0, 0, 6];
    let who = [request(MacAddr::BROADCAST, ip4(1), ip4(2)), solicitation(ip6(1), ip6(2))];
    let say = |mac: MacAddr| {
        let arp = framed(ASKER, mac, EtherType::ARP, &reply_of(mac, ip4(2))[14..]);
        [arp, advertisement(mac, ip6(2), 0x60)]
    };
    for said in say(OWNER) {
        // The VLAN matters, the priority does not.
        learn_from(&network, &policy, &tagged(&said, &[[0x81, 0, 0, 5]]), 0);
    }
    for who in &who {
        assert_eq!(asked(&network, who, 0), Some(Err(Resolution::Unknown)));
        let elsewhere = asked(&network, &tagged(who, &[vlan_6]), 0);
        assert_eq!(elsewhere, Some(Err(Resolution::Unknown)));
    }
    let owner = [reply_of(OWNER, ip4(2)), advertisement(OWNER, ip6(2), 0x60)];
    for (who, answer) in who.iter().zip(&owner) {
        let got = asked(&network, &tagged(who, &[VLAN_5]), 0);
        assert_eq!(got, Some(Ok(tagged(answer, &[VLAN_5]))));
    }
    // The same address in another VLAN belongs to another host.
    network.learn(&policy, BESIDE, Place::Remote(REMOTE.into()), 5);
    for said in say(BESIDE) {
        learn_from(&network, &policy, &tagged(&said, &[vlan_6]), 0);
    }
    let answer = tagged(&reply_of(BESIDE, ip4(2)), &[vlan_6]);
    assert_eq!(asked(&network, &tagged(&who[0], &[vlan_6]), 0), Some(Ok(answer)));
    let got = asked(&network, &tagged(&who[0], &[VLAN_5]), 0);
    assert_eq!(got, Some(Ok(tagged(&owner[0], &[VLAN_5]))));
    assert_eq!(network.neighbours.count(), (0, 4));
}

#[test]
fn static_neighbours_are_answered_and_stay() {
    let mut config = config();
    config.neighbours.insert(ip4(9).to_string(), OWNER.to_string());
    let policy = Policy::without_paths(&config);
    let network = Network::new(&config, &config.entries().unwrap(), policy, 1450);
    let who = request(MacAddr::BROADCAST, ip4(1), ip4(9));
    // At any place.
    assert!(asked(&network, &who, 1_000_000).unwrap().is_ok());
    let lie = framed(ASKER, BESIDE, EtherType::ARP, &reply_of(BESIDE, ip4(9))[14..]);
    learn_from(&network, &network.policy(), &lie, 0);
    assert_eq!(asked(&network, &who, 0), Some(Ok(reply_of(OWNER, ip4(9)))));
}

#[test]
fn the_number_of_neighbours_is_bounded() {
    let (network, policy) = network(&config());
    for last in 10..100 {
        let said = framed(ASKER, OWNER, EtherType::ARP, &reply_of(OWNER, ip4(last))[14..]);
        learn_from(&network, &policy, &said, 0);
        learn_from(&network, &policy, &advertisement(OWNER, ip6(last.into()), 0x60), 0);
    }
    assert_eq!(network.neighbours.count(), (0, 3));
}

/// Returns the same network as the kernel's bridge in the test below.
fn as_the_bridge_has_it() -> Network {
    let (network, policy) = network(&NetworkConfig { max_neighbours: 8, ..config() });
    for (mac, last) in [(OWNER, 2), (BESIDE, 3)] {
        let said = framed(ASKER, mac, EtherType::ARP, &reply_of(mac, ip4(last))[14..]);
        learn_from(&network, &policy, &said, 0);
        learn_from(&network, &policy, &advertisement(mac, ip6(last.into()), 0x60), 0);
    }
    network
}

#[test]
fn malformed_requests_are_not_answered() {
    let network = as_the_bridge_has_it();
    for (name, frame) in unsupported_frames() {
        let got = asked(&network, &frame, 0);
        let wanted = match name {
            "who has" | "priority" => Some(Ok(reply_of(OWNER, ip4(2)))),
            "who has, IPv6" | "priority, IPv6" => Some(Ok(advertisement(OWNER, ip6(2), 0x60))),
            "unknown" | "unknown, IPv6" | "tagged" | "tagged, IPv6" => {
                Some(Err(Resolution::Unknown))
            }
            "own side" | "own side, IPv6" => Some(Err(Resolution::OwnSide)),
            "probe" | "probe, IPv6" => Some(Err(Resolution::Duplicate)),
            _ => None,
        };
        assert_eq!(got, wanted, "{name}");
    }
}

/// Parts of the kernel that answer for neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Oracle {
    /// The bridge, with `neigh_suppress` on its tunnel.
    Bridge,
    /// The bridge with VLAN filtering; the neighbours are in VLAN 5.
    VlanBridge,
    /// The VXLAN device, with `proxy`.
    Vxlan,
}

/// Sets up the kernel's bridge with its tunnel, another TAP as a port, and neighbours at
/// both.
fn bridge(oracle: Oracle) -> (Host, Tap) {
    let host = Host::with_ipv6("oracle").unwrap();
    let tap = host.netns().run(|| Tap::open(&TapOptions::named("tap0")).unwrap()).unwrap();
    tap.set_nonblocking(true).unwrap();
    host.bridge("br0", 1500, &["tap0"]).unwrap();
    host.netlink().set_up("tap0").unwrap();
    let run = |program: &str, arguments: &str| {
        host.run(Command::new(program).args(arguments.split(' '))).unwrap();
    };
    let (device, port) = match oracle {
        Oracle::Bridge | Oracle::VlanBridge => ("", "neigh_suppress on learning off"),
        Oracle::Vxlan => (" proxy", "learning off"),
    };
    let device =
        format!("link add vxlan0 type vxlan id 10 dstport 4789 nolearning local 127.0.0.1{device}");
    run("ip", &device);
    run("ip", "link set vxlan0 master br0 up");
    run("bridge", &format!("link set dev vxlan0 {port}"));
    run("ip", "link set br0 type bridge mcast_snooping 0");
    let (knows, vlan) = match oracle {
        Oracle::Bridge => ("br0", ""),
        Oracle::VlanBridge => ("br0.5", " vlan 5"),
        Oracle::Vxlan => ("vxlan0", ""),
    };
    if oracle == Oracle::VlanBridge {
        run("ip", "link set br0 type bridge vlan_filtering 1");
        for port in ["tap0", "vxlan0", "br0 self"] {
            run("bridge", &format!("vlan add vid 5 dev {port}"));
        }
        run("ip", "link add link br0 name br0.5 type vlan id 5");
        run("ip", "link set br0.5 up");
    }
    for (mac, last, port) in [(OWNER, 2, "vxlan0"), (BESIDE, 3, "tap0")] {
        run("bridge", &format!("fdb add {mac} dev {port} master static{vlan}"));
        for ip in [IpAddr::from(ip4(last)), ip6(last.into()).into()] {
            run("ip", &format!("neigh add {ip} dev {knows} lladdr {mac} nud permanent"));
        }
    }
    (host, tap)
}

/// Returns the answers to a frame; the neighbours are in the VLAN of these tags.
fn answers(tap: &Tap, frame: &[u8], vlan: &[[u8; 4]]) -> Vec<Vec<u8>> {
    // A request with a known answer comes last, so that there is no need to wait.
    let mark = tagged(&request(MacAddr::BROADCAST, ip4(200), ip4(2)), vlan);
    let body = 14 + 4 * vlan.len();
    let is_mark = |frame: &[u8]| {
        frame[body - 2..body] == [8, 6] && frame[body + 24..body + 28] == ip4(200).octets()
    };
    tap.write(frame).unwrap();
    tap.write(&mark).unwrap();
    let mut buffer = [0; 2048];
    let mut answers: Vec<Vec<u8>> = Vec::new();
    testbed::poll("the kernel's answer", std::time::Duration::from_secs(10), || {
        while let Ok(length) = tap.read(&mut buffer) {
            // Only frames to us: the kernel sends requests of its own.
            if buffer[..6] == ASKER.0 {
                answers.push(buffer[..length].to_vec());
            }
        }
        let done = answers.last().is_some_and(|frame| is_mark(frame));
        Ok(if done { Ok(()) } else { Err(format!("{answers:?}")) })
    })
    .unwrap();
    answers.pop();
    answers
}

#[test]
fn the_kernel_answers_the_same() {
    require!(need::tun());
    let network = as_the_bridge_has_it();
    for oracle in [Oracle::Bridge, Oracle::Vxlan] {
        let (_host, tap) = bridge(oracle);
        for (name, frame) in unsupported_frames() {
            // The kernel accepts any hop limit and checksum, and uses the link-layer address if the
            // option is missing. Without VLAN filtering, it answers tagged requests without a tag,
            // including service tags. Before Linux 6.15 it also answers requests to one host.
            let lenient = [
                "tagged",
                "tagged, IPv6",
                "reserved tag",
                "service tag",
                "hop limit",
                "checksum",
                "without its address",
                "for another",
                "sender is another",
                "still there",
                "still there, IPv6",
            ];
            // The VXLAN device also answers for hosts on the requester's side, and breaks duplicate
            // address detection.
            let proxies = ["who has", "who has, IPv6", "unknown", "unknown, IPv6", "two tags"];
            if lenient.contains(&name) || oracle == Oracle::Vxlan && !proxies.contains(&name) {
                continue;
            }
            let ours = asked(&network, &frame, 0).and_then(Result::ok);
            assert_eq!(answers(&tap, &frame, &[]), Vec::from_iter(ours), "{oracle:?}: {name}");
        }
    }
}

#[test]
fn the_kernel_answers_the_same_in_a_vlan() {
    require!(need::tun(), need::vlan_filtering(), need::device("vlan"));
    let (network, policy) = network(&NetworkConfig { max_neighbours: 8, ..config() });
    for (mac, last) in [(OWNER, 2), (BESIDE, 3)] {
        let said = framed(ASKER, mac, EtherType::ARP, &reply_of(mac, ip4(last))[14..]);
        learn_from(&network, &policy, &tagged(&said, &[VLAN_5]), 0);
        let said = advertisement(mac, ip6(last.into()), 0x60);
        learn_from(&network, &policy, &tagged(&said, &[VLAN_5]), 0);
    }
    let (_host, tap) = bridge(Oracle::VlanBridge);
    // Older kernels answer duplicate address detection.
    let alike = ["who has", "who has, IPv6", "unknown", "unknown, IPv6", "own side"];
    for (name, frame) in unsupported_frames() {
        let without = ["tagged", "tagged, IPv6", "priority", "two tags", "service tag"];
        let frame = match name {
            _ if without.contains(&name) => frame,
            _ if alike.contains(&name) => tagged(&frame, &[VLAN_5]),
            _ => continue,
        };
        let ours = asked(&network, &frame, 0).and_then(Result::ok);
        assert_eq!(ours.is_some(), name.starts_with("who has") || name.starts_with("tagged"));
        assert_eq!(answers(&tap, &frame, &[VLAN_5]), Vec::from_iter(ours), "{name}");
    }
}

/// Runs the test on a stock kernel, if this machine's kernel lacks the features.
#[test]
fn a_stock_kernel_answers_the_same_in_a_vlan() {
    const INSIDE: &str = "vtep::neighbour::tests::the_kernel_answers_the_same_in_a_vlan";
    let guest = require!(qemu::Guest::find()).with_programs(&["ip", "bridge", "unshare"]);
    let here = std::env::current_exe().unwrap();
    let output = guest.run(&here, &["--exact", INSIDE, "--nocapture"]);
    assert_eq!(output.status, Some(0), "{output:#?}");
    let was_run = output.stdout.contains("1 passed") && !output.stderr.contains("skipped");
    assert!(was_run, "{output:#?}");
}

/// One of these frames, damaged.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let frames: Vec<_> = unsupported_frames()
        .into_iter()
        .map(|(_, frame)| frame)
        .chain([advertisement(OWNER, ip6(2), 0xe0), reply_of(OWNER, ip4(2))])
        .collect();
    let changes =
        proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 0..5);
    (proptest::sample::select(frames), changes).prop_map(|(mut frame, changes)| {
        for (at, value, kind) in changes {
            let at = at.index(frame.len().max(1));
            match kind {
                0 if at < frame.len() => frame[at] = value,
                1 => frame.insert(at.min(frame.len()), value),
                _ => frame.truncate(at),
            }
        }
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// For any frame: an answer names a known owner, goes only to the requester, and is about the
    /// requested address. A claim is about the sender's own address.
    #[test]
    fn an_answer_is_always_to_the_question(frame in damaged()) {
        let network = as_the_bridge_has_it();
        let link = Ethernet::parse(&frame).map(|link| (link.source(), link.destination()));
        if let Some(claim) = examine(&frame).and_then(|resolving| resolving.claim) {
            let (Claim::Has(Address { ip, .. }, Neighbour { mac, .. })
            | Claim::Uses(Address { ip, .. }, mac)) = claim;
            prop_assert_eq!(Ok(mac), link.map(|(source, _)| source));
            prop_assert!(mac.is_unicast() && !ip.is_unspecified() && !ip.is_multicast());
        }
        if let Some(Ok(answer)) = asked(&network, &frame, 0) {
            let (source, destination) = link.unwrap();
            prop_assert!(destination.is_multicast());
            prop_assert_eq!(&answer[..6], &source.0);
            prop_assert_eq!(&answer[6..12], &OWNER.0);
            match etherparse::SlicedPacket::from_ethernet(&answer).unwrap().transport {
                Some(etherparse::TransportSlice::Icmpv6(icmp)) => {
                    prop_assert!(frame.windows(16).any(|w| w == ip6(2).octets()));
                    prop_assert_eq!(icmp.type_u8(), 136);
                }
                _ => {
                    // An answer to a priority tag has no tag.
                    let frame = if frame[12] == 0x81 { &frame[4..] } else { &frame[..] };
                    prop_assert_eq!(&frame[38..42], &ip4(2).octets());
                    prop_assert_eq!(&answer[28..32], &ip4(2).octets());
                    prop_assert_eq!(&answer[38..42], &frame[28..32]);
                }
            }
        }
    }
}
