//! `overlane measure serve`: the server side of a measurement between two machines.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use daemon::confinement::{self, serving};
use daemon::notify::notify;
use measure::remote::{Limits, Server, ServerError};
use session::remote_paths;

use crate::args::Serve;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::print;

use crate::remote::{Target, tell, token};

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
    let stop = interrupt::flag()?;
    let address = SocketAddr::new(ip, bind.port);
    let server = Server::bind(address, data_port, token, limits, remote_paths::privileges(), stop)
        .map_err(|error| match error {
            ServerError::Channel(channel::ServerError::TokenNeeded(_)) => usage("--bind", error),
            ServerError::Ports(_) => usage("--data-port", error),
            error => error.into(),
        })?;
    // The sockets are bound, so the process can give up its rights now.
    confinement::prepare()?;
    serving::confine(&serving::give_up(server.loads_programs())?)?;
    print(&format!(
        "ready: {}, data on port {data_port}, {}, at most {} flows and {} s per load; confined: {}",
        server.local(),
        if guarded { "token required" } else { "this machine only, no token" },
        limits.flows,
        limits.load_s,
        confinement::in_force(),
    ))?;
    notify("READY=1")?;
    let outcome = server.run(Arc::new(tell));
    notify("STOPPING=1")?;
    outcome?;
    Ok(Exit::Done)
}

fn within(argument: &str, value: u32, most: u32) -> anyhow::Result<u32> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(usage(argument, format!("{value} is not 1 to {most}")))
}
