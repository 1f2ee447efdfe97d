//! `overlane accel on --probe`: tests a path over the accelerated devices, and returns them to the
//! slow path if packets are damaged or lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use channel::Token;
use daemon::accelerator::{self, ControlRequest};
use measure::remote::ProbePeer;
use probe::report::Report;
use probe::run::{Extent, Options, run as run_probe};

use super::accel;
use crate::accel_args::{AccelDevices, AccelOn};
use crate::exit::Exit;
use crate::interrupt;
use crate::named_netns::netns;
use crate::output::{complain, print, print_folded, style};
use crate::remote::{Target, token};

/// Exit code of a path that damages or loses packets.
const FOUND: u8 = 10;

/// Accelerates devices, and probes the path if asked for.
///
/// # Errors
/// Wrong usage; a path that cannot be probed. Devices that this call accelerated are then on the
/// slow path again.
pub fn on(on: &AccelOn) -> anyhow::Result<Exit> {
    let Some(address) = &on.probe else { return accel::on(&on.run) };
    let peer = Target::parse("--probe", address)?.resolve("--probe")?;
    let token = token(on.token.as_deref())?;
    let devices = &on.run.devices;
    let from = on
        .probe_from
        .as_deref()
        .map_or(("--netns", devices.netns.as_deref()), |from| ("--probe-from", Some(from)));
    let from = netns(from.0, from.1)?;
    let stop = interrupt::flag()?;
    let was_on = is_on(devices)?;
    let exit = accel::on(&on.run)?;
    let probed = || -> anyhow::Result<Report> {
        from.run(|| probe(peer, token.as_ref(), &stop)).context("namespace of the probe")?
    };
    let report = match probed() {
        Ok(report) if report.bad.is_empty() => {
            print(&format!(
                "probe: {} classes of packets to and from {} arrived undamaged",
                report.classes.len(),
                peer.ip()
            ))?;
            return Ok(exit);
        }
        found => found,
    };
    // The test of a path was requested, and this path would stay untested.
    if !was_on {
        accel::off(devices)?;
    }
    let state = match was_on {
        true => "the fast path stays on, because it was on before",
        false => "the fast path is off again",
    };
    let untested = || format!("{state}: the path was not probed");
    if report.is_err() && stop.load(Ordering::Relaxed) {
        complain(&untested());
        return Ok(Exit::Interrupted);
    }
    let report = report.with_context(untested)?;
    print_folded(&::report::probe_text(&report, style()))?;
    complain(&format!("{state}: the path to {} damages or loses packets", peer.ip()));
    // The fast path is off now: damage that remains is not its own.
    if !was_on && probed().is_ok_and(|slow| !slow.bad.is_empty()) {
        complain("the slow path does so, too: the fast path is not the cause");
    }
    Ok(Exit::Code(FOUND))
}

/// Whether the devices were accelerated before.
fn is_on(devices: &AccelDevices) -> anyhow::Result<bool> {
    let netns = netns("--netns", devices.netns.as_deref())?;
    let status = accelerator::ask(&netns, &ControlRequest::Status)?;
    Ok(status.is_some_and(|status| match &devices.device {
        Some(device) => status.devices.iter().any(|one| one.device == *device),
        None => true,
    }))
}

fn probe(peer: SocketAddr, token: Option<&Token>, stop: &AtomicBool) -> anyhow::Result<Report> {
    let (mut connected, own) = ProbePeer::connect(peer, token, stop)?;
    let options = Options { extent: Extent::Sample, ..Options::default() };
    let addresses = (own, peer.ip().to_canonical());
    Ok(run_probe(&mut connected, addresses, &options, None, stop, &|_| {})?)
}
