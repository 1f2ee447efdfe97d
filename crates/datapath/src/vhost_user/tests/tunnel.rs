//! Guests behind two VXLAN endpoints in this process.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use packet::vxlan::Vni;
use sys::netns::NetNs;
use test_support::{need, require};

use super::PLAIN;
use super::guest::{Guest, frame, gso_packet};
use crate::vhost_user::features::offered;
use crate::vhost_user::{GuestPort, GuestPortOptions, GuestState, PREFIX};
use crate::vtep::{Config, Endpoint, HandOver, NetworkConfig, Running};
use sys::tap::Offload;

fn endpoint(socket: &Path, last: u8, netns: &NetNs) -> Running {
    let at = |last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
    let tap = format!("{PREFIX}{}", socket.display());
    let network = NetworkConfig {
        remotes: vec![at(3 - last)],
        mtu: Some(1450),
        ..NetworkConfig::new(Vni::new(5).unwrap(), tap)
    };
    let config = Config {
        networks: vec![network],
        hand_over: HandOver::UdpSegment,
        ..Config::new(at(last))
    };
    let endpoint = Endpoint::open(&config, netns).unwrap();
    let port = GuestPort::listen(&GuestPortOptions::at(socket)).unwrap();
    endpoint.attach(vec![port]).unwrap().start().unwrap()
}

#[test]
fn guests_reach_each_other_through_the_tunnel() {
    require!(need::root());
    let netns = NetNs::new().unwrap();
    let netlink = netstate::Netlink::open_in(&netns).unwrap();
    netlink.set_up("lo").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let [left, right] = ["left", "right"].map(|name| directory.path().join(name));
    let (from_left, _from_right) = (endpoint(&left, 1, &netns), endpoint(&right, 2, &netns));
    let all = offered(Offload::PLAIN, 1);
    let mut left = Guest::up(&left, all, 1);
    let mut first = Guest::up(&right, all, 1);
    for length in [20, 100, 1400] {
        left.transmit([0; 12], &frame(length), false);
        assert!(first.expect().1 == frame(length));
        let mut back = frame(length);
        back[..12].rotate_left(6);
        first.transmit([0; 12], &back, true);
        assert!(left.expect().1 == back);
    }
    // Segmented for the wire, merged again for the guest with offloads, left in segments for the
    // other.
    let (header, sent) = gso_packet(30_000, 1396);
    left.transmit(header, &sent, false);
    let mut payload = Vec::new();
    while payload.len() < 30_000 {
        payload.extend_from_slice(&first.expect().1[54..]);
    }
    assert!(payload == sent[54..]);
    drop(first);
    let mut plain = Guest::up(&right, PLAIN, 1);
    left.transmit(header, &sent, false);
    payload.clear();
    while payload.len() < 30_000 {
        let (got, received) = plain.expect();
        assert!(got[..10] == [0; 10] && received.len() <= 1464);
        payload.extend_from_slice(&received[54..]);
    }
    assert!(payload == sent[54..]);
    let report = from_left.report();
    let network = &report.networks[0];
    assert_eq!(network.out.dropped(), 0, "{report:?}");
    let guest = network.guest.as_ref().unwrap();
    assert_eq!((guest.state, guest.queues), (GuestState::Running, 1));
    assert!(guest.to_string().contains("EVENT_IDX"), "{guest}");
    assert_eq!(guest.memory, super::guest::MEMORY);
}
