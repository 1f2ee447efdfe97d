//! Expressions in tcpdump's syntax, evaluated in the kernel.

use lab::Network;
use observe::{Expression, Filter};
use test_support::require;
use testbed::Offload;

use super::network;
use super::seen::{Seen, begins_in, inode, is_arrived, is_from};
use super::traffic::{Datagrams, datagrams, port};

/// In the hosts of this network only, because other hosts of this machine have such packets, too.
fn filter(network: &Network, text: &str) -> Filter {
    let expression = Some(Expression::compile(text).unwrap());
    Filter {
        expression,
        netns: network.hosts().iter().map(|host| inode(host)).collect(),
        ..Filter::default()
    }
}

fn libpcap() -> Result<(), String> {
    Expression::compile("ip").map(|_| ()).map_err(|error| error.to_string())
}

/// Datagrams in a tunnel, selected by their own headers and by those of the tunnel. Each expression
/// selects one of two ports, and the other port has traffic all the time.
#[test]
fn packets_are_meant_by_inner_or_outer_headers() {
    require!(network("vxlan", Offload::Full), libpcap());
    let network = network("vxlan", Offload::Full).unwrap();
    let (wanted, other) = (port(), port());
    let (meant, others) = (Datagrams::new(&network, wanted), datagrams(network.client(), other));
    for text in [
        format!("udp src port {wanted}"),
        format!("udp and src portrange {wanted}-{wanted} and not tcp and ip[8] > 0"),
        // Fills the space of a function, beyond the reach of a single jump.
        format!("udp src port {wanted} and not ({})", many_ports(other)),
    ] {
        let mut seen = Seen::filtered(&network, filter(&network, &text));
        let send = || {
            meant.send(32);
            others.send_to(&[7; 32], network.address.target).unwrap();
            while meant.receive() {}
        };
        let packet = seen.until("a whole journey", send, |packets| {
            let whole = packets.iter().find(|packet| {
                is_from(packet, "udp", wanted)
                    && begins_in(packet, network.client().name())
                    && is_arrived(packet, network.server().name())
            });
            whole.cloned().ok_or("none".to_owned())
        });
        assert!(packet.steps.iter().any(|step| step.vni.is_some()), "{}", packet.text());
        seen.rest();
        for packet in &seen.packets {
            assert!(is_from(packet, "udp", wanted), "{text}: {}", packet.text());
        }
    }
    // Headers of the tunnel: no match where the packet is not in it.
    let mut seen =
        Seen::filtered(&network, filter(&network, "udp dst port 4789 and ether[12:2] = 0x800"));
    let send = || {
        meant.send(32);
        while meant.receive() {}
    };
    let packet = seen.until("a packet of the tunnel", send, |packets| {
        packets.iter().find(|p| is_from(p, "udp", wanted)).cloned().ok_or("none".to_owned())
    });
    assert!(packet.steps[0].vni.is_some(), "{}", packet.text());
    assert!(!begins_in(&packet, network.client().name()), "{}", packet.text());
}

/// Ports other than these, one by one.
fn many_ports(but: u16) -> String {
    let ports = (1..200).map(|n| n + 40_000).filter(|port| *port != but);
    ports.map(|port| format!("dst port {port}")).collect::<Vec<_>>().join(" or ")
}
