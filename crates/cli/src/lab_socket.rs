//! Control sockets of running testbeds. Each testbed has a holder process, whose socket in the
//! user's directory carries the testbed's name. It answers only that user and root.

use std::os::fd::OwnedFd;

use anyhow::bail;
use daemon::control::{self, Claim, Of, user};
use daemon::serving::{Door, Reply, Serving};
use daemon::signals::wait;
use report::listing::{StandingHost, StandingTestbed};

use crate::exit::usage;

/// The requests of a holder, one line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabRequest {
    /// `status`: the answer is one line of JSON.
    Status,
    /// `down`: the holder answers, then removes the testbed and exits.
    Down,
}

impl LabRequest {
    fn word(self) -> &'static str {
        match self {
            LabRequest::Status => "status",
            LabRequest::Down => "down",
        }
    }
}

/// Prefix of the socket names of testbeds.
const PREFIX: &str = "testbed.";

/// Checks a testbed's name.
///
/// # Errors
/// A usage error for a name that is empty, too long, or has other characters than allowed.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
        return Err(usage(
            "--name",
            format!("{name:?}: expected 1 to 40 characters of A-Z a-z 0-9 - _ . +"),
        ));
    }
    Ok(())
}

/// Claims a name for this holder.
///
/// # Errors
/// If a testbed with this name is running.
pub fn claim(name: &str) -> anyhow::Result<Claim> {
    let taken = format!("a testbed named {name} is already running");
    control::claim(&format!("{PREFIX}{name}"), &taken)
}

/// Answers requests until `down`. Returns the connection of that request, whose sender waits for
/// its end. `user` is the user ID outside of user namespaces.
///
/// # Errors
/// If no descriptors or threads are left.
pub fn serve(
    claim: &Claim,
    user: u32,
    standing: StandingTestbed,
) -> anyhow::Result<Option<OwnedFd>> {
    // Inside a user namespace, the same user appears with this process's own ID, 0.
    let door = Door::of_lines(claim, &[user, self::user()], move |line| {
        let ends = match line {
            "status" => false,
            "down" => true,
            other => bail!("unknown request {other:?}"),
        };
        Reply::line(&standing, ends)
    })?;
    let serving = Serving::start(vec![door])?;
    wait([serving.ended()])?;
    Ok(serving.stop())
}

/// Sends a request to the holder of a testbed of this user. For `down`, waits until it has exited.
///
/// # Errors
/// If there is no testbed with this name, or it does not answer.
pub fn ask(name: &str, request: LabRequest) -> anyhow::Result<StandingTestbed> {
    let socket = format!("{PREFIX}{name}");
    let (who, ends) = (format!("testbed {name}"), request == LabRequest::Down);
    // The caller enters the namespaces in the answer, so accept only this user's own process.
    control::ask(&who, &socket, Of::Own, request.word(), ends)?.ok_or_else(|| {
        usage("testbed", format!("no testbed named {name:?} is running (overlane lab status)"))
    })
}

/// Returns all running testbeds of this user.
///
/// # Errors
/// If the socket directory is unsafe or cannot be read.
pub fn all() -> anyhow::Result<Vec<StandingTestbed>> {
    // Skip a testbed that goes down in the meantime.
    let names = control::names(PREFIX)?;
    Ok(names.iter().filter_map(|name| ask(name, LabRequest::Status).ok()).collect())
}

/// Host of a testbed.
pub type Found<'a> = (&'a StandingTestbed, &'a StandingHost);

/// Returns the hosts that `HOST` or `TESTBED/HOST` may mean.
pub fn hosts<'a>(standing: &'a [StandingTestbed], wanted: &str) -> Vec<Found<'a>> {
    let (testbed, host) = match wanted.split_once('/') {
        Some((testbed, host)) => (Some(testbed), host),
        None => (None, wanted),
    };
    let all = standing.iter().flat_map(|one| one.hosts.iter().map(move |host| (one, host)));
    let named = all
        .filter(|(one, known)| testbed.is_none_or(|name| name == one.name) && known.name == host);
    named.collect()
}

/// Returns the sentence about a name that several testbeds have.
pub fn ambiguous(wanted: &str, found: &[Found<'_>]) -> String {
    let names: Vec<String> = found.iter().map(|(one, host)| qualified(one, host)).collect();
    format!("{wanted:?} is ambiguous: {}", names.join(", "))
}

/// Returns `TESTBED/HOST`.
pub fn qualified(testbed: &StandingTestbed, host: &StandingHost) -> String {
    format!("{}/{}", testbed.name, host.name)
}
