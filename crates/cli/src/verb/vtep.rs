//! `overlane vtep`: runs a VXLAN tunnel endpoint in user space.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use daemon::confinement::forwarding::{self, Sockets};
use daemon::confinement::in_force;
use daemon::confinement::{self, Rights};
use daemon::endpoint;
use daemon::metrics::{self, ListenAddress};
use daemon::notify::notify;
use daemon::serving::Serving;
use daemon::signals::{Signals, on_signals, take, wait_beside};
use datapath::Error;
use datapath::tapbridge::BridgePort;
use datapath::vhost_user::GuestWatcher;
use datapath::vtep::{Config, ConfigError, Endpoint, NetworkConfig, Running};
use nix::errno::Errno;
use signal_hook::consts::SIGHUP;
use sys::keeper::Keeper;
use sys::netns::NetNs;

use crate::bridge_end::BridgeEnd;
use crate::exit::{Exit, usage};
use crate::named_netns::netns;
use crate::output::print;
use crate::tap_device::{TapDevice, parse_address};
use crate::vtep_args::Vtep;
use datapath::vtep::status::Status;

/// Runs a VXLAN tunnel endpoint until a signal ends it.
///
/// # Errors
/// Wrong usage; devices or sockets that cannot be created, with the kernel's error.
pub fn run(arguments: &Vtep) -> anyhow::Result<Exit> {
    let config = match &arguments.config {
        Some(path) => parse(path, std::fs::read(path).map_err(|e| unreadable(path, e))?)?,
        None => by_arguments(arguments)?,
    };
    let source = if arguments.config.is_some() { "--config" } else { "vtep" };
    let mut places = Vec::new();
    for network in &config.networks {
        let key = |name| format!("{name} of VNI {}", network.vni);
        let namespace = netns(&key("netns"), network.netns.as_deref())?;
        let addresses = network
            .address
            .iter()
            .map(|text| parse_address(text).map_err(|e| usage(&key("address"), e)))
            .collect::<anyhow::Result<_>>()?;
        places.push((
            namespace,
            match network.guest() {
                Some(socket) => BridgeEnd::Guest(socket.to_owned()),
                None => BridgeEnd::Tap(TapDevice { device: network.tap.clone(), addresses }),
            },
        ));
    }

    let place = |text: &String| text.parse().map_err(|e: String| usage("metrics", e));
    let place: Option<ListenAddress> = config.metrics.as_ref().map(place).transpose()?;
    let socket = match &place {
        Some(ListenAddress::Unix(path)) => Some(path.as_path()),
        _ => None,
    };
    // Start the keeper first, so that it inherits no descriptor opened below.
    let keeper = match (&arguments.config, socket) {
        // Nothing to reload and no socket file to remove.
        (None, None) => None,
        (file, socket) => Some(Keeper::start(file.as_deref(), socket)?),
    };
    // Check both before creating anything.
    let claim = endpoint::claim(&config)?;
    let metrics = place.as_ref().map(metrics::listen).transpose()?;
    // From here on, a signal stops the endpoint cleanly instead of killing the process.
    let (signals, reload) = (Signals::new()?, on_signals(&[SIGHUP])?);
    let endpoint = Endpoint::open(&config, &NetNs::current()?).map_err(|e| refused(source, e))?;
    let mut ports: Vec<BridgePort> = Vec::new();
    for (index, (namespace, asked)) in places.iter().enumerate() {
        let mtu = Some(endpoint.mtu(index));
        ports.push(asked.open(config.queues, Endpoint::OFFLOAD, namespace, mtu)?);
    }
    let mut line = format!("ready: {} port {}", config.local, config.port);
    for (index, (network, port)) in config.networks.iter().zip(&ports).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(
            line,
            "; VNI {} on {}, MTU {}, offload: {}",
            network.vni,
            network.tap,
            endpoint.mtu(index),
            port.offload()
        );
    }
    let way = endpoint.way();
    let _ = write!(line, "; hand-over {way}");
    let ready = endpoint.attach(ports).map_err(|e| refused(source, e))?;
    // The keeper removes the socket file at exit, which this process can no longer do.
    if let Some(keeper) = keeper.as_ref().filter(|_| socket.is_some()) {
        keeper.remove_at_end()?;
    }
    // From here on, open descriptors suffice. Threads inherit the reduced rights, so drop them
    // first.
    confinement::prepare()?;
    let rights = Rights::none()?;
    let running = ready.start()?;
    let (datagrams, probe) = running.descriptors();
    let guests = running.guests();
    let sockets =
        Sockets { datagrams: Some(datagrams), probe: Some(probe), guests: !guests.is_empty() };
    let ended = running.ended().try_clone_to_owned().context("duplicate a descriptor")?;
    let running = Arc::new(Mutex::new(running));
    let status = {
        let (running, config) = (running.clone(), config.clone());
        move || {
            let running = lock(&running);
            Status::of(&config, running.way(), &running.report(), in_force())
        }
    };
    let mut doors = vec![endpoint::door(&claim, status.clone())?];
    doors.extend(metrics.map(|metrics| {
        let status = status.clone();
        metrics::door(metrics, move || status().prometheus())
    }));
    let serving = Serving::start(doors)?;
    forwarding::confine(&rights, &sockets)?;
    let _ = write!(line, "; confined: {}", confinement::in_force());
    print(&line)?;
    notify("READY=1")?;
    let asked = Asks { signals, reload, ended, guests };
    let file = arguments.config.as_deref().zip(keeper.as_ref());
    let outcome = serve(&running, &asked, &status, file);
    notify("STOPPING=1")?;
    // Stop the status threads first: their closures share `running`.
    drop((serving, status));
    let running =
        Arc::into_inner(running).context("the endpoint is still in use by a status request")?;
    let running = running.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (report, ended) = running.stop();
    print(&Status::of(&config, way, &report, in_force()).describe())?;
    if let Some(keeper) = keeper {
        keeper.end();
    }
    outcome?;
    ended?;
    Ok(Exit::Done)
}

/// Event sources of a running endpoint. Status requests have their own thread.
struct Asks {
    signals: Signals,
    reload: UnixStream,
    /// Becomes readable when a forwarding thread has ended.
    ended: OwnedFd,
    guests: Vec<GuestWatcher>,
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles events until a signal ends the endpoint or a forwarding thread stops.
fn serve(
    running: &Mutex<Running>,
    asks: &Asks,
    status: &impl Fn() -> Status,
    file: Option<(&Path, &Keeper)>,
) -> anyhow::Result<()> {
    let Asks { signals, reload, ended, guests } = asks;
    let events: Vec<_> = guests.iter().map(GuestWatcher::event).collect();
    loop {
        let fds = [ended.as_fd(), signals.end.as_fd(), signals.show.as_fd(), reload.as_fd()];
        let [ended, end, show, again] = wait_beside(fds, &events)?;
        for line in guests.iter().flat_map(GuestWatcher::news) {
            print(&line)?;
        }
        // A forwarding thread that stops reports its error in `Running::stop`.
        if ended || end {
            return Ok(());
        }
        if show {
            take(&signals.show);
            print(&status().describe())?;
        }
        if again {
            take(reload);
            print(&match read_again(running, file) {
                Ok(()) => "reloaded".to_owned(),
                Err(error) => {
                    format!("not reloaded, the old configuration stays in force: {error:#}")
                }
            })?;
        }
    }
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> anyhow::Error {
    usage("--config", format!("cannot read {}: {error}", path.display()))
}

fn parse(path: &Path, text: Vec<u8>) -> anyhow::Result<Config> {
    let shown = path.display();
    let text = String::from_utf8(text).map_err(|error| unreadable(path, error))?;
    Config::parse(&text).map_err(|error| usage("--config", format!("{shown}: {error}")))
}

/// Reloads the configuration file and applies the values that may change.
fn read_again(running: &Mutex<Running>, file: Option<(&Path, &Keeper)>) -> anyhow::Result<()> {
    let (path, keeper) =
        file.context("no file to reload: the endpoint was configured by arguments")?;
    let config = parse(path, keeper.read().map_err(|e| unreadable(path, e))?)?;
    lock(running).reload(&config)?;
    Ok(())
}

/// Builds the configuration of a single network from the arguments.
fn by_arguments(arguments: &Vtep) -> anyhow::Result<Config> {
    let missing = |argument| usage(argument, "is missing");
    let local = arguments.local.ok_or_else(|| missing("--local"))?;
    let vni = arguments.vni.ok_or_else(|| missing("--vni"))?;
    let tap = arguments.tap.as_deref().ok_or_else(|| missing("--tap"))?;
    let asked = BridgeEnd::from_str(tap).map_err(|error| usage("--tap", error))?;
    let (device, addresses) = match &asked {
        BridgeEnd::Tap(asked) => (asked.device.as_str(), &asked.addresses[..]),
        // A guest configures its own addresses.
        BridgeEnd::Guest(_) => (tap, &[][..]),
    };
    let mut network = NetworkConfig::new(vni, device);
    network.address = addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    network.netns = arguments.netns.clone();
    network.mtu = arguments.mtu;
    network.remotes = arguments.remote.clone();
    network.replicate = (!arguments.replicate.is_empty()).then(|| arguments.replicate.clone());
    network.group = arguments.group;
    network.any_remote = arguments.any_remote;
    network.learning = !arguments.no_learning;
    network.ageing = arguments.ageing.unwrap_or(network.ageing);
    network.max_learned = arguments.max_learned.unwrap_or(network.max_learned);
    network.max_learned_per_remote = arguments.max_learned_per_remote;
    network.max_moves = arguments.max_moves.unwrap_or(network.max_moves);
    for entry in &arguments.fdb {
        let wanted = || usage("--fdb", format!("{entry:?}: expected MAC=REMOTE"));
        let (mac, remote) = entry.split_once('=').ok_or_else(wanted)?;
        network.fdb.insert(mac.to_owned(), remote.parse().map_err(|_| wanted())?);
    }
    network.neigh_suppress = arguments.neigh_suppress;
    network.max_neighbours = arguments.max_neighbours.unwrap_or(network.max_neighbours);
    for entry in &arguments.neighbour {
        let wanted = || usage("--neighbour", format!("{entry:?}: expected IP=MAC"));
        let (ip, mac) = entry.split_once('=').ok_or_else(wanted)?;
        network.neighbours.insert(ip.to_owned(), mac.to_owned());
    }
    let config = Config {
        port: arguments.port,
        ttl: arguments.ttl,
        df: !arguments.no_df,
        checksum: !arguments.no_checksum,
        zero_checksum6: arguments.zero_checksum6,
        hand_over: arguments.hand_over,
        busy_poll: arguments.busy_poll,
        metrics: arguments.metrics.clone(),
        queues: arguments.queues,
        networks: vec![network],
        ..Config::new(local)
    };
    let named = |error: ConfigError| usage("vtep", error);
    config.validate().map_err(named)?;
    Ok(config)
}

/// Converts an error. Configuration errors are usage errors.
fn refused(source: &str, error: Error) -> anyhow::Error {
    match error {
        Error::Config(error) => usage(source, error),
        // The usual cause is a kernel VXLAN device, which listens on the same port.
        Error::Sys(error) if error.errno == Errno::EADDRINUSE => anyhow::anyhow!(
            "{error}; another endpoint uses the port, perhaps a kernel VXLAN device: ip -d link show type vxlan"
        ),
        error => error.into(),
    }
}
