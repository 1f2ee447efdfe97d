//! Standing testbeds: a holder process each, found by a socket of its name in the user's
//! directory. It answers that user and root only.

use std::os::fd::OwnedFd;

use anyhow::bail;
use report::listing::StandingTestbed;

use crate::control::{self, Claim, Of, user};
use crate::exit::usage;
use crate::serving::{Door, Reply, Serving};
use crate::signals::wait;

/// The requests a holder understands, a line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabRequest {
    /// `status`: answered by a line of JSON.
    Status,
    /// `down`: answered before the holder removes the testbed and ends.
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

/// What names of sockets of testbeds begin with.
const PREFIX: &str = "testbed.";

/// Checks a testbed's name.
///
/// # Errors
/// A usage error for one that is empty, long, or not plain.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
        return Err(usage(
            "--name",
            format!("{name:?}: allowed are 1 to 40 of A-Z a-z 0-9 - _ . +"),
        ));
    }
    Ok(())
}

/// Claims a name for this holder.
///
/// # Errors
/// When a testbed of that name stands already.
pub fn claim(name: &str) -> anyhow::Result<Claim> {
    let taken = format!("a testbed named {name} is standing already");
    control::claim(&format!("{PREFIX}{name}"), &taken)
}

/// Answers requests until told to end; gives the connection of who asked for
/// it, who waits for its end. `user` is the id outside any user namespace.
///
/// # Errors
/// When descriptors or threads have run out.
pub fn serve(
    claim: &Claim,
    user: u32,
    standing: StandingTestbed,
) -> anyhow::Result<Option<OwnedFd>> {
    // In a user namespace the same user appears as 0, this process's own id.
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

/// Asks the holder of a testbed of this user, and to end waits until it is gone.
///
/// # Errors
/// When there is none of that name, or it does not answer.
pub fn ask(name: &str, request: LabRequest) -> anyhow::Result<StandingTestbed> {
    let socket = format!("{PREFIX}{name}");
    let (who, ends) = (format!("testbed {name}"), request == LabRequest::Down);
    // What the answer says is entered: root's is not taken for this user's.
    control::ask(&who, &socket, Of::Own, request.word(), ends)?.ok_or_else(|| {
        usage("testbed", format!("none named {name:?} is standing (overlane lab status)"))
    })
}

/// Every testbed of this user.
///
/// # Errors
/// When the directory of sockets is not safe, or cannot be read.
pub fn all() -> anyhow::Result<Vec<StandingTestbed>> {
    // One may go down while it is asked: then it is not standing.
    let names = control::names(PREFIX)?;
    Ok(names.iter().filter_map(|name| ask(name, LabRequest::Status).ok()).collect())
}
