//! Connections that have not authenticated yet.
//!
//! One thread serves all of them and never blocks on one: an unauthenticated client costs a
//! descriptor and a few hundred bytes, but no thread. There is always room for one more: when the
//! gate is full, the oldest connection of the origin with the most connections is closed.
//! Connections are counted per address, and per network ([`Origin`]) against clients with many
//! addresses. A client that answers at once is admitted within its round trips, however many
//! others wait.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use crate::frame::Cipher;
use crate::handshake::{HELLO_BYTES, Hello, NOISE_BYTES, Said};
use crate::service::Service;
use crate::token::Token;

/// Time limit of a handshake, which takes two round trips.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Time for which a connection with a wrong token is kept, to limit guessing: it occupies a
/// place meanwhile.
pub(crate) const WRONG_TOKEN_WAIT: Duration = Duration::from_millis(250);
/// Maximum connections in a handshake: in total,
pub(crate) const NEWCOMERS: usize = 256;
/// from one IPv6 network,
const OF_ONE_NETWORK: usize = 64;
/// and from one address.
pub(crate) const OF_ONE_ADDRESS: usize = 32;

/// Origin of a connection: an IPv4 address, or the /64 prefix of an IPv6 address. A site has at
/// least one such prefix, and a host can use all addresses in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin(IpAddr);

impl Origin {
    pub fn of(address: IpAddr) -> Origin {
        Origin(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let prefix = u128::from(v6) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(prefix))
            }
            v4 => v4,
        })
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V6(prefix) => write!(f, "{prefix}/64"),
            IpAddr::V4(address) => write!(f, "{address}"),
        }
    }
}

/// A connection that has not authenticated yet.
#[derive(Debug)]
struct Newcomer {
    stream: TcpStream,
    from: SocketAddr,
    address: IpAddr,
    origin: Origin,
    since: Instant,
    server: Hello,
    said: [u8; HELLO_BYTES + NOISE_BYTES],
    filled: usize,
    /// Time at which to close it, after a wrong proof.
    condemned: Option<Instant>,
}

/// An authenticated client.
pub(crate) struct Admitted {
    pub stream: TcpStream,
    pub from: SocketAddr,
    /// Second message of the handshake, to be sent.
    pub second: [u8; NOISE_BYTES],
    pub cipher: Cipher,
}

pub(crate) enum Admission {
    Admitted(Box<Admitted>),
    TurnedAway(SocketAddr, String),
}

/// Connections in their handshake.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    newcomers: Vec<Newcomer>,
}

impl Gate {
    /// Sends the server's hello to a new connection and adds it. Returns the connection that was
    /// closed to make room, if any.
    pub fn greet(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        hello: (Service, bool),
        now: Instant,
    ) -> Option<Admission> {
        let address = from.ip().to_canonical();
        let origin = Origin::of(address);
        let pushed_out = self.crowd(address, origin).map(|at| {
            let gone = self.newcomers.remove(at);
            Admission::TurnedAway(gone.from, "idle, closed to make room for another".to_owned())
        });
        let server = Hello::fresh(hello.0, hello.1);
        // Does not block: the socket buffer is empty, and a hello fits.
        let greeted = stream.set_nonblocking(true).and_then(|()| (&stream).write(&server.emit()));
        match greeted {
            Ok(HELLO_BYTES) => self.newcomers.push(Newcomer {
                stream,
                from,
                address,
                origin,
                since: now,
                server,
                said: [0; HELLO_BYTES + NOISE_BYTES],
                filled: 0,
                condemned: None,
            }),
            // The client has already gone.
            _ if pushed_out.is_none() => {
                return Some(Admission::TurnedAway(from, "it closed the connection".to_owned()));
            }
            // Both connections have gone: report one of them.
            _ => {}
        }
        pushed_out
    }

    /// Selects the connection to close before one more from that address: the oldest one of the
    /// busiest address in the busiest network.
    fn crowd(&self, address: IpAddr, origin: Origin) -> Option<usize> {
        let of_address = |wanted: IpAddr| self.count(|other| other.address == wanted);
        let of_origin = |wanted: Origin| self.count(|other| other.origin == wanted);
        if of_address(address) >= OF_ONE_ADDRESS {
            return self.oldest(|other| other.address == address);
        }
        let crowded = match of_origin(origin) >= OF_ONE_NETWORK {
            true => origin,
            false if self.newcomers.len() < NEWCOMERS => return None,
            // On a tie, the network of the oldest connection.
            false => self.most(|other| of_origin(other.origin))?.origin,
        };
        let within = |other: &&Newcomer| other.origin == crowded;
        let most =
            self.newcomers.iter().filter(within).map(|other| of_address(other.address)).max();
        self.oldest(|other| other.origin == crowded && Some(of_address(other.address)) == most)
    }

    fn count(&self, is: impl Fn(&Newcomer) -> bool) -> usize {
        self.newcomers.iter().filter(|newcomer| is(newcomer)).count()
    }

    fn most(&self, count: impl Fn(&Newcomer) -> usize) -> Option<&Newcomer> {
        // `max_by_key` returns the last of equals, so reverse the order.
        self.newcomers.iter().rev().max_by_key(|newcomer| count(newcomer))
    }

    /// Returns the oldest connection, preferring silent ones. The list is in order of arrival.
    fn oldest(&self, is: impl Fn(&Newcomer) -> bool) -> Option<usize> {
        let silent = self.newcomers.iter().position(|other| is(other) && other.filled == 0);
        silent.or_else(|| self.newcomers.iter().position(is))
    }

    /// Closes the oldest connection because descriptors have run out.
    pub fn make_room(&mut self) -> Option<Admission> {
        let at = self.most(|other| self.count(|one| one.origin == other.origin))?.origin;
        let gone = self.newcomers.remove(self.oldest(|other| other.origin == at)?);
        Some(Admission::TurnedAway(gone.from, "idle, closed to make room for another".to_owned()))
    }

    /// Returns whether no connection is waiting, neither in a handshake nor to be closed.
    pub fn is_empty(&self) -> bool {
        self.newcomers.is_empty()
    }

    /// Returns the descriptors to poll. Leaves out connections that wait to be closed: if the
    /// client has gone, such a descriptor would always be ready.
    pub fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        let heard = self.newcomers.iter().filter(|other| other.condemned.is_none());
        heard.map(|other| PollFd::new(other.stream.as_fd(), PollFlags::POLLIN))
    }

    /// Reads from each connection, and closes those past the time limit.
    pub fn listen(&mut self, token: Option<&Token>, now: Instant) -> Vec<Admission> {
        let mut outcomes = Vec::new();
        let mut at = 0;
        while at < self.newcomers.len() {
            match self.newcomers[at].listen(token, now) {
                Heard::More => at += 1,
                Heard::Proof(second, cipher) => {
                    let Newcomer { stream, from, .. } = self.newcomers.remove(at);
                    let admitted = Admitted { stream, from, second, cipher };
                    outcomes.push(Admission::Admitted(Box::new(admitted)));
                }
                Heard::Wrong(reason) => {
                    let from = self.newcomers.remove(at).from;
                    outcomes.push(Admission::TurnedAway(from, reason));
                }
            }
        }
        outcomes
    }
}

/// State of a connection after reading.
enum Heard {
    More,
    /// The second message of the handshake, and the session's cipher.
    Proof([u8; NOISE_BYTES], Cipher),
    Wrong(String),
}

impl Newcomer {
    fn listen(&mut self, token: Option<&Token>, now: Instant) -> Heard {
        if let Some(until) = self.condemned {
            // Wait, so that tokens cannot be guessed at full speed.
            return match now >= until {
                true => Heard::Wrong("wrong token".to_owned()),
                false => Heard::More,
            };
        }
        while self.filled < self.said.len() {
            match self.stream.read(&mut self.said[self.filled..]) {
                // The client has gone before its hello was complete.
                Ok(0) => return Heard::Wrong("the other end closed the connection".to_owned()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The rest of the hello comes later; other clients are served until then.
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Heard::Wrong(format!("recv: {error}")),
            }
        }
        let (hello, proof) = self.said.split_at(HELLO_BYTES);
        if self.filled >= HELLO_BYTES
            && let Some(hello) = hello.first_chunk()
        {
            let client = match Hello::parse(hello, self.server.service) {
                // Another program, or another version: the reason is logged.
                Ok(client) => client,
                Err(error) => return Heard::Wrong(error.to_string()),
            };
            if client.with_token != token.is_some() {
                // No answer is needed: the client knows from the server's hello.
                return Heard::Wrong(match client.with_token {
                    true => "the client has a token, this server has none".to_owned(),
                    false => "the client has no token".to_owned(),
                });
            }
            if self.filled == self.said.len()
                && let Some(proof) = proof.first_chunk()
            {
                let said = Said { server: self.server, client };
                if let Some((second, cipher)) = said.respond(token, proof) {
                    return Heard::Proof(second, cipher);
                }
                self.condemned = Some(now + WRONG_TOKEN_WAIT);
                return Heard::More;
            }
        }
        match now.saturating_duration_since(self.since) > HANDSHAKE_LIMIT {
            true => Heard::Wrong(format!("no handshake within {HANDSHAKE_LIMIT:.0?}")),
            false => Heard::More,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A gate, and connections with forged source addresses.
    struct Bench {
        gate: Gate,
        listener: TcpListener,
        clients: Vec<TcpStream>,
    }

    impl Bench {
        fn new() -> Bench {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Bench { gate: Gate::default(), listener, clients: Vec::new() }
        }

        /// Returns the address whose connection was closed.
        fn greet(&mut self, from: &str) -> Option<IpAddr> {
            let client = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            let (stream, _) = self.listener.accept().unwrap();
            self.clients.push(client);
            // Stay below a shell's limit of 1,024 descriptors: both ends are in this process.
            if self.clients.len() > OF_ONE_NETWORK {
                self.clients.remove(0);
            }
            let from = SocketAddr::new(from.parse().unwrap(), 1);
            match self.gate.greet(stream, from, (Service::Watch, true), Instant::now())? {
                Admission::TurnedAway(gone, _) => Some(gone.ip()),
                Admission::Admitted(_) => None,
            }
        }

        fn waiting(&self, of: &str) -> usize {
            self.gate.count(|other| other.address == of.parse::<IpAddr>().unwrap())
        }
    }

    #[test]
    fn the_address_with_most_connections_makes_room() {
        let mut bench = Bench::new();
        let many: Vec<String> = (0..8).map(|n| format!("10.0.0.{n}")).collect();
        for _ in 0..60 {
            many.iter().for_each(|from| {
                let _ = bench.greet(from);
            });
        }
        assert_eq!(bench.gate.newcomers.len(), NEWCOMERS);
        // Sixty connections from different addresses arrive and stay.
        for n in 0..60 {
            let gone = bench.greet(&format!("10.1.0.{n}")).unwrap().to_string();
            assert!(many.contains(&gone), "{gone} went for one of another address");
        }
        for n in 0..60 {
            assert_eq!(bench.waiting(&format!("10.1.0.{n}")), 1);
        }
    }

    #[test]
    fn a_network_of_many_addresses_counts_as_one() {
        let mut bench = Bench::new();
        assert_eq!(bench.greet("2001:db8::1"), None);
        for n in 1..400 {
            bench.greet(&format!("2001:db8:0:1::{n:x}"));
        }
        assert_eq!(bench.gate.newcomers.len(), OF_ONE_NETWORK + 1);
        assert_eq!(bench.waiting("2001:db8::1"), 1);
        // Within a network, the address with the most connections makes room.
        let mut bench = Bench::new();
        assert_eq!(bench.greet("2001:db8::1"), None);
        for _ in 0..400 {
            bench.greet("2001:db8::2");
            bench.greet("2001:db8::3");
        }
        assert_eq!(bench.waiting("2001:db8::1"), 1);
        assert_eq!(bench.gate.newcomers.len(), OF_ONE_NETWORK);
        let shown = [Origin::of("2001:db8::1".parse().unwrap()), Origin::of([10, 0, 0, 1].into())];
        assert_eq!(shown.map(|origin| origin.to_string()), ["2001:db8::/64", "10.0.0.1"]);
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Origin::of(mapped), shown[1]);
    }

    #[test]
    fn clients_that_sent_data_are_kept_before_silent_ones() {
        let mut bench = Bench::new();
        (0..OF_ONE_ADDRESS).for_each(|_| {
            let _ = bench.greet("10.0.0.1");
        });
        bench.clients[0].write_all(b"o").unwrap();
        while bench.gate.newcomers[0].filled == 0 {
            assert!(bench.gate.listen(None, Instant::now()).is_empty());
        }
        (0..OF_ONE_ADDRESS - 1).for_each(|_| {
            let _ = bench.greet("10.0.0.1");
        });
        assert_eq!(bench.gate.newcomers[0].filled, 1);
    }
}
