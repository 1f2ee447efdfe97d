//! The end that answers: receives and sends at the request of an authenticated peer.
//!
//! Only the addresses of the session's connection are probed. The socket is opened once at start,
//! so that the process can give up the right to open more.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::end::{Access, End};
use crate::message::{Answer, Ask, Open, Opened, RATE, VERSION, other_address, validate_features};
use crate::wire::LocalPath;

/// Time to wait for ICMP errors about packets that were sent.
const ICMP_WAIT: Duration = Duration::from_millis(20);

/// Time to wait for another session to end.
const SEAT_WAIT: Duration = Duration::from_secs(3);

/// Shortest time between two starts of a session: each rebinds the sockets and reads the routes.
const START_PAUSE: Duration = Duration::from_millis(200);

/// Most times that a session switches settings: more than a search needs.
const MOST_SWITCHES: u32 = 500;

/// Settings of this machine that a client's search may switch.
pub trait ServerSettings: std::fmt::Debug + Send + Sync {
    /// Checks whether the administrator allows it for a device.
    ///
    /// # Errors
    /// Why not, as text.
    fn may_switch(&self, device: &str) -> Result<(), String>;

    /// Switches features of a device off.
    ///
    /// # Errors
    /// If one cannot be changed, as text. Then none is.
    fn switch_off(&self, device: &str, features: &[String]) -> Result<(), String>;

    /// Switches them on again. Does nothing if none is off.
    ///
    /// # Errors
    /// If one cannot be restored, or was restored earlier than asked, as text.
    fn restore(&self) -> Result<(), String>;
}

/// The sockets for probes, shared by the sessions of a server. One session uses them at a time.
#[derive(Debug)]
pub struct Answerer {
    access: Access,
    busy: AtomicBool,
    /// Most bytes per second.
    rate: u32,
    settings: Option<Arc<dyn ServerSettings>>,
}

impl Answerer {
    /// Opens the sockets in the namespace of the calling thread. Without the right to do so, fewer
    /// classes are tested.
    pub fn open() -> Answerer {
        Answerer::with(Access::open().giving_way())
    }

    /// As [`Answerer::open`], with these sockets.
    pub fn with(access: Access) -> Answerer {
        Answerer { access, busy: AtomicBool::new(false), rate: RATE, settings: None }
    }

    /// Sends at most this number of bytes per second, instead of [`RATE`].
    #[must_use]
    pub fn limited_to(self, rate: u32) -> Answerer {
        Answerer { rate, ..self }
    }

    /// Allows clients to switch these settings for a search.
    #[must_use]
    pub fn allowing(self, settings: Arc<dyn ServerSettings>) -> Answerer {
        Answerer { settings: Some(settings), ..self }
    }

    /// Returns the settings that a client may switch on a device.
    fn settings(&self, device: &str) -> Result<&dyn ServerSettings, String> {
        let settings = self.settings.as_deref();
        let settings = settings.ok_or("its administrator has not allowed to switch settings")?;
        settings.may_switch(device)?;
        Ok(settings)
    }
}

/// A session that answers.
#[derive(Debug)]
pub struct Answering<'a> {
    answerer: &'a Answerer,
    client: IpAddr,
    local: IpAddr,
    end: Option<(End<'a>, Seat<'a>)>,
    /// Device of the path.
    device: String,
    /// Settings that are off now.
    off: Option<&'a dyn ServerSettings>,
    /// Times that settings were switched off.
    switches: u32,
    /// Last start.
    started: Option<Instant>,
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
        Answering {
            answerer,
            client,
            local,
            end: None,
            device: String::new(),
            off: None,
            switches: 0,
            started: None,
        }
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
                self.end()?.listen(batch)?;
                Ok(Answer::Listening)
            }
            Ask::Collect => Ok(Answer::Collected(self.end()?.collect()?)),
            Ask::Send(mut batch) => {
                // The client may ask for less, not for more.
                batch.rate = batch.rate.min(self.answerer.rate);
                batch.validate()?;
                let end = self.end()?;
                let mut sent = end.send(&batch)?;
                // Routers answer within a round trip, like the peer.
                std::thread::sleep(ICMP_WAIT);
                sent.errors = end.errors(&batch)?;
                Ok(Answer::Sent(sent))
            }
            Ask::SwitchOff(features) => self.switch_off(&features),
            Ask::Restore => self.restore().map(|()| Answer::Restored),
        }
    }

    /// Switches features of the path's device off. Another device cannot be named.
    fn switch_off(&mut self, features: &[String]) -> Result<Answer, String> {
        self.end()?;
        validate_features(features)?;
        let settings = self.answerer.settings(&self.device)?;
        self.restore()?;
        // A client must not keep the device in changing states: each switch may interrupt its link.
        if self.switches == MOST_SWITCHES {
            return Err(format!("settings were switched {MOST_SWITCHES} times in this session"));
        }
        self.switches += 1;
        settings.switch_off(&self.device, features)?;
        self.off = Some(settings);
        Ok(Answer::SwitchedOff)
    }

    fn restore(&mut self) -> Result<(), String> {
        self.off.take().map_or(Ok(()), ServerSettings::restore)
    }

    /// Whether settings are off now.
    pub fn is_switched(&self) -> bool {
        self.off.is_some()
    }

    /// Whether the session has the sockets, so that no other one can probe.
    pub fn is_open(&self) -> bool {
        self.end.is_some()
    }

    fn end(&mut self) -> Result<&mut End<'a>, String> {
        self.end.as_mut().map(|(end, _)| end).ok_or_else(|| "no probe is open".to_owned())
    }

    fn open(&mut self, open: Open) -> Result<Answer, String> {
        // Versions may build and number packets differently: their comparison would report false
        // damage.
        if open.version != VERSION {
            return Err(format!(
                "the client's probe has version {}, this server has version {VERSION}: use the \
                 same overlane",
                open.version
            ));
        }
        open.validate()?;
        if let Some(other) = open.other {
            other_address(other, self.client)?;
        }
        self.restore()?;
        self.end = None;
        // A client that opens one session after the other must not exceed the rate of a single one.
        if let Some(started) = self.started {
            std::thread::sleep(START_PAUSE.saturating_sub(started.elapsed()));
        }
        self.started = Some(Instant::now());
        // Two probes would read each other's packets. The session of a client that has just left
        // may still have the sockets.
        let begun = Instant::now();
        while self.answerer.busy.swap(true, Ordering::AcqRel) {
            // The seat is kept by a probe that may last minutes; the client tries again later.
            if begun.elapsed() > SEAT_WAIT {
                return Err("another client's probe is running".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let seat = Seat(&self.answerer.busy);
        let place = LocalPath::find(self.local, self.client, None)?;
        let opened = Opened {
            overlane: env!("CARGO_PKG_VERSION").to_owned(),
            end: End::facts(&self.answerer.access, &place),
            addresses: (self.local, self.client),
            locked: self.answerer.settings(&place.interface.name).err(),
        };
        self.device.clone_from(&place.interface.name);
        let peers_other = open.other;
        // The server has given up the right to make devices.
        let no_tunnels =
            Err("the server makes no tunnel devices: run overlane probe there".to_owned());
        let access = &self.answerer.access;
        let end = End::open(access, place, open, peers_other, no_tunnels)?;
        self.end = Some((end, seat));
        Ok(Answer::Opened(Box::new(opened)))
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        // The connection has ended. The journal keeps the entries of settings that stay off.
        let _ = self.restore();
    }
}
