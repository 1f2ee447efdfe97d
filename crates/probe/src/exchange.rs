//! Both ends of a session: batches of classes are sent by one and received by the other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt;

use crate::class::{Checksum, Class, Transport};
use crate::end::{Access, End};
use crate::judge::{Verdict, confirm, is_explained, judge, loss_of_controls};
use crate::message::{
    Answer, Ask, Batch, Collected, EndFacts, MOST_AT_ONCE, MOST_BYTES, MOST_CLASSES, MOST_NUMBER,
    MOST_SECONDS, Open, Opened, RATE, SendOutcome, Sent, VERSION, shortened,
};
use crate::options::Options;
use crate::report::{ClassResult, Direction};
use crate::wire::LocalPath;

/// Shortest time for packets in flight.
const SETTLE: Duration = Duration::from_millis(30);
/// The same if packets were late, on a busy machine.
const MOST_SETTLE: Duration = Duration::from_millis(500);
/// Repetitions of a bad class at the second look.
const AGAIN: u16 = 6;
/// Packets that show whether a path is slower than the rate.
const SAMPLE: u16 = 64;
/// Bursts that are sent to get one without a pause.
const BURSTS: u32 = 6;
/// Time in which the packets of a burst are sent at once: a path of 1 Mbit/s passes 625 bytes on.
const AT_ONCE: Duration = Duration::from_millis(5);
/// Share of lost packets above which the rate is in doubt.
const NOTICED: f64 = 0.1;
/// Lowest rate, bytes/s: a request must end in [`MOST_SECONDS`].
const SLOWEST: u32 = 60_000;
/// Payload of a packet that fits most paths.
const FULL_SIZE: u16 = 1200;

/// The other end, reached by an authenticated connection.
pub trait Peer {
    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// A refusal or a broken connection, as text.
    fn ask(&mut self, ask: &Ask) -> Result<Answer, String>;
}

/// Reason why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// This end cannot probe.
    #[error("this end: {0}")]
    Here(String),
    /// The other end refused or is gone.
    #[error("the peer: {0}")]
    Peer(String),
    /// No probe packet arrives at all.
    #[error(
        "no probe packet arrives {0}: UDP port {1} is filtered, or the address is translated \
         for single ports only"
    )]
    Nothing(&'static str, u16),
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
}

/// Both ends, ready to exchange classes.
pub struct Exchange<'a> {
    end: End<'a>,
    here: EndFacts,
    there: EndFacts,
    peer: &'a mut dyn Peer,
    stop: &'a AtomicBool,
    next: u16,
    rate: u32,
    settle: Duration,
    bytes: u64,
    late: BTreeMap<u16, u32>,
}

impl std::fmt::Debug for Exchange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("next", &self.next).finish_non_exhaustive()
    }
}

/// One batch that was exchanged.
#[derive(Debug)]
pub struct Done {
    /// Number of its first class.
    pub first: u16,
    /// Report of the sender.
    pub sent: Sent,
    /// Report of the receiver.
    pub collected: Collected,
}

impl Exchange<'_> {
    /// Returns this end of the path.
    pub(crate) fn facts(&self) -> EndFacts {
        self.here.clone()
    }

    /// Whether both ends can send and receive packets of all classes.
    pub(crate) fn has_packet_sockets(&self) -> bool {
        self.here.limited.is_none() && self.there.limited.is_none()
    }

    /// Returns the destination port.
    pub(crate) fn own_port(&self) -> u16 {
        self.end.own_port()
    }

    /// Bytes sent by both ends so far, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes per second of this end.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Gives packets in flight more time from now on. Returns whether that was possible.
    pub(crate) fn be_patient(&mut self) -> bool {
        let before = self.settle;
        self.settle = (before * 2).min(MOST_SETTLE).max(before);
        self.settle > before
    }

    /// Does something while packets in flight have 4ⁿ times the usual time, at most n times
    /// [`MOST_SETTLE`].
    pub(crate) fn with_more_time<T>(&mut self, n: u32, what: impl FnOnce(&mut Self) -> T) -> T {
        let usual = self.settle;
        self.settle = (usual * 4_u32.pow(n)).min(MOST_SETTLE * n).max(usual);
        let outcome = what(self);
        self.settle = usual;
        outcome
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, Trouble> {
        // Settings are restored by the caller on this error, so ask before each step.
        if self.stop.load(Ordering::Relaxed) {
            return Err(Trouble::Stopped);
        }
        self.peer.ask(ask).map_err(|reason| Trouble::Peer(shortened(reason)))
    }

    /// Does something while features of the peer's device are off.
    ///
    /// # Errors
    /// If the peer cannot switch them off or on again; an error of `what`.
    pub(crate) fn without<T>(
        &mut self,
        features: &[String],
        what: impl FnOnce(&mut Self) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        if features.is_empty() {
            return what(self);
        }
        let odd = || Trouble::Peer("unexpected answer".to_owned());
        let switched = match self.ask(&Ask::SwitchOff(features.to_vec())) {
            Ok(Answer::SwitchedOff) => what(self),
            Ok(_) => Err(odd()),
            Err(error) => Err(error),
        };
        // Also after a failure. If it cannot be asked, the end of the connection restores them.
        match self.ask(&Ask::Restore) {
            Ok(Answer::Restored) => switched,
            Ok(_) => switched.and(Err(odd())),
            Err(error) => switched.and(Err(error)),
        }
    }

    /// Sends classes in a direction and returns what both ends saw. At most [`MOST_CLASSES`].
    pub fn go(
        &mut self,
        way: Direction,
        classes: Vec<Class>,
        repetitions: u16,
        ttl: u8,
    ) -> Result<Done, Trouble> {
        let batch = Batch::new(0, classes, repetitions, self.rate).with_ttl(ttl);
        self.exchange(way, batch)
    }

    /// Numbers the classes of a batch, sends them in a direction, and returns what both ends saw.
    fn exchange(&mut self, way: Direction, mut batch: Batch) -> Result<Done, Trouble> {
        let classes = &mut batch.classes;
        let sender = match way {
            Direction::Out => &self.here,
            Direction::Back => &self.there,
        };
        // UDP sockets leave checksums to the device, or send none.
        if sender.limited.is_some() {
            let is_udp = |c: &&mut Class| c.transport == Transport::Udp && c.tunnel.is_none();
            let finished = |c: &&mut Class| c.checksum == Checksum::Finished;
            for class in classes.iter_mut().filter(is_udp).filter(finished) {
                class.checksum = Checksum::Zero;
            }
        }
        let first = self.next;
        let count = classes.len() as u16;
        if first + count > MOST_NUMBER {
            return Err(Trouble::Here(format!("more than {MOST_NUMBER} classes in a session")));
        }
        self.next += count;
        batch.first = first;
        let odd = || Trouble::Peer("unexpected answer".to_owned());
        let (mut sent, mut collected) = match way {
            Direction::Out => {
                match self.ask(&Ask::Listen(batch.clone()))? {
                    // The peer is of the same version, so any other answer is a defect there.
                    Answer::Listening => {}
                    _ => return Err(odd()),
                }
                let mut sent = self.end.send(&batch).map_err(Trouble::Here)?;
                std::thread::sleep(self.settle);
                sent.errors = self.end.errors(&batch).map_err(Trouble::Here)?;
                match self.ask(&Ask::Collect)? {
                    Answer::Collected(collected) => (sent, collected),
                    _ => return Err(odd()),
                }
            }
            Direction::Back => {
                self.end.listen(batch.clone()).map_err(Trouble::Here)?;
                // The peer is of the same version, so any other answer is a defect there.
                let Answer::Sent(sent) = self.ask(&Ask::Send(batch))? else { return Err(odd()) };
                std::thread::sleep(self.settle);
                (sent, self.end.collect().map_err(Trouble::Here)?)
            }
        };
        let wanted = usize::from(count);
        for reason in collected.blind.values_mut() {
            *reason = shortened(std::mem::take(reason));
        }
        for outcome in &mut sent.outcomes {
            if let SendOutcome::Skipped(reason) = outcome {
                *reason = shortened(std::mem::take(reason));
            }
        }
        let sizes = [sent.outcomes.len(), sent.handed.len(), collected.tallies.len()];
        // The lists are indexed by class.
        if sizes != [wanted; 3] {
            return Err(odd());
        }
        // The peer may claim any number.
        self.bytes = self.bytes.saturating_add(sent.bytes);
        if !collected.late.is_empty() {
            self.be_patient();
        }
        for (class, count) in &collected.late {
            let late = self.late.entry(*class).or_default();
            *late = late.saturating_add(*count);
        }
        Ok(Done { first, sent, collected })
    }

    /// Exchanges any number of classes, once or more often.
    pub fn classes(
        &mut self,
        way: Direction,
        classes: &[Class],
        repetitions: u16,
    ) -> Result<Vec<ClassResult>, Trouble> {
        let mut results = Vec::new();
        let mut rest = classes;
        // Half of the limits: the peer may send more slowly than this end.
        let at_once = MOST_BYTES.min(u64::from(self.rate.min(RATE)) * MOST_SECONDS) / 2;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |class: &&Class| {
                bytes += class.wire_bytes() * u64::from(repetitions);
                bytes <= at_once
            };
            // At least one class, or a class above the limit would never be sent and the loop never
            // end.
            let count = rest.iter().take(MOST_CLASSES).take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            rest = later;
            let mut done = self.go(way, now.to_vec(), repetitions, 64)?;
            let missed = done.collected.missed;
            for (at, class) in now.iter().enumerate() {
                let late = self.late.get(&(done.first + at as u16)).copied().unwrap_or(0);
                let arrived = std::mem::take(&mut done.collected.tallies[at]);
                let mut verdict = judge(class, &done.sent.outcomes[at], &arrived, late);
                if let Some(reason) = done.collected.blind.get(&(at as u16))
                    && matches!(done.sent.outcomes[at], SendOutcome::Sent(_))
                {
                    verdict = Verdict::Untestable { reason: reason.clone() };
                }
                // The receiver's own socket lost packets.
                if missed > 0 && matches!(verdict, Verdict::Lost { .. }) {
                    let reason = "the receiver's buffer was full".to_owned();
                    verdict = Verdict::Untestable { reason };
                }
                results.push(ClassResult {
                    way,
                    name: class.to_string(),
                    class: *class,
                    verdict,
                    handed: std::mem::take(&mut done.sent.handed[at]),
                    arrived,
                });
            }
        }
        Ok(results)
    }

    /// Lowers the rate if full packets without offloads are lost at the present one, and fewer are
    /// at the lower one: the path is slower than the probe.
    fn slow_down(&mut self, way: Direction, lost: &Class) -> Result<(), Trouble> {
        let usual = self.rate;
        // UDP to this port arrives, because the path MTU was found with it.
        let payload = lost.segment.max(FULL_SIZE).into();
        let class = Class { payload, family: lost.family, ..Class::PLAIN };
        let (before, _) = self.loss(way, class, SAMPLE, false)?;
        if before < NOTICED {
            return Ok(());
        }
        // The rest of the path's rate is for the headers of lower layers.
        let passed = f64::from(usual) * (1.0 - before) * 0.7;
        self.rate = (passed as u32).max(SLOWEST).min(usual);
        let (after, _) = self.loss(way, class, SAMPLE, false)?;
        if after * 2.0 > before {
            // Loss by chance: more time would not help.
            self.rate = usual;
        }
        Ok(())
    }

    /// Returns the share of packets of a class that are lost, and the time of sending them at once.
    fn loss(
        &mut self,
        way: Direction,
        class: Class,
        count: u16,
        at_once: bool,
    ) -> Result<(f64, Duration), Trouble> {
        let count = count.min(self.most_repetitions(class.wire_bytes()));
        let batch = Batch { at_once, ..Batch::new(0, vec![class], count, self.rate) };
        let done = self.exchange(way, batch)?;
        match done.sent.outcomes[0] {
            SendOutcome::Sent(_) => {}
            // The sender's kernel refuses the size, which says nothing about the path.
            SendOutcome::Refused { .. } => return Ok((0.0, Duration::ZERO)),
            // The sender's own queue is full: it is the slow part of the path.
            SendOutcome::Skipped(_) => return Ok((1.0, Duration::ZERO)),
        }
        let arrived = done.collected.tallies[0].whole.min(count.into());
        let took = Duration::from_micros(done.sent.burst_us.into());
        Ok((1.0 - f64::from(arrived) / f64::from(count.max(1)), took))
    }

    /// Returns how often packets of this size can be sent in a request at the present rate.
    fn most_repetitions(&self, bytes: u64) -> u16 {
        let most = u64::from(self.rate.min(RATE)) * MOST_SECONDS * 9 / 10 / bytes.max(1);
        u16::try_from(most).unwrap_or(u16::MAX).max(1)
    }

    /// Returns the share of packets without offloads that are lost if this number is sent at once,
    /// as a device sends the segments of a GSO packet. `None`: none is lost, but a busy
    /// sender paused within each burst, so that a queue could drain.
    fn loss_of_burst(
        &mut self,
        way: Direction,
        class: Class,
        count: u32,
    ) -> Result<Option<f64>, Trouble> {
        let most = u16::try_from(MOST_AT_ONCE / class.wire_bytes()).unwrap_or(u16::MAX);
        // One more: some bytes drain while single packets are sent, and a queue may be only that
        // much too short.
        let count = u16::try_from(count + 1).unwrap_or(u16::MAX).min(most).max(1);
        worst_burst(|| self.loss(way, class, count, true))
    }

    /// Looks again at bad classes, each with its control.
    pub fn look_again(&mut self, results: &mut [ClassResult]) -> Result<(), Trouble> {
        for way in Direction::BOTH {
            let bad: Vec<usize> = (0..results.len())
                .filter(|at| results[*at].way == way && results[*at].verdict.is_bad())
                .collect();
            let is_lost = |at: &&usize| matches!(results[**at].verdict, Verdict::Lost { .. });
            let lost = bad.iter().filter(is_lost).map(|at| results[*at].class);
            if let Some(lost) = lost.max_by_key(|class| class.segment) {
                self.slow_down(way, &lost)?;
            }
            let mut classes = Vec::new();
            for at in &bad {
                classes.extend([results[*at].class, results[*at].class.control()]);
            }
            // At a low rate, fewer packets.
            let largest = classes.iter().map(Class::wire_bytes).max().unwrap_or(1);
            let repetitions = AGAIN.min(self.most_repetitions(largest));
            let again = self.classes(way, &classes, repetitions)?;
            let controls = again.chunks_exact(2).map(|pair| &pair[1].verdict);
            let by_chance = loss_of_controls(controls, repetitions);
            let mut bursts = BTreeMap::new();
            for (at, pair) in bad.into_iter().zip(again.chunks_exact(2)) {
                let [second, control] = pair else { continue };
                let first = results[at].verdict.clone();
                let class = results[at].class;
                let mut verdict = confirm(first, second.verdict.clone(), &control.verdict);
                if is_explained(&verdict, &class, by_chance) {
                    verdict = Verdict::Filtered;
                }
                if class.segment > 0 && matches!(verdict, Verdict::Lost { .. }) {
                    let key = (single(&class, class.segment), class.segments());
                    let loss = match bursts.get(&key) {
                        Some(loss) => *loss,
                        None => self.loss_of_burst(way, key.0, key.1)?,
                    };
                    bursts.insert(key, loss);
                    match loss {
                        Some(loss) if is_explained(&verdict, &class, loss) => {
                            verdict = Verdict::Filtered;
                        }
                        Some(_) => {}
                        // A short queue may be the cause as well as an offload.
                        None => {
                            let reason = "the sender was too busy to send as many packets without \
                                          an offload at once";
                            verdict = Verdict::Untestable { reason: reason.to_owned() };
                        }
                    }
                }
                results[at].verdict = verdict;
            }
        }
        Ok(())
    }
}

/// Opens both ends.
///
/// # Errors
/// If an end cannot probe.
pub(crate) fn open<'a>(
    access: &'a Access,
    peer: &'a mut dyn Peer,
    (own, there): (IpAddr, IpAddr),
    options: &Options,
    stop: &'a AtomicBool,
) -> Result<(Exchange<'a>, Opened), Trouble> {
    let place = LocalPath::find(own, there, options.via.as_deref()).map_err(Trouble::Here)?;
    let mut rng = rand::rng();
    let open = Open {
        version: VERSION,
        session: rng.random(),
        own_port: options.port,
        source_base: rng.random_range(25_000..30_000),
        // The lowest bits distinguish tunnels.
        vni: rng.random_range(0xe0_0000_u32..0xf0_0000) & !0x1f,
        other: place.other,
    };
    let asked = Instant::now();
    let answer = peer.ask(&Ask::Open(open.clone()));
    let answer = answer.map_err(|reason| Trouble::Peer(shortened(reason)))?;
    let round_trip = asked.elapsed();
    // The peer is of the same version, so any other answer is a defect there.
    let Answer::Opened(opened) = answer else {
        return Err(Trouble::Peer("unexpected answer".to_owned()));
    };
    opened.end.validate(there).map_err(Trouble::Peer)?;
    let here = End::facts(access, &place);
    let end = End::open(access, place, open, opened.end.other, Ok(())).map_err(Trouble::Here)?;
    let settle = SETTLE.max(round_trip.min(Duration::from_millis(500)) * 2);
    let exchange = Exchange {
        end,
        here,
        there: opened.end.clone(),
        peer,
        stop,
        next: 0,
        rate: options.rate,
        settle,
        bytes: 0,
        late: BTreeMap::new(),
    };
    Ok((exchange, *opened))
}

/// Sends bursts until one is sent without a pause. Returns the largest loss; `None` if nothing is
/// lost and each burst had a pause. `send` returns the loss of a burst and the time of sending it.
fn worst_burst(
    mut send: impl FnMut() -> Result<(f64, Duration), Trouble>,
) -> Result<Option<f64>, Trouble> {
    let mut worst: f64 = 0.0;
    for _ in 0..BURSTS {
        let (loss, took) = send()?;
        worst = worst.max(loss);
        if took <= AT_ONCE {
            return Ok(Some(worst));
        }
    }
    Ok((worst > 0.0).then_some(worst))
}

/// Returns a class without offloads that packet filters treat like this one, outside tunnels.
fn single(class: &Class, payload: u16) -> Class {
    // Tunnels are UDP. GRE has no port, and is compared with UDP, too.
    let transport = if class.tunnel.is_some() { Transport::Udp } else { class.transport };
    let Class { family, port, .. } = *class;
    Class { family, transport, port, payload: payload.into(), ..Class::PLAIN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Family, Port, Tunnel, TunnelKind};

    /// A sender that had to wait for a CPU amid a burst let a short queue drain.
    #[test]
    fn a_burst_with_a_pause_says_nothing_unless_packets_are_lost() {
        let ms = Duration::from_millis;
        for (bursts, wanted) in [
            (vec![(0.0, ms(1))], Some(0.0)),
            (vec![(0.0, ms(40)), (0.25, ms(1))], Some(0.25)),
            (vec![(0.5, ms(40)), (0.25, ms(1))], Some(0.5)),
            (vec![(0.0, ms(40)); 6], None),
            ([vec![(0.25, ms(40))], vec![(0.0, ms(40)); 5]].concat(), Some(0.25)),
        ] {
            let mut rest = bursts.iter();
            assert_eq!(worst_burst(|| Ok(*rest.next().unwrap())).unwrap(), wanted, "{bursts:?}");
            assert!(rest.next().is_none(), "{bursts:?}");
        }
    }

    /// A packet filter may drop UDP and pass TCP, or drop one IP version or port.
    #[test]
    fn bursts_have_the_transport_and_port_of_the_lost_class() {
        let family = Family::V6;
        let (checksum, transport) = (Checksum::Partial, Transport::Tcp);
        let tcp =
            Class { family, transport, checksum, segment: 1400, payload: 4200, ..Class::PLAIN };
        let kind = TunnelKind::Vxlan;
        let tunnel = Some(Tunnel { kind, checksum: false, inner: Family::V4, nested: false });
        let in_tunnel = Class { tunnel, port: Port::Vxlan, ..tcp };
        for (lost, transport, port) in
            [(tcp, Transport::Tcp, Port::Own), (in_tunnel, Transport::Udp, Port::Vxlan)]
        {
            let class = single(&lost, lost.segment);
            assert_eq!((class.transport, class.port, class.family), (transport, port, family));
            assert_eq!((class.payload, class.segment, class.tunnel), (1400, 0, None));
            assert_eq!(class.validate(), Ok(()));
        }
    }
}
