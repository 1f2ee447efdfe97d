//! `overlane vtep`: a VXLAN tunnel endpoint in user space.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::str::FromStr;

use anyhow::Context;
use datapath::Error;
use datapath::tapbridge::{Port, PortOptions};
use datapath::vtep::{Config, ConfigError, Endpoint, NetworkConfig, Running};
use nix::errno::Errno;
use signal_hook::consts::SIGHUP;
use sys::netns::NetNs;

use crate::confinement::confine_forwarding;
use crate::endpoint::{self, Status};
use crate::exit::{Exit, usage};
use crate::foreground::{Asked, Signals, netns, on_signals, parse_address, set_up, take, wait};
use crate::metrics::{Metrics, Place};
use crate::notify::notify;
use crate::output::print;
use crate::vtep_args::Vtep;

/// Is an endpoint until told to end.
pub fn run(arguments: &Vtep) -> anyhow::Result<Exit> {
    let config = match &arguments.config {
        Some(path) => read(path)?,
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
        places.push((namespace, Asked { device: network.tap.clone(), addresses }));
    }

    // Both are refused before anything is made.
    let listener = endpoint::claim(&config)?;
    let place = |text: &String| text.parse().map_err(|e: String| usage("metrics", e));
    let place: Option<Place> = config.metrics.as_ref().map(place).transpose()?;
    let metrics = place.as_ref().map(Metrics::listen).transpose()?;
    // From here on signals end the endpoint, not the process.
    let (signals, reload) = (Signals::new()?, on_signals(&[SIGHUP])?);
    let endpoint = Endpoint::open(&config, &NetNs::current()?).map_err(|e| refused(source, e))?;
    let mut ports: Vec<Port> = Vec::new();
    for (index, (namespace, asked)) in places.iter().enumerate() {
        let options = PortOptions {
            queues: config.queues,
            offload: Endpoint::OFFLOAD,
            ..PortOptions::named(&asked.device)
        };
        ports.push(set_up(asked, &options, namespace, Some(endpoint.mtu(index)))?);
    }
    let mut line = format!("ready: {} port {}", config.local, config.port);
    for (index, (network, port)) in config.networks.iter().zip(&ports).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(
            line,
            "; VNI {} on {}, MTU {}, uncut: {}",
            network.vni,
            network.tap,
            endpoint.mtu(index),
            port.offload()
        );
    }
    let way = endpoint.way();
    let _ = write!(line, "; hand-over {way}");
    let ready = endpoint.attach(ports).map_err(|e| refused(source, e))?;
    // The descriptors suffice from here on; threads started later have no more.
    sys::capability::drop_all()?;
    let mut running = ready.start()?;
    confine_forwarding()?;
    print(&line)?;
    notify("READY=1")?;
    let asked = Asks { signals, reload, listener, metrics };
    let outcome = serve(&mut running, &asked, &config, arguments.config.as_deref());
    notify("STOPPING=1")?;
    let (report, ended) = running.stop();
    print(&Status::of(&config, way, &report).describe())?;
    outcome?;
    ended?;
    Ok(Exit::Done)
}

/// What may ask something of an endpoint that runs.
struct Asks {
    signals: Signals,
    reload: UnixStream,
    /// `overlane vtep status`.
    listener: UnixListener,
    /// Prometheus.
    metrics: Option<Metrics>,
}

/// Until a signal to end, or the endpoint's own end.
fn serve(
    running: &mut Running,
    asks: &Asks,
    config: &Config,
    file: Option<&Path>,
) -> anyhow::Result<()> {
    let Asks { signals, reload, listener, metrics } = asks;
    loop {
        let fds = [
            running.ended(),
            signals.end.as_fd(),
            signals.show.as_fd(),
            reload.as_fd(),
            listener.as_fd(),
            // The same once more where nobody else listens.
            metrics.as_ref().map_or(listener.as_fd(), Metrics::as_fd),
        ];
        let [ended, end, show, again, asked, measured] = wait(fds)?;
        if ended || end {
            return Ok(());
        }
        let status = || Status::of(config, running.way(), &running.report());
        if show {
            take(&signals.show);
            print(&status().describe())?;
        }
        if asked {
            endpoint::answer(listener, status);
        }
        if let Some(metrics) = metrics.as_ref().filter(|_| measured) {
            metrics.answer(|| status().prometheus());
        }
        if again {
            take(reload);
            print(&match read_again(running, file) {
                Ok(()) => "reloaded".to_owned(),
                Err(error) => format!("not reloaded, all stays as it was: {error:#}"),
            })?;
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage("--config", format!("cannot read {shown}: {error}")))?;
    Config::parse(&text).map_err(|error| usage("--config", format!("{shown}: {error}")))
}

/// Reads the file again and takes over what may change.
fn read_again(running: &mut Running, path: Option<&Path>) -> anyhow::Result<()> {
    let path = path.context("there is no file: the endpoint was started by arguments")?;
    running.reload(&read(path)?)?;
    Ok(())
}

/// The one network that the arguments say.
fn by_arguments(arguments: &Vtep) -> anyhow::Result<Config> {
    let missing = |argument| usage(argument, "is missing");
    let local = arguments.local.ok_or_else(|| missing("--local"))?;
    let vni = arguments.vni.ok_or_else(|| missing("--vni"))?;
    let tap = arguments.tap.as_deref().ok_or_else(|| missing("--tap"))?;
    let asked = Asked::from_str(tap).map_err(|error| usage("--tap", error))?;
    let mut network = NetworkConfig::new(vni, asked.device);
    network.address = asked.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    network.netns = arguments.netns.clone();
    network.mtu = arguments.mtu;
    network.remotes = arguments.remote.clone();
    network.replicate = (!arguments.replicate.is_empty()).then(|| arguments.replicate.clone());
    network.group = arguments.group;
    network.any_remote = arguments.any_remote;
    network.learning = !arguments.no_learning;
    network.ageing = arguments.ageing.unwrap_or(network.ageing);
    network.max_learned = arguments.max_learned.unwrap_or(network.max_learned);
    network.max_moves = arguments.max_moves.unwrap_or(network.max_moves);
    for entry in &arguments.fdb {
        let wanted = || usage("--fdb", format!("{entry:?}: wanted MAC=REMOTE"));
        let (mac, remote) = entry.split_once('=').ok_or_else(wanted)?;
        network.fdb.insert(mac.to_owned(), remote.parse().map_err(|_| wanted())?);
    }
    network.neigh_suppress = arguments.neigh_suppress;
    network.max_neighbours = arguments.max_neighbours.unwrap_or(network.max_neighbours);
    for entry in &arguments.neighbour {
        let wanted = || usage("--neighbour", format!("{entry:?}: wanted IP=MAC"));
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

/// An error of the configuration is the user's.
fn refused(source: &str, error: Error) -> anyhow::Error {
    match error {
        Error::Config(error) => usage(source, error),
        Error::Sys(error) if error.errno == Errno::EADDRINUSE => anyhow::anyhow!(
            "{error}; another endpoint has the port, perhaps the kernel's: ip -d link show type vxlan"
        ),
        error => error.into(),
    }
}
