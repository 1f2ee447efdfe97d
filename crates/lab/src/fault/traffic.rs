//! Datagrams that flow while something happens, and what becomes of them.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use testbed::Host;

use super::{LIMIT, wait_for};
use crate::{Network, Result};

/// Time from one datagram to the next.
pub const INTERVAL: Duration = Duration::from_millis(1);
/// How many datagrams must arrive before the traffic is said to flow.
const FLOWING: u64 = 50;
/// How long the receiver waits for a datagram before it looks whether it is to end: what is
/// under way then is lost.
const LAST: Duration = Duration::from_millis(50);

/// What a fault cost. Datagrams count from its beginning until traffic flowed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Datagrams that were sent, one each [`INTERVAL`]; those that no route led on, too.
    pub sent: u64,
    /// Those of them that arrived.
    pub received: u64,
    /// Those of them that arrived once more: with an address in two hosts, a datagram may go
    /// by both.
    pub twice: u64,
    /// Longest time between two arrivals.
    pub outage: Duration,
}

impl Cost {
    /// Datagrams that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// What the three threads tell each other; numbers of datagrams are from 1.
#[derive(Default)]
struct Shared {
    sending_ends: AtomicBool,
    receiving_ends: AtomicBool,
    /// The last that was sent.
    sent: AtomicU64,
    /// The last that was sent before the fault.
    before: AtomicU64,
    fresh: Mutex<Fresh>,
}

/// Datagrams sent after one of them that have arrived, each once.
#[derive(Default)]
struct Fresh {
    after: u64,
    arrived: u64,
}

impl Shared {
    fn fresh(&self) -> std::sync::MutexGuard<'_, Fresh> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends both threads when it goes, also where a fault panics: they are waited for then, too.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.sending_ends.store(true, Ordering::Relaxed);
        self.0.receiving_ends.store(true, Ordering::Relaxed);
    }
}

/// Runs `fault` while datagrams are sent from client to server. Returns when some of those that
/// were sent after it have arrived, with what it cost.
///
/// # Errors
/// Sockets that cannot be had; the fault's own error; traffic that does not flow before it, or
/// within two minutes after it.
pub fn during<T>(network: &Network, fault: impl FnOnce() -> Result<T>) -> Result<(Cost, T)> {
    let listening = bound(network.server(), network.address.listen)?;
    let name = network.server().name();
    let limited = listening.set_read_timeout(Some(LAST));
    limited.map_err(|error| sys::Error::io("set timeout of socket in", name, &error))?;
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let sending = bound(network.client(), any)?;
    let shared = Shared { before: AtomicU64::new(u64::MAX), ..Shared::default() };
    let (result, received) = std::thread::scope(|scope| {
        let _ends = Ends(&shared);
        let sender = scope.spawn(|| send(&sending, network, &shared));
        let receiver = scope.spawn(|| receive(&listening, &shared));
        let flows = |after: u64| {
            *shared.fresh() = Fresh { after, arrived: 0 };
            wait_for("traffic that flows", || Ok(shared.fresh().arrived >= FLOWING))
        };
        let result = flows(0).and_then(|()| {
            shared.before.store(shared.sent.load(Ordering::Relaxed), Ordering::Relaxed);
            let result = fault()?;
            flows(shared.sent.load(Ordering::Relaxed))?;
            Ok(result)
        });
        // Also after an error; what is under way is waited for.
        shared.sending_ends.store(true, Ordering::Relaxed);
        let _ = sender.join();
        shared.receiving_ends.store(true, Ordering::Relaxed);
        (result, receiver.join().unwrap_or_default())
    });
    let result = result?;
    let before = shared.before.load(Ordering::Relaxed);
    let cost = Cost {
        sent: shared.sent.load(Ordering::Relaxed) - before,
        received: received.numbers.range(before + 1..).count() as u64,
        twice: received.twice,
        outage: received.outage,
    };
    Ok((cost, result))
}

/// A socket of a host's.
fn bound(host: &Host, address: SocketAddr) -> Result<UdpSocket> {
    let what = format!("{address} in {}", host.name());
    testbed::poll(&what, LIMIT, || match host.netns().run(|| UdpSocket::bind(address))? {
        Ok(socket) => Ok(Ok(socket)),
        // A program that is being started has a copy of the last one until it is executed.
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(Err(error.to_string())),
        Err(error) => Err(sys::Error::io("bind", &what, &error).into()),
    })
}

fn send(socket: &UdpSocket, network: &Network, shared: &Shared) {
    let begun = Instant::now();
    let mut number = 0;
    while !shared.sending_ends.load(Ordering::Relaxed) {
        number += 1;
        // A datagram that no route leads on is one of the lost.
        let _ = socket.send_to(&u64::to_be_bytes(number), network.address.target);
        shared.sent.store(number, Ordering::Relaxed);
        let due = begun + INTERVAL * u32::try_from(number).unwrap_or(u32::MAX);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

#[derive(Default)]
struct Received {
    numbers: BTreeSet<u64>,
    twice: u64,
    outage: Duration,
}

fn receive(socket: &UdpSocket, shared: &Shared) -> Received {
    let mut received = Received::default();
    let mut last = Instant::now();
    let mut bytes = [0; 8];
    loop {
        if socket.recv(&mut bytes).is_err() {
            if shared.receiving_ends.load(Ordering::Relaxed) {
                return received;
            }
            continue;
        }
        let (now, number) = (Instant::now(), u64::from_be_bytes(bytes));
        let is_new = received.numbers.insert(number);
        if number > shared.before.load(Ordering::Relaxed) {
            received.outage = received.outage.max(now - last);
            received.twice += u64::from(!is_new);
        }
        last = now;
        let mut fresh = shared.fresh();
        if is_new && number > fresh.after {
            fresh.arrived += 1;
        }
    }
}
