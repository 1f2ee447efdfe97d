//! A server of `measure serve` and hostile clients, over loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use channel::Service;
use channel::frame::{Cipher, HEAD_BYTES, sealed_length};
use channel::handshake::{HELLO_BYTES, Hello, NOISE_BYTES, Said};
use channel::message::{emit, parse};
use load::{Load, Workload};
use measure::remote::message::{LoadAsked, Reply, Request};
use measure::remote::{Event, Limits, Remote, RemoteError, Server, ServerError, Token};
use rand::{RngExt, SeedableRng};
use sys::netns::NetNs;
use test_support::program::until;

/// Far longer than any step.
const LIMIT: Duration = Duration::from_secs(60);
/// Shorter than a server's handshake time-out (5 s), for which a slot may be taken.
const SOON: Duration = Duration::from_secs(3);

fn token() -> Token {
    Token::from("a secret of the tests")
}

/// A server on a thread, ended when dropped.
struct Serving {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Serving {
    fn new(limits: Limits) -> Serving {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let data_port = free.local_addr().unwrap().port();
        drop(free);
        let stop = Arc::new(AtomicBool::new(false));
        let bind = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(
            bind,
            data_port,
            Some(token()),
            limits,
            results::Privileges::User,
            None,
            Arc::clone(&stop),
        )
        .unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&events);
        let address = server.local();
        let thread = std::thread::spawn(move || {
            server.run(Arc::new(move |event| recorded.lock().unwrap().push(event)))
        });
        Serving { address, stop, events, thread: Some(thread) }
    }

    fn connect(&self) -> Result<Remote, RemoteError> {
        let here = NetNs::current().unwrap();
        Remote::connect(self.address, Some(token()), &here, Arc::default())
    }

    fn unauthenticated(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn turned_away(&self, why: &str) -> usize {
        let events = self.events.lock().unwrap();
        let said = |event: &&Event| matches!(event, Event::TurnedAway(_, w) if w.contains(why));
        events.iter().filter(said).count()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            outcome.unwrap().unwrap();
        }
    }
}

/// A client that can send any bytes.
struct Raw {
    stream: TcpStream,
    cipher: Cipher,
    /// Its output up to now.
    said: Vec<u8>,
}

impl Raw {
    fn open(serving: &Serving) -> Raw {
        let mut stream = serving.unauthenticated();
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let client = Hello::fresh(Service::Measure, true);
        let server = Hello::parse(&hello, Service::Measure).unwrap();
        let (initiator, first) = Said { server, client }.initiate(Some(&token()));
        let said = [&client.emit()[..], &first].concat();
        stream.write_all(&said).unwrap();
        let mut second = [0; NOISE_BYTES];
        stream.read_exact(&mut second).unwrap();
        Raw { stream, cipher: initiator.finish(&second).unwrap(), said }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
        self.stream.write_all(bytes).unwrap();
    }

    fn hear(&mut self) -> std::io::Result<Reply> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head)?;
        let length = self.cipher.length(&head).unwrap();
        let mut sealed = vec![0; sealed_length(length)];
        self.stream.read_exact(&mut sealed)?;
        Ok(parse::<Reply>(&self.cipher.open(length, &sealed).unwrap()).unwrap())
    }

    fn ask(&mut self, request: &Request) -> Reply {
        let frame = self.cipher.seal(&emit(request)).unwrap();
        self.say(&frame);
        self.hear().unwrap()
    }

    fn start(&mut self, workload: Workload) -> Reply {
        self.ask(&Request::Start(LoadAsked::of(&Load::new(workload))))
    }
}

/// Reads until the other end closes; returns the bytes.
fn drain(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        // Closed with our bytes unread.
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        Err(e) => panic!("{e}"),
    }
    bytes
}

#[test]
fn unauthenticated_clients_get_a_hello_and_nothing_more() {
    let serving = Serving::new(Limits::DEFAULT);
    let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(1);
    for case in 0..150 {
        let mut stream = serving.unauthenticated();
        let length = random.random_range(0..300);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
        if case % 3 == 0 {
            // The farthest that an unauthenticated client can get.
            bytes.splice(
                ..bytes.len().min(HELLO_BYTES),
                Hello::fresh(Service::Measure, true).emit(),
            );
        }
        // It may be closed meanwhile.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let heard = drain(&mut stream);
        assert!(heard.len() <= HELLO_BYTES, "{case}: {} bytes", heard.len());
    }
    serving.connect().unwrap();
}

#[test]
fn the_server_survives_any_message_of_a_client_with_the_token() {
    let serving = Serving::new(Limits::DEFAULT);
    let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(2);
    for case in 0..60 {
        let mut raw = Raw::open(&serving);
        let payload: Vec<u8> = (0..random.random_range(0..100)).map(|_| random.random()).collect();
        match case % 3 {
            // Nonsense with a valid tag gets a refusal.
            0 => {
                let frame = raw.cipher.seal(&payload).unwrap();
                raw.say(&frame);
                let reply = raw.hear().unwrap();
                assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
            }
            // A wrong tag, and an excessive length: disconnected.
            1 => {
                let mut frame = raw.cipher.seal(&payload).unwrap();
                frame[4] ^= 1;
                raw.say(&frame);
            }
            _ => raw.say(&[0xff; HEAD_BYTES]),
        }
        assert!(raw.hear().is_err());
    }
    // Requests in the wrong order are refused, and the session continues.
    let mut raw = Raw::open(&serving);
    for request in [Request::Count, Request::End, Request::Begin, Request::Finish] {
        assert!(matches!(raw.ask(&request), Reply::Refused(_)), "{request:?}");
    }
    assert_eq!(raw.ask(&Request::Ping), Reply::Done);
    serving.connect().unwrap();
}

#[test]
fn a_replayed_handshake_opens_no_session() {
    let serving = Serving::new(Limits::DEFAULT);
    let mut raw = Raw::open(&serving);
    assert_eq!(raw.ask(&Request::Ping), Reply::Done);
    let recorded = raw.said.clone();
    drop(raw);
    let mut stream = serving.unauthenticated();
    stream.write_all(&recorded).unwrap();
    assert_eq!(drain(&mut stream).len(), HELLO_BYTES);
    until("the log", || serving.turned_away("wrong token") == 1);
    // A frame cannot be repeated within its own session either.
    let mut raw = Raw::open(&serving);
    let frame = raw.cipher.seal(&emit(&Request::Ping)).unwrap();
    raw.say(&frame);
    raw.hear().unwrap();
    raw.say(&frame);
    assert!(raw.hear().is_err());
}

/// Connections that stall at any point of the handshake are disconnected, even if they progress
/// slowly.
#[test]
fn stalled_clients_are_disconnected() {
    let serving = Serving::new(Limits::DEFAULT);
    let hello = Hello::fresh(Service::Measure, true).emit();
    let mut slow: Vec<TcpStream> = (0..8)
        .map(|n: usize| {
            let mut stream = serving.unauthenticated();
            stream.write_all(&hello[..n * 6]).unwrap();
            stream
        })
        .collect();
    // A byte every 200 ms: never silent, never finished.
    let (mut drips, begun) = (slow.pop().unwrap(), Instant::now());
    while drips.write_all(&[0]).is_ok() {
        assert!(begun.elapsed() < LIMIT, "it is still listened to");
        std::thread::sleep(Duration::from_millis(200));
    }
    for stream in &mut slow {
        assert_eq!(drain(stream).len(), HELLO_BYTES);
    }
    serving.connect().unwrap();
}

/// Connects from an address of the loopback network, and sends nothing.
fn connect_from(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
    };
    use std::os::fd::AsRawFd;
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::IpBindAddressNoPort, &true)?;
    // Close at once: a flood has no data to wait for.
    setsockopt(&fd, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    let [a, b, c, d] = from.octets();
    bind(fd.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0))?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(fd.into())
}

/// How long a token holder takes to get a session.
fn time_to_get_in(serving: &Serving) -> Duration {
    let begun = Instant::now();
    Raw::open(serving);
    begun.elapsed()
}

/// A server that disconnects after a client's proof: if it does so at once, it does not know the
/// token; later, the path may have been too slow.
#[test]
fn a_token_is_blamed_only_where_nothing_else_can_be() {
    /// Longer than a server's handshake time-out.
    const LATE: Duration = Duration::from_millis(5200);
    let hung_up = |late: bool| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        // One connection that waits to be accepted fills the queue, so that the client's SYN is
        // lost.
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let filler = late.then(|| TcpStream::connect(server).unwrap());
        let client = std::thread::spawn(move || {
            let here = NetNs::current().unwrap();
            let remote = Remote::connect(server, Some(token()), &here, Arc::default());
            remote.expect_err("a server that hangs up")
        });
        let begun = Instant::now();
        if filler.is_some() {
            std::thread::sleep(Duration::from_millis(500));
            drop(listener.accept().unwrap());
        }
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&Hello::fresh(Service::Measure, true).emit()).unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES + NOISE_BYTES]).unwrap();
        let wait = if late { LATE.saturating_sub(begun.elapsed()) } else { LATE / 20 };
        std::thread::sleep(wait);
        drop(stream);
        client.join().unwrap()
    };
    let soon = hung_up(false);
    assert!(matches!(soon, RemoteError::WrongToken { .. }), "{soon}");
    let late = hung_up(true);
    assert!(matches!(late, RemoteError::HungUpLate { .. }), "{late}");
}

#[test]
fn silent_connections_lock_nobody_out() {
    let serving = Serving::new(Limits::DEFAULT);
    let silent: Vec<TcpStream> = (0..200)
        .map(|n| connect_from(Ipv4Addr::new(127, 0, 1, n % 4), serving.address).unwrap())
        .collect();
    // All were accepted before.
    until("a hello to the last one", || silent[199].peek(&mut [0]).is_ok());
    let took = time_to_get_in(&serving);
    assert!(took < SOON, "{took:?}");
    drop(silent);
}

#[test]
fn a_flood_of_connections_locks_nobody_out_and_fills_no_log() {
    let serving = Serving::new(Limits::DEFAULT);
    let ended = AtomicBool::new(false);
    let floods: u64 = std::thread::scope(|scope| {
        let floods: Vec<_> = (0..4)
            .map(|n| {
                let (serving, ended) = (&serving, &ended);
                scope.spawn(move || {
                    let (mut held, mut made) = (std::collections::VecDeque::new(), 0u64);
                    while !ended.load(Ordering::Relaxed) {
                        let from = Ipv4Addr::new(127, 0, 1, n);
                        held.extend(connect_from(from, serving.address));
                        made += 1;
                        if held.len() > 50 {
                            held.pop_front();
                        }
                    }
                    made
                })
            })
            .collect();
        until("the flood", || serving.events.lock().unwrap().len() >= 5);
        let took: Vec<_> = (0..5).map(|_| time_to_get_in(&serving)).collect();
        ended.store(true, Ordering::Relaxed);
        let made = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
        assert!(took.iter().all(|took| *took < SOON), "{took:?}");
        made
    });
    assert!(floods > 1000, "{floods} connections are no flood");
    let events = serving.events.clone();
    drop(serving);
    let events = events.lock().unwrap();
    let sessions = events.iter().filter(|e| matches!(e, Event::Opened(_) | Event::Closed(..)));
    let others = events.len() - sessions.count();
    assert!(others <= 60, "{others} lines of {floods} connections");
}

/// A load is served only to the address of its session, with its token: the server sends nothing to
/// other clients.
#[test]
fn a_server_answers_its_own_client_only() {
    let serving = Serving::new(Limits::DEFAULT);
    let mut raw = Raw::open(&serving);
    let Reply::Started { port, token } = raw.start(Workload::UdpRr) else { panic!() };
    let hello = |token: u64| {
        let mut bytes = b"ovl\x01\x01\0\0\0".to_vec();
        bytes.extend_from_slice(&token.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&24u32.to_le_bytes());
        bytes
    };
    let asking = |from: Ipv4Addr| {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    };
    let answered = |socket: &UdpSocket, token: u64| {
        socket.send(&hello(token)).unwrap();
        socket.recv(&mut [0; 2048]).is_ok()
    };
    assert!(!answered(&asking(Ipv4Addr::new(127, 0, 0, 2)), token), "another address");
    assert!(!answered(&asking(Ipv4Addr::LOCALHOST), token ^ 1), "another token");
    // The flow goes to the first socket that asks. Its answer may take long, so only that socket
    // may ask again.
    let own = asking(Ipv4Addr::LOCALHOST);
    until("an answer to its own client", || answered(&own, token));
}

#[test]
fn one_load_runs_at_a_time_and_goes_with_its_client() {
    let serving = Serving::new(Limits { sessions: 2, ..Limits::DEFAULT });
    let (mut first, mut second) = (Raw::open(&serving), Raw::open(&serving));
    assert!(matches!(first.start(Workload::TcpRr), Reply::Started { .. }));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| second.start(Workload::TcpRr));
        let mut third = Raw::open(&serving);
        let Reply::Refused(reason) = third.hear().unwrap() else { panic!() };
        assert!(reason.contains("2 sessions"), "{reason}");
        assert!(!waiting.is_finished(), "two loads at a time");
        // The first client disconnects without a message.
        drop(first);
        assert!(matches!(waiting.join().unwrap(), Reply::Started { .. }));
    });
    let flows = Request::Start(LoadAsked::of(&Load { flows: 65, ..Load::new(Workload::TcpRr) }));
    let Reply::Refused(reason) = second.ask(&flows) else { panic!() };
    assert!(reason.contains("allows 64"), "{reason}");
}
