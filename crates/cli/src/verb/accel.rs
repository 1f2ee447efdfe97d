//! `overlane accel`: the fast path for kernel VXLAN devices.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::PathBuf;

use accel::status::Refused;
use accel::{Counted, Path, Reason, Status};
use anyhow::Context;
use netstate::Netlink;
use sys::netns::NetNs;

use crate::accel_args::{AccelDevices, AccelRun, AccelStatus};
use crate::accelerator::{self, Request};
use crate::background;
use crate::control;
use crate::exit::{Exit, usage};
use crate::named_netns::netns;
use crate::output::{print, print_json};

/// Has a process in the background accelerate.
pub fn on(run: &AccelRun) -> anyhow::Result<Exit> {
    let arguments = &run.devices;
    let netns = netns("--netns", arguments.netns.as_deref())?;
    check(arguments, &netns)?;
    let running = accelerator::ask(&netns, &Request::Status)?;
    if let (Some(status), Some(max_entries)) = (running, run.max_entries)
        && status.max_entries != max_entries
    {
        let problem = format!(
            "what runs has room for {}: `overlane accel off --all` ends it first",
            status.max_entries
        );
        return Err(usage("--max-entries", problem));
    }
    let request = match &arguments.device {
        Some(device) => Request::Add(device.clone()),
        None => Request::AddAll,
    };
    let status = match accelerator::ask(&netns, &request)? {
        Some(status) => status,
        None => start(run, &netns)?,
    };
    print(&describe(&status))?;
    // What was asked for by name and is refused has not been done.
    let refused = |name: &String| !status.accelerates(name);
    Ok(if arguments.device.as_ref().is_some_and(refused) { Exit::Partly } else { Exit::Done })
}

fn start(of: &AccelRun, netns: &NetNs) -> anyhow::Result<Status> {
    let arguments = &of.devices;
    let mut run: Vec<&OsStr> = ["accel", "run"].map(OsStr::new).into();
    let max_entries = of.max_entries.map(|number| number.to_string());
    if let Some(max_entries) = &max_entries {
        run.extend(["--max-entries", max_entries.as_str()].map(OsStr::new));
    }
    let max_flows = of.max_flows.map(|number| number.to_string());
    if let Some(max_flows) = &max_flows {
        run.extend(["--max-flows", max_flows.as_str()].map(OsStr::new));
    }
    if of.accounting {
        run.push(OsStr::new("--accounting"));
    }
    let path: PathBuf;
    if let Some(netns) = &arguments.netns {
        // It starts in another directory.
        path = match netns.contains('/') {
            true => std::path::absolute(netns).context("path of --netns")?,
            false => PathBuf::from(netns),
        };
        run.extend([OsStr::new("--netns"), path.as_os_str()]);
    }
    match &arguments.device {
        Some(device) => run.extend(["--", device.as_str()].map(OsStr::new)),
        None => run.push(OsStr::new("--all")),
    }
    background::start("the accelerator", &run)?;
    accelerator::ask(netns, &Request::Status)?.context("the accelerator has ended")
}

/// Gives devices back to the slow path; where no process has any, removes what one left
/// that was killed.
pub fn off(arguments: &AccelDevices) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.netns.as_deref())?;
    let status = accelerator::ask(&netns, &Request::Status)?;
    let left = match status {
        None => {
            // Whoever starts one here meanwhile is told that it is served.
            let _claimed = accelerator::claim(&netns)?;
            accel::remove_left_behind(&netns)?
        }
        Some(_) => Vec::new(),
    };
    for device in &left {
        print(&format!("{device}: removed; a killed process had left it"))?;
    }
    let request = match &arguments.device {
        Some(device) => {
            let known = status.is_some_and(|s| s.devices.iter().any(|d| d.device == *device));
            if !known && !left.is_empty() {
                return Ok(Exit::Done);
            }
            if !known {
                let problem = format!("{device:?} is not accelerated (overlane accel status)");
                return Err(usage("DEV", problem));
            }
            Request::Remove(device.clone())
        }
        None => Request::Down,
    };
    accelerator::ask(&netns, &request)?;
    Ok(Exit::Done)
}

/// Shows what is accelerated.
pub fn status(arguments: &AccelStatus) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.netns.as_deref())?;
    let mut status = accelerator::ask(&netns, &Request::Status)?;
    if status.is_none() {
        let left_behind = accel::left_behind(&netns)?;
        let left = |left_behind| Status { netns: netns.inode(), left_behind, ..Status::default() };
        status = (!left_behind.is_empty()).then(|| left(left_behind));
    }
    match (status, arguments.json) {
        (status, true) => print_json(&status)?,
        (Some(status), false) => print(&describe(&status))?,
        (None, false) if control::user() != 0 => {
            print("nothing is accelerated by this user (root's is told to root)")?;
        }
        (None, false) => print("nothing is accelerated")?,
    }
    Ok(Exit::Done)
}

/// The device must be there now, and a VXLAN device.
pub(super) fn check(arguments: &AccelDevices, netns: &NetNs) -> anyhow::Result<()> {
    let Some(device) = &arguments.device else { return Ok(()) };
    if device.contains('/') {
        // In another namespace: it may come later, and the status tells.
        return Ok(());
    }
    let link = Netlink::open_in(netns)?.link(device).map_err(|error| usage("DEV", error))?;
    match link.kind.as_deref() {
        Some("vxlan") => Ok(()),
        kind => Err(usage(
            "DEV",
            format!("{device} is a {} device, not vxlan", kind.unwrap_or("physical")),
        )),
    }
}

pub(super) fn state(refused: &Option<Refused>) -> String {
    match refused {
        Some(refused) => format!("slow: {refused}"),
        None => "accelerated".to_owned(),
    }
}

/// What was taken of a device's packets and what was left to the kernel, by reason. Of a
/// tenant's device these are what the tenant sends; of a VXLAN device, what the wire brings.
fn traffic(
    indent: &str,
    entries: usize,
    packets: &BTreeMap<String, Counted>,
    tenant: bool,
) -> String {
    if entries == 0 && packets.is_empty() {
        return String::new();
    }
    let (mut taken, mut half, mut left, mut other) = (0, 0, 0, 0);
    let mut reasons = String::new();
    for reason in Reason::ALL {
        let Some(counted) = packets.get(reason.word()) else { continue };
        match (reason.path(), reason.is_encap() == tenant) {
            (Path::Fast, true) => taken += counted.packets,
            (Path::Half, true) => half += counted.packets,
            (Path::Fast | Path::Half, false) => other += counted.packets,
            (Path::Slow, _) => left += counted.packets,
        }
        if reason.path() != Path::Fast {
            // Writing to a String cannot fail.
            let _ = writeln!(reasons, "{indent}  {:<20} {:>12}", reason.word(), counted.packets);
        }
    }
    let half = if half > 0 { format!(", {half} by the half path") } else { String::new() };
    let (from, to) =
        if tenant { ("the tenant", "delivered to it") } else { ("the wire", "sent past it") };
    format!(
        "{indent}entries {entries}; from {from} {taken} taken{half}, {left} left to the kernel; \
         {other} {to}\n{reasons}"
    )
}

/// A status for people.
fn describe(status: &Status) -> String {
    let Some(pid) = status.pid else {
        let left = status.left_behind.join(", ");
        return format!(
            "nothing is accelerated\nleft by a killed process: {left} (unused; `overlane accel \
             off --all` removes it, as does the next start)"
        );
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    if let Some(problem) = &status.problem {
        let _ = writeln!(text, "everything is slow: {problem}");
    }
    for device in &status.devices {
        let _ = writeln!(text, "{}: {}", device.device, state(&device.refused));
        text += &traffic("  ", device.entries, &device.packets, false);
        for port in &device.ports {
            let _ = writeln!(text, "  port {}: {}", port.name, state(&port.refused));
            text += &traffic("    ", port.entries, &port.packets, true);
        }
        for refused in &device.ipv6 {
            let _ = writeln!(text, "  routed IPv6 packets: slow: {refused}");
        }
        for remote in &device.remotes {
            let _ = writeln!(text, "  remote {}: {}", remote.name, state(&remote.refused));
        }
    }
    if let Some((_, refused)) = status.refusals().find(|(_, refused)| !refused.code.is_empty()) {
        let _ = writeln!(text, "`overlane accel explain {}` says what would help", refused.code);
    }
    if let Some(confinement) = &status.confinement {
        let _ = writeln!(text, "confined: {confinement}");
    }
    for listener in status.listeners.iter().flatten() {
        let device = listener.device.as_deref().unwrap_or("all devices");
        let _ = writeln!(
            text,
            "packet socket on {device} (socket:[{}], protocol 0x{:04x}): it does not see \
             accelerated packets",
            listener.inode, listener.protocol
        );
    }
    if status.devices.is_empty() {
        text += "no VXLAN device yet\n";
    }
    let _ = write!(
        text,
        "process {pid}, {} forwarding entries, generation {}",
        status.entries, status.generation
    );
    if status.left_out > 0 {
        let _ = write!(
            text,
            ", {} entries without room stay slow (--max-entries {})",
            status.left_out, status.max_entries
        );
    }
    text += "\n";
    if let Some(flows) = &status.flows {
        let _ = writeln!(
            text,
            "packet filters: {} connections let go fast, {} kept slow",
            flows.admitted, flows.held
        );
        for (reason, count) in &flows.reasons {
            let _ = writeln!(text, "  {count:>12} by {reason}");
        }
    }
    for reason in Reason::ALL {
        if let Some(counted) = status.packets.get(reason.word()) {
            let _ = writeln!(
                text,
                "  {:<20} {:>12} packets {:>16} bytes  {}",
                reason.word(),
                counted.packets,
                counted.bytes,
                reason.meaning()
            );
        }
    }
    text
}
