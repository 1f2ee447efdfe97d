//! `overlane vtep`: a VXLAN tunnel endpoint in user space.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context;
use datapath::Error;
use datapath::counters::Counters;
use datapath::tapbridge::{Port, PortOptions};
use datapath::vtep::{Config, ConfigError, Endpoint, NetworkConfig, Report, Running};
use nix::errno::Errno;
use signal_hook::consts::SIGHUP;
use sys::netns::NetNs;

use crate::exit::{Exit, usage};
use crate::foreground::{Asked, Signals, netns, on_signals, parse_address, set_up, take, wait};
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
    let _ = write!(line, "; hand-over {}", endpoint.way());
    let ready = endpoint.attach(ports).map_err(|e| refused(source, e))?;
    // The descriptors suffice from here on; threads started later have no more.
    sys::capability::drop_all()?;
    let mut running = ready.start()?;
    print(&line)?;
    notify("READY=1")?;
    let outcome = serve(&mut running, &signals, &reload, arguments.config.as_deref());
    notify("STOPPING=1")?;
    let (report, ended) = running.stop();
    print(&describe(&report))?;
    outcome?;
    ended?;
    Ok(Exit::Done)
}

/// Until a signal to end, or the endpoint's own end.
fn serve(
    running: &mut Running,
    signals: &Signals,
    reload: &UnixStream,
    config: Option<&Path>,
) -> anyhow::Result<()> {
    loop {
        let fds = [running.ended(), signals.end.as_fd(), signals.show.as_fd(), reload.as_fd()];
        let [ended, end, show, again] = wait(fds)?;
        if ended || end {
            return Ok(());
        }
        if show {
            take(&signals.show);
            print(&describe(&running.report()))?;
        }
        if again {
            take(reload);
            print(&match read_again(running, config) {
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
    let config = Config {
        port: arguments.port,
        ttl: arguments.ttl,
        df: !arguments.no_df,
        checksum: !arguments.no_checksum,
        zero_checksum6: arguments.zero_checksum6,
        hand_over: arguments.hand_over,
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

/// Each network's counters, a line a direction, and the endpoint's.
fn describe(report: &Report) -> String {
    let mut lines = Vec::new();
    for network in &report.networks {
        let (vni, tap) = (network.vni, &network.tap);
        lines.push(direction(&format!("VNI {vni} {tap} to wire"), &network.out));
        let mut back = direction(&format!("VNI {vni} wire to {tap}"), &network.back);
        // Writing to a String cannot fail.
        let _ = write!(
            back,
            "; addresses: {} configured, {} learned",
            network.configured, network.learned
        );
        lines.push(back);
    }
    lines.push(direction("of no network", &report.strangers));
    lines.join("\n")
}

fn direction(name: &str, c: &Counters) -> String {
    let mut line = format!(
        "{name}: received {} packets, {} bytes; forwarded {} packets, {} bytes, in {} pieces",
        c.received, c.received_bytes, c.forwarded, c.forwarded_bytes, c.handed_over
    );
    for (what, number) in [
        ("answered", c.answered),
        ("replicas", c.replicas),
        ("replicas lost", c.replicas_lost),
        ("unlearned", c.unlearned),
    ] {
        if number > 0 {
            let _ = write!(line, "; {what} {number}");
        }
    }
    let _ = write!(line, "; dropped {}", c.dropped_in_words());
    line
}
