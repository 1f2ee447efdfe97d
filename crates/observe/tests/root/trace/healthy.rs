//! Without loss, no loss is reported, and every packet is reported once.

use lab::Network;
use netstate::Counters;
use observe::Packet;
use test_support::require;
use testbed::Offload;

use super::network;
use super::seen::{Seen, begins_in, drops, is_arrived, is_from};
use super::traffic::{Datagrams, STREAM, port, stream};

const DATAGRAMS: usize = 1000;
/// Most bytes of a segment; the kernel counts retransmitted segments one by one.
const SEGMENT_BYTES: usize = 1460;

pub fn counted(host: &testbed::Host, protocol: &str, name: &str) -> u64 {
    let text = host.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let text = text.unwrap().unwrap();
    let head = format!("{protocol}:");
    let mut lines = text.lines().filter(|line| line.starts_with(&head));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(of, _)| *of == name).unwrap().1.parse().unwrap()
}

/// Drops counted by devices and protocols of the network's hosts.
fn dropped(network: &Network) -> Vec<u64> {
    let of_host = |host: &std::sync::Arc<testbed::Host>| {
        let links = host.netlink().links().unwrap();
        let mut counts: Vec<u64> = links
            .iter()
            .map(|link| {
                let Counters { rx_dropped, tx_dropped, .. } = link.counters;
                rx_dropped + tx_dropped
            })
            .collect();
        counts.extend(
            ["NoPorts", "InErrors", "RcvbufErrors", "InCsumErrors"]
                .map(|name| counted(host, "Udp", name)),
        );
        counts
    };
    network.hosts().iter().flat_map(of_host).collect()
}

/// Drop reason of a segment without new data: a retransmission whose original had arrived, or a
/// bare acknowledgement after the end. It is no loss.
const NOTHING_NEW: &str = "TCP_OLD_DATA";

fn losses<'p>(packets: impl Iterator<Item = &'p Packet>) -> Vec<String> {
    let is_loss = |packet: &&Packet| drops(packet).any(|(_, reason, _)| reason != NOTHING_NEW);
    packets.filter(is_loss).map(Packet::text).collect()
}

#[test]
fn a_healthy_network_loses_nothing_and_every_datagram_is_reported_once() {
    type Begin = fn(&Network, u16) -> Datagrams;
    let (any, without_identification): (Begin, Begin) =
        (Datagrams::new, Datagrams::without_identification);
    for (mode, begin) in
        [("host", any), ("bridge", any), ("vxlan", any), ("vxlan", without_identification)]
    {
        let network = require!(network(mode, Offload::Full));
        let client = network.client().name();
        let port = port();
        let datagrams = begin(&network, port);
        let before = dropped(&network);
        let mut seen = Seen::of_port(&network, port);
        let mut read = 0;
        // Several at a time: they look alike, and wait beside each other.
        for _ in 0..DATAGRAMS / 20 {
            for _ in 0..20 {
                datagrams.send(100);
            }
            read += (0..20).filter(|_| datagrams.receive()).count();
            seen.look();
        }
        while datagrams.receive() {
            read += 1;
        }
        seen.rest();
        assert_eq!(dropped(&network), before, "{mode}: the kernel's counters");
        assert_eq!(losses(seen.packets.iter()), Vec::<String>::new(), "{mode}");
        let sent = |packet: &&Packet| begins_in(packet, client) && is_from(packet, "udp", port);
        let reported = seen.packets.iter().filter(sent);
        assert_eq!(read, DATAGRAMS, "{mode}");
        // One that is missing is part of another's journey, or its journey begins elsewhere.
        let odd = || {
            let longest = seen.packets.iter().max_by_key(|packet| packet.steps.len());
            let elsewhere = seen.packets.iter().filter(|packet| !sent(packet));
            longest.into_iter().chain(elsewhere).take(5).map(Packet::text).collect::<String>()
        };
        assert_eq!(reported.clone().count(), DATAGRAMS, "{mode}: {}", odd());
        for packet in reported.clone() {
            assert!(is_arrived(packet, network.server().name()), "{mode}: {}", packet.text());
        }
        assert_eq!(seen.lost(), 0);
        println!("{mode}: {DATAGRAMS} datagrams, {} journeys, none dropped", reported.count());
    }
}

#[test]
fn a_healthy_stream_loses_nothing_and_every_byte_is_reported_once() {
    for (mode, offload) in
        [("host", Offload::Full), ("vxlan", Offload::Full), ("vxlan", Offload::None)]
    {
        let network = require!(network(mode, offload));
        let client = network.client().name();
        stream(&network, port());
        let before = dropped(&network);
        let port = port();
        let again = || counted(network.client(), "Tcp", "RetransSegs");
        let before_stream = again();
        let mut seen = Seen::of_port(&network, port);
        stream(&network, port);
        seen.rest();
        assert_eq!(dropped(&network), before, "{mode} {offload}: the kernel's counters");
        assert_eq!(losses(seen.packets.iter()), Vec::<String>::new(), "{mode} {offload}");
        // IPv4 and TCP headers have 20 and 32 bytes, Ethernet 14, and a SYN more.
        let sent = seen.packets.iter();
        let sent = sent.filter(|packet| begins_in(packet, client) && is_from(packet, "tcp", port));
        let payload: usize = sent
            .map(|packet| {
                let step = &packet.steps[0];
                (step.bytes as usize).saturating_sub(14 + 20 + 32)
            })
            .sum();
        // The options of SYN are 8 bytes longer.
        let most = STREAM + 8 + (again() - before_stream) as usize * SEGMENT_BYTES;
        assert!((STREAM..=most).contains(&payload), "{mode} {offload}: {payload} bytes reported");
        println!("{mode} {offload}: {payload} bytes reported, none dropped");
    }
}
