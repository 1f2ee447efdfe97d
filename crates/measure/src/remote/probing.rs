//! The client's side of a probe: its requests in a session with a server.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;

use channel::{Channel, RemoteError, Service, Token, open};
use probe::exchange::Peer;
use probe::message::{Answer, Ask};

use super::conversation::{converse, out_of_turn};
use super::message::{Reply, Request};

/// A server as the peer of a probe.
#[derive(Debug)]
pub struct ProbePeer<'a> {
    channel: Channel,
    stop: &'a AtomicBool,
}

impl<'a> ProbePeer<'a> {
    /// Connects to a server. Returns the own address of the connection, too.
    pub fn connect(
        server: SocketAddr,
        token: Option<&Token>,
        stop: &'a AtomicBool,
    ) -> Result<(ProbePeer<'a>, IpAddr), RemoteError> {
        let channel = open(server, Service::Measure, token, stop)?;
        let here = |error: std::io::Error| RemoteError::Here { server, reason: error.to_string() };
        let own = channel.local().map_err(here)?.ip().to_canonical();
        Ok((ProbePeer { channel, stop }, own))
    }
}

impl Peer for ProbePeer<'_> {
    fn ask(&mut self, ask: &Ask) -> Result<Answer, String> {
        let request = Request::Probe(ask.clone());
        match converse(&mut self.channel, &request, self.stop) {
            Ok(Reply::Probe(answer)) => Ok(*answer),
            // Servers without this request name it when they refuse it.
            Ok(Reply::Refused(reason)) if reason.contains("unknown variant `probe`") => {
                Err("its version of overlane is older and has no probe: use the same version at \
                    both ends"
                    .to_owned())
            }
            Ok(Reply::Refused(reason)) => Err(reason),
            Ok(_) => Err(out_of_turn()),
            Err(error) => Err(error.to_string()),
        }
    }
}
