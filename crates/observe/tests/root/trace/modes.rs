//! Every mode of the lab: packets from the client's socket to the server's over the declared hops,
//! segmented where the devices' counters show it.

use lab::{Mode, Network, Params, modes};
use netstate::{Counters, Hop, HopKind, Side};
use observe::Packet;
use test_support::{left_out, require, some_at_once};
use testbed::Offload;

use super::seen::{Seen, begins_in, cut_at, is_arrived, is_from, is_received, steps_at, was_at};
use super::traffic::{Datagrams, STREAM, port, stream};
use super::{LIMIT, privileged};

/// Modes that take a minute to build.
fn is_slow(mode: &str) -> bool {
    mode.starts_with("k8s") || mode.starts_with("flannel") || mode.starts_with("swarm")
}

/// Modes whose packets cross only devices and translations of other tested modes, and that take
/// seconds to build.
fn is_as_another(mode: &str) -> bool {
    ["vrouter", "floating-ip", "snat", "evpn"].iter().any(|start| mode.starts_with(start))
}

/// Variants of another mode: another daemon writes the same routes, or a program reads the same
/// devices by another system call.
fn is_variant(mode: &str) -> bool {
    let engine = ["-uring", "-poll", "-2q", "-naive"];
    (mode.starts_with("bgp-") && mode != "bgp-ipip")
        || engine.iter().any(|engine| mode.ends_with(engine))
}

/// Modes whose path leaves the kernel, or ends one connection and opens another: packets reappear
/// as new ones.
fn is_in_user_space(mode: &str) -> bool {
    ["tap", "vtep", "ovs", "nat-proxy"].iter().any(|begin| mode.starts_with(begin))
}

/// Modes in which a device takes packets from its lower device without a trace point: they are seen
/// at the lower device, and then in the socket.
fn is_taken_over(mode: &str) -> bool {
    ["macvlan", "ipvlan", "vlan"].contains(&mode) || mode.ends_with("+accel")
}

/// Bytes of the largest packet after segmentation, on any device: the MTU, Ethernet's header and a
/// tunnel's.
const CUT: u64 = 1500 + 14 + 70;

#[test]
fn packets_are_followed_from_socket_to_socket_in_every_kind_of_mode() {
    followed(Offload::Full, |mode| !is_variant(mode));
}

#[test]
fn packets_are_followed_from_socket_to_socket_in_variants_of_modes() {
    followed(Offload::Full, is_variant);
}

#[test]
fn packets_are_followed_from_socket_to_socket_in_every_mode_without_offloads() {
    followed(Offload::None, |_| true);
}

fn followed(offload: Offload, is_wanted: impl Fn(&str) -> bool) {
    let machine = require!(privileged());
    let mut cases = Vec::new();
    // Packets inside guests belong to the guests' kernels.
    let is_left =
        |mode: &&&dyn Mode| mode.in_guests() || is_slow(mode.name()) || is_as_another(mode.name());
    for mode in modes().iter().filter(|mode| !is_left(mode) && is_wanted(mode.name())) {
        match mode.probe(&machine) {
            Ok(()) => cases.push(*mode),
            Err(unsupported) => left_out(&format!("{}: {}", mode.name(), unsupported.reason)),
        }
    }
    let lines = some_at_once(&cases, |mode| {
        let network = mode.build(&Params::new(1500, offload)).unwrap();
        let mut problems = Vec::new();
        let mut problem = |error: testbed::Error| {
            problems.push(format!("{} {offload}: {error}", mode.name()));
            (String::new(), "NO".to_owned())
        };
        // One tracer for both flows, because loading its programs takes longest.
        let (of_datagrams, of_stream) = (Datagrams::new(&network, port()), port());
        let mut seen = Seen::of(&network, &flows(*mode, &of_datagrams, of_stream));
        let (steps, datagrams) =
            datagram(*mode, &network, &of_datagrams, &mut seen).unwrap_or_else(&mut problem);
        drop(of_datagrams);
        let (cut, streams) =
            transfer(*mode, &network, seen, of_stream).unwrap_or_else(&mut problem);
        let line = format!(
            "{:<20} {:<8} {steps:>5}  {datagrams:<12} {cut:<18} {streams}",
            mode.name(),
            offload.name()
        );
        (line, problems)
    });
    let (table, problems): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
    let problems = problems.concat();
    println!("mode                 offload  steps  datagram     cut at             stream");
    println!("{}", table.join("\n"));
    assert!(!table.is_empty());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Devices at which a packet must be seen.
fn devices<'n>(mode: &dyn Mode, network: &'n Network) -> impl Iterator<Item = &'n Hop> + Clone {
    let all = network.hops.len() - usize::from(is_taken_over(mode.name()));
    let seen = network.hops[..all].iter();
    seen.filter(|hop| hop.kind == HopKind::Device && hop.bypass.is_none())
}

/// Flows that a tracer selects.
fn flows(mode: &dyn Mode, datagrams: &Datagrams, of_stream: u16) -> Vec<String> {
    // A proxy sends from its own port.
    let of_datagrams = match mode.name() {
        "nat-proxy" => format!("*:{}/udp", lab::PORT),
        _ => format!("*:{}", datagrams.port()),
    };
    vec![of_datagrams, format!("*:{of_stream}")]
}

/// The number of a datagram's steps, and the problems found.
fn datagram(
    mode: &dyn Mode,
    network: &Network,
    datagrams: &Datagrams,
    seen: &mut Seen,
) -> Result<(String, String), testbed::Error> {
    let port = datagrams.port();
    let client = network.client().name();
    let last = devices(mode, network).last();
    let server = last.map_or(network.server().name(), |hop| &hop.host);
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    let what = format!("{}: a datagram's journey", mode.name());
    if is_in_user_space(mode.name()) {
        return seen.found(&what, act, |packets| {
            let begun = packets.iter().find(|packet| begins_in(packet, client));
            let ended = packets.iter().find(|packet| is_arrived(packet, server));
            match (begun, ended) {
                (Some(begun), Some(ended)) => {
                    let steps = begun.steps.len() + ended.steps.len();
                    Ok((steps.to_string(), "in parts".to_owned()))
                }
                // A program at the TAP devices forwards packets without a trace point.
                (Some(part), None) | (None, Some(part)) if mode.name().ends_with("-bpf") => {
                    Ok((part.steps.len().to_string(), "one part".to_owned()))
                }
                _ => Err(format!("begun {}, ended {}", begun.is_some(), ended.is_some())),
            }
        });
    }
    seen.found(&what, act, |packets| {
        let whole = |packet: &&Packet| {
            begins_in(packet, client) && is_arrived(packet, server) && is_from(packet, "udp", port)
        };
        let all = packets.iter().filter(whole).map(|packet| {
            let missing =
                devices(mode, network).find(|hop| !was_at(packet, &hop.host, &hop.device));
            match missing {
                Some(hop) => Err(format!("not at {} of {}", hop.device, hop.host)),
                None if !packet.steps.iter().any(|step| step.namespace == server) => {
                    Err("not in the server's namespace".to_owned())
                }
                None => Ok((packet.steps.len().to_string(), "whole".to_owned())),
            }
        });
        all.reduce(|one, other| one.or(other)).unwrap_or_else(|| Err("no journey".to_owned()))
    })
}

/// Packets and bytes that each device of the path carried to the server.
fn carried(mode: &dyn Mode, network: &Network) -> Vec<(u64, u64)> {
    let of = |hop: &Hop| {
        let host = network.host(&hop.host).unwrap();
        let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } =
            host.netlink().link(&hop.device).unwrap().counters;
        match hop.forward {
            Side::Rx => (rx_packets, rx_bytes),
            Side::Tx => (tx_packets, tx_bytes),
        }
    };
    devices(mode, network).map(of).collect()
}

/// The first device with small packets by the lab's counters: they were segmented there.
fn counted_cut<'n>(
    mode: &dyn Mode,
    network: &'n Network,
    before: &[(u64, u64)],
) -> Option<&'n Hop> {
    let after = carried(mode, network);
    let mean = |at: usize| {
        let (packets, bytes) = (after[at].0 - before[at].0, after[at].1 - before[at].1);
        if bytes < STREAM as u64 { 0 } else { bytes / packets.max(1) }
    };
    devices(mode, network)
        .enumerate()
        .find(|(at, _)| (1..CUT).contains(&mean(*at)))
        .map(|(_, hop)| hop)
}

/// Where a stream's packets were segmented, and the problems found. `seen` traces the first stream,
/// from port `of_stream`; each one after it has its own port and tracer.
fn transfer(
    mode: &dyn Mode,
    network: &Network,
    seen: Seen,
    of_stream: u16,
) -> Result<(String, String), testbed::Error> {
    let client = network.client().name();
    let what = format!("{}: a stream's journeys", mode.name());
    let mut first = Some((seen, of_stream));
    let mut next = || {
        first.take().unwrap_or_else(|| {
            let port = port();
            (Seen::of_port(network, port), port)
        })
    };
    if is_in_user_space(mode.name()) {
        return testbed::poll(&what, LIMIT, || {
            let (mut seen, port) = next();
            stream(network, port);
            seen.rest();
            let begun = seen.packets.iter().any(|packet| {
                let is_begun = begins_in(packet, client) || mode.name() == "tap-netmap-bpf";
                is_begun && is_from(packet, "tcp", port)
            });
            Ok(if begun { Ok(()) } else { Err(seen.text()) })
        })
        .map(|()| ("-".to_owned(), "in parts".to_owned()));
    }
    // A connection that starts before the devices know each other's addresses takes another path.
    testbed::poll(&what, LIMIT, || {
        let (mut seen, port) = next();
        let before = carried(mode, network);
        stream(network, port);
        let counted = counted_cut(mode, network, &before);
        seen.rest();
        let judged = judge(mode, network, &seen.packets, port, counted);
        Ok(judged.map_err(|problem| format!("{problem}\n{}", seen.text())))
    })
}

fn judge(
    mode: &dyn Mode,
    network: &Network,
    packets: &[Packet],
    port: u16,
    counted: Option<&Hop>,
) -> Result<(String, String), String> {
    let (client, server) = (network.client().name(), network.server().name());
    let of_stream: Vec<&Packet> = packets
        .iter()
        .filter(|packet| begins_in(packet, client) && is_from(packet, "tcp", port))
        // The loopback device accepts packets of 64 KiB without segmentation.
        .filter(|packet| packet.steps[0].gso_packets.is_some() || mode.name() == "loopback")
        .collect();
    if of_stream.is_empty() {
        return Err("no GSO packet was sent".to_owned());
    }
    let mut cuts: Vec<(String, String)> = of_stream.iter().flat_map(|p| cut_at(p)).collect();
    cuts.sort();
    cuts.dedup();
    let expected: Vec<(String, String)> =
        counted.iter().map(|hop| (hop.host.clone(), hop.device.clone())).collect();
    if cuts != expected {
        return Err(format!("cut at {cuts:?}, the counters say {expected:?}"));
    }
    let Some((host, device)) = cuts.pop() else {
        // Unsegmented from socket to socket.
        let whole = of_stream.iter().find(|packet| {
            let is_gso_at = |hop: &Hop| {
                steps_at(packet, &hop.host, &hop.device)
                    .any(|step| step.gso_packets.is_some() || mode.name() == "loopback")
            };
            devices(mode, network).all(is_gso_at) && is_received(&packet.legs[0].ending)
        });
        let whole = whole.ok_or("no GSO packet arrived whole by all hops")?;
        let packets = whole.steps[0].gso_packets.unwrap_or(1);
        if !whole.steps.iter().any(|step| step.namespace == server) {
            return Err("not in the server's namespace".to_owned());
        }
        return Ok(("nowhere".to_owned(), format!("GSO packet of {packets} received whole")));
    };
    // A merged segment arrives as part of another one.
    let arrived = of_stream
        .iter()
        .flat_map(|packet| &packet.legs)
        .filter(|leg| leg.segment_of.is_some() && is_received(&leg.ending));
    let arrived = arrived.count();
    if arrived == 0 {
        return Err("no segment arrived".to_owned());
    }
    // One segment for each that the packet stands for, all of them behind the segmentation.
    for packet in &of_stream {
        let segments = packet.legs.iter().filter(|leg| leg.segment_of == Some(0)).count();
        let whole = packet.steps[0].gso_packets.map_or(1, usize::from);
        if segments != whole {
            return Err(format!("{segments} segments of a packet of {whole}\n{}", packet.text()));
        }
    }
    Ok((format!("{host} {device}"), format!("{arrived} segments received")))
}
