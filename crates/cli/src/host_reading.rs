//! Reads this host for `doctor`, `doctor fix` and `try`, and runs checks on it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use doctor::host::{FarEnd, LeftOut};
use doctor::{Check, Finding, Host, Scope, collect, diagnose};
use measure::remote::{RemoteError, tunnels_of};

use crate::doctor_args::Reading;
use crate::exit::usage;
use crate::named_netns::netns;
use crate::remote::{Target, token};

/// Maximum of `--watch`: over longer intervals, counters may wrap.
const LONGEST_WATCH_S: f64 = 3600.0;

/// Reads this host.
///
/// # Errors
/// Wrong usage; a host or peer that cannot be read.
pub fn read(reading: &Reading) -> anyhow::Result<Host> {
    let watch = reading.watch;
    if !(0.0..=LONGEST_WATCH_S).contains(&watch) {
        let wanted = format!("{watch}: expected 0 to {LONGEST_WATCH_S} seconds");
        return Err(usage("--watch", wanted));
    }
    let scope = match reading.netns.as_str() {
        "all" => Scope::All,
        some => {
            let named = |one: &str| Ok((one.to_owned(), netns("--netns", Some(one))?));
            Scope::Some(some.split(',').map(named).collect::<anyhow::Result<_>>()?)
        }
    };
    let token = token(reading.token.as_deref())?;
    let peers = reading.peer.iter().map(|text| Target::parse("--peer", text)?.resolve("--peer"));
    let peers = peers.collect::<anyhow::Result<Vec<_>>>()?;
    let (mut far_ends, mut silent) = (Vec::new(), Vec::new());
    for peer in peers {
        match tunnels_of(peer, token.as_ref(), &AtomicBool::new(false)) {
            Ok(tunnels) => {
                far_ends.push(FarEnd { address: peer.ip().to_canonical(), tunnels });
            }
            // It answers: only the user can mend this.
            Err(
                error @ (RemoteError::TokenNeeded { .. }
                | RemoteError::NoToken { .. }
                | RemoteError::WrongToken { .. }
                | RemoteError::Hello { .. }),
            ) => return Err(error.into()),
            // A fault of the network may be why it does not answer: report what this host shows.
            Err(error) => silent.push(LeftOut {
                object: format!("--peer {peer}"),
                reason: format!("{:#}", anyhow::Error::from(error)),
            }),
        }
    }
    let mut host = Host { far_ends, ..collect(scope, Duration::from_secs_f64(watch))? };
    host.left_out.splice(0..0, silent);
    Ok(host)
}

/// Finds a check by its code.
///
/// # Errors
/// A usage error for an unknown code.
pub fn check(code: &str) -> anyhow::Result<&'static Check> {
    doctor::check::find(code).ok_or_else(|| {
        usage("CODE", format!("unknown check {code:?} (overlane doctor list shows all)"))
    })
}

pub fn findings_of(check: &Check, host: &Host) -> Vec<Finding> {
    let mut findings = diagnose(host).findings;
    findings.retain(|finding| finding.code == check.code);
    findings
}
