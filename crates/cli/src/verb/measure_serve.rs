//! `overlane measure serve`: the server side of a measurement between two machines.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use daemon::confinement::{self, serving};
use daemon::notify::notify;
use measure::remote::{Limits, Server, ServerError};
use netstate::Netlink;
use probe::answering::ServerSettings;
use session::remote_paths;

use crate::args::Serve;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::management;
use crate::output::print;
use crate::remote::{Target, tell, token};
use crate::settings_process;

/// Serves loads until a signal ends it.
///
/// # Errors
/// Wrong usage; an address or port that cannot be bound; a token file that others can read.
pub fn run(arguments: &Serve) -> anyhow::Result<Exit> {
    let bind = Target::parse("--bind", &arguments.bind)?;
    let ip: IpAddr = bind.host.parse().map_err(|_| {
        usage("--bind", format!("{:?} is not an IP address of this machine", bind.host))
    })?;
    let data_port = arguments.data_port.unwrap_or(bind.port + 1);
    let limits = Limits {
        sessions: within("--max-sessions", arguments.max_sessions, Limits::MOST.sessions)?,
        flows: within("--max-flows", arguments.max_flows, Limits::MOST.flows)?,
        load_s: within("--max-seconds", arguments.max_seconds, Limits::MOST.load_s)?,
        ..Limits::DEFAULT
    };
    let token = token(arguments.token.as_deref())?;
    let guarded = token.is_some();
    // Before threads exist, and before this process gives up the right to change settings.
    let settings = settings(arguments)?;
    let stop = interrupt::flag()?;
    let address = SocketAddr::new(ip, bind.port);
    let server =
        Server::bind(address, data_port, token, limits, remote_paths::privileges(), settings, stop)
            .map_err(|error| match error {
                ServerError::Channel(channel::ServerError::TokenNeeded(_)) => {
                    usage("--bind", error)
                }
                ServerError::Ports(_) => usage("--data-port", error),
                error => error.into(),
            })?;
    // The sockets are bound, so the process can give up its rights now.
    confinement::prepare()?;
    serving::confine(&serving::give_up(server.loads_programs())?)?;
    print(&format!(
        "ready: {}, data on port {data_port}, {}, at most {} flows and {} s per load{}; confined: {}",
        server.local(),
        if guarded { "token required" } else { "this machine only, no token" },
        limits.flows,
        limits.load_s,
        allowed_settings(arguments),
        confinement::in_force(),
    ))?;
    notify("READY=1")?;
    let outcome = server.run(Arc::new(tell));
    notify("STOPPING=1")?;
    outcome?;
    Ok(Exit::Done)
}

/// Starts the process that switches settings for clients' probes, if that is allowed.
fn settings(arguments: &Serve) -> anyhow::Result<Option<Arc<dyn ServerSettings>>> {
    let devices = &arguments.allow_settings;
    if devices.is_empty() {
        return Ok(None);
    }
    let links = Netlink::open()?.links()?;
    if let Some(unknown) = devices.iter().find(|name| !links.iter().any(|l| l.name == **name)) {
        return Err(usage("--allow-settings", format!("no device {unknown}")));
    }
    if !arguments.yes {
        let ssh = management::devices();
        let ssh = ssh.context(
            "--allow-settings: cannot tell devices of SSH connections; \
            --yes allows them all",
        )?;
        if let Some(device) = devices.iter().find(|name| ssh.contains(*name)) {
            let reason = "carries an SSH connection of this machine, which a change can interrupt; \
                --yes allows it";
            return Err(usage("--allow-settings", format!("{device} {reason}")));
        }
    }
    let switcher = settings_process::start(devices, &arguments.journal.directory);
    Ok(Some(Arc::new(switcher.context("--allow-settings")?)))
}

fn allowed_settings(arguments: &Serve) -> String {
    match arguments.allow_settings.as_slice() {
        [] => String::new(),
        devices => format!(", clients may switch settings of {}", devices.join(", ")),
    }
}

fn within(argument: &str, value: u32, most: u32) -> anyhow::Result<u32> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(usage(argument, format!("{value} is not 1 to {most}")))
}
