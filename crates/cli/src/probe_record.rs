//! Keeps the faults that a probe has found, so that `doctor` reports and `doctor fix` repairs them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use doctor::probed::{Probed, Run, read, updated, write};
use measure::remote::{ProbePeer, Token};
use netstate::Netlink;
use probe::report::{BadPath, Direction, End, Report, Search};
use probe::run::{Extent, Options, run};
use sys::netns::NetNs;

/// Replaces the findings of earlier runs on the path. Without `may_add`, it only removes those that
/// are outdated.
///
/// # Errors
/// An unusable journal; a device that is gone.
pub fn record(report: &Report, journal: &Path, may_add: bool) -> anyhow::Result<()> {
    let known = read(journal).map_err(anyhow::Error::msg)?;
    // Nothing to add, and nothing that this run could disprove.
    if report.bad.is_empty() && known.is_empty() {
        return Ok(());
    }
    let namespace = NetNs::current()?;
    let device = &report.here.device;
    let link = Netlink::open()?.link(device).context("device of the path")?;
    let place = (namespace.inode(), namespace.cookie()?, link.index);
    let run = Run {
        namespace: namespace.inode(),
        device,
        features_on: &report.here.features_on,
        peer: report.peer,
        replaces: [Direction::Out, Direction::Back].map(|way| {
            // A fault whose setting was not searched again is still the known one.
            let is_bad = report.bad.iter().any(|bad| bad.way == way);
            let is_tested = way == Direction::Out || !report.translated;
            is_tested && (may_add || !is_bad)
        }),
    };
    let new = report.bad.iter().filter(|_| may_add).map(|bad| probed(report, bad, place));
    let all = updated(known.clone(), &run, new.collect());
    if all != known {
        write(journal, all)?;
    }
    Ok(())
}

/// Probes the path to a server with a few classes, without changing a setting; returns the faults.
///
/// # Errors
/// A server that cannot be reached or refuses; a path on which no packet arrives.
pub fn of_peer(peer: SocketAddr, token: Option<&Token>) -> anyhow::Result<Vec<Probed>> {
    let stop = AtomicBool::new(false);
    let (mut connected, own) = ProbePeer::connect(peer, token, &stop)?;
    let options = Options { extent: Extent::Sample, ..Options::default() };
    let addresses = (own, peer.ip().to_canonical());
    let report = run(&mut connected, addresses, &options, None, &stop, &|_| {})?;
    let namespace = NetNs::current()?;
    let link = Netlink::open()?.link(&report.here.device).context("device of the path")?;
    let place = (namespace.inode(), namespace.cookie()?, link.index);
    Ok(report.bad.iter().map(|bad| probed(&report, bad, place)).collect())
}

fn probed(
    report: &Report,
    bad: &BadPath,
    (namespace, cookie, index): (u64, Option<u64>, u32),
) -> Probed {
    let causes = match &bad.search {
        Search::Guilty(setting) => std::slice::from_ref(setting),
        Search::Together(settings) => settings,
        Search::None | Search::NotDone(_) => &[],
    };
    // Doctor repairs settings of this device only.
    let is_here = causes.iter().all(|one| one.end == End::Here);
    let features = match is_here {
        true => causes.iter().map(|one| one.feature.clone()).collect(),
        false => Vec::new(),
    };
    let detail = match is_here {
        true => bad.detail.clone(),
        false => {
            let causes: Vec<String> = causes.iter().map(ToString::to_string).collect();
            format!("{}; cause: {}", bad.detail, causes.join(" together with "))
        }
    };
    Probed {
        namespace,
        cookie,
        index,
        device: report.here.device.clone(),
        features,
        peer: report.peer,
        outgoing: bad.way == Direction::Out,
        verdict: bad.verdict.clone(),
        detail,
        classes: u32::try_from(bad.classes.len()).unwrap_or(u32::MAX),
    }
}
