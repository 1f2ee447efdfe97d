//! `overlane accel`: the fast path for kernel VXLAN devices.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::PathBuf;

use accel::status::Refused;
use accel::{Counted, Path, Reason, Status};
use anyhow::Context;
use daemon::accelerator::{self, ControlRequest};
use daemon::background;
use daemon::control;
use netstate::Netlink;
use sys::netns::NetNs;

use super::accel_headline::headline;
use crate::accel_args::{AccelDevices, AccelRun, AccelStatus};
use crate::exit::{Exit, usage};
use crate::named_netns::netns;
use crate::output::{print, print_folded, print_json};

/// Accelerates devices in a background process. Starts one unless one is running.
pub fn on(run: &AccelRun) -> anyhow::Result<Exit> {
    let arguments = &run.devices;
    let netns = netns("--netns", arguments.netns.as_deref())?;
    check(arguments, &netns)?;
    // A running process keeps the size of its maps, so a different --max-entries is an error.
    let running = accelerator::ask(&netns, &ControlRequest::Status)?;
    if let (Some(status), Some(max_entries)) = (running, run.max_entries)
        && status.max_entries != max_entries
    {
        let problem = format!(
            "the running process has room for {} entries: stop it first with `overlane accel off \
             --all`",
            status.max_entries
        );
        return Err(usage("--max-entries", problem));
    }
    let request = match &arguments.device {
        Some(device) => ControlRequest::Add(device.clone()),
        None => ControlRequest::AddAll,
    };
    let status = match accelerator::ask(&netns, &request)? {
        Some(status) => status,
        None => start(run, &netns)?,
    };
    print_folded(&describe(&status))?;
    // A device given by name that is refused makes the command fail in part.
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
    if of.no_accounting {
        run.push(OsStr::new("--no-accounting"));
    }
    let path: PathBuf;
    if let Some(netns) = &arguments.netns {
        // The background process starts in another directory, so a relative path would break.
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
    accelerator::ask(netns, &ControlRequest::Status)?.context("the accelerator has exited")
}

/// Returns devices to the slow path. If no process is running, removes leftovers of a killed one.
pub fn off(arguments: &AccelDevices) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.netns.as_deref())?;
    let status = accelerator::ask(&netns, &ControlRequest::Status)?;
    let left = match status {
        None => {
            // The claim keeps a new process from starting in this namespace during the removal.
            let _claimed = accelerator::claim(&netns)?;
            accel::remove_left_behind(&netns)?
        }
        Some(_) => Vec::new(),
    };
    for device in &left {
        print(&format!("{device}: removed; left over from a killed process"))?;
    }
    let request = match &arguments.device {
        Some(device) => {
            let known = status.is_some_and(|s| s.devices.iter().any(|d| d.device == *device));
            // The leftovers of this device have just been removed.
            if !known && !left.is_empty() {
                return Ok(Exit::Done);
            }
            if !known {
                let problem = format!("{device:?} is not accelerated (overlane accel status)");
                return Err(usage("DEV", problem));
            }
            ControlRequest::Remove(device.clone())
        }
        None => ControlRequest::Down,
    };
    accelerator::ask(&netns, &request)?;
    Ok(Exit::Done)
}

pub fn status(arguments: &AccelStatus) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.netns.as_deref())?;
    let mut status = accelerator::ask(&netns, &ControlRequest::Status)?;
    if status.is_none() {
        // Without a process, only leftovers can be reported.
        let left_behind = accel::left_behind(&netns)?;
        let left = |left_behind| Status { netns: netns.inode(), left_behind, ..Status::default() };
        status = (!left_behind.is_empty()).then(|| left(left_behind));
    }
    match (status, arguments.json) {
        (status, true) => print_json(&status)?,
        (Some(status), false) => print_folded(&describe(&status))?,
        (None, false) if control::user() != 0 => {
            print("nothing is accelerated by this user (run as root to see root's)")?;
        }
        (None, false) => print("nothing is accelerated")?,
    }
    Ok(Exit::Done)
}

/// Checks that the device exists and is a VXLAN device.
pub(super) fn check(arguments: &AccelDevices, netns: &NetNs) -> anyhow::Result<()> {
    let Some(device) = &arguments.device else { return Ok(()) };
    if device.contains('/') {
        // A device in another namespace may appear later; the status reports it if it does not.
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

fn state(refused: &Option<Refused>) -> String {
    match refused {
        Some(refused) => format!("slow path: {refused}"),
        None => "accelerated".to_owned(),
    }
}

/// Describes a device's packets by path, and the slow ones by reason. For a tenant's device these
/// are packets that the tenant sends; for a VXLAN device, packets from the wire.
fn traffic(
    indent: &str,
    entries: usize,
    packets: &BTreeMap<String, Counted>,
    tenant: bool,
) -> String {
    // Devices without state or traffic need no line.
    if entries == 0 && packets.is_empty() {
        return String::new();
    }
    let (mut taken, mut half, mut left, mut other) = (0, 0, 0, 0);
    let mut reasons = String::new();
    for reason in Reason::ALL {
        // Reasons without packets are omitted.
        let Some(counted) = packets.get(reason.word()) else { continue };
        match (reason.path(), reason.is_encap() == tenant) {
            (Path::Fast, true) => taken += counted.packets,
            (Path::Half, true) => half += counted.packets,
            (Path::Fast | Path::Half, false) => other += counted.packets,
            (Path::Slow, _) => left += counted.packets,
        }
        // The line above already has the fast packets.
        if reason.path() != Path::Fast {
            // Writing to a String cannot fail.
            let _ = writeln!(reasons, "{indent}  {:<20} {:>12}", reason.word(), counted.packets);
        }
    }
    let half = if half > 0 { format!(", {half} by partial bypass") } else { String::new() };
    let (from, to) =
        if tenant { ("the tenant", "delivered to it") } else { ("the wire", "sent bypassing it") };
    format!(
        "{indent}entries {entries}; from {from} {taken} accelerated{half}, {left} by the slow \
         path; {other} {to}\n{reasons}"
    )
}

/// Formats a status as text.
fn describe(status: &Status) -> String {
    let Some(pid) = status.pid else {
        let left = status.left_behind.join(", ");
        return format!(
            "nothing is accelerated\nleft over from a killed process: {left} (unused; `overlane \
             accel off --all` or the next start removes it)"
        );
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    if let Some(problem) = &status.problem {
        let _ = writeln!(text, "all packets take the slow path: {problem}");
    }
    for device in &status.devices {
        let _ = writeln!(text, "{}: {}", device.device, headline(device));
        text += &traffic("  ", device.entries, &device.packets, false);
        for port in &device.ports {
            let _ = writeln!(text, "  port {}: {}", port.name, state(&port.refused));
            text += &traffic("    ", port.entries, &port.packets, true);
        }
        for refused in &device.ipv6 {
            let _ = writeln!(text, "  routed IPv6 packets: slow path: {refused}");
        }
        for remote in &device.remotes {
            let _ = writeln!(text, "  remote {}: {}", remote.name, state(&remote.refused));
        }
    }
    if let Some((_, refused)) = status.refusals().find(|(_, refused)| !refused.code.is_empty()) {
        let _ = writeln!(text, "remedy: `overlane accel explain {}`", refused.code);
    }
    if let Some(confinement) = &status.confinement {
        let _ = writeln!(text, "confined: {confinement}");
    }
    for listener in status.listeners.iter().flatten() {
        let device = listener.device.as_deref().unwrap_or("all devices");
        let _ = writeln!(
            text,
            "packet socket on {device} (socket:[{}], protocol 0x{:04x}) does not see accelerated \
             packets",
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
            ", {} entries beyond --max-entries {} take the slow path",
            status.left_out, status.max_entries
        );
    }
    text += "\n";
    let taken = match status.decap_gso {
        true => "to every tenant",
        false => "to sockets of tenants only (the kernel lacks BPF_F_ADJ_ROOM_DECAP_L4_UDP)",
    };
    let _ = writeln!(text, "GSO packets from the wire: fast path {taken}");
    if let Some(flows) = &status.flows {
        let _ = writeln!(
            text,
            "packet filters: {} connections admitted to the fast path, {} denied",
            flows.admitted, flows.denied
        );
        if flows.unguarded {
            text += "  the caretaker was killed: TCP connections take the slow path until the next start\n";
        }
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
