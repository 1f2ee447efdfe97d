//! Where an endpoint answers who asks what it does (`overlane vtep status`).

use std::net::SocketAddr;

use datapath::vtep::Config;
use datapath::vtep::status::Status;
use sys::netns::NetNs;

use crate::control::{self, Claim, Of, user};
use crate::serving::{Door, Reply};

/// What the sockets of endpoints of a network namespace are named.
fn prefix(netns: &NetNs) -> anyhow::Result<String> {
    Ok(format!("vtep.{}.", control::name_of(netns)?))
}

/// Claims the name of an endpoint of the caller's network namespace.
///
/// # Errors
/// When there is one at that address and port.
pub fn claim(config: &Config) -> anyhow::Result<Claim> {
    let local = SocketAddr::new(config.local, config.port);
    let taken = format!("there is an endpoint at {local} already (overlane vtep status)");
    control::claim(&format!("{}{local}", prefix(&NetNs::current()?)?), &taken)
}

/// Answers who asks.
///
/// # Errors
/// When descriptors have run out.
pub fn door(claim: &Claim, status: impl Fn() -> Status + Send + 'static) -> anyhow::Result<Door> {
    Door::of_lines(claim, &[user()], move |line| {
        anyhow::ensure!(line == "status", "unknown request {line:?}");
        Reply::line(&status(), false)
    })
}

/// Every endpoint of this network namespace, and what is wrong with those that do not answer.
///
/// # Errors
/// When the directory of sockets cannot be read.
pub fn all() -> anyhow::Result<(Vec<Status>, Vec<anyhow::Error>)> {
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    let prefix = prefix(&NetNs::current()?)?;
    for name in control::names(&prefix)? {
        let (who, socket) = (format!("endpoint {name}"), format!("{prefix}{name}"));
        match control::ask(&who, &socket, Of::Daemons, "status", false) {
            // One may end while it is asked.
            Ok(status) => found.extend(status),
            Err(error) => silent.push(error),
        }
    }
    Ok((found, silent))
}
