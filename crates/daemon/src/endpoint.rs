//! Control sockets of `vtep` endpoints, for `overlane vtep status`.

use std::net::SocketAddr;

use datapath::vtep::Config;
use datapath::vtep::status::Status;
use sys::netns::NetNs;

use crate::control::{self, Claim, Of, user};
use crate::serving::{Door, Reply};

/// Returns the prefix of the socket names of endpoints in a network namespace.
fn prefix(netns: &NetNs) -> anyhow::Result<String> {
    Ok(format!("vtep.{}.", control::name_of(netns)?))
}

/// Claims the name of an endpoint in the caller's network namespace.
///
/// # Errors
/// If an endpoint with this address and port is running.
pub fn claim(config: &Config) -> anyhow::Result<Claim> {
    let local = SocketAddr::new(config.local, config.port);
    let taken = format!("an endpoint is already running at {local} (overlane vtep status)");
    control::claim(&format!("{}{local}", prefix(&NetNs::current()?)?), &taken)
}

/// Returns the door that answers status requests.
///
/// # Errors
/// If no descriptors are left.
pub fn door(claim: &Claim, status: impl Fn() -> Status + Send + 'static) -> anyhow::Result<Door> {
    Door::of_lines(claim, &[user()], move |line| {
        anyhow::ensure!(line == "status", "unknown request {line:?}");
        Reply::line(&status(), false)
    })
}

/// Returns the status of every endpoint in this network namespace, and the errors of those that do
/// not answer.
pub fn all() -> anyhow::Result<(Vec<Status>, Vec<anyhow::Error>)> {
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    let prefix = prefix(&NetNs::current()?)?;
    for name in control::names(&prefix)? {
        let (who, socket) = (format!("endpoint {name}"), format!("{prefix}{name}"));
        match control::ask(&who, &socket, Of::Daemons, "status", false) {
            // `None`: the endpoint exited in the meantime.
            Ok(status) => found.extend(status),
            // One silent endpoint must not hide the others.
            Err(error) => silent.push(error),
        }
    }
    Ok((found, silent))
}
