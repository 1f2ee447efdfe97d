//! Datagrams sent while a fault is injected, and their losses.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use testbed::Host;

use super::{LIMIT, wait_for};
use crate::{Network, Result};

/// Interval between two datagrams.
pub const INTERVAL: Duration = Duration::from_millis(1);
/// Number of datagrams that must arrive before traffic counts as flowing.
const FLOWING: u64 = 50;
/// Receive timeout, after which the receiver checks whether to stop. Datagrams that take longer
/// at the end count as lost.
const LAST: Duration = Duration::from_millis(50);

/// Cost of a fault. Counting starts with the fault and ends when traffic flows again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Datagrams sent, one per [`INTERVAL`], including those without a route.
    pub sent: u64,
    /// Datagrams that arrived.
    pub received: u64,
    /// Datagrams that arrived twice. While two hosts have the same address, a datagram may be
    /// forwarded by both.
    pub twice: u64,
    /// Longest time between two arrivals.
    pub outage: Duration,
}

impl Cost {
    /// Returns the number of datagrams that did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// State shared by the three threads. Datagrams are numbered from 1.
#[derive(Default)]
struct Shared {
    sending_ends: AtomicBool,
    receiving_ends: AtomicBool,
    /// Number of the last datagram sent.
    sent: AtomicU64,
    /// Number of the last datagram sent before the fault.
    before: AtomicU64,
    fresh: Mutex<Fresh>,
}

/// Datagrams with a number above `after` that have arrived, each counted once.
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

/// Stops both threads when dropped, so that the scope ends even if a fault panics.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.sending_ends.store(true, Ordering::Relaxed);
        self.0.receiving_ends.store(true, Ordering::Relaxed);
    }
}

/// Runs `fault` while the client sends datagrams to the server. Returns its cost once datagrams
/// sent after it arrive again.
///
/// # Errors
/// Sockets that cannot be created; the fault's own error; traffic that does not flow before
/// the fault, or not within two minutes after it.
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
            wait_for("the flow of traffic", || Ok(shared.fresh().arrived >= FLOWING))
        };
        let result = flows(0).and_then(|()| {
            shared.before.store(shared.sent.load(Ordering::Relaxed), Ordering::Relaxed);
            let result = fault()?;
            flows(shared.sent.load(Ordering::Relaxed))?;
            Ok(result)
        });
        // Also after an error. Datagrams in flight are still received.
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

/// Binds a socket in a host's namespace.
fn bound(host: &Host, address: SocketAddr) -> Result<UdpSocket> {
    let what = format!("{address} in {}", host.name());
    testbed::poll(&what, LIMIT, || match host.netns().run(|| UdpSocket::bind(address))? {
        Ok(socket) => Ok(Ok(socket)),
        // A program being started holds a copy of the previous socket until its exec.
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(Err(error.to_string())),
        Err(error) => Err(sys::Error::io("bind", &what, &error).into()),
    })
}

fn send(socket: &UdpSocket, network: &Network, shared: &Shared) {
    let begun = Instant::now();
    let mut number = 0;
    while !shared.sending_ends.load(Ordering::Relaxed) {
        number += 1;
        // If there is no route, the datagram counts as lost.
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
        // A timeout: check whether to stop.
        if socket.recv(&mut bytes).is_err() {
            if shared.receiving_ends.load(Ordering::Relaxed) {
                return received;
            }
            continue;
        }
        let (now, number) = (Instant::now(), u64::from_be_bytes(bytes));
        let is_new = received.numbers.insert(number);
        // Nothing before the fault belongs to its cost.
        if number > shared.before.load(Ordering::Relaxed) {
            received.outage = received.outage.max(now - last);
            received.twice += u64::from(!is_new);
        }
        last = now;
        let mut fresh = shared.fresh();
        // Skip duplicates, and datagrams sent before this check began.
        if is_new && number > fresh.after {
            fresh.arrived += 1;
        }
    }
}
