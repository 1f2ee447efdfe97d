//! `overlane probe`: tests whether offloads damage, drop or black-hole packets on a path.

use std::sync::atomic::Ordering;

use measure::remote::{ProbePeer, RemoteError};
use netstate::namespace::discover;
use probe::exchange::Trouble;
use probe::run::{Extent, Options, run as run_probe};
use probe::switch::{Hop, Journaled, Switch};
use sys::netns::NetNs;

use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::named_netns::netns;
use crate::output::{complain, print_folded, print_json, style};
use crate::probe_args::Probe;
use crate::probe_record::record;
use crate::remote::{Target, token};
use crate::trial_guard::Guard;

/// Exit code of findings.
const FOUND: u8 = 10;

/// Probes the path to a peer.
///
/// # Errors
/// Wrong usage; a peer that cannot be reached or refuses; an end without packet sockets.
pub fn run(asked: &Probe) -> anyhow::Result<Exit> {
    let target = Target::parse("ADDR", &asked.address)?.resolve("ADDR")?;
    let token = token(asked.token.as_deref())?;
    let stop = interrupt::flag()?;
    let extent = match (asked.quick, asked.full) {
        (true, _) => Extent::Quick,
        (false, true) => Extent::Full,
        (false, false) => Extent::Default,
    };
    let (seed, rate) = (asked.seed, asked.rate);
    let hops = hops(&asked.hops)?;
    let facts = hops.iter().map(|hop| hop.facts().clone()).collect();
    let (via, port) = (asked.via.clone(), asked.port);
    let options = Options { extent, seed, rate, via, port, hops: facts };
    let (mut peer, own) = match ProbePeer::connect(target, token.as_ref(), &stop) {
        Err(RemoteError::Stopped) => return Ok(Exit::Interrupted),
        connected => connected?,
    };
    // The guard restores the settings if this process is killed during the search.
    let guard = match asked.yes {
        true => Some(Guard::start(&asked.journal.directory)?),
        false => None,
    };
    let mut journaled = Journaled { directory: &asked.journal.directory, hops: &hops };
    let switch = asked.yes.then_some(&mut journaled as &mut dyn Switch);
    let addresses = (own, target.ip().to_canonical());
    let say = |what: &str| {
        if !asked.json {
            complain(what);
        }
    };
    let report = run_probe(&mut peer, addresses, &options, switch, &stop, &say);
    drop(guard);
    let report = match report {
        Err(Trouble::Stopped) => return Ok(Exit::Interrupted),
        // Ctrl-C also ends the wait for an answer.
        Err(Trouble::Peer(_)) if stop.load(Ordering::Relaxed) => return Ok(Exit::Interrupted),
        report => report?,
    };
    // A note that cannot be kept takes nothing from the result.
    if let Err(error) = record(&report, &asked.journal.directory, asked.yes) {
        complain(&format!("not kept for overlane doctor: {error:#}"));
    }
    match asked.json {
        true => print_json(&report)?,
        false => print_folded(&report::probe_text(&report, style()))?,
    }
    Ok(if report.has_findings() { Exit::Code(FOUND) } else { Exit::Done })
}

/// Reads the devices of `--hop`.
fn hops(asked: &[String]) -> anyhow::Result<Vec<Hop>> {
    let own = NetNs::current()?.inode();
    let mut seen = Vec::new();
    let mut hops = Vec::new();
    for text in asked {
        // Names of devices have no colon (`dev_valid_name`), those of namespaces may.
        let (label, device) = match text.rsplit_once(':') {
            Some((label, device)) => (Some(label), device),
            None => (None, text.as_str()),
        };
        let namespace = netns("--hop", label)?;
        let place = (namespace.inode(), device);
        // Switched twice, a setting would seem to be changed by another program.
        if seen.contains(&place) {
            return Err(usage("--hop", format!("{text} is named twice")));
        }
        seen.push(place);
        let hop = match label {
            Some(label) if namespace.inode() != own => {
                let found = discover()?.namespaces.remove(&namespace.inode());
                let found = found.ok_or_else(|| usage("--hop", format!("{text}: it is gone")))?;
                let path = found.path.to_string_lossy();
                Hop::within(namespace, &path, label, device)
            }
            _ => Hop::here(device),
        };
        let remedy = "a hop is a device of this machine; for one of another machine, run overlane \
                      probe --yes there";
        hops.push(hop.map_err(|reason| usage("--hop", format!("{text}: {reason}: {remedy}")))?);
    }
    Ok(hops)
}
