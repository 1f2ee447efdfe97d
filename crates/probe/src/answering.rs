//! The end that answers: receives and sends at the request of an authenticated peer.
//!
//! Only the addresses of the session's connection are probed. The socket is opened once at start,
//! so that the process can give up the right to open more.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::message::{Answer, Ask, Open, Opened, RATE, VERSION};
use crate::wire::{LocalPath, Sockets, Wire};

/// Time to wait for ICMP errors about packets that were sent.
const ICMP_WAIT: Duration = Duration::from_millis(20);

/// Time to wait for another session to end.
const SEAT_WAIT: Duration = Duration::from_secs(3);

/// The sockets for probes, shared by the sessions of a server. One session uses them at a time.
#[derive(Debug)]
pub struct Answerer {
    sockets: Result<Sockets, String>,
    busy: AtomicBool,
}

impl Answerer {
    /// Opens the socket in the namespace of the calling thread. Without the right to do so, probes
    /// are refused with the reason.
    pub fn open() -> Answerer {
        let sockets = Sockets::open().map_err(|e| e.to_string());
        Answerer { sockets, busy: AtomicBool::new(false) }
    }
}

/// A session that answers.
#[derive(Debug)]
pub struct Answering<'a> {
    answerer: &'a Answerer,
    client: IpAddr,
    local: IpAddr,
    wire: Option<(Wire<'a>, Seat<'a>)>,
}

/// The right to use the socket; released on drop.
#[derive(Debug)]
struct Seat<'a>(&'a AtomicBool);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<'a> Answering<'a> {
    /// Creates a session with the addresses of its connection.
    pub fn new(answerer: &'a Answerer, client: IpAddr, local: IpAddr) -> Answering<'a> {
        let (client, local) = (client.to_canonical(), local.to_canonical());
        Answering { answerer, client, local, wire: None }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// The reason for a refusal, as text.
    pub fn answer(&mut self, ask: Ask) -> Result<Answer, String> {
        match ask {
            Ask::Open(open) => self.open(open),
            Ask::Listen(batch) => {
                batch.validate()?;
                self.wire()?.listen(batch)?;
                Ok(Answer::Listening)
            }
            Ask::Collect => Ok(Answer::Collected(self.wire()?.collect()?)),
            Ask::Send(mut batch) => {
                // The client may ask for less, not for more.
                batch.rate = batch.rate.min(RATE);
                batch.validate()?;
                let wire = self.wire()?;
                let mut sent = wire.send(&batch)?;
                // Routers answer within a round trip, like the peer.
                std::thread::sleep(ICMP_WAIT);
                sent.errors = wire.errors(&batch)?;
                Ok(Answer::Sent(sent))
            }
        }
    }

    fn wire(&mut self) -> Result<&mut Wire<'a>, String> {
        self.wire.as_mut().map(|(wire, _)| wire).ok_or_else(|| "no probe is open".to_owned())
    }

    fn open(&mut self, open: Open) -> Result<Answer, String> {
        if open.version != VERSION {
            return Err(format!(
                "the client's probe has version {}, this server has version {VERSION}: use the \
                 same overlane",
                open.version
            ));
        }
        open.validate()?;
        let sockets = self.answerer.sockets.as_ref();
        let sockets = sockets.map_err(|why| format!("the server has no packet socket: {why}"))?;
        self.wire = None;
        // Two probes would read each other's packets. The session of a client that has just left
        // may still have the sockets.
        let begun = Instant::now();
        while self.answerer.busy.swap(true, Ordering::AcqRel) {
            if begun.elapsed() > SEAT_WAIT {
                return Err("another client's probe is running".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let seat = Seat(&self.answerer.busy);
        let place = LocalPath::find(self.local, self.client, None)?;
        let opened = Opened {
            overlane: env!("CARGO_PKG_VERSION").to_owned(),
            end: place.facts(),
            addresses: (self.local, self.client),
        };
        let peers_other = open.other;
        // The server has given up the right to make devices.
        let no_tunnels =
            Err("the server makes no tunnel devices: run overlane probe there".to_owned());
        let wire = Wire::open(sockets, place, open, peers_other, no_tunnels)?;
        self.wire = Some((wire, seat));
        Ok(Answer::Opened(Box::new(opened)))
    }
}
