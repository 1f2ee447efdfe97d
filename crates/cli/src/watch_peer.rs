//! `watch --serve` and `watch --peer`: exchange flow counters between two hosts.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use channel::ServerError;
use daemon::confinement::serving;
use observe::peer::{Front, PORT, Peer, PeerServer, message::Asked};
use observe::{Filter, Watch};

use crate::exit::usage;
use crate::output::complain;
use crate::remote::{Target, line, token};

/// Time between two comparisons of flows: several per interval, and at least one per second.
const COMPARED: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(1);

/// The process that serves flow counters, and the thread that answers it. Dropping it ends both.
pub struct Serving {
    front: Arc<Front>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Listens at an address, in a process of its own without any rights. Requests get no answer before
/// [`begin`].
///
/// # Errors
/// A usage error for a wrong address, a token file that others can read, or a missing token on a
/// non-loopback address; an address or port that cannot be bound; a process that cannot be confined.
pub fn listen(address: &str, token_file: Option<&Path>) -> anyhow::Result<Front> {
    let target = Target::parse_with("--serve", address, PORT)?;
    let ip: IpAddr = target.host.parse().map_err(|_| {
        usage("--serve", format!("{:?} is not an IP address of this machine", target.host))
    })?;
    let address = SocketAddr::new(ip, target.port);
    let (token, stop) = (token(token_file)?, Arc::new(AtomicBool::new(false)));
    let server = PeerServer::bind(address, token, stop).map_err(|error| match error {
        ServerError::TokenNeeded(_) => usage("--serve", error),
        error @ ServerError::System(_) => error.into(),
    })?;
    Ok(server.separate(serving::give_up_for_front, line)?)
}

/// Starts to count flows and to answer requests.
///
/// # Errors
/// If the kernel refuses the programs, or no thread is left.
pub fn begin(front: Front, watch: &mut Watch) -> anyhow::Result<Serving> {
    let flows = watch.count_flows()?;
    let (front, is_stopped) = (Arc::new(front), Arc::new(AtomicBool::new(false)));
    let (theirs, stopped) = (front.clone(), is_stopped.clone());
    let thread = std::thread::Builder::new().name("serve".to_owned());
    let thread = thread.spawn(move || {
        let outcome = theirs.answer(&flows, complain);
        // Only report the error: the screen, metrics or recording may still be in use.
        if let Err(error) = outcome
            && !stopped.load(Ordering::Relaxed)
        {
            complain(&format!("--serve: the process that faces the network has ended: {error}"));
        }
    });
    let thread = thread.context("start the thread that answers")?;
    Ok(Serving { front, is_stopped, thread: Some(thread) })
}

impl Serving {
    /// Describes the address, the authentication and the confinement.
    pub fn place(&self) -> String {
        let guarded = self.front.is_guarded();
        let whom = if guarded { "token required" } else { "this machine only, no token" };
        let (local, confined) = (self.front.local(), self.front.confinement());
        format!("flows at {local}, {whom}; confined: {confined}")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.front.stop();
        if let Some(thread) = self.thread.take() {
            // Ignore a panic: it has already been printed.
            let _ = thread.join();
        }
    }
}

/// A connection to another host, before it starts.
pub struct Wanted {
    address: SocketAddr,
    token: Option<channel::Token>,
    asked: Asked,
    period: Duration,
}

/// Checks the arguments of `--peer`.
///
/// # Errors
/// A usage error for a missing --flow and --vni, for --filter, or for a wrong address.
pub fn wanted(
    address: &str,
    token_file: Option<&Path>,
    filter: &Filter,
    interval: Duration,
) -> anyhow::Result<Wanted> {
    if filter.expression.is_some() {
        // The expression would apply only here, so both hosts would count different packets.
        let problem =
            "the other host counts by flow: select packets with --flow or --vni, not --filter";
        return Err(usage("--peer", problem));
    }
    let asked = Asked::of(filter);
    let asked = asked.ok_or_else(|| usage("--peer", "select flows with --flow or --vni"))?;
    let address = Target::parse_with("--peer", address, PORT)?.resolve("--peer")?;
    let token = token(token_file)?;
    let period = (interval / 4).clamp(*COMPARED.start(), *COMPARED.end());
    Ok(Wanted { address, token, asked, period })
}

impl Wanted {
    /// Starts to count flows here and to request the counters of the other host.
    ///
    /// # Errors
    /// If the kernel refuses the programs, or no thread is left.
    pub fn begin(self, watch: &mut Watch) -> anyhow::Result<Peer> {
        let flows = watch.count_flows()?;
        let peer = Peer::start(self.address, self.token, self.asked, flows, self.period);
        peer.map_err(|error| anyhow::anyhow!("--peer: {error}"))
    }
}
