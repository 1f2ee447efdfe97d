//! An end of a session: with packet sockets, or with UDP sockets if it may not have those.

use std::net::IpAddr;

use crate::datagrams::Datagrams;
use crate::message::{Batch, Collected, EndFacts, IcmpError, Open, Sent};
use crate::rate_limit::RateLimit;
use crate::wire::{LocalPath, Sockets, Wire};

/// Sockets that a process may use.
#[derive(Debug)]
pub struct Access {
    packets: Result<Sockets, String>,
    /// Limit on the bytes that are sent.
    rate_limit: RateLimit,
    gives_way: bool,
}

impl Access {
    /// Opens packet sockets in the namespace of the calling thread. Without the right to do so,
    /// fewer classes are tested.
    pub fn open() -> Access {
        let packets = Sockets::open().map_err(|error| error.to_string());
        Access { packets, rate_limit: RateLimit::default(), gives_way: false }
    }

    /// As an ordinary user has it: UDP sockets only, for this reason.
    pub fn datagrams(reason: &str) -> Access {
        let packets = Err(reason.to_owned());
        Access { packets, rate_limit: RateLimit::default(), gives_way: false }
    }

    /// Works at low priority, so that traffic beside the probe keeps its CPU time. For a path that
    /// is in use.
    #[must_use]
    pub fn giving_way(self) -> Access {
        Access { gives_way: true, ..self }
    }
}

/// An end of a session.
#[derive(Debug)]
pub(crate) struct End<'a> {
    sockets: Kind<'a>,
    gives_way: bool,
}

#[derive(Debug)]
enum Kind<'a> {
    /// All classes.
    Packets(Wire<'a>),
    /// UDP only.
    Datagrams(Datagrams<'a>),
}

impl<'a> End<'a> {
    /// Opens an end. `may_make_tunnels`: whether this process may make tunnel devices; otherwise
    /// the reason.
    ///
    /// # Errors
    /// If no socket can be opened on the path, as text.
    pub(crate) fn open(
        access: &'a Access,
        place: LocalPath,
        open: Open,
        peers_other: Option<IpAddr>,
        may_make_tunnels: Result<(), String>,
    ) -> Result<End<'a>, String> {
        let sockets = match End::limits(access, &place) {
            None => {
                let sockets = access.packets.as_ref().map_err(Clone::clone)?;
                let rate_limit = &access.rate_limit;
                Wire::open(sockets, rate_limit, place, open, peers_other, may_make_tunnels)
                    .map(Kind::Packets)?
            }
            Some(_) => Datagrams::open(&access.rate_limit, place, open).map(Kind::Datagrams)?,
        };
        Ok(End { sockets, gives_way: access.gives_way })
    }

    /// Returns the facts of a path for the other end.
    pub(crate) fn facts(access: &Access, place: &LocalPath) -> EndFacts {
        EndFacts { limited: End::limits(access, place), ..place.facts() }
    }

    /// Returns why only UDP can be tested on a path; `None`: everything can.
    fn limits(access: &Access, place: &LocalPath) -> Option<String> {
        match &access.packets {
            Err(reason) => Some(format!("no packet sockets ({reason})")),
            Ok(_) if place.interface.mac.is_none() => {
                Some(format!("{} has no Ethernet header", place.interface.name))
            }
            Ok(_) => None,
        }
    }

    pub(crate) fn own_port(&self) -> u16 {
        match &self.sockets {
            Kind::Packets(end) => end.own_port(),
            Kind::Datagrams(end) => end.own_port(),
        }
    }

    pub(crate) fn send(&mut self, batch: &Batch) -> Result<Sent, String> {
        let End { sockets, gives_way } = self;
        let mut send = || match sockets {
            Kind::Packets(end) => end.send(batch),
            Kind::Datagrams(end) => end.send(batch),
        };
        if *gives_way { giving_way(send) } else { send() }
    }

    /// Returns ICMP errors about a batch that was sent, received so far.
    ///
    /// # Errors
    /// If the socket fails, as text.
    pub(crate) fn errors(&mut self, batch: &Batch) -> Result<Vec<IcmpError>, String> {
        match &mut self.sockets {
            Kind::Packets(end) => end.errors(batch),
            Kind::Datagrams(end) => end.errors(),
        }
    }

    /// Prepares to receive a batch.
    ///
    /// # Errors
    /// If the socket fails, as text.
    pub(crate) fn listen(&mut self, batch: Batch) -> Result<(), String> {
        match &mut self.sockets {
            Kind::Packets(end) => end.listen(batch),
            Kind::Datagrams(end) => {
                end.listen(batch);
                Ok(())
            }
        }
    }

    /// Returns the packets of the batch that have been received so far.
    ///
    /// # Errors
    /// If the socket fails, or nothing is expected, as text.
    pub(crate) fn collect(&mut self) -> Result<Collected, String> {
        let End { sockets, gives_way } = self;
        let mut collect = || match sockets {
            Kind::Packets(end) => end.collect(),
            Kind::Datagrams(end) => end.collect(),
        };
        if *gives_way { giving_way(collect) } else { collect() }
    }
}

/// Does work in a thread of low priority, which preempts no other thread and takes little CPU time
/// from traffic beside the probe, even on busy CPUs. The calling thread keeps its priority, because
/// an unprivileged thread could not raise it again.
fn giving_way<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    let work = || {
        // If a filter refuses it, the probe only takes more CPU time from other programs.
        let _ = sys::priority::lower_priority();
        work()
    };
    let done = std::thread::scope(|threads| {
        let thread = std::thread::Builder::new().name("probe".to_owned());
        thread.spawn_scoped(threads, work).map(|thread| thread.join())
    });
    match done {
        Ok(Ok(done)) => done,
        // Without the thread, the caller itself would panic.
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => Err(format!("start a thread: {error}")),
    }
}
