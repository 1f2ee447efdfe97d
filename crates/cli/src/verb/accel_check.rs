//! `overlane accel check`: reports what would be accelerated, without accelerating anything.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use accel::check::{Amount, Check, Traffic};
use accel::status::Refused;
use accel::{Explanation, Reason, Wanted};
use anyhow::bail;
use daemon::accelerator::{self, ControlRequest};

use super::accel::check as check_device;
use crate::accel_args::AccelCheck;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::named_netns::netns;
use crate::output::{print_folded, print_json};

/// Checks the devices, counts traffic, and prints the result.
pub fn run(arguments: &AccelCheck) -> anyhow::Result<Exit> {
    let netns = netns("--netns", arguments.devices.netns.as_deref())?;
    check_device(&arguments.devices, &netns)?;
    if let Some(pid) =
        accelerator::ask(&netns, &ControlRequest::Status)?.and_then(|status| status.pid)
    {
        // Accelerated packets bypass the hooks where this command counts.
        bail!("process {pid} accelerates this namespace: see `overlane accel status`");
    }
    let wanted = match &arguments.devices.device {
        Some(device) => Wanted::Named([device.clone()].into()),
        None => Wanted::All,
    };
    // After Ctrl-C it reports the traffic counted so far, and nothing stays attached.
    let ended = interrupt::flag()?;
    let time = Duration::from_secs(arguments.seconds.into());
    let found = accel::check::check(&netns, &wanted, time, &|| !ended.load(Ordering::Acquire))?;
    if let Some(device) = &arguments.devices.device
        && found.devices.is_empty()
    {
        return Err(usage("DEV", format!("device {device:?} not found")));
    }
    if arguments.json {
        print_json(&found)?;
    } else {
        print_folded(&describe(&found))?;
    }
    Ok(match (ended.load(Ordering::Acquire), found.is_all_fast()) {
        // The result covers only part of the time, so it is no verdict.
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Done,
        (false, false) => Exit::Partly,
    })
}

fn describe(found: &Check) -> String {
    let mut text = String::new();
    if found.devices.is_empty() {
        return "no VXLAN device: nothing could be accelerated\n".to_owned();
    }
    // Writing to a String cannot fail.
    for device in &found.devices {
        let _ = match &device.why {
            None => writeln!(text, "{}: would be accelerated", device.device),
            Some(why) => {
                writeln!(text, "{}: would take the slow path: {}", device.device, reason(why))
            }
        };
        for part in &device.slow_parts {
            let (name, why) = (&part.name, reason(&part.why));
            let _ = writeln!(text, "  {name}: would take the slow path: {why}");
        }
        if found.seconds > 0.0 {
            text += &traffic("  ", &device.traffic);
        }
    }
    if found.seconds == 0.0 {
        text += "traffic was not counted (--seconds 0)\n";
        return text;
    }
    let Traffic { fast, .. } = &found.traffic;
    let _ = match found.traffic.share() {
        None => writeln!(text, "no unicast IP packet in {:.1} s: share unknown", found.seconds),
        Some(share) => writeln!(
            text,
            "{:.0}% of the unicast IP packets could take the fast path: {:.0} of {:.0} per second",
            // Rounded down, so that 100% means all packets.
            (share * 100.0).floor(),
            fast.packets as f64 / found.seconds,
            fast.packets as f64 / share.max(f64::MIN_POSITIVE) / found.seconds
        ),
    };
    text += &saving(found);
    text
}

/// Describes the expected saving, as far as it is known.
fn saving(found: &Check) -> String {
    let mut text = String::new();
    // No packet would be saved.
    if found.traffic.fast.packets == 0 {
        return text;
    }
    if let Some(cpus) = found.softirq_cpus {
        let _ = writeln!(
            text,
            "expected saving: an unknown part of {cpus:.3} CPUs, the machine's total softirq time \
             during the check"
        );
        text += "  not included: work of senders in system calls, and latency\n";
    }
    text += "  the share is an upper bound: per-packet rules were not evaluated (options, \
             fragments, sizes)\n  to measure the cost per packet here: overlane lab run --modes \
             vxlan,vxlan+accel\n";
    text
}

fn reason(why: &Refused) -> String {
    format!("{} {} ({}); remedy: {}", why.code, why.evidence, why.object, why.remedy)
}

fn amount(amount: &Amount) -> String {
    format!("{} packets, {} bytes", amount.packets, amount.bytes)
}

fn traffic(indent: &str, traffic: &Traffic) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{indent}fast path {}; slow path {}; uncertain {}; ARP, multicast and other {}",
        amount(&traffic.fast),
        amount(&traffic.slow),
        amount(&traffic.uncertain),
        amount(&traffic.other)
    );
    for (reason, of) in &traffic.reasons {
        let meaning = match (Explanation::of(reason), reason.as_str()) {
            (Some(known), _) => known.title,
            (None, "host_own") => "packets of the host itself",
            (None, "uncounted") => "addresses beyond the limit of separate counters",
            (None, word) => {
                let known = Reason::ALL.iter().find(|known| known.word() == word);
                known.map_or("", |known| known.meaning())
            }
        };
        let _ = writeln!(text, "{indent}  {reason:<20} {:>12} packets  {meaning}", of.packets);
    }
    text
}
