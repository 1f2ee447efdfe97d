//! Traffic from a network's client to its server, checked byte by byte.

pub mod daemons;
pub mod inject;
pub mod processes;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use lab::Network;
use test_support::bound;

/// Time limit of a step. Generous: a guest in software emulation is slow.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Bytes of [`stream_both_ways`] in each direction.
pub const BYTES: usize = 4_000_000;

/// Runs `serve` in the server and `ask` in the client once the server is ready.
fn both<T: Send>(
    network: &Network,
    serve: impl FnOnce(mpsc::Sender<()>) + Send + 'static,
    ask: impl FnOnce() -> T + Send,
) -> T {
    let (ready, is_ready) = mpsc::channel();
    let server = network.server().netns().clone();
    let serving = std::thread::spawn(move || server.run(|| serve(ready)).unwrap());
    is_ready.recv_timeout(LIMIT).unwrap();
    let result = network.client().netns().run(ask).unwrap();
    serving.join().unwrap();
    result
}

/// Echoes datagrams of each size, one at a time.
pub fn echo(network: &Network, sizes: &'static [usize]) {
    let address = network.address;
    both(
        network,
        move |ready| {
            let socket = bound(|| UdpSocket::bind(address.listen));
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            ready.send(()).unwrap();
            let mut buffer = vec![0; 65536];
            for _ in sizes {
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&buffer[..length], from).unwrap();
            }
        },
        move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            for (number, size) in sizes.iter().enumerate() {
                let sent = vec![number as u8; *size];
                socket.send_to(&sent, address.target).unwrap();
                let mut received = vec![0; 65536];
                let length = socket.recv(&mut received).unwrap();
                assert_eq!(received[..length], sent, "{size} bytes");
            }
        },
    );
}

/// Sends [`BYTES`] over TCP in each direction, with a pattern that reveals lost or repeated bytes.
pub fn stream_both_ways(network: &Network) {
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at / 251 + at) as u8).collect();
    let expected = pattern.clone();
    let address = network.address;
    both(
        network,
        move |ready| {
            let listener = bound(|| TcpListener::bind(address.listen));
            ready.send(()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut received = vec![0; BYTES];
            stream.read_exact(&mut received).unwrap();
            assert!(received == expected);
            stream.write_all(&received).unwrap();
        },
        move || {
            let mut stream = TcpStream::connect_timeout(&address.target, LIMIT).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(&pattern).unwrap();
            let mut received = vec![0; BYTES];
            stream.read_exact(&mut received).unwrap();
            assert!(received == pattern);
        },
    );
}

/// Sends one payload that UDP segmentation splits into `segments` datagrams.
pub fn segmented_datagrams_arrive(network: &Network) {
    const SEGMENT: usize = 1000;
    const SEGMENTS: usize = 8;
    let address = network.address;
    both(
        network,
        move |ready| {
            let socket = bound(|| UdpSocket::bind(address.listen));
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            ready.send(()).unwrap();
            let mut buffer = vec![0; 65536];
            for _ in 0..SEGMENTS {
                assert_eq!(socket.recv(&mut buffer).unwrap(), SEGMENT);
            }
        },
        move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            sys::udp::set_segment_bytes(&socket, SEGMENT as u16).unwrap();
            socket.send_to(&[1; SEGMENT * SEGMENTS], address.target).unwrap();
        },
    );
}
