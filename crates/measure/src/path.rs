//! Proof of the path: every hop must have carried the received traffic, except bypassed hops,
//! which must not.

use netstate::{Connections, Counters, Hop, HopKind, Side, TrafficDirection};

use crate::observed::Observed;
use load::{Measured, Workload};
use results::workload::Pattern;
use results::{Direction, HopRecord, RecordKind};

/// Bytes of an Ethernet header, which link counters include.
const ETHERNET: u64 = 14;

/// Share of the traffic that a hop must show. Counters are read just outside the measured
/// interval, so they include all of its traffic; the margin is for packets that cross a hop
/// during the reading.
const PROOF: f64 = 0.9;

/// Share of the traffic that a bypassed hop may show. A fast path leaves to it the first
/// packets, ARP, an occasional packet that refreshes the slow path's tables, and packets that
/// arrive while it follows a change.
const LEFT: f64 = 0.05;

/// Number of packets at a bypassed hop that is always acceptable, even with a slow load.
const FEW: u64 = 20;

/// IPv4 and UDP headers, bytes.
const UDP_HEADERS: u64 = 28;

/// Returns the traffic across each hop in both directions, in path order.
pub fn hops(path: &[Hop], observed: &Observed, workload: Workload) -> Vec<HopRecord> {
    // Such workloads use one connection per transaction.
    let are_short = workload.pattern() == Pattern::Connections;
    let records = |hop: &Hop| match (hop.connections, are_short) {
        (Connections::Short, false) => Vec::new(),
        // Short connections do not take such a stage.
        (Connections::Lasting, true) if hop.kind == HopKind::Stage => Vec::new(),
        (Connections::Lasting, true) => hop_records(&Hop { bypass: None, ..hop.clone() }, observed),
        _ => hop_records(hop, observed),
    };
    path.iter().flat_map(records).collect()
}

fn hop_records(hop: &Hop, observed: &Observed) -> Vec<HopRecord> {
    let metered = observed.metered(&hop.host, &hop.device);
    let layer3 = |bytes: u64, packets: u64| bytes.saturating_sub(packets * ETHERNET);
    let record = |direction: Direction, packets: u64, bytes: u64, drops: u64| {
        let bypassed = hop.bypass.as_ref().is_some_and(|bypass| match bypass.way {
            TrafficDirection::Both => true,
            TrafficDirection::Forward => direction == Direction::Forward,
            TrafficDirection::Reverse => direction == Direction::Reverse,
        });
        let excused = metered.filter(|_| bypassed).map(|metered| metered.carried);
        let excused = excused.map_or(0, |by| match (hop.forward, direction) {
            (Side::Tx, Direction::Forward) | (Side::Rx, Direction::Reverse) => by.tx_packets,
            _ => by.rx_packets,
        });
        HopRecord {
            host: hop.host.clone(),
            device: hop.device.clone(),
            direction,
            kind: match hop.kind {
                _ if bypassed => RecordKind::Bypassed,
                HopKind::Device => RecordKind::Device,
                HopKind::Process => RecordKind::Process,
                HopKind::Stage => RecordKind::Stage,
            },
            packets,
            bytes,
            mean_skb_bytes: if packets > 0 { bytes as f64 / packets as f64 } else { 0.0 },
            drops,
            excused,
        }
    };
    match hop.kind {
        HopKind::Device | HopKind::Stage => {
            let counters = match hop.kind {
                HopKind::Stage => metered.map(|metered| metered.carried),
                _ => observed.device(&hop.host, &hop.device).copied(),
            };
            // A missing device has carried nothing, so the proof fails and names it.
            let counters: Counters = counters.unwrap_or_default();
            let rx = |direction| {
                let bytes = layer3(counters.rx_bytes, counters.rx_packets);
                let drops = counters.rx_dropped + counters.rx_errors;
                record(direction, counters.rx_packets, bytes, drops)
            };
            let tx = |direction| {
                let bytes = layer3(counters.tx_bytes, counters.tx_packets);
                let drops = counters.tx_dropped + counters.tx_errors;
                record(direction, counters.tx_packets, bytes, drops)
            };
            // The other end of the tunnel counts the same packets where it receives them.
            let is_sent_known = hop.kind == HopKind::Stage || !counts_packets_as_bytes(&counters);
            let tx = |direction| is_sent_known.then(|| tx(direction));
            let records = match hop.forward {
                Side::Rx => [Some(rx(Direction::Forward)), tx(Direction::Reverse)],
                Side::Tx => [tx(Direction::Forward), Some(rx(Direction::Reverse))],
            };
            records.into_iter().flatten().collect()
        }
        HopKind::Process => {
            // As with a device: without counters the proof fails and names the hop.
            let unknown = Default::default();
            let namespace = observed.namespace(&hop.host);
            let counters = namespace.map_or(&unknown, |namespace| &namespace.counters);
            let received = counters.tcp.in_segs + counters.udp.in_datagrams;
            let sent = counters.tcp.out_segs + counters.udp.out_datagrams;
            // IP octet counters include forwarded packets, so they are an upper bound of the
            // bytes. The segment counters are the sockets' own.
            let (bytes_in, bytes_out) = if received == 0 {
                (0, 0)
            } else {
                (counters.ip_ext.in_octets, counters.ip_ext.out_octets)
            };
            let drops = counters.udp.in_errors + counters.tcp.in_errs;
            vec![
                record(Direction::Forward, received, bytes_in, drops),
                record(Direction::Reverse, sent, bytes_out, 0),
            ]
        }
    }
}

/// Whether a device counts sent packets as sent bytes. VXLAN devices of Ubuntu's Linux 6.8 do: the
/// driver writes `struct pcpu_dstats`, and `dev_get_tstats64` reads it as `struct pcpu_sw_netstats`,
/// in which drops of received packets are in the place of sent packets.
fn counts_packets_as_bytes(counters: &Counters) -> bool {
    counters.tx_packets == 0 && counters.tx_bytes > 0
}

/// Checks that every hop carried the traffic.
///
/// # Errors
/// Names the first hop that did not, with expected and observed traffic; or says that nothing
/// was sent.
pub fn prove(hops: &[HopRecord], measured: &Measured) -> Result<(), String> {
    if hops.is_empty() {
        return Err("the path declares no hops, so it cannot be proved".to_owned());
    }
    // Without traffic the hops' counters prove nothing about the path.
    if (measured.sent_units, measured.units, measured.payload_bytes) == (0, 0, 0) {
        let interval = measured.seconds * 1e3;
        return Err(format!("nothing was sent during the measured interval of {interval:.0} ms"));
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let is_shown = hops.iter().any(|hop| hop.direction == direction);
        // A direction without a device could not be proved.
        if measured.workload.sends(direction) && !is_shown {
            return Err(format!("no device of the path counts what is sent {direction}"));
        }
    }
    let answered = measured.workload.has_latency();
    for hop in hops {
        let counted = measured.workload.sends(hop.direction);
        if !counted {
            // Answers are small and may be merged: only the sending direction is proved by bytes.
            continue;
        }
        // A bypassed hop is proved by the absence of packets.
        if hop.kind == RecordKind::Bypassed {
            passed_by(hop, measured)?;
            continue;
        }
        // Payload buffered when the interval began had crossed the hops before.
        let crossed = measured.payload_bytes.saturating_sub(measured.under_way_bytes);
        let crossed = crossed.saturating_add(beside(measured, hop.direction));
        let wanted = ((crossed as f64 * PROOF) as u64).max(1);
        // Too few bytes: at least some of the traffic took another path.
        if hop.bytes < wanted {
            return Err(not_crossed(hop, "bytes", hop.bytes, crossed.max(1)));
        }
        // A transaction takes at least one packet each way, unless packets of several transactions
        // can be merged.
        let own = measured.payload_bytes.saturating_sub(measured.under_way_bytes);
        let share = own as f64 / measured.payload_bytes.max(1) as f64;
        let wanted = (measured.units as f64 * share * PROOF) as u64;
        // Too few packets: at least some of the traffic took another path.
        if answered && !measured.messages_merge && hop.packets < wanted {
            return Err(not_crossed(hop, "packets", hop.packets, measured.units));
        }
    }
    Ok(())
}

/// Returns the bytes of bulk traffic that crossed every hop in this direction.
fn beside(measured: &Measured, direction: Direction) -> u64 {
    let sent = measured.beside.iter().filter(|beside| beside.workload.direction() == direction);
    sent.map(|beside| beside.payload_bytes.saturating_sub(beside.under_way_bytes)).sum()
}

/// Checks that a hop did not carry the traffic.
///
/// Counts bytes if a packet may hold any number of messages, otherwise packets. Excused packets
/// count with the hop's mean packet size.
fn passed_by(hop: &HopRecord, measured: &Measured) -> Result<(), String> {
    let packets = hop.packets.saturating_sub(hop.excused);
    let bytes = packets as f64 * hop.mean_skb_bytes;
    let Measured { payload_bytes, units, .. } = *measured;
    let bulk: u64 = measured.beside.iter().map(|beside| beside.payload_bytes).sum();
    let (seen, all) = match measured.workload {
        // Acknowledgements of the other direction cross it, too.
        _ if bulk > 0 => (bytes, payload_bytes.saturating_add(bulk)),
        workload if workload.is_byte_stream() => (bytes, payload_bytes),
        Workload::UdpStream => (bytes, payload_bytes + units * UDP_HEADERS),
        _ if measured.messages_merge => (bytes, payload_bytes),
        // A message may take many packets. Packets in flight during a reading are excused in one
        // of the two readings.
        _ => (packets as f64, units.max(hop.excused)),
    };
    // ARP and neighbour discovery also cross the hop.
    if packets <= FEW || seen <= all as f64 * LEFT {
        return Ok(());
    }
    Err(format!(
        "the traffic did not take the mode's path: {} {} saw {packets} packets {} that should \
         bypass it ({} in total, {} excused)",
        hop.host, hop.device, hop.direction, hop.packets, hop.excused
    ))
}

/// Lists packets that stages left to the slow path, with reasons; empty if none.
pub fn left(observed: &Observed) -> String {
    let mut text = String::new();
    for ((host, name), metered) in &observed.metered {
        let mut left: Vec<_> = metered.left.iter().collect();
        left.sort_by_key(|(_, packets)| std::cmp::Reverse(**packets));
        for (reason, packets) in left {
            text += &format!("; {host} {name} left {packets} packets to the slow path: {reason}");
        }
    }
    text
}

fn not_crossed(hop: &HopRecord, what: &str, seen: u64, expected: u64) -> String {
    format!(
        "the traffic did not take the mode's path: {} {} saw {seen} {what} {}, expected at least {expected}",
        hop.host, hop.device, hop.direction
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::NamespaceSample;
    use netstate::Counters;
    use std::collections::BTreeMap;

    fn measured(workload: Workload, units: u64, payload_bytes: u64) -> Measured {
        Measured {
            workload,
            seconds: 1.0,
            payload_bytes,
            under_way_bytes: 0,
            messages_merge: false,
            units,
            sent_units: units,
            datagrams: None,
            latency: None,
            histogram: None,
            pace: None,
            tcp_retransmits: None,
            tcp: None,
            arrivals: None,
            ecn: None,
            socket_errors: BTreeMap::new(),
            flows: Vec::new(),
            beside: Vec::new(),
            steps: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Packets and bytes that a device sent and received.
    fn carried((tx_packets, tx_bytes): (u64, u64), (rx_packets, rx_bytes): (u64, u64)) -> Counters {
        Counters { tx_packets, tx_bytes, rx_packets, rx_bytes, ..Counters::default() }
    }

    fn observed(counters: Counters) -> Observed {
        let devices = BTreeMap::from([("nic0".to_owned(), counters)]);
        Observed {
            devices: BTreeMap::from([("a".to_owned(), devices)]),
            namespaces: vec![NamespaceSample { label: "a".into(), ..Default::default() }],
            drops: Vec::new(),
            programs: Vec::new(),
            metered: BTreeMap::new(),
        }
    }

    #[test]
    fn bytes_are_layer_3_and_the_mean_compares_with_the_mtu() {
        let counters = Counters {
            tx_packets: 10,
            tx_bytes: 15_140,
            rx_packets: 5,
            rx_bytes: 330,
            tx_dropped: 2,
            ..Default::default()
        };
        let records = hops(&[Hop::tx("a", "nic0")], &observed(counters), Workload::UdpStream);
        assert_eq!((records[0].bytes, records[0].mean_skb_bytes), (15_000, 1500.0));
        assert_eq!((records[0].direction, records[0].drops), (Direction::Forward, 2));
        assert_eq!((records[1].bytes, records[1].direction), (260, Direction::Reverse));
    }

    #[test]
    fn a_hop_that_saw_too_little_breaks_the_proof() {
        let counters = Counters { tx_packets: 100, tx_bytes: 200_000, ..Default::default() };
        let records = hops(&[Hop::tx("a", "nic0")], &observed(counters), Workload::UdpStream);
        assert!(prove(&records, &measured(Workload::TcpStream, 1, 190_000)).is_ok());
        let error = prove(&records, &measured(Workload::TcpStream, 1, 400_000)).unwrap_err();
        assert!(error.contains("a nic0 saw 198600 bytes forward"), "{error}");
        // A part of it was sent before the counters were read.
        let buffered =
            Measured { under_way_bytes: 200_000, ..measured(Workload::TcpStream, 1, 400_000) };
        assert!(prove(&records, &buffered).is_ok());
        // However much was buffered, a hop that saw nothing proves nothing.
        let idle =
            hops(&[Hop::tx("a", "nic0")], &observed(Counters::default()), Workload::UdpStream);
        assert!(prove(&idle, &buffered).is_err());
        // Nothing came back, so this is no request/response path.
        let error = prove(&records, &measured(Workload::TcpRr, 90, 90)).unwrap_err();
        assert!(error.contains("reverse"), "{error}");
        assert!(prove(&[], &measured(Workload::TcpRr, 1, 1)).is_err());
    }

    /// The other end of the tunnel proves that direction.
    #[test]
    fn a_device_that_counts_sent_packets_as_bytes_proves_what_it_received() {
        let counters = carried((0, 100), (100, 10_000));
        let records = hops(&[Hop::tx("a", "nic0")], &observed(counters), Workload::TcpRr);
        assert_eq!(records.len(), 1, "{records:?}");
        assert_eq!((records[0].direction, records[0].packets), (Direction::Reverse, 100));
        // Nothing shows the requests, until the other end does.
        let error = prove(&records, &measured(Workload::TcpRr, 90, 90)).unwrap_err();
        assert_eq!(error, "no device of the path counts what is sent forward");
        let mut observed = observed(counters);
        observed.devices.insert("b".to_owned(), observed.devices["a"].clone());
        let path = [Hop::tx("a", "nic0"), Hop::rx("b", "nic0")];
        let both = hops(&path, &observed, Workload::TcpRr);
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(prove(&both, &measured(Workload::TcpRr, 90, 90)).is_ok());
    }

    #[test]
    fn bulk_traffic_beside_requests_takes_the_path_too() {
        let counters = carried((100, 200_000), (100, 10_000));
        let records = hops(&[Hop::tx("a", "nic0")], &observed(counters), Workload::TcpRr);
        let requests = measured(Workload::TcpRr, 90, 90);
        assert!(prove(&records, &requests).is_ok());
        let bulk = |workload, payload_bytes| {
            let under_way_bytes = 100_000;
            let beside =
                load::BesideMeasured { workload, payload_bytes, under_way_bytes, seconds: 1.0 };
            Measured { beside: vec![beside], ..requests.clone() }
        };
        assert!(prove(&records, &bulk(Workload::TcpStream, 250_000)).is_ok());
        let error = prove(&records, &bulk(Workload::TcpStream, 900_000)).unwrap_err();
        assert!(error.contains("198600 bytes forward"), "{error}");
        let error = prove(&records, &bulk(Workload::TcpMaerts, 900_000)).unwrap_err();
        assert!(error.contains("bytes reverse"), "{error}");
    }

    #[test]
    fn a_sender_that_did_not_run_is_no_wrong_path() {
        let records =
            hops(&[Hop::tx("a", "nic0")], &observed(Counters::default()), Workload::TcpStream);
        let none = measured(Workload::TcpStream, 0, 0);
        let error = prove(&records, &none).unwrap_err();
        assert_eq!(error, "nothing was sent during the measured interval of 1000 ms");
        // Traffic that was sent but crossed no hop took another path.
        let lost = Measured { sent_units: 1, ..none };
        assert!(prove(&records, &lost).unwrap_err().contains("a nic0 saw 0 bytes forward"));
    }

    #[test]
    fn merged_requests_are_proved_by_bytes() {
        let counters = carried((10, 2_000), (10, 2_000));
        let records = hops(&[Hop::tx("a", "nic0")], &observed(counters), Workload::UdpStream);
        let single = measured(Workload::TcpRr, 100, 1_500);
        let error = prove(&records, &single).unwrap_err();
        assert!(error.contains("saw 10 packets forward, expected at least 100"), "{error}");
        let pipelined = Measured { messages_merge: true, ..single.clone() };
        assert!(prove(&records, &pipelined).is_ok());
        let too_much = Measured { payload_bytes: 150_000, ..pipelined };
        assert!(prove(&records, &too_much).unwrap_err().contains("bytes"));
        // Data in flight at the first reading had crossed the hop before.
        let answered = Measured { under_way_bytes: 1_400, ..single };
        assert!(prove(&records, &answered).is_ok());
    }

    #[test]
    fn a_bypassed_hop_that_saw_the_traffic_breaks_the_proof() {
        // Answers come by the device.
        let answers = (9_211, 14_000_000);
        let carried = |tx_packets| carried((tx_packets, tx_packets * 114), answers);
        let meter = || netstate::Meter::new(netstate::Metered::default);
        let hop = || Hop::tx("a", "nic0").bypassed_but_for(TrafficDirection::Forward, meter());
        let sent = measured(Workload::UdpStream, 1_000, 64_000);
        let prove_of = |sent: &Measured, seen, excused| {
            let mut observed = observed(carried(seen));
            let metered = netstate::Metered {
                carried: carried(excused),
                left: BTreeMap::from([("egress_mtu".to_owned(), seen)]),
            };
            observed.metered.insert(("a".into(), "nic0".into()), metered);
            let records = hops(&[hop()], &observed, Workload::UdpStream);
            assert_eq!(records[0].kind, RecordKind::Bypassed);
            assert_eq!(records[0].excused, excused);
            assert_eq!(records[1].kind, RecordKind::Device, "the other way is not");
            prove(&records, sent).map_err(|error| error + &left(&observed))
        };
        let prove_with = |seen, excused| prove_of(&sent, seen, excused);
        assert_eq!(prove_with(10, 0), Ok(()));
        assert_eq!(prove_with(1_000, 990), Ok(()));
        let error = prove_with(1_000, 500).unwrap_err();
        assert!(error.contains("a nic0 saw 500 packets forward that should bypass it"), "{error}");
        assert!(error.contains("a nic0 left 1000 packets to the slow path: egress_mtu"), "{error}");
        // Messages of 46 packets; one message was in flight when the counters were read.
        let sent = measured(Workload::UdpRr, 200, 200 * 65_507);
        assert_eq!(prove_of(&sent, 9_259, 9_211), Ok(()));
        assert!(prove_of(&sent, 9_259, 0).is_err());
    }

    #[test]
    fn a_stage_is_counted_by_its_meter() {
        let meter = netstate::Meter::new(netstate::Metered::default);
        let stage = Hop::stage("b", "accel", Side::Rx, meter);
        let sent = measured(Workload::TcpStream, 1, 50_000);
        let mut observed = observed(Counters::default());
        assert!(
            prove(&hops(std::slice::from_ref(&stage), &observed, Workload::TcpStream), &sent)
                .is_err()
        );
        let carried = Counters { rx_packets: 10, rx_bytes: 60_140, ..Default::default() };
        let metered = netstate::Metered { carried, ..Default::default() };
        observed.metered.insert(("b".into(), "accel".into()), metered);
        let records = hops(&[stage], &observed, Workload::UdpStream);
        assert_eq!((records[0].kind, records[0].bytes), (RecordKind::Stage, 60_000));
        assert!(prove(&records, &sent).is_ok());
    }

    /// Packet filters must see the start and the end of each connection.
    #[test]
    fn short_connections_are_proved_by_hops_of_their_own() {
        let meter = || netstate::Meter::new(netstate::Metered::default);
        let path = [
            Hop::tx("a", "nic0").bypassed(TrafficDirection::Both).for_lasting_connections(),
            Hop::stage("a", "accel", Side::Tx, meter()).for_lasting_connections(),
            Hop::stage("a", "partial bypass", Side::Tx, meter()).for_short_connections(),
        ];
        let of = |workload, packets| {
            let counters = Counters {
                tx_packets: packets,
                tx_bytes: packets * 80,
                rx_packets: packets,
                rx_bytes: packets * 80,
                ..Default::default()
            };
            let mut observed = observed(counters);
            let half = netstate::Metered { carried: counters, ..Default::default() };
            observed.metered.insert(("a".into(), "partial bypass".into()), half);
            let records = hops(&path, &observed, workload);
            prove(&records, &measured(workload, 100, 100))
        };
        assert_eq!(of(Workload::TcpCrr, 500), Ok(()));
        assert!(of(Workload::TcpCrr, 5).unwrap_err().contains("a nic0 saw 5 packets forward"));
        assert!(of(Workload::TcpRr, 500).unwrap_err().contains("should bypass it"));
        assert!(of(Workload::TcpRr, 5).unwrap_err().contains("a accel saw 0 bytes"));
        let mut unseen =
            observed(Counters { tx_packets: 500, tx_bytes: 40_000, ..Default::default() });
        unseen.metered.clear();
        let records = hops(&path[2..], &unseen, Workload::TcpCrr);
        let error = prove(&records, &measured(Workload::TcpCrr, 100, 100)).unwrap_err();
        assert!(error.contains("a partial bypass saw 0 bytes"), "{error}");
        assert!(hops(&path[2..], &unseen, Workload::TcpRr).is_empty());
    }

    #[test]
    fn a_process_hop_without_sockets_in_use_proves_nothing() {
        let mut seen = observed(Counters::default());
        // Forwarded traffic only: octets, but no segment for a socket.
        seen.namespaces[0].counters.ip_ext.in_octets = 1_000_000;
        let records = hops(&[Hop::process("a", "docker-proxy")], &seen, Workload::UdpStream);
        assert!(prove(&records, &measured(Workload::TcpStream, 1, 500_000)).is_err());
        seen.namespaces[0].counters.tcp.in_segs = 700;
        let records = hops(&[Hop::process("a", "docker-proxy")], &seen, Workload::UdpStream);
        assert!(prove(&records, &measured(Workload::TcpStream, 1, 500_000)).is_ok());
    }
}
