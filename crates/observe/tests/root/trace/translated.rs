//! Answers of translated connections, without the tracer's reading of conntrack.

use std::net::UdpSocket;
use std::time::Duration;

use observe::Packet;
use test_support::{bound, require};
use testbed::Offload;

use super::network;
use super::seen::{Seen, begins_in, was_at};
use super::traffic::{datagrams, port};

/// Sends a datagram and its answer.
fn asked(client: &UdpSocket, server: &UdpSocket, target: std::net::SocketAddr) {
    client.send_to(&[7; 20], target).unwrap();
    let mut buffer = [0; 64];
    if let Ok((length, from)) = server.recv_from(&mut buffer) {
        server.send_to(&buffer[..length], from).unwrap();
        let _ = client.recv(&mut buffer);
    }
}

/// The published address is that of the flow. Answers have the server's own address until its host
/// translates them back. Connections before, more than a filter has places for, take none away.
#[test]
fn answers_are_followed_from_the_server_on_from_the_first_packet() {
    let network = require!(network("nat", Offload::Full));
    let (target, listen) = (network.address.target, network.address.listen);
    let server = network.server().netns().run(|| bound(|| UdpSocket::bind(listen))).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let client = |port| {
        let socket = datagrams(network.client(), port);
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    };
    for _ in 0..20 {
        asked(&client(port()), &server, target);
    }
    let mut seen = Seen::of(&network, &[format!("{}:{}/udp", target.ip(), target.port())]);
    let name = network.server().name();
    // Each connection is new, so that its second packet is the first answer.
    let packet = seen.until(
        "an answer from the server on",
        || asked(&client(port()), &server, target),
        |packets| {
            let answers = |packet: &&Packet| begins_in(packet, name);
            packets.iter().find(answers).cloned().ok_or("no answer".to_owned())
        },
    );
    for host in ["b", "a"] {
        assert!(was_at(&packet, host, testbed::NIC), "{}", packet.text());
    }
    assert!(
        packet.steps.iter().any(|step| step.namespace == network.client().name()),
        "{}",
        packet.text()
    );
}
