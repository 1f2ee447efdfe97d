//! Reads this host for `doctor`, `doctor fix` and `try`, and runs checks on it.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use daemon::accelerator::{self, ControlRequest};
use doctor::host::{Eligible, FarEnd, LeftOut};
use doctor::probed::Probed;
use doctor::{Check, Finding, Host, Scope, collect, diagnose};
use measure::remote::{RemoteError, tunnels_of};
use netstate::Netlink;
use sys::netns::NetNs;

use crate::doctor_args::Reading;
use crate::exit::usage;
use crate::named_netns::netns;
use crate::probe_record::of_peer;
use crate::remote::{Target, token};

/// Maximum of `--watch`: over longer intervals, counters may wrap.
const LONGEST_WATCH_S: f64 = 3600.0;

/// Reads this host, and the findings of `probe` in the journal's directory.
///
/// # Errors
/// Wrong usage; a host or peer that cannot be read.
pub fn read(reading: &Reading, journal: &Path) -> anyhow::Result<Host> {
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
    let mut reachable = Vec::new();
    for peer in peers {
        match tunnels_of(peer, token.as_ref(), &AtomicBool::new(false)) {
            Ok(tunnels) => {
                far_ends.push(FarEnd { address: peer.ip().to_canonical(), tunnels });
                reachable.push(peer);
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
    match doctor::probed::read(journal) {
        Ok(probed) => host.probed = probed,
        Err(reason) => {
            silent.push(LeftOut { object: "findings of overlane probe".to_owned(), reason });
        }
    }
    for peer in reachable {
        match of_peer(peer, token.as_ref()) {
            Ok(found) => {
                // The note may name the setting that causes damage.
                let known = |one: &Probed| {
                    host.probed.iter().any(|other| {
                        (&other.device, other.peer, other.outgoing)
                            == (&one.device, one.peer, one.outgoing)
                    })
                };
                let new: Vec<Probed> = found.into_iter().filter(|one| !known(one)).collect();
                host.probed.extend(new);
            }
            Err(error) => silent.push(LeftOut {
                object: format!("offloads of the path to {peer}"),
                reason: format!("{error:#}"),
            }),
        }
    }
    host.left_out.splice(0..0, silent);
    Ok(host)
}

/// Most namespaces that are asked about; each loads the fast path's programs.
const MOST_ASKED: usize = 4;

/// [`read`], with the tunnels that `accel` would accelerate in the namespaces asked for, or in the
/// caller's.
pub fn read_with_eligible(reading: &Reading, journal: &Path) -> anyhow::Result<Host> {
    let own = NetNs::current().map(|netns| vec![netns]);
    let asked = match reading.netns.as_str() {
        "all" => own.unwrap_or_default(),
        // `read` reports what is wrong with a name.
        some => some.split(',').filter_map(|one| netns("--netns", Some(one)).ok()).collect(),
    };
    // Loading the programs takes as long as the time between the two readings.
    std::thread::scope(|scope| {
        let eligible = scope
            .spawn(|| asked.iter().take(MOST_ASKED).flat_map(eligible).collect::<Vec<Eligible>>());
        let host = read(reading, journal);
        // A remark that cannot be proved is not made.
        let eligible = eligible.join().unwrap_or_default();
        Ok(Host { eligible, ..host? })
    })
}

/// Lists the tunnels of a namespace that `accel` would accelerate. Without the right to load
/// programs, and on kernels without the fast path, there are none.
fn eligible(netns: &NetNs) -> Vec<Eligible> {
    let links = Netlink::open_in(netns).and_then(|netlink| netlink.links()).unwrap_or_default();
    if links.iter().all(|link| link.vxlan.is_none()) {
        return Vec::new();
    }
    // `accel` runs there already, or this user may not ask.
    if !matches!(accelerator::ask(netns, &ControlRequest::Status), Ok(None)) {
        return Vec::new();
    }
    let devices = accel::check::eligible(netns).unwrap_or_else(|error| {
        tracing::debug!("accel check of net:[{}]: {error}", netns.inode());
        Vec::new()
    });
    let own = devices.into_iter().map(|device| {
        let accel::check::Eligible { index: link, name: _, ports, remotes, slow } = device;
        Eligible { namespace: netns.inode(), link, ports, remotes, slow }
    });
    own.collect()
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
