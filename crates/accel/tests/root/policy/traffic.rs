//! Traffic among the pods: datagrams of persistent and of new flows, pings, persistent streams, and
//! new connections. Each message carries its kind and its send time.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, connect, getsockopt,
    recv, sendto, socket, sockopt,
};

use super::bed::{Bed, Key, PODS, Protocol, address};
use super::judge::UNDER_WAY;

/// Ports of datagrams, streams and new connections.
const PORTS: [u16; 3] = [7000, 7001, 7002];
const LIMIT: Duration = Duration::from_secs(60);
const MAGIC: u16 = 0x6f76;
const FRAME: usize = 24;
/// Maximum number of new connections in progress.
const MOST: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A datagram of a persistent flow.
    Flow,
    /// A datagram from a new port.
    FirstDatagram,
    /// A ping with a new identifier.
    Echo,
    /// A message on a persistent TCP connection.
    Stream,
    /// A new TCP connection.
    Connection,
}

const KINDS: [Kind; 5] =
    [Kind::Flow, Kind::FirstDatagram, Kind::Echo, Kind::Stream, Kind::Connection];

/// A message that must arrive if rules allow it. Streams retransmit.
pub struct Sent {
    pub id: u64,
    pub key: Key,
    pub kind: Kind,
    pub at: Instant,
}

pub struct Received {
    pub id: u64,
    pub key: Key,
    pub kind: Kind,
    pub sent: Instant,
    pub at: Instant,
}

/// Messages that a round has sent and received.
pub struct Taken {
    pub sent: Vec<Sent>,
    pub received: Vec<Received>,
}

/// An end of a stream.
struct End {
    key: Key,
    socket: TcpStream,
    /// Data to write when the socket has space.
    pending: Vec<u8>,
    messages: u64,
}

struct Connection {
    id: u64,
    key: Key,
    sent: Instant,
    socket: OwnedFd,
}

pub struct Traffic {
    base: Instant,
    /// Identifier of the last ping.
    identifiers: HashMap<Key, u16>,
    next: u64,
    datagrams: Vec<UdpSocket>,
    echoes: Vec<OwnedFd>,
    ends: Vec<End>,
    connections: Vec<Connection>,
    answered: Vec<Received>,
    sent: Vec<Sent>,
    inbox: Arc<Mutex<Inbox>>,
}

/// The receiving side, for one thread at a time.
struct Inbox {
    base: Instant,
    epoll: Epoll,
    datagrams: Vec<UdpSocket>,
    echoes: Vec<OwnedFd>,
    listeners: Vec<TcpListener>,
    streams: Vec<(TcpStream, Vec<u8>)>,
    received: Vec<Received>,
    /// Messages of streams in all rounds.
    of_streams: u64,
}

pub struct Receiver(Arc<Mutex<Inbox>>);

impl Receiver {
    /// Receives until `stop` is set.
    pub fn run(&mut self, stop: &AtomicBool) {
        let mut inbox = self.0.lock().unwrap();
        while !stop.load(Ordering::Relaxed) {
            inbox.receive(5);
        }
    }
}

impl Traffic {
    pub fn new(bed: &Bed) -> Traffic {
        let base = Instant::now();
        let each = |open: &dyn Fn(usize) -> OwnedFd| -> Vec<OwnedFd> {
            (0..bed.pods.len())
                .map(|pod| {
                    let _inside = bed.pods[pod].netns().enter().unwrap();
                    open(pod)
                })
                .collect()
        };
        let at = |pod: usize, port: usize| (address(pod), PORTS[port]);
        let listen = |pod: usize, port: usize| {
            let listener = TcpListener::bind(at(pod, port)).unwrap();
            listener.set_nonblocking(port == 2).unwrap();
            listener
        };
        let datagrams = each(&|pod| {
            let socket = UdpSocket::bind(at(pod, 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket.into()
        });
        let datagrams: Vec<UdpSocket> = datagrams.into_iter().map(UdpSocket::from).collect();
        let echoes = each(&|_| {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Icmp).unwrap()
        });
        let listeners: Vec<TcpListener> =
            each(&|pod| listen(pod, 2).into()).into_iter().map(TcpListener::from).collect();
        let mut ends = Vec::new();
        // Each pod has a stream with four pods of the other host.
        for from in 0..PODS {
            for step in [0, 3, 7, 12] {
                let to = PODS + (from + step) % PODS;
                let listener = {
                    let _inside = bed.pods[to].netns().enter().unwrap();
                    listen(to, 1)
                };
                let client = {
                    let _inside = bed.pods[from].netns().enter().unwrap();
                    TcpStream::connect(at(to, 1)).unwrap()
                };
                let (server, _) = listener.accept().unwrap();
                let key = Key { from, to, protocol: Protocol::Tcp };
                for (key, socket) in [(key, client), (key.back(), server)] {
                    socket.set_nonblocking(true).unwrap();
                    socket.set_nodelay(true).unwrap();
                    ends.push(End { key, socket, pending: Vec::new(), messages: 0 });
                }
            }
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let inbox = Inbox {
            base,
            datagrams: datagrams.iter().map(|socket| socket.try_clone().unwrap()).collect(),
            echoes: echoes.iter().map(|socket| socket.try_clone().unwrap()).collect(),
            listeners,
            streams: ends.iter().map(|end| (end.socket.try_clone().unwrap(), Vec::new())).collect(),
            epoll,
            received: Vec::new(),
            of_streams: 0,
        };
        inbox.watch();
        Traffic {
            base,
            identifiers: HashMap::new(),
            next: 0,
            datagrams,
            echoes,
            ends,
            connections: Vec::new(),
            answered: Vec::new(),
            sent: Vec::new(),
            inbox: Arc::new(Mutex::new(inbox)),
        }
    }

    pub fn receiver(&self) -> Receiver {
        Receiver(self.inbox.clone())
    }

    /// Sends on every flow until each has carried a message in both directions.
    pub fn warm_up(&mut self, bed: &Bed) {
        let mut left: Vec<Key> = Key::all().filter(|key| key.protocol == Protocol::Udp).collect();
        testbed::poll("all flows", LIMIT, || {
            for key in left.clone() {
                self.send(bed, key, false);
            }
            let mut inbox = self.inbox.lock().unwrap();
            inbox.receive(20);
            let arrived: Vec<Key> = inbox.received.drain(..).map(|got| got.key).collect();
            drop(inbox);
            left.retain(|key| !arrived.contains(key));
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{} are left", left.len())) })
        })
        .unwrap();
        self.take();
    }

    /// Sends a message in an existing flow, or the first one of a new flow.
    pub fn send(&mut self, bed: &Bed, key: Key, fresh: bool) {
        self.next += 1;
        let id = self.next;
        let to = SocketAddrV4::new(address(key.to), PORTS[0]);
        let kind = match (key.protocol, fresh) {
            (Protocol::Udp, false) => Kind::Flow,
            (Protocol::Udp, true) => Kind::FirstDatagram,
            (Protocol::Icmp, _) => Kind::Echo,
            (Protocol::Tcp, false) => return self.send_on_stream(key, id),
            (Protocol::Tcp, true) => return self.connect(bed, key, id),
        };
        let new = fresh.then(|| {
            let _inside = bed.pods[key.from].netns().enter().unwrap();
            UdpSocket::bind((address(key.from), 0)).unwrap()
        });
        let at = Instant::now();
        let message = self.message(kind, key, id, at);
        match key.protocol {
            Protocol::Udp => {
                let socket = new.as_ref().unwrap_or(&self.datagrams[key.from]);
                socket.send_to(&message, to).unwrap();
            }
            _ => {
                let socket = self.echoes[key.from].as_raw_fd();
                // Conntrack identifies a ping by this number: another ping with it would belong to
                // an entry that stays established for 30 s.
                let identifier = self.identifiers.entry(key).or_default();
                *identifier = identifier.wrapping_add(1);
                let packet = echo_request(*identifier, &message);
                sendto(socket, &packet, &SockaddrIn::from(to), MsgFlags::empty()).unwrap();
            }
        }
        self.sent.push(Sent { id, key, kind, at });
    }

    /// Sends on a stream between these pods, or on any.
    fn send_on_stream(&mut self, key: Key, id: u64) {
        let own = self.ends.iter().position(|end| end.key == key);
        let at = own.unwrap_or(id as usize % self.ends.len());
        let message = self.message(Kind::Stream, self.ends[at].key, id, Instant::now());
        let end = &mut self.ends[at];
        // A blocked stream is not filled further.
        if end.pending.len() < FRAME {
            end.pending.extend(message);
            end.messages += 1;
        }
        end.write();
    }

    fn connect(&mut self, bed: &Bed, key: Key, id: u64) {
        self.look_at_connections();
        if self.connections.len() >= MOST {
            return;
        }
        let socket = {
            let _inside = bed.pods[key.from].netns().enter().unwrap();
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Inet, SockType::Stream, flags, SockProtocol::Tcp).unwrap()
        };
        let to = SockaddrIn::from(SocketAddrV4::new(address(key.to), PORTS[2]));
        let sent = Instant::now();
        match connect(socket.as_raw_fd(), &to) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => panic!("connect {key:?}: {error}"),
        }
        self.sent.push(Sent { id, key, kind: Kind::Connection, at: sent });
        self.connections.push(Connection { id, key, sent, socket });
    }

    /// Checks which connections have been answered.
    pub fn look_at_connections(&mut self) {
        let mut asked: Vec<PollFd<'_>> = self
            .connections
            .iter()
            .map(|connection| PollFd::new(connection.socket.as_fd(), PollFlags::POLLOUT))
            .collect();
        if asked.is_empty() || poll(&mut asked, PollTimeout::ZERO).unwrap() == 0 {
            return;
        }
        let at = Instant::now();
        let ended: Vec<bool> =
            asked.iter().map(|asked| asked.revents().is_some_and(|got| !got.is_empty())).collect();
        drop(asked);
        let mut ended = ended.into_iter();
        let mut answered = Vec::new();
        self.connections.retain(|connection| {
            let has_ended = ended.next() == Some(true);
            if has_ended && getsockopt(&connection.socket, sockopt::SocketError).unwrap() == 0 {
                let Connection { id, key, sent, .. } = *connection;
                answered.push(Received { id, key, kind: Kind::Connection, sent, at });
            }
            !has_ended
        });
        self.answered.extend(answered);
    }

    /// Messages sent and received since the last call.
    pub fn take(&mut self) -> Taken {
        self.connections.clear();
        let mut received = std::mem::take(&mut self.inbox.lock().unwrap().received);
        received.append(&mut self.answered);
        Taken { sent: std::mem::take(&mut self.sent), received }
    }

    /// Waits until this number of further messages was received. For 0 it waits long enough for one
    /// to arrive. Returns the number received.
    pub fn wait_for(&mut self, messages: usize) -> usize {
        let mut inbox = self.inbox.lock().unwrap();
        let before = inbox.received.len();
        let end = Instant::now() + if messages > 0 { LIMIT } else { UNDER_WAY };
        while Instant::now() < end && (messages == 0 || inbox.received.len() < before + messages) {
            inbox.receive(20);
        }
        inbox.received.len() - before
    }

    /// Waits until all stream messages have arrived: no rule forbids any now.
    pub fn streams_catch_up(&mut self) {
        let messages: u64 = self.ends.iter().map(|end| end.messages).sum();
        testbed::poll("messages on streams", LIMIT, || {
            self.ends.iter_mut().for_each(End::write);
            let mut inbox = self.inbox.lock().unwrap();
            inbox.receive(20);
            let arrived = inbox.of_streams;
            Ok(if arrived == messages { Ok(()) } else { Err(format!("{arrived} of {messages}")) })
        })
        .unwrap();
        // Their rules belong to another round.
        self.take();
    }

    fn message(&self, kind: Kind, key: Key, id: u64, at: Instant) -> [u8; FRAME] {
        let mut message = [0; FRAME];
        message[..2].copy_from_slice(&MAGIC.to_be_bytes());
        message[2] = kind as u8;
        message[3..6].copy_from_slice(&[key.from as u8, key.to as u8, key.protocol as u8]);
        message[8..16].copy_from_slice(&id.to_be_bytes());
        let nanoseconds = (at - self.base).as_nanos() as u64;
        message[16..].copy_from_slice(&nanoseconds.to_be_bytes());
        message
    }
}

impl End {
    fn write(&mut self) {
        match self.socket.write(&self.pending) {
            Ok(written) => drop(self.pending.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("stream {:?}: {error}", self.key),
        }
    }
}

impl Inbox {
    /// Numbers of sockets: datagrams, pings, listeners, streams.
    fn watch(&self) {
        let add = |number: usize, socket: &dyn AsFd| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
            self.epoll.add(socket.as_fd(), event).unwrap();
        };
        let pods = 2 * PODS;
        self.datagrams.iter().enumerate().for_each(|(n, socket)| add(n, socket));
        self.echoes.iter().enumerate().for_each(|(n, socket)| add(pods + n, socket));
        self.listeners.iter().enumerate().for_each(|(n, socket)| add(2 * pods + n, socket));
        self.streams.iter().enumerate().for_each(|(n, (socket, _))| add(3 * pods + n, socket));
    }

    /// Waits for at most `wait_ms` milliseconds, and reads all pending messages.
    fn receive(&mut self, wait_ms: u16) {
        let pods = 2 * PODS;
        let mut events = [EpollEvent::empty(); 64];
        let ready = match self.epoll.wait(&mut events, EpollTimeout::from(wait_ms)) {
            Err(Errno::EINTR) => 0,
            other => other.unwrap(),
        };
        for event in &events[..ready] {
            let number = event.data() as usize;
            let mut buffer = [0; 4096];
            match (number / pods, number % pods) {
                (0, pod) => {
                    while let Ok((length, _)) = self.datagrams[pod].recv_from(&mut buffer) {
                        self.message(&buffer[..length]);
                    }
                }
                (1, pod) => {
                    let socket = self.echoes[pod].as_raw_fd();
                    while let Ok(length) = recv(socket, &mut buffer, MsgFlags::empty()) {
                        // After the IPv4 header of 20 bytes: echo requests only.
                        if length >= 28 && buffer[20] == 8 {
                            self.message(&buffer[28..length]);
                        }
                    }
                }
                (2, pod) => while self.listeners[pod].accept().is_ok() {},
                _ => self.read_stream(number - 3 * pods, &mut buffer),
            }
        }
    }

    fn read_stream(&mut self, number: usize, buffer: &mut [u8]) {
        let (socket, rest) = &mut self.streams[number];
        let mut messages = Vec::new();
        while let Ok(length) = socket.read(buffer) {
            assert!(length > 0, "a stream was closed");
            rest.extend_from_slice(&buffer[..length]);
        }
        let whole = rest.len() / FRAME * FRAME;
        messages.extend(rest.drain(..whole));
        for message in messages.chunks_exact(FRAME) {
            self.of_streams += 1;
            self.message(message);
        }
    }

    fn message(&mut self, message: &[u8]) {
        let at = Instant::now();
        let [m0, m1, kind, from, to, protocol, _, _, rest @ ..] = message else { return };
        let (Ok(rest), Some(kind)) = (<[u8; 16]>::try_from(rest), KINDS.get(usize::from(*kind)))
        else {
            return;
        };
        if u16::from_be_bytes([*m0, *m1]) != MAGIC {
            return;
        }
        let number = u128::from_be_bytes(rest);
        let sent = self.base + Duration::from_nanos(number as u64);
        let key = Key {
            from: usize::from(*from),
            to: usize::from(*to),
            protocol: Protocol::ALL[usize::from(*protocol)],
        };
        let id = (number >> 64) as u64;
        self.received.push(Received { id, key, kind: *kind, sent, at });
    }
}

/// With a checksum (RFC 792, RFC 1071).
fn echo_request(identifier: u16, data: &[u8]) -> Vec<u8> {
    let mut packet = vec![8, 0, 0, 0];
    packet.extend(identifier.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(data);
    let words = packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}
