//! Follows packets on common kernels: Debian's 5.10, 6.1 and 6.12, in QEMU guests. Functional only.

use crate::qemu;
use crate::trace::seen;
use crate::trace::traffic;

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use lab::Params;
use observe::{Filter, Packet, PacketEnding};
use qemu::Guest;
use seen::{Seen, begins_in, cut_at, drops, is_arrived, is_from, was_at};
use test_support::require;
use testbed::{Host, Offload};
use traffic::{Datagrams, port, stream};

/// Time limit of a step that is quick outside of software emulation.
const LIMIT: Duration = Duration::from_secs(120);
/// The test that the guests run, in this program: it performs the part inside.
const INSIDE: &str = "guest::packets_are_followed_on_linux_6_1";

/// Packets with one of these ports at either end.
fn looking_at(ports: impl IntoIterator<Item = u16>) -> Filter {
    let flows = ports.into_iter().map(|port| format!("*:{port}").parse().unwrap());
    Filter { flows: flows.collect(), ..Filter::default() }
}

/// Prints a line for each expected observation.
fn follow_packets() {
    let network = lab::find("vxlan").unwrap().build(&Params::new(1500, Offload::NoTunnel)).unwrap();
    let (client, server) = (network.client().name(), network.server().name());

    let [of_datagrams, of_unread, of_stream] = [(); 3].map(|()| port());
    let datagrams = Datagrams::new(&network, of_datagrams);
    let unread = traffic::datagrams(network.client(), of_unread);
    // One tracer for all of them, because verification of its programs takes longest in emulation.
    let filter = looking_at([of_datagrams, of_unread, of_stream]);
    let mut seen = Seen::on_any_kernel(&network, filter);
    let mut reason = "NO_SOCKET";
    for what in seen.not_seen() {
        println!("not seen: {what}");
        if what.starts_with("drop reasons: ") {
            reason = "NOT_TOLD";
        }
    }
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    seen.until("a datagram from socket to socket", act, |packets| {
        let is = |packet: &&Packet| {
            begins_in(packet, client)
                && is_arrived(packet, server)
                && was_at(packet, "a", "vxlan0")
                && was_at(packet, "b", "nic0")
        };
        packets.iter().find(is).map(|_| ()).ok_or_else(|| "none".to_owned())
    });
    println!("followed");
    let act = || {
        datagrams.send(4000);
        datagrams.receive();
    };
    seen.until("a datagram that was cut and put together", act, |packets| {
        let of = |packet: &&Packet| {
            let ended = |ending: &PacketEnding| {
                packet.legs.iter().filter(|leg| leg.ending == *ending).count()
            };
            begins_in(packet, client)
                && ended(&PacketEnding::Reassembled) == 3
                && packet.legs.iter().any(|leg| leg.reassembled_from.is_some())
        };
        packets.iter().find(of).map(|_| ()).ok_or_else(|| "none".to_owned())
    });
    let lost: Vec<String> =
        seen.packets.iter().filter(|packet| packet.is_dropped()).map(Packet::text).collect();
    assert_eq!(lost, Vec::<String>::new(), "fragments of what was received");
    println!("reassembled");

    drop(datagrams.server);
    let target = network.address.target;
    let act = || {
        unread.send_to(&[7; 100], target).unwrap();
    };
    seen.until("a datagram that nobody reads", act, |packets| {
        let mut all = packets.iter().flat_map(drops);
        all.find(|(step, got, _)| step.namespace == server && *got == reason)
            .map(|_| ())
            .ok_or_else(|| "no drop".to_owned())
    });
    println!("dropped");

    stream(&network, of_stream);
    seen.rest();
    let sent = seen.packets.iter().filter(|packet| is_from(packet, "tcp", of_stream));
    let mut places: Vec<_> = sent.flat_map(cut_at).collect();
    places.sort();
    places.dedup();
    println!("cut at {places:?}");
    look_into_tunnels();
}

/// Tunnels between the underlay's hosts whose modules the build machines lack: the kind, arguments
/// of `ip link add`, and the encapsulation's name.
const TUNNELS: [(&str, &str, &str); 5] = [
    ("geneve", "id 77 dstport 6090", "Geneve 77"),
    ("gretap", "key 5", "GRE 5"),
    ("gretap", "key 0", "GRE 0"),
    ("gretap", "seq csum", "GRE"),
    ("gre", "key 6", "GRE 6"),
];

/// Prints a line for each tunnel whose inner packets were seen.
fn look_into_tunnels() {
    let network = lab::find("host").unwrap();
    let network = network.build(&Params::new(1500, Offload::None)).unwrap();
    let hosts = [network.client(), network.server()];
    let ip = |host: &Host, line: &str| {
        host.run(Command::new("ip").args(line.split(' '))).unwrap();
    };
    let ports = TUNNELS.map(|_| port());
    let mut all = Seen::on_any_kernel(&network, looking_at(ports));
    // A tunnel with key 0 has a key; one without has none, not 0.
    let filter = Filter { vni: Some(0), ..looking_at(ports) };
    let mut of_key_0 = Seen::on_any_kernel(&network, filter);
    for ((kind, options, within), port) in TUNNELS.into_iter().zip(ports) {
        for (at, host) in hosts.into_iter().enumerate() {
            let (own, other) = (at + 1, 2 - at);
            let local =
                if kind == "geneve" { String::new() } else { format!("local 10.0.0.{own} ") };
            let ends = format!("{local}remote 10.0.0.{other}");
            ip(host, &format!("link add tunnel0 type {kind} {ends} {options}"));
            ip(host, &format!("address add 10.9.0.{own}/24 dev tunnel0"));
            ip(host, "link set tunnel0 up");
        }
        let places = seen::places(&network);
        for seen in [&mut all, &mut of_key_0] {
            seen.tracer.know(&places).unwrap();
        }
        let sender = traffic::datagrams(network.client(), port);
        let bind = || UdpSocket::bind("10.9.0.2:9").unwrap();
        let receiver = network.server().netns().run(bind).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let act = || {
            sender.send_to(&[7; 100], "10.9.0.2:9").unwrap();
            while receiver.recv(&mut [0; 200]).is_ok() {}
        };
        let (client, server) = (network.client().name(), network.server().name());
        let packet = all.until("a datagram through the tunnel", act, |packets| {
            let is = |packet: &&Packet| {
                is_from(packet, "udp", port)
                    && begins_in(packet, client)
                    && is_arrived(packet, server)
            };
            packets.iter().find(is).cloned().ok_or_else(|| "none".to_owned())
        });
        let text = packet.text();
        for line in [format!("in {within} 10.0.0.1"), "decapsulated".to_owned()] {
            assert!(text.contains(&line), "{line}: {text}");
        }
        testbed::poll("a datagram through the tunnel", LIMIT, || {
            sender.send_to(&[7; 100], "10.9.0.2:9").unwrap();
            let is_received = receiver.recv(&mut [0; 200]).is_ok();
            Ok(if is_received { Ok(()) } else { Err(String::new()) })
        })
        .unwrap();
        of_key_0.rest();
        let text = of_key_0.text();
        // The kernel frees the previous tunnel's socket with its unread packets, which are reported
        // as dropped.
        let packets = std::mem::take(&mut of_key_0.packets);
        let is_seen = packets.iter().any(|packet| is_from(packet, "udp", port));
        assert_eq!(is_seen, within == "GRE 0", "{within}: {text}");
        println!("looked into {within}");
        for host in hosts {
            ip(host, "link del tunnel0");
        }
    }
}

/// `not_seen` must list exactly the facts that a kernel does not provide.
fn on(guest: Guest, not_seen: &[&str]) {
    let program = std::env::current_exe().unwrap();
    let guest = guest.with_programs(&["sleep", "ip"]);
    let output = guest.run(&program, &["--exact", INSIDE, "--nocapture"]);
    println!("{}", output.stdout);
    let lines = output.stdout.lines().filter_map(|line| line.strip_prefix("not seen: "));
    assert_eq!(lines.collect::<Vec<_>>(), not_seen, "{output:#?}");
    let tunnels = TUNNELS.iter().map(|(.., within)| format!("looked into {within}"));
    let lines =
        ["followed", "reassembled", "dropped", "cut at [(\"a\", \"nic0\")]"].map(str::to_owned);
    for line in lines.into_iter().chain(tunnels) {
        assert!(output.stdout.lines().any(|got| got == line), "{line}: {output:#?}");
    }
}

const NO_SK_DATA_READY: &str = "datagrams that sockets receive: no trace point sk_data_ready";

#[test]
fn packets_are_followed_on_linux_5_10() {
    let no_reasons = "drop reasons: the kernel has no enum skb_drop_reason (requires Linux 5.17)";
    on(require!(Guest::of_series("5.10")), &[NO_SK_DATA_READY, no_reasons]);
}

#[test]
fn packets_are_followed_on_linux_6_1() {
    if qemu::is_inside() {
        return follow_packets();
    }
    on(require!(Guest::find()), &[NO_SK_DATA_READY]);
}

#[test]
fn packets_are_followed_on_linux_6_12() {
    on(require!(Guest::of_series("6.12")), &[]);
}
