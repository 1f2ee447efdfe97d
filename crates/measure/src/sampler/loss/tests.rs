use netstate::conntrack::ConntrackDelta;
use netstate::snmp::{Counters, Ip};
use proptest::prelude::*;

use super::*;

fn evidence(sent: u64, received: u64) -> Evidence<'static> {
    Evidence {
        sent,
        received,
        datagrams_per_skb: 1.0,
        datagrams_per_receive: 1.0,
        namespaces: &[],
        softnet_dropped: 0,
        devices: &[],
        drops: &[],
        programs: &[],
    }
}

fn receiver(udp: Udp) -> NamespaceSample {
    let counters = Counters { udp, ..Counters::default() };
    NamespaceSample { label: "tenant-b".to_owned(), counters, ..NamespaceSample::default() }
}

fn places(loss: &Loss) -> Vec<(&str, u64)> {
    loss.places.iter().map(|(place, datagrams)| (place.as_str(), *datagrams)).collect()
}

#[test]
fn a_socket_drop_counted_twice_is_attributed_once() {
    // The kernel counts a full buffer in both RcvbufErrors and InErrors.
    let namespaces = [receiver(Udp { in_errors: 30, rcvbuf_errors: 25, ..Udp::default() })];
    let loss = attribute(&Evidence { namespaces: &namespaces, ..evidence(100, 60) });
    assert_eq!(places(&loss), [("tenant-b UDP receive error", 5), ("tenant-b socket buffer", 25)]);
    assert_eq!((loss.unattributed, loss.fraction), (10, 0.4));
}

#[test]
fn a_backlog_drop_that_travels_back_to_the_sender_is_attributed_once() {
    let mut sender = receiver(Udp { sndbuf_errors: 40, ..Udp::default() });
    sender.label = "tenant-a".to_owned();
    sender.counters.ip = Ip { out_discards: 40, ..Ip::default() };
    let loss = attribute(&Evidence {
        namespaces: &[sender, receiver(Udp { rcvbuf_errors: 5, in_errors: 5, ..Udp::default() })],
        softnet_dropped: 40,
        devices: &[("a/eth0".to_owned(), 40), ("b/eth0".to_owned(), 43)],
        ..evidence(100, 50)
    });
    let expected = [("b/eth0 device", 3), ("softnet backlog", 40), ("tenant-b socket buffer", 5)];
    assert_eq!(places(&loss), expected);
    assert_eq!(loss.unattributed, 2);
}

#[test]
fn a_queueing_discipline_shows_at_the_senders_ip_layer() {
    let mut sender = receiver(Udp { sndbuf_errors: 40, ..Udp::default() });
    sender.counters.ip = Ip { out_discards: 40, ..Ip::default() };
    let loss = attribute(&Evidence { namespaces: &[sender], ..evidence(100, 50) });
    assert_eq!(places(&loss), [("tenant-b IP output discard", 40)]);
    assert_eq!(loss.unattributed, 10);
}

#[test]
fn conntrack_counts_a_failed_insertion_and_its_drop_once() {
    let mut host = receiver(Udp::default());
    host.conntrack = Some(ConntrackDelta { insert_failed: 7, drop: 5, early_drop: 100 });
    let loss = attribute(&Evidence { namespaces: &[host], ..evidence(100, 90) });
    assert_eq!(places(&loss), [("tenant-b conntrack", 7)]);
    assert_eq!(loss.unattributed, 3);
}

#[test]
fn packet_sockets_explain_what_no_counter_of_the_stack_sees() {
    let mut host = receiver(Udp::default());
    host.packet_socket_drops = Some(8);
    let loss = attribute(&Evidence { namespaces: &[host], ..evidence(100, 90) });
    assert_eq!(places(&loss), [("tenant-b packet socket", 8)]);
}

#[test]
fn a_dropped_gso_packet_loses_its_datagrams() {
    let devices = [("a/veth0".to_owned(), 3)];
    let gso = Evidence { datagrams_per_skb: 40.0, devices: &devices, ..evidence(1000, 800) };
    let loss = attribute(&gso);
    assert_eq!((places(&loss), loss.unattributed), (vec![("a/veth0 device", 120)], 80));
    // An invalid mean neither multiplies nor hides a drop.
    for mean in [0.0, -1.0, f64::NAN] {
        let loss = attribute(&Evidence { datagrams_per_skb: mean, ..gso });
        assert_eq!(places(&loss), [("a/veth0 device", 3)]);
    }
}

#[test]
fn nothing_lost_is_nothing_attributed() {
    let namespaces = [receiver(Udp { in_errors: 9, rcvbuf_errors: 9, ..Udp::default() })];
    for (sent, received) in [(100, 100), (100, 120), (0, 0)] {
        let loss = attribute(&Evidence { namespaces: &namespaces, ..evidence(sent, received) });
        assert_eq!((loss.places.len(), loss.unattributed, loss.fraction), (0, 0, 0.0));
    }
}

#[test]
fn losses_add_up_over_samples() {
    let namespaces = [receiver(Udp { rcvbuf_errors: 5, in_errors: 5, ..Udp::default() })];
    let one = attribute(&Evidence { namespaces: &namespaces, ..evidence(100, 90) });
    // A sample with duplicates must not hide the loss of another sample.
    let two = attribute(&evidence(100, 110));
    let sum = total([&one, &two, &one]);
    assert_eq!((sum.sent, sum.received, sum.unattributed), (300, 290, 10));
    assert_eq!(places(&sum), [("tenant-b socket buffer", 10)]);
    assert!((sum.fraction - 20.0 / 300.0).abs() < 1e-12);
}

const REASONS: [&str; 5] =
    ["SOCKET_RCVBUFF", "CPU_BACKLOG", "NETFILTER_DROP", "OTHERHOST", "NOT_SPECIFIED"];

fn dropped(label: &str, device: &str, reason: &str, packets: u64) -> (String, Dropped) {
    let drop = Dropped {
        netns: 1,
        device: device.to_owned(),
        reason: reason.to_owned(),
        function: Some("kernel_function".to_owned()),
        packets,
    };
    (label.to_owned(), drop)
}

#[test]
fn the_kernels_reasons_come_first_and_counters_of_the_same_drops_add_nothing() {
    let mut sender = receiver(Udp { sndbuf_errors: 40, ..Udp::default() });
    sender.label = "tenant-a".to_owned();
    sender.counters.ip = Ip { out_discards: 40, ..Ip::default() };
    let namespaces = [sender, receiver(Udp { rcvbuf_errors: 7, in_errors: 7, ..Udp::default() })];
    let drops = [
        dropped("tenant-b", "", "SOCKET_RCVBUFF", 5),
        dropped("b", "nic0", "CPU_BACKLOG", 40),
        dropped("b", "vxlan0", "VXLAN_INVALID_HDR", 3),
        dropped("a", "nic0", "QDISC_OVERLIMIT", 2),
        dropped("a", "tap0", "FULL_RING", 1),
    ];
    let loss = attribute(&Evidence {
        namespaces: &namespaces,
        softnet_dropped: 40,
        devices: &[("a/eth0".to_owned(), 40)],
        drops: &drops,
        ..evidence(200, 140)
    });
    let expected = [
        ("a nic0 qdisc", 2),
        ("a tap0 ring", 1),
        ("b nic0 softnet backlog", 40),
        ("b vxlan0: VXLAN_INVALID_HDR (kernel_function)", 3),
        // Two of them were seen by the counter only.
        ("tenant-b socket buffer", 7),
    ];
    assert_eq!(places(&loss), expected);
    assert_eq!(loss.unattributed, 7);
}

#[test]
fn packets_refused_by_conntrack_are_distinguished_from_rule_drops() {
    let mut host = receiver(Udp::default());
    host.label = "b".to_owned();
    host.conntrack = Some(ConntrackDelta { drop: 30, ..ConntrackDelta::default() });
    let drops = [dropped("b", "nic0", "NETFILTER_DROP", 45)];
    let loss = attribute(&Evidence { namespaces: &[host], drops: &drops, ..evidence(100, 50) });
    assert_eq!(places(&loss), [("b conntrack", 30), ("b netfilter", 15)]);
    assert_eq!(loss.unattributed, 5);
}

#[test]
fn a_program_explains_what_it_dropped_in_user_space() {
    let programs = [("copy loop".to_owned(), 6)];
    let loss = attribute(&Evidence { programs: &programs, ..evidence(100, 90) });
    assert_eq!(places(&loss), [("copy loop", 6)]);
    assert_eq!(loss.unattributed, 4);
    // For a kernel engine, the same drop has a kernel reason.
    let drops = [dropped("tenant-a", "tap0", "TC_INGRESS", 6)];
    let loss = attribute(&Evidence { programs: &programs, drops: &drops, ..evidence(100, 90) });
    assert_eq!(places(&loss), [("tenant-a tap0: TC_INGRESS (kernel_function)", 6)]);
}

#[test]
fn a_copy_for_somebody_else_explains_only_what_nothing_else_does() {
    let drops = [dropped("b", "port2", "OTHERHOST", 100), dropped("b", "nic0", "CPU_BACKLOG", 10)];
    let loss = attribute(&Evidence { drops: &drops, ..evidence(100, 90) });
    assert_eq!(places(&loss), [("b nic0 softnet backlog", 10)]);
}

proptest! {
    #[test]
    fn what_is_attributed_and_what_is_not_is_what_was_lost(
        sent in 0_u64..1_000_000,
        received in 0_u64..1_000_000,
        udp in prop::array::uniform5(0_u64..1_000_000),
        discards in 0_u64..1_000_000,
        softnet in 0_u64..1_000_000,
        devices in prop::collection::vec(0_u64..1_000_000, 0..4),
        per_skb in 0.0_f64..64.0,
        drops in prop::collection::vec((0_usize..REASONS.len(), 0_u64..1_000_000), 0..6),
    ) {
        let mut namespace = receiver(Udp {
            no_ports: udp[0],
            in_errors: udp[1],
            rcvbuf_errors: udp[2],
            in_csum_errors: udp[3],
            mem_errors: udp[4],
            ..Udp::default()
        });
        namespace.counters.ip.out_discards = discards;
        let devices: Vec<_> = devices.into_iter().map(|d| ("a/veth0".to_owned(), d)).collect();
        let loss = attribute(&Evidence {
            namespaces: &[namespace],
            softnet_dropped: softnet,
            devices: &devices,
            datagrams_per_skb: per_skb,
            datagrams_per_receive: per_skb,
            drops: &drops
                .iter()
                .map(|(reason, packets)| dropped("tenant-b", "eth0", REASONS[*reason], *packets))
                .collect::<Vec<_>>(),
            ..evidence(sent, received)
        });
        let attributed: u64 = loss.places.values().sum();
        prop_assert_eq!(attributed + loss.unattributed, sent.saturating_sub(received));
        prop_assert!((0.0..=1.0).contains(&loss.fraction));
    }
}
