//! Datagrams and a stream from a network's client to its server.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lab::Network;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use sys::datagram::{SenderOptions, sender};
use test_support::bound;
use testbed::Host;

use super::LIMIT;

/// Bytes of a stream: some GSO packets.
pub const STREAM: usize = 100_000;

/// A port that no other test of this process uses, and hardly one of another process.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let of_process = (std::process::id() * 64 % 15_000) as u16;
    15_000 + (of_process + NEXT.fetch_add(1, Ordering::Relaxed)) % 15_000
}

pub fn datagrams(host: &Host, port: u16) -> UdpSocket {
    let at = (Ipv4Addr::UNSPECIFIED, port);
    host.netns().run(|| bound(|| UdpSocket::bind(at))).unwrap()
}

/// Client and server of datagrams.
pub struct Datagrams {
    pub client: UdpSocket,
    pub server: UdpSocket,
    target: SocketAddr,
}

impl Datagrams {
    /// Sockets with this client port; the path is learned first.
    pub fn new(network: &Network, port: u16) -> Datagrams {
        Datagrams::from(network, datagrams(network.client(), port))
    }

    /// The same without identification: IPv4 needs none with DF.
    pub fn without_identification(network: &Network, port: u16) -> Datagrams {
        let options = SenderOptions {
            ttl: 64,
            dont_fragment: true,
            checksum: true,
            buffer: 1 << 18,
            group_link: None,
        };
        let at = (Ipv4Addr::UNSPECIFIED, port).into();
        let client = network.client().netns().run(|| sender(at, &options).unwrap()).unwrap();
        Datagrams::from(network, client)
    }

    fn from(network: &Network, client: UdpSocket) -> Datagrams {
        let listen = network.address.listen;
        let server = network.server().netns().run(|| bound(|| UdpSocket::bind(listen)));
        let server = server.unwrap();
        server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let all = Datagrams { client, server, target: network.address.target };
        testbed::poll("a datagram at the server", LIMIT, || {
            all.send(7);
            Ok(if all.receive() { Ok(()) } else { Err(String::new()) })
        })
        .unwrap();
        while all.receive() {}
        all
    }

    /// The client's port.
    pub fn port(&self) -> u16 {
        self.client.local_addr().unwrap().port()
    }

    /// Sends a datagram of `bytes` bytes, which the path may refuse.
    pub fn send(&self, bytes: usize) {
        let _ = self.client.send_to(&vec![7; bytes], self.target);
    }

    pub fn receive(&self) -> bool {
        self.server.recv(&mut [0; 65_536]).is_ok()
    }
}

/// A connection from this port, if a server listens.
pub fn connected(host: &Host, port: u16, to: SocketAddr) -> std::io::Result<TcpStream> {
    let open = || {
        let (family, kind) = (AddressFamily::Inet, SockType::Stream);
        let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port))?;
        let SocketAddr::V4(to) = to else { panic!("IPv6") };
        connect(fd.as_raw_fd(), &SockaddrIn::from(to))?;
        Ok(TcpStream::from(fd))
    };
    host.netns().run(|| open().map_err(|errno: nix::Error| errno.into())).unwrap()
}

/// Sends [`STREAM`] bytes from this port to the server, which reads them.
pub fn stream(network: &Network, port: u16) {
    let listen = network.address.listen;
    let listener = network.server().netns().run(|| bound(|| TcpListener::bind(listen)));
    let listener = listener.unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received.len()
        });
        let mut stream = connected(network.client(), port, network.address.target).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&vec![7; STREAM]).unwrap();
        // Reads the other end's FIN, which otherwise stays in the socket's queue.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        assert_eq!(serving.join().unwrap(), STREAM);
    });
}

/// The server's address.
pub fn server(network: &Network) -> Ipv4Addr {
    match network.address.listen.ip() {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address}"),
    }
}
