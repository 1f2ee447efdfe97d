//! Rings work under the system call filter of the programs that forward. A test by
//! itself: the filter stays until the process ends.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use datapath::tapbridge::{Bridge, Engine, EngineChoice, Port, PortOptions, Side};
use sys::frame_ring::FrameRing;
use testbed::{Host, mac};

#[path = "../../cli/src/confinement.rs"]
mod confinement;

const DEVICE: &str = "tap0";
const ADDRESSES: [&str; 2] = ["10.1.0.1", "10.1.0.2"];
/// More than the rings have buffers.
const DATAGRAMS: usize = 200;

#[test]
fn rings_work_under_the_filter() {
    if !sys::userns::may_administer_networks() || sys::tap::available().is_err() {
        return eprintln!("skipped: needs root (CAP_NET_ADMIN) and /dev/net/tun");
    }
    if let Err(error) = FrameRing::new(&[], &[], 16, 4096) {
        eprintln!("skipped: {error}");
        return;
    }
    let tenants = ["tenant-a", "tenant-b"].map(|name| Host::new(name).unwrap());
    let open = |end: usize| {
        let port = Port::open(&PortOptions::named(DEVICE), tenants[end].netns()).unwrap();
        let address: std::net::IpAddr = ADDRESSES[end].parse().unwrap();
        tenants[end].address(DEVICE, address, 24).unwrap();
        port
    };
    let bridge = Bridge::new(open(0), open(1), None).unwrap();
    for (end, other) in [(0, 1), (1, 0)] {
        // Nobody is asked for an address once the filter holds.
        let mac = mac(tenants[other].name(), DEVICE);
        tenants[other].netlink().set_mac(DEVICE, mac).unwrap();
        let address = ADDRESSES[other].parse().unwrap();
        tenants[end].netlink().add_neighbour(DEVICE, address, mac).unwrap();
    }
    let running = bridge.engine(EngineChoice::Only(Engine::Uring)).unwrap().start().unwrap();
    let sockets = [0, 1].map(|end| {
        let address = SocketAddr::new(ADDRESSES[end].parse().unwrap(), 5301);
        let socket = tenants[end].netns().run(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    });
    confinement::confine_forwarding().unwrap();
    let mut buffer = [0; 64];
    for number in 0..DATAGRAMS {
        let payload = number.to_be_bytes();
        let to = SocketAddr::new(ADDRESSES[1].parse().unwrap(), 5301);
        sockets[0].send_to(&payload, to).unwrap();
        let (length, from) = received(&sockets[1], &mut buffer);
        assert_eq!(buffer[..length], payload);
        sockets[1].send_to(&payload, from).unwrap();
        assert_eq!(received(&sockets[0], &mut buffer).0, payload.len());
    }
    let ([left, right], outcome) = running.stop();
    outcome.unwrap();
    for (side, counters) in Side::BOTH.into_iter().zip([left, right]) {
        assert!(counters.forwarded >= DATAGRAMS as u64, "{side:?}: {counters:?}");
    }
}

/// A datagram's length and sender. A ring that this thread has closed is taken apart
/// later, which interrupts what it then waits for (`io_ring_exit_work`).
fn received(socket: &UdpSocket, buffer: &mut [u8]) -> (usize, SocketAddr) {
    loop {
        match socket.recv_from(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received.unwrap(),
        }
    }
}
