//! A load whose server endpoint is on another machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Remote;
use super::conversation::out_of_turn;
use super::message::{LoadAsked, Reply, Request};
use load::{Away, Counted, EngineError, Load, Phase, Server, ServerReport};

/// Interval at which the control connection is checked during a load.
const LOOK: Duration = Duration::from_millis(100);

impl Away for Remote {
    fn start(&self, load: &Load) -> Result<(Box<dyn Server + '_>, SocketAddr, u64), EngineError> {
        if let Some(stall) = load.server_stall {
            return Err(EngineError::Invalid {
                argument: "server_stall",
                allowed: "a server in this process".to_owned(),
                got: format!("{stall:?}"),
            });
        }
        self.reconnect()?;
        let asked = Request::Start(LoadAsked::of(load));
        let mut reply = self.ask(&asked)?;
        // The server waits with its answer, so this is no busy loop.
        while reply == Reply::Busy {
            tracing::info!(server = %self.address(), "waiting for other clients' loads");
            reply = self.ask(&asked)?;
        }
        match reply {
            Reply::Started { port, token } if port != 0 => {
                let mut target = self.address();
                target.set_port(port);
                let served = Served {
                    remote: self,
                    flows: load.all_flows() as usize,
                    looked: Instant::now(),
                    finished: false,
                };
                Ok((Box::new(served), target, token))
            }
            _ => Err(self.refused(out_of_turn())),
        }
    }
}

/// Proxy of the server's endpoint of a load.
#[derive(Debug)]
struct Served<'a> {
    remote: &'a Remote,
    flows: usize,
    looked: Instant,
    finished: bool,
}

impl Server for Served<'_> {
    fn waits_for(&mut self) -> Result<Option<u32>, EngineError> {
        match self.remote.ask(&Request::WaitsFor)? {
            Reply::WaitsFor(flow) => Ok(flow),
            _ => Err(self.remote.refused(out_of_turn())),
        }
    }

    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.remote.done(&Request::TurnTo(phase))
    }

    fn counts(&mut self) -> Result<Counted, EngineError> {
        match self.remote.ask(&Request::Count)? {
            // Counters are indexed by flow, so there must be one entry per flow.
            Reply::Counted(counted) if counted.flows.len() == self.flows => Ok(counted.counted()),
            _ => Err(self.remote.refused(out_of_turn())),
        }
    }

    fn failure(&mut self) -> Option<EngineError> {
        // Check without a message: during the measured interval only the load's traffic is on the
        // path.
        if self.looked.elapsed() < LOOK {
            return None;
        }
        self.looked = Instant::now();
        let server = self.remote.address();
        let mut slot = self.remote.lock();
        let reason = match slot.as_ref() {
            Some(channel) => channel.is_gone()?,
            None => "the control connection is closed".to_owned(),
        };
        *slot = None;
        Some(EngineError::Gone { server, reason })
    }

    fn finish(mut self: Box<Self>) -> Result<BTreeMap<u32, ServerReport>, EngineError> {
        self.finished = true;
        match self.remote.ask(&Request::Finish)? {
            Reply::Finished(reports) => Ok(reports),
            _ => Err(self.remote.refused(out_of_turn())),
        }
    }

    fn round_trip(&self) -> Duration {
        self.remote.round_trip()
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // Ignore errors: a server that is gone or has ended the load cannot reply, and the
            // load's own error is already known.
            let _ = self.remote.ask(&Request::Finish);
        }
    }
}
