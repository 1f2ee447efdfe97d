//! Traffic between two hosts, checked byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use testbed::Host;

/// Time limit of a step.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Three pings that must be answered.
pub fn ping(host: &Host, target: &str, bytes: usize) {
    let mut command = Command::new("ping");
    command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5", "-s", &bytes.to_string(), target]);
    host.run(&mut command).unwrap();
}

/// Bytes that differ at every place.
pub fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A TCP connection that carries `length` bytes each way.
pub fn tcp(client: &Host, server: &Host, listen: &str, target: &str, length: usize) {
    let (ready, listening) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.netns().run(move || {
                let address = SocketAddr::new(listen.parse().unwrap(), 0);
                let listener = TcpListener::bind(address).unwrap();
                // If no client connects, this must not wait forever.
                let timeout = nix::sys::time::TimeVal::new(LIMIT.as_secs() as i64, 0);
                nix::sys::socket::setsockopt(
                    &listener,
                    nix::sys::socket::sockopt::ReceiveTimeout,
                    &timeout,
                )
                .unwrap();
                ready.send(listener.local_addr().unwrap().port()).unwrap();
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.set_write_timeout(Some(LIMIT)).unwrap();
                let mut got = vec![0; length];
                stream.read_exact(&mut got).unwrap();
                assert!(got == pattern(length, 7), "what arrived is not what was sent");
                stream.write_all(&pattern(length, 8)).unwrap();
            })
        });
        let port = listening.recv_timeout(LIMIT).unwrap();
        client
            .netns()
            .run(|| {
                let address = SocketAddr::new(target.parse().unwrap(), port);
                let mut stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.set_write_timeout(Some(LIMIT)).unwrap();
                stream.write_all(&pattern(length, 7)).unwrap();
                let mut got = vec![0; length];
                stream.read_exact(&mut got).unwrap();
                assert!(got == pattern(length, 8), "what arrived is not what was sent");
            })
            .unwrap();
    });
}

/// Sends datagrams of each size, one at a time, each answered by one of the same size.
pub fn udp(client: &Host, server: &Host, listen: &str, target: &str, sizes: &[usize]) {
    let bind = |host: &Host, address: &str| {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        let socket = host.netns().run(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    };
    let receiver = bind(server, listen);
    let sender = bind(client, if listen.contains(':') { "::" } else { "0.0.0.0" });
    let to = SocketAddr::new(target.parse().unwrap(), receiver.local_addr().unwrap().port());
    let mut buffer = vec![0; 65_536];
    for (index, &size) in sizes.iter().enumerate() {
        let sent = pattern(size, index as u32);
        assert_eq!(sender.send_to(&sent, to).unwrap(), size);
        let (got, from) = receiver.recv_from(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{size} bytes arrived as {got} others");
        receiver.send_to(&sent, from).unwrap();
        let got = sender.recv(&mut buffer).unwrap();
        assert!(buffer[..got] == sent, "{size} bytes came back as {got} others");
    }
}
