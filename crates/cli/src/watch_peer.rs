//! `watch --serve` and `watch --peer`: the far half of flows, told and asked for.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use channel::{ServerError, Tell};
use observe::peer::{PORT, Peer, PeerServer, message::Asked};
use observe::{Filter, Watch};

use crate::confinement;
use crate::exit::usage;
use crate::output::complain;
use crate::remote::{Target, tell, token};

/// How often flows are compared: several times in an interval, and no less than each second.
const COMPARED: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(1);

/// The thread that tells of flows. Dropping it ends it.
pub struct Serving {
    local: SocketAddr,
    is_guarded: bool,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Listens at an address; nobody is answered before [`begin`].
///
/// # Errors
/// Usage: no address, a token file that others can read, no token where others can connect; an
/// address or port that cannot be had.
pub fn listen(address: &str, token_file: Option<&Path>) -> anyhow::Result<PeerServer> {
    let target = Target::parse_with("--serve", address, PORT)?;
    let ip: IpAddr = target.host.parse().map_err(|_| {
        usage("--serve", format!("{:?} is not an IP address of this machine", target.host))
    })?;
    let address = SocketAddr::new(ip, target.port);
    let (token, stop) = (token(token_file)?, Arc::new(AtomicBool::new(false)));
    PeerServer::bind(address, token, stop).map_err(|error| match error {
        ServerError::TokenNeeded(_) => usage("--serve", error),
        error @ ServerError::System(_) => error.into(),
    })
}

/// Begins to count flows and to answer.
///
/// # Errors
/// A kernel that does not let this process; no thread.
pub fn begin(server: PeerServer, watch: &mut Watch) -> anyhow::Result<Serving> {
    let flows = watch.count_flows()?;
    let (local, is_guarded, stop) = (server.local(), server.is_guarded(), server.stop());
    let thread = std::thread::Builder::new().name("serve".to_owned());
    let thread = thread.spawn(move || {
        let tell: Arc<Tell> = Arc::new(tell);
        // Watching goes on, for whoever else it is for.
        if let Err(error) = server.run(flows, &tell) {
            complain(&format!("--serve: {error}"));
        }
    });
    let thread = thread.context("start the thread that answers")?;
    Ok(Serving { local, is_guarded, stop, thread: Some(thread) })
}

impl Serving {
    /// Where, and for whom, in words.
    pub fn place(&self) -> String {
        let whom = if self.is_guarded { "token needed" } else { "this machine only, no token" };
        let confined = confinement::in_force();
        format!("flows at {}, {whom}; confined: {confined}", self.local)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Another host that is to be asked.
pub struct Wanted {
    address: SocketAddr,
    token: Option<channel::Token>,
    asked: Asked,
    period: Duration,
}

/// Checks what is to be asked, and of whom.
///
/// # Errors
/// Usage: no flows named; an expression, which the other end is not asked for; no address.
pub fn wanted(
    address: &str,
    token_file: Option<&Path>,
    filter: &Filter,
    interval: Duration,
) -> anyhow::Result<Wanted> {
    if filter.expression.is_some() {
        // It would count other packets here than there.
        let problem =
            "the other host counts by flow: name them by --flow or --vni, without --filter";
        return Err(usage("--peer", problem));
    }
    let asked = Asked::of(filter);
    let asked =
        asked.ok_or_else(|| usage("--peer", "of which flows? Name them by --flow or --vni"))?;
    let address = Target::parse_with("--peer", address, PORT)?.resolve("--peer")?;
    let token = token(token_file)?;
    let period = (interval / 4).clamp(*COMPARED.start(), *COMPARED.end());
    Ok(Wanted { address, token, asked, period })
}

impl Wanted {
    /// Begins to count flows here and to ask for them there.
    ///
    /// # Errors
    /// A kernel that does not let this process; no thread.
    pub fn begin(self, watch: &mut Watch) -> anyhow::Result<Peer> {
        let flows = watch.count_flows()?;
        let peer = Peer::start(self.address, self.token, self.asked, flows, self.period);
        peer.map_err(|error| anyhow::anyhow!("--peer: {error}"))
    }
}
