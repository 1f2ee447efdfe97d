//! `overlane lab up`: builds a testbed that persists in a holder process.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::str::FromStr;

use anyhow::bail;
use daemon::background::{self, READY};
use lab::{Capabilities, Params, modes};
use report::listing::{StandingHost, StandingTestbed};
use results::PlacementPolicy;
use session::progress::Progress;
use session::testbeds;
use testbed::Offload;

use super::lab_run::check_mtu;
use crate::args::{Hold, Up};
use crate::exit::{Exit, usage};
use crate::lab_socket::{self, LabRequest};
use crate::output::{print, print_folded, print_json};
use crate::quantity::alternatives;

/// Starts a holder process and waits until it has built its testbed.
///
/// # Errors
/// Wrong usage; a name in use; the error message of the holder if it fails.
pub fn run(arguments: &Up) -> anyhow::Result<Exit> {
    let Some(mode) = lab::find(&arguments.mode) else {
        if let Some(mode) = lab::at_guest::find(&arguments.mode) {
            let reason = "it runs inside a guest for one measurement only: use lab run";
            return Err(usage("MODE", format!("{}: {reason}", mode.name)));
        }
        let known = modes().iter().map(|mode| mode.name());
        let others = alternatives(&arguments.mode, known, "overlane lab list");
        return Err(usage("MODE", format!("unknown mode {:?}{others}", arguments.mode)));
    };
    // `lab exec` cannot enter a virtual machine.
    if mode.in_guests() {
        let reason = "its guests accept no commands: use lab run";
        return Err(usage("MODE", format!("{}: {reason}", mode.name())));
    }
    let name = arguments.name.as_deref().unwrap_or(&arguments.mode);
    lab_socket::check_name(name)?;
    Offload::from_str(&arguments.offload).map_err(|error| usage("--offload", error))?;
    // Check here, because errors of the holder do not name the options.
    check_mtu(&arguments.mtu.to_string())?;
    let mtu = arguments.mtu.to_string();
    let hold = ["lab", "hold", &arguments.mode, name, &arguments.offload, &mtu];
    let patience = mode.build_seconds().map(|seconds| {
        let progress = Progress::new("");
        progress.build(mode.name(), Some(seconds));
        progress
    });
    let started = background::start("the holder", &hold.map(OsStr::new));
    drop(patience);
    started?;
    let standing = lab_socket::ask(name, LabRequest::Status)?;
    if arguments.json {
        print_json(&standing)?;
    } else {
        print_folded(&describe(&standing))?;
    }
    Ok(Exit::Done)
}

/// Describes a testbed, and the commands to enter it.
pub fn describe(standing: &StandingTestbed) -> String {
    let mut text = format!(
        "{}: mode {}, offload {}, MTU {}, held by process {}\n",
        standing.name, standing.mode, standing.offload, standing.mtu, standing.pid
    );
    let width = standing.hosts.iter().map(|host| host.name.len()).max().unwrap_or(0);
    for host in &standing.hosts {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:width$}  nsenter --net={} COMMAND", host.name, host.netns);
    }
    let _ = writeln!(
        text,
        "  {} reaches a server in {} at {}",
        standing.client, standing.server, standing.target
    );
    for note in &standing.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    let _ = writeln!(
        text,
        "  enter:  overlane lab exec {}/{} -- COMMAND",
        standing.name, standing.client
    );
    let _ = writeln!(text, "  remove: overlane lab down {}", standing.name);
    text
}

/// Runs the holder process: builds the testbed, reports readiness, and waits for the request to
/// remove it.
///
/// # Errors
/// A name in use; a mode that this machine cannot build, with the reason.
pub fn hold(arguments: &Hold) -> anyhow::Result<Exit> {
    let user = nix::unistd::getuid().as_raw();
    let claim = lab_socket::claim(&arguments.name)?;
    let Some(mode) = lab::find(&arguments.mode) else {
        return Err(usage("MODE", format!("unknown mode {:?}", arguments.mode)));
    };
    let offload = Offload::from_str(&arguments.offload).map_err(|error| usage("OFFLOAD", error))?;
    let capabilities = Capabilities::new(testbed::acquire()?)?;
    if let Err(unsupported) = mode.probe(&capabilities) {
        bail!("{}: {}; {}", mode.name(), unsupported.reason, unsupported.remedy);
    }
    let mut network = mode.build(&Params::new(arguments.mtu, offload))?;
    // Use the placement of `lab run`, so that observations here also apply there.
    let placement = PlacementPolicy::Split.place(&sys::affinity::of_this_thread()?);
    if let Err(error) = testbeds::steer(&network, &placement) {
        network.notes.push(format!("the wire's NICs do not steer flows: {error}"));
    }
    let pid = std::process::id();
    let standing = StandingTestbed {
        name: arguments.name.clone(),
        mode: arguments.mode.clone(),
        offload: testbeds::profile(offload),
        mtu: arguments.mtu,
        pid,
        hosts: network
            .hosts()
            .iter()
            .map(|host| StandingHost {
                name: host.name().to_owned(),
                netns: format!("/proc/{pid}/fd/{}", host.netns().as_fd().as_raw_fd()),
                init: network.init_pid(host.name()),
            })
            .collect(),
        target: network.address.target.to_string(),
        client: network.client().name().to_owned(),
        server: network.server().name().to_owned(),
        notes: network.notes.clone(),
    };
    print(READY)?;
    let asker = lab_socket::serve(&claim, user, standing)?;
    // In this order, so that when the requester sees the connection close, the testbed and its
    // name are free.
    drop(network);
    claim.give_back();
    drop(asker);
    Ok(Exit::Done)
}
