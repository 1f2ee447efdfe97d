//! `overlane lab up`: a testbed that stays, in a holder process of its own.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::str::FromStr;

use anyhow::bail;
use lab::{Capabilities, Params, modes};
use report::listing::{StandingHost, StandingTestbed};
use results::PlacementPolicy;
use testbed::Offload;

use super::lab_run::check_mtu;
use crate::args::{Hold, Up};
use crate::background::{self, READY};
use crate::exit::{Exit, usage};
use crate::lab_socket::{self, LabRequest};
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::testbeds;

/// Starts a holder and waits until its testbed stands.
///
/// # Errors
/// Usage; a name that is taken; what the holder says when it does not get so far.
pub fn run(arguments: &Up) -> anyhow::Result<Exit> {
    let Some(mode) = lab::find(&arguments.mode) else {
        if let Some(mode) = lab::at_guest::find(&arguments.mode) {
            let reason = "it is built inside a guest, for one run: measure it (lab run)";
            return Err(usage("MODE", format!("{}: {reason}", mode.name)));
        }
        let known: Vec<&str> = modes().iter().map(|mode| mode.name()).collect();
        return Err(usage(
            "MODE",
            format!("unknown mode {:?}; known: {}", arguments.mode, known.join(", ")),
        ));
    };
    if mode.in_guests() {
        let reason = "its guests take no commands: measure it (lab run)";
        return Err(usage("MODE", format!("{}: {reason}", mode.name())));
    }
    let name = arguments.name.as_deref().unwrap_or(&arguments.mode);
    lab_socket::check_name(name)?;
    Offload::from_str(&arguments.offload).map_err(|error| usage("--offload", error))?;
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
        print(&describe(&standing))?;
    }
    Ok(Exit::Done)
}

/// A testbed, and how to get into it.
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

/// The holder: builds the testbed, says so, and waits to be told to end.
///
/// # Errors
/// A name that is taken; a mode that cannot be built here, with the reason.
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
    // As a run has it, so that what is found here is found there.
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
    // In this order: when the asker sees the end, the testbed and its name are
    // free again.
    drop(network);
    claim.give_back();
    drop(asker);
    Ok(Exit::Done)
}
