//! An end that may only use UDP sockets, as an ordinary user: UDP without a tunnel.
//!
//! The kernel computes the checksums, or leaves them to the device, so a finished checksum cannot
//! be asked for: such packets are sent without one, which no device touches. A receiver sees only
//! packets that its kernel accepts, so damage shows as a loss, unless the checksum matches it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use sys::datagram::probing::{IcmpReport, ProbeOptions, prober, take_icmp_error};
use sys::datagram::{ReceiveSlots, ReceiverOptions, receiver};

use crate::class::{Checksum, Class, Extra, Family, Port, Transport};
use crate::content::{Location, Session};
use crate::message::{Batch, Collected, EndFacts, IcmpError, IcmpKind, Open, SendOutcome, Sent};
use crate::rate_limit::RateLimit;
use crate::seen::{Fault, Piece};
use crate::tally::{Counting, Tally};
use crate::wire::LocalPath;

/// Receive buffer of each socket, bytes; an ordinary user gets less.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Most bytes of datagrams that wait to be collected.
const MOST_WAITING: usize = 32 << 20;
/// Longest time until the reading thread sees that it must end.
const AGAIN: u8 = 50;
/// DSCP AF11 and ECT(0), as in the classes.
const TOS: [(Extra, u8); 2] = [(Extra::Dscp, 10 << 2), (Extra::Ecn, 2)];

/// Returns why an end with UDP sockets cannot send or receive packets of a class.
pub(crate) fn cannot(class: &Class, own: Family) -> Option<&'static str> {
    if class.tunnel.is_some() {
        return Some("tunnels need packet sockets");
    }
    match (class.transport, class.checksum, class.extra) {
        (Transport::Tcp | Transport::Icmp, ..) => Some("TCP and ICMP need packet sockets"),
        (_, Checksum::Wrong, _) => Some("wrong checksums need packet sockets"),
        (_, _, Extra::Options | Extra::Fragments) => {
            Some("options and fragments need packet sockets")
        }
        (_, _, Extra::ZeroSum) => Some("a given checksum needs packet sockets"),
        _ if class.family != own => Some("the other IP version needs packet sockets"),
        _ => None,
    }
}

/// A datagram, with the port that it came to.
type Datagram = (SocketAddr, u16, Vec<u8>);

/// Datagrams that wait to be collected.
#[derive(Debug, Default)]
struct Waiting {
    datagrams: Vec<Datagram>,
    bytes: usize,
    /// Datagrams beyond the limit.
    missed: u32,
}

/// An end with UDP sockets.
#[derive(Debug)]
pub(crate) struct Datagrams<'a> {
    rate_limit: &'a RateLimit,
    place: LocalPath,
    open: Open,
    listening: Option<Batch>,
    /// Ports without a socket, with the reason.
    taken: BTreeMap<u16, String>,
    waiting: Arc<Mutex<Waiting>>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    /// Sockets of the last batch, for ICMP errors, by number of the class.
    senders: Vec<(u16, UdpSocket)>,
}

impl<'a> Datagrams<'a> {
    /// Opens the receiving sockets in the namespace of the calling thread.
    ///
    /// # Errors
    /// If no thread can be started, as text.
    pub(crate) fn open(
        rate_limit: &'a RateLimit,
        place: LocalPath,
        open: Open,
    ) -> Result<Datagrams<'a>, String> {
        let own = place.addresses.0;
        let options =
            ReceiverOptions { merged: false, zero_checksum: true, buffer: RECEIVE_BUFFER };
        let (mut sockets, mut taken) = (Vec::new(), BTreeMap::new());
        for port in Port::ALL.map(|port| port.number(open.own_port)) {
            match receiver(SocketAddr::new(own, port), &options) {
                Ok(socket) => sockets.push((port, socket)),
                // A tunnel device of this machine has it, or a user may not bind it.
                Err(error) => {
                    taken.insert(port, error.errno.desc().to_owned());
                }
            }
        }
        let (waiting, stop) = (Arc::<Mutex<Waiting>>::default(), Arc::new(AtomicBool::new(false)));
        let (shared, stops) = (Arc::clone(&waiting), Arc::clone(&stop));
        let reader = std::thread::Builder::new()
            .name("probe".to_owned())
            .spawn(move || read(&sockets, &shared, &stops))
            .map_err(|error| format!("start a thread: {error}"))?;
        Ok(Datagrams {
            rate_limit,
            place,
            open,
            listening: None,
            taken,
            waiting,
            stop,
            reader: Some(reader),
            senders: Vec::new(),
        })
    }

    pub(crate) fn own_port(&self) -> u16 {
        self.open.own_port
    }

    fn own_family(&self) -> Family {
        if self.place.addresses.1.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(crate) fn send(&mut self, batch: &Batch) -> Result<Sent, String> {
        self.senders.clear();
        let mut sent = Sent::default();
        for (index, class) in batch.classes.iter().enumerate() {
            let number = batch.first + index as u16;
            let outcome = match cannot(class, self.own_family()) {
                Some(reason) => SendOutcome::Skipped(reason.to_owned()),
                None => {
                    if batch.at_once {
                        let bytes = class.wire_bytes() * u64::from(batch.repetitions);
                        self.rate_limit.wait(bytes, batch.rate);
                    }
                    let begun = Instant::now();
                    let outcome = self.send_class(class, number, batch, &mut sent.bytes);
                    if batch.at_once {
                        sent.note_burst(begun);
                    }
                    outcome
                }
            };
            sent.outcomes.push(outcome);
        }
        // No socket has seen them at the device.
        sent.handed = vec![Tally::default(); batch.classes.len()];
        Ok(sent)
    }

    fn send_class(
        &mut self,
        class: &Class,
        number: u16,
        batch: &Batch,
        bytes: &mut u64,
    ) -> SendOutcome {
        let (own, peer) = self.place.addresses;
        let source = self.open.source_base.wrapping_add(number);
        let tos = TOS.iter().find(|(extra, _)| *extra == class.extra).map_or(0, |(_, tos)| *tos);
        let checksum = class.checksum == Checksum::Partial;
        let options = ProbeOptions { ttl: batch.ttl.max(1), tos, checksum };
        let opened = prober(SocketAddr::new(own, source), &options).and_then(|socket| {
            sys::udp::set_segment_bytes(&socket, class.segment)?;
            Ok(socket)
        });
        let socket = match opened {
            Ok(socket) => socket,
            // The class is left out with the reason: without a socket, a loss would be the
            // program's own.
            Err(error) => return SendOutcome::Skipped(error.to_string()),
        };
        let to = SocketAddr::new(peer, class.port.number(self.open.own_port));
        let mut outcome = SendOutcome::Sent(batch.repetitions);
        for repetition in 0..batch.repetitions {
            let payload =
                Session(self.open.session).payload(number, repetition, class.payload as usize);
            let once = class.wire_bytes();
            *bytes += once;
            if !batch.at_once {
                self.rate_limit.wait(once, batch.rate);
            }
            if let Err(error) = send_to(&socket, &payload, to) {
                outcome = match error {
                    Errno::ENOBUFS | Errno::EAGAIN => {
                        SendOutcome::Skipped("the device's queue is full".to_owned())
                    }
                    errno => SendOutcome::Refused { errno: errno as i32, sent: repetition },
                };
                // The kernel refuses every repetition for the same reason.
                break;
            }
        }
        self.senders.push((number, socket));
        outcome
    }

    pub(crate) fn errors(&mut self) -> Result<Vec<IcmpError>, String> {
        let mut errors = Vec::new();
        for (class, socket) in self.senders.drain(..) {
            // One kernel queue holds few: a socket's buffer limits it.
            while let Some(report) = take_icmp_error(&socket).map_err(|e| e.desc().to_owned())? {
                let Some(kind) = kind_of(&report) else { continue };
                let error = IcmpError { from: report.from, class, kind };
                if !errors.contains(&error) {
                    errors.push(error);
                }
            }
        }
        Ok(errors)
    }

    pub(crate) fn listen(&mut self, batch: Batch) {
        self.take();
        self.listening = Some(batch);
    }

    fn take(&self) -> Waiting {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn collect(&mut self) -> Result<Collected, String> {
        let batch = self.listening.take().ok_or("collect before listen")?;
        let Waiting { datagrams, missed, .. } = self.take();
        let mut pieces = Counting::new(&batch.classes);
        let mut late = BTreeMap::new();
        for datagram in &datagrams {
            match self.read_one(&batch, datagram) {
                Found::Piece(piece) => pieces.add(&piece),
                Found::Late(class) => *late.entry(class).or_default() += 1,
                // Datagrams of other programs arrive at the port, too.
                Found::Nothing => {}
            }
        }
        let mut blind = BTreeMap::new();
        for (index, class) in batch.classes.iter().enumerate() {
            let port = class.port.number(self.open.own_port);
            let reason = cannot(class, self.own_family()).map(str::to_owned).or_else(|| {
                self.taken.get(&port).map(|why| format!("port {port} of the receiver: {why}"))
            });
            if let Some(reason) = reason {
                blind.insert(index as u16, reason);
            }
        }
        Ok(Collected { tallies: pieces.finish(), late, missed, blind })
    }

    fn read_one(&self, batch: &Batch, (from, port, bytes): &Datagram) -> Found {
        let session = Session(self.open.session);
        let by_port = from.port().wrapping_sub(self.open.source_base);
        let place = session.locate(bytes).or_else(|| {
            // Too small for a block: the source port tells the class.
            (from.ip().to_canonical() == self.place.addresses.1).then_some(Location {
                class: by_port,
                repetition: 0,
                offset: 0,
            })
        });
        // Without its identification a datagram cannot be counted for a class.
        let Some(place) = place else { return Found::Nothing };
        let Some(index) = place.class.checked_sub(batch.first) else {
            return Found::Late(place.class);
        };
        // The number is from the packet, which may be damaged: it may name no class of the batch.
        let Some(class) = batch.classes.get(usize::from(index)) else { return Found::Nothing };
        if class.port.number(self.open.own_port) != *port
            || cannot(class, self.own_family()).is_some()
        {
            return Found::Nothing;
        }
        let whole = session.payload(place.class, place.repetition, class.payload as usize);
        let wanted =
            usize::try_from(place.offset).ok().and_then(|at| whole.get(at..at + bytes.len()));
        let faults = match wanted {
            None => vec![Fault::Length],
            Some(wanted) => match wanted.iter().zip(bytes).position(|(a, b)| a != b) {
                None => Vec::new(),
                Some(at) if class.segment > 0 && at * 2 >= bytes.len() => vec![Fault::Tail],
                Some(_) => vec![Fault::Payload],
            },
        };
        Found::Piece(Piece {
            class: index,
            repetition: Some(place.repetition),
            offset: Some(place.offset),
            length: bytes.len() as u32,
            segment: 0,
            partial: false,
            translated: by_port != place.class,
            faults,
        })
    }
}

impl Drop for Datagrams<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // A panic there has lost datagrams, which this end has reported as lost.
            let _ = reader.join();
        }
    }
}

/// A datagram's meaning.
enum Found {
    Piece(Piece),
    Late(u16),
    Nothing,
}

fn kind_of(report: &IcmpReport) -> Option<IcmpKind> {
    match (report.from.is_ipv4(), report.kind, report.code) {
        (true, 3, 4) | (false, 2, _) => Some(IcmpKind::TooBig(report.info)),
        (true, 11, 0) | (false, 3, 0) => Some(IcmpKind::TimeExceeded),
        // Other ICMP messages say nothing about sizes or hops.
        _ => None,
    }
}

/// Sends a datagram. An earlier ICMP error of the socket does not count.
fn send_to(socket: &UdpSocket, payload: &[u8], to: SocketAddr) -> Result<(), Errno> {
    // An ICMP error of an earlier datagram is reported by the next send. It is not an error of this
    // one.
    for _ in 0..3 {
        let error = match socket.send_to(payload, to) {
            Ok(_) => return Ok(()),
            Err(error) => Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32)),
        };
        match error {
            // Reported about an earlier datagram.
            Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EPROTO => {}
            // A small send buffer: the device takes a moment.
            Errno::EAGAIN => std::thread::sleep(Duration::from_millis(2)),
            errno => return Err(errno),
        }
    }
    // Only errors about earlier datagrams, or a full buffer: one more try decides.
    match socket.send_to(payload, to) {
        Ok(_) => Ok(()),
        Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))),
    }
}

/// Reads all sockets until the end.
fn read(sockets: &[(u16, UdpSocket)], waiting: &Mutex<Waiting>, stop: &AtomicBool) {
    let mut slots = ReceiveSlots::new(32);
    while !stop.load(Ordering::Relaxed) {
        let mut fds: Vec<PollFd<'_>> =
            sockets.iter().map(|(_, s)| PollFd::new(s.as_fd(), PollFlags::POLLIN)).collect();
        // An error shows again when the sockets are read.
        let _ = poll(&mut fds, PollTimeout::from(AGAIN));
        for (port, socket) in sockets {
            while let Ok(count) = slots.receive(socket) {
                if count == 0 || stop.load(Ordering::Relaxed) {
                    break;
                }
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                for index in 0..count {
                    let Some(message) = slots.message(index) else { continue };
                    // A flood from elsewhere must not fill the memory; the missed packets are
                    // reported.
                    if waiting.bytes + message.bytes.len() > MOST_WAITING {
                        waiting.missed = waiting.missed.saturating_add(1);
                        continue;
                    }
                    // The overhead of a datagram beside its payload counts, too.
                    waiting.bytes += message.bytes.len() + 64;
                    let datagram = (message.from, *port, message.bytes.to_vec());
                    waiting.datagrams.push(datagram);
                }
            }
        }
    }
}

/// Remarks on ends that test fewer classes.
pub(crate) fn notes(here: &EndFacts, there: &EndFacts) -> Vec<String> {
    let of = |who: &str, facts: &EndFacts| {
        let reason = facts.limited.as_ref()?;
        Some(format!(
            "{who}: {reason}: only UDP is tested, and a packet with a wrong checksum counts as \
             lost"
        ))
    };
    [of("this end", here), of("the peer", there)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn some_classes_of_each_list_are_left_and_the_others_say_why() {
        for own in [Family::V4, Family::V6] {
            let quick = catalogue::quick(1500);
            let (left, out): (Vec<&Class>, Vec<&Class>) =
                quick.iter().partition(|class| cannot(class, own).is_none());
            let has = |is: fn(&Class) -> bool| left.iter().any(|class| is(class));
            assert!(
                has(|class| class.segment > 0) && has(|class| class.checksum == Checksum::Zero)
            );
            assert!(left.iter().all(|class| class.transport == Transport::Udp));
            assert!(out.len() > left.len());
        }
    }

    #[test]
    fn icmp_errors_have_the_kinds_of_packets_sockets() {
        let report = |from: &str, kind, code, info| {
            kind_of(&IcmpReport { from: from.parse().unwrap(), kind, code, info })
        };
        assert_eq!(report("10.0.0.1", 3, 4, 1400), Some(IcmpKind::TooBig(1400)));
        assert_eq!(report("fd00::1", 2, 0, 1300), Some(IcmpKind::TooBig(1300)));
        assert_eq!(report("10.0.0.1", 11, 0, 0), Some(IcmpKind::TimeExceeded));
        assert_eq!(report("fd00::1", 3, 0, 0), Some(IcmpKind::TimeExceeded));
        // A closed port.
        assert_eq!(report("10.0.0.1", 3, 3, 0), None);
    }
}
