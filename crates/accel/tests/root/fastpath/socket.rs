//! The socket of a VXLAN device belongs to the kernel alone.

use std::net::{SocketAddr, UdpSocket};

use nix::errno::Errno;
use test_support::{need, require};
use testbed::Offload;

use super::pair::Pair;

/// Only the tunnel gets packets to its port: the fast path takes none from another socket.
#[test]
fn no_other_process_gets_the_port_of_a_tunnel() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, true);
    let shared = |address| sys::udp::bind_shared(address).map(drop).map_err(|error| error.errno);
    let alone = |address: SocketAddr| {
        let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap());
        UdpSocket::bind(address).map(drop).map_err(errno)
    };
    for address in ["0.0.0.0:4789", "10.0.0.1:4789"] {
        let address: SocketAddr = address.parse().unwrap();
        let got = pair.a.netns().run(|| (alone(address), shared(address))).unwrap();
        assert_eq!(got, (Err(Errno::EADDRINUSE), Err(Errno::EADDRINUSE)), "{address}");
    }
    // Neighbouring ports are free.
    let got = pair.a.netns().run(|| alone("10.0.0.1:4790".parse().unwrap())).unwrap();
    assert_eq!(got, Ok(()));
}
