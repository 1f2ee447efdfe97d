//! `overlane accel`: the fast path for kernel VXLAN devices.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use accel::reason::Reason;
use accel::status::Counted;
use accel::{Accel, Status, Wanted};
use anyhow::Context;
use netstate::Netlink;
use signal_hook::consts::{SIGINT, SIGTERM};
use sys::netns::NetNs;

use crate::accelerator::{self, Request};
use crate::args::{AccelDevices, AccelRun, AccelStatus};
use crate::background::{self, READY};
use crate::exit::{Exit, usage};
use crate::foreground::{netns, on_signals, wait};
use crate::notify::notify;
use crate::output::{print, print_json};

/// Accelerates until told to end.
pub fn run(run: &AccelRun) -> anyhow::Result<Exit> {
    let arguments = &run.devices;
    let netns = netns("--netns", arguments.netns.as_deref())?;
    check(arguments, &netns)?;
    let listener = accelerator::claim(netns.inode())?;
    let end = on_signals(&[SIGINT, SIGTERM])?;
    let mut wanted = match &arguments.device {
        Some(device) => Wanted::Named([device.clone()].into()),
        None => Wanted::All,
    };
    let room = run.max_entries.unwrap_or(accel::ROOM);
    let accel = Accel::with_room(&netns, wanted.clone(), room)?;
    // One line: who waits for it may close the pipe behind it.
    let devices: Vec<String> = accel
        .status()
        .devices
        .iter()
        .map(|device| format!("{}: {}", device.device, state(&device.refused)))
        .collect();
    let devices =
        if devices.is_empty() { "no VXLAN device yet".to_owned() } else { devices.join(", ") };
    print(&format!("{READY}: {devices}"))?;
    notify("READY=1")?;
    let asker = loop {
        let [_, end] = wait([listener.as_fd(), end.as_fd()])?;
        if end {
            break None;
        }
        if let Some(asker) = accelerator::serve(&listener, &accel, &mut wanted)? {
            break Some(asker);
        }
    };
    notify("STOPPING=1")?;
    // In this order: when the asker sees the end, everything is detached and the
    // name is free again.
    drop(accel);
    drop(listener);
    drop(asker);
    Ok(Exit::Done)
}

/// Has a process in the background accelerate.
pub fn on(run: &AccelRun) -> anyhow::Result<Exit> {
    let arguments = &run.devices;
    let netns = netns("--netns", arguments.netns.as_deref())?;
    check(arguments, &netns)?;
    let running = accelerator::ask(netns.inode(), &Request::Status)?;
    if let (Some(status), Some(room)) = (running, run.max_entries)
        && status.room != room
    {
        let problem = format!(
            "what runs has room for {}: `overlane accel off --all` ends it first",
            status.room
        );
        return Err(usage("--max-entries", problem));
    }
    let request = match &arguments.device {
        Some(device) => Request::Add(device.clone()),
        None => Request::AddAll,
    };
    let status = match accelerator::ask(netns.inode(), &request)? {
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
    let room = of.max_entries.map(|room| room.to_string());
    if let Some(room) = &room {
        run.extend(["--max-entries", room.as_str()].map(OsStr::new));
    }
    let place: PathBuf;
    if let Some(netns) = &arguments.netns {
        // It starts in another directory.
        place = match netns.contains('/') {
            true => std::path::absolute(netns).context("path of --netns")?,
            false => PathBuf::from(netns),
        };
        run.extend([OsStr::new("--netns"), place.as_os_str()]);
    }
    match &arguments.device {
        Some(device) => run.extend(["--", device.as_str()].map(OsStr::new)),
        None => run.push(OsStr::new("--all")),
    }
    background::start("the accelerator", &run)?;
    accelerator::ask(netns.inode(), &Request::Status)?.context("the accelerator has ended")
}

/// Gives devices back to the slow path; where no process has any, removes what one left
/// that was killed.
pub fn off(arguments: &AccelDevices) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.netns.as_deref())?;
    let status = accelerator::ask(netns.inode(), &Request::Status)?;
    let left = match status {
        None => {
            // Whoever starts one here meanwhile is told that it is served.
            let _claimed = accelerator::claim(netns.inode())?;
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
    accelerator::ask(netns.inode(), &request)?;
    Ok(Exit::Done)
}

/// Shows what is accelerated.
pub fn status(arguments: &AccelStatus) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.netns.as_deref())?;
    let mut status = accelerator::ask(netns.inode(), &Request::Status)?;
    if status.is_none() {
        let left_behind = accel::left_behind(&netns)?;
        let left = |left_behind| Status { netns: netns.inode(), left_behind, ..Status::default() };
        status = (!left_behind.is_empty()).then(|| left(left_behind));
    }
    match (status, arguments.json) {
        (status, true) => print_json(&status)?,
        (Some(status), false) => print(&describe(&status))?,
        (None, false) => print("nothing is accelerated")?,
    }
    Ok(Exit::Done)
}

/// The device must be there now, and a VXLAN device.
fn check(arguments: &AccelDevices, netns: &NetNs) -> anyhow::Result<()> {
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

fn state(refused: &Option<String>) -> String {
    match refused {
        Some(reason) => format!("slow: {reason}"),
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
    let (mut taken, mut left, mut other, mut reasons) = (0, 0, 0, String::new());
    for reason in Reason::ALL {
        let Some(counted) = packets.get(reason.word()) else { continue };
        match (reason.is_taken(), reason.is_egress() == tenant) {
            (true, true) => taken += counted.packets,
            (true, false) => other += counted.packets,
            (false, _) => {
                left += counted.packets;
                // Writing to a String cannot fail.
                let _ =
                    writeln!(reasons, "{indent}  {:<20} {:>12}", reason.word(), counted.packets);
            }
        }
    }
    let (from, to) =
        if tenant { ("the tenant", "delivered to it") } else { ("the wire", "sent past it") };
    format!(
        "{indent}entries {entries}; from {from} {taken} taken, {left} left to the kernel; \
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
        for remote in &device.remotes {
            let _ = writeln!(text, "  remote {}: {}", remote.name, state(&remote.refused));
        }
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
            status.left_out, status.room
        );
    }
    text += "\n";
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
