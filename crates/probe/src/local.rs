//! Both ends in one process: a probe between two namespaces of this machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use sys::netns::NetNs;

use crate::answering::{Answerer, Answering, ServerSettings};
use crate::end::Access;
use crate::exchange::{Peer, Trouble};
use crate::message::{Answer, Ask};
use crate::report::Report;
use crate::run::{Options, run_with};
use crate::switch::Switch;

/// A client and a server, each in its namespace.
#[derive(Debug)]
pub struct Between<'a> {
    /// Namespaces of client and server.
    pub namespaces: [&'a NetNs; 2],
    /// Own address of the client, and the address by which it reaches the server.
    pub client: (IpAddr, IpAddr),
    /// Own address of the server, and the address of the client there.
    pub server: (IpAddr, IpAddr),
    /// Sockets of client and server.
    pub access: [fn() -> Access; 2],
    /// Most bytes per second of the server. [`Options::rate`] is the client's.
    pub rate: u32,
    /// Settings of the server that a search may switch.
    pub settings: Option<Arc<dyn ServerSettings>>,
}

impl Between<'_> {
    /// Runs a probe from the client.
    pub fn run(
        &self,
        options: &Options,
        switch: Option<&mut (dyn Switch + Send)>,
        stop: &AtomicBool,
    ) -> Result<Report, Trouble> {
        let (asks, asked) = channel();
        let (sender, answers) = channel();
        let [client, server] = self.namespaces;
        let [of_client, of_server] = self.access;
        let (addresses, rate, settings) = (self.server, self.rate, self.settings.clone());
        std::thread::scope(|threads| {
            let answering = threads.spawn(move || {
                let entered = server.enter_for_good();
                let mut answerer = Answerer::with(of_server()).limited_to(rate);
                if let Some(settings) = settings {
                    answerer = answerer.allowing(settings);
                }
                answer(entered.map_err(|e| e.to_string()), &answerer, &asked, &sender, addresses);
            });
            let mut peer = Local { asks, answers };
            let report = client.run(|| {
                let switch = switch.map(|switch| switch as &mut dyn Switch);
                run_with(&of_client(), &mut peer, self.client, options, switch, stop, &|_| {})
            });
            drop(peer);
            // A panic there ends the session, and the client reports that.
            let _ = answering.join();
            report.map_err(|error| Trouble::Here(error.to_string()))?
        })
    }
}

/// A peer on another thread.
struct Local {
    asks: Sender<Ask>,
    answers: Receiver<Result<Answer, String>>,
}

impl Peer for Local {
    fn ask(&mut self, ask: &Ask) -> Result<Answer, String> {
        let gone = || "its thread has ended".to_owned();
        self.asks.send(ask.clone()).map_err(|_| gone())?;
        self.answers.recv().map_err(|_| gone())?
    }
}

fn answer(
    entered: Result<(), String>,
    answerer: &Answerer,
    asked: &Receiver<Ask>,
    sender: &Sender<Result<Answer, String>>,
    (server, client): (IpAddr, IpAddr),
) {
    let mut answering = Answering::new(answerer, client, server);
    while let Ok(ask) = asked.recv() {
        let answer = entered.clone().and_then(|()| answering.answer(ask));
        // The client has ended, and with it the need for answers.
        if sender.send(answer).is_err() {
            return;
        }
    }
}
