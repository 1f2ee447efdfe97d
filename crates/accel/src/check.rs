//! A dry run: which devices would be accelerated, and the share of their traffic that would take
//! the fast path.
//!
//! Traffic is judged by addresses alone. Rules about single packets (IP options, fragments, sizes,
//! checksums) are not evaluated, so the share is an upper bound.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sys::netns::NetNs;

use crate::Result;
use crate::events::State;
use crate::mirroring::{Reconciler, Security, Shared, Source, Surveyed};
use crate::model::{Accounting, Counted, DeviceId, DevicePlan, Fdb, MachineSnapshot, Plan, Wanted};
use crate::programs::{Class, CountKey, Counters, DecapGso, Programs, TrafficCounts};
use crate::status::{DeviceStatus, Refused, Status};

/// Result of a dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Check {
    /// Inode of the network namespace.
    pub netns: u64,
    /// Duration of the traffic count, seconds.
    pub seconds: f64,
    /// VXLAN devices.
    pub devices: Vec<CheckedDevice>,
    /// Traffic of all devices.
    pub traffic: Traffic,
    /// CPUs busy with softirqs during the count, on the whole machine. Overlay packets cause part
    /// of that. None: not measured.
    pub softirq_cpus: Option<f64>,
}

/// A VXLAN device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckedDevice {
    /// Name.
    pub device: String,
    /// State it would have.
    pub state: State,
    /// Why it would take the slow path.
    pub why: Option<Refused>,
    /// Ports, remote VTEPs and IPv6 that would take the slow path.
    pub slow_parts: Vec<SlowPart>,
    /// Packets of the device during the count.
    pub traffic: Traffic,
}

/// A part of a device that would take the slow path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowPart {
    /// Port, address of a remote VTEP, or IPv6.
    pub name: String,
    /// Code, evidence and remedy of the refusal.
    pub why: Refused,
}

/// Packets of a device, both directions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Traffic {
    /// Unicast IP packets that could take the fast path.
    pub fast: Amount,
    /// Unicast IP packets that would take the slow path.
    pub slow: Amount,
    /// Unicast IP packets whose path cannot be derived from their addresses.
    pub uncertain: Amount,
    /// Multicast, broadcast, ARP and similar packets, which always take the slow path.
    pub other: Amount,
    /// Packets on the slow path, by refusal code or reason name.
    pub reasons: BTreeMap<String, Amount>,
}

/// Packets and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Amount {
    /// Packets (skbs): a GSO packet counts as one.
    pub packets: u64,
    /// Bytes with the Ethernet header, without outer headers.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl From<&Counted> for Amount {
    fn from(counted: &Counted) -> Amount {
        Amount { packets: counted.packets, bytes: counted.bytes }
    }
}

impl Traffic {
    fn add(&mut self, other: &Traffic) {
        self.fast.add(other.fast);
        self.slow.add(other.slow);
        self.uncertain.add(other.uncertain);
        self.other.add(other.other);
        for (reason, amount) in &other.reasons {
            self.reasons.entry(reason.clone()).or_default().add(*amount);
        }
    }

    /// Share of the unicast IP packets that would take the fast path. `None`: no such packets.
    pub fn share(&self) -> Option<f64> {
        let all = self.fast.packets + self.slow.packets + self.uncertain.packets;
        (all > 0).then(|| self.fast.packets as f64 / all as f64)
    }
}

impl Check {
    /// Whether there are devices, and nothing takes the slow path.
    pub fn is_all_fast(&self) -> bool {
        let whole = |device: &CheckedDevice| {
            device.state == State::Accelerated && device.slow_parts.is_empty()
        };
        let Traffic { slow, uncertain, .. } = &self.traffic;
        !self.devices.is_empty()
            && self.devices.iter().all(whole)
            && slow.packets + uncertain.packets == 0
    }
}

/// Surveys the namespace and counts traffic for `time`, or until `goes_on` returns false. Loads the
/// programs, too, so that an unsupported kernel is detected. The counting programs are attached to
/// the VXLAN devices meanwhile; they pass every packet.
///
/// # Errors
/// If the programs cannot be loaded or attached, or the kernel's state cannot be read.
pub fn check(
    netns: &NetNs,
    wanted: &Wanted,
    time: Duration,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<Check> {
    let before = softirq();
    // A thread of its own, because the reconciler enters namespaces.
    let surveyed = std::thread::scope(|scope| {
        scope.spawn(|| survey(netns, wanted, time, goes_on)).join().unwrap_or_else(|panic| {
            std::panic::resume_unwind(panic);
        })
    })?;
    let spent = before.zip(softirq()).map(|(before, after)| after - before);
    Ok(answer(netns.inode(), &surveyed, spent))
}

/// A VXLAN device that would be accelerated, found without counting traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eligible {
    /// Interface index in its namespace.
    pub index: u32,
    /// Name. A device in another namespace has that namespace's name as a prefix.
    pub name: String,
    /// Ports of tenants that would be accelerated.
    pub ports: usize,
    /// Remote VTEPs that would be accelerated.
    pub remotes: usize,
    /// Ports and remote VTEPs that would take the slow path.
    pub slow: usize,
}

/// Lists the devices of a namespace of which at least one port and one remote VTEP would be
/// accelerated. Loads the programs, so that an unsupported kernel is detected, and attaches none.
///
/// # Errors
/// If the programs cannot be loaded, or the kernel's state cannot be read.
pub fn eligible(netns: &NetNs) -> Result<Vec<Eligible>> {
    // A thread of its own, because the reconciler enters namespaces.
    let surveyed = std::thread::scope(|scope| {
        let survey = || survey(netns, &Wanted::All, Duration::ZERO, &|| true);
        scope.spawn(survey).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(surveyed.plan.devices.iter().filter_map(eligible_device).collect())
}

fn eligible_device(device: &DevicePlan) -> Option<Eligible> {
    // A refused device gains nothing, and sandboxes belong to the container engine.
    if device.refused.is_some() || device.sandbox.is_some() {
        return None;
    }
    let ports = device.ports.iter().filter(|port| port.refused.is_none()).count();
    // An address behind the remote, without which no packet goes there.
    let is_used =
        |remote: &&crate::model::RemotePlan| remote.refused.is_none() && remote.addresses > 0;
    let remotes = device.remotes.values().filter(is_used).count();
    // Traffic needs a tenant and another host.
    if ports == 0 || remotes == 0 {
        return None;
    }
    Some(Eligible {
        index: device.index,
        name: device.name.clone(),
        ports,
        remotes,
        slow: device.ports.len() + device.remotes.len() - ports - remotes,
    })
}

fn survey(
    netns: &NetNs,
    wanted: &Wanted,
    time: Duration,
    goes_on: &dyn Fn() -> bool,
) -> Result<Surveyed> {
    let programs = Programs::load(crate::DEFAULT_MAX_ENTRIES, 1, DecapGso::default())?;
    let counters = Arc::new(Mutex::new(Counters::of(&programs)?));
    let shared = Shared::new(
        wanted.clone(),
        Status::default(),
        Source::Here,
        std::collections::BTreeSet::new(),
        Accounting::default(),
    );
    let netns = netns.try_clone()?;
    netns.enter_for_good()?;
    Reconciler::new(&netns, programs, (Arc::new(shared), counters), 0, Security::open())?
        .survey(time, goes_on)
}

fn answer(netns: u64, surveyed: &Surveyed, spent: Option<f64>) -> Check {
    let Surveyed { machine, plan, looked, time } = surveyed;
    let mut all = Traffic::default();
    let mut devices = Vec::new();
    for (status, device) in DeviceStatus::all(plan).into_iter().zip(&plan.devices) {
        let id = DeviceId { netns: device.sandbox.unwrap_or(0), index: device.index };
        let looked = looked.iter().find(|(of, _)| *of == id).map(|(_, looked)| looked);
        let traffic = looked.map_or_else(Traffic::default, |looked| {
            Device { machine, plan, device, id }.traffic(looked)
        });
        all.add(&traffic);
        devices.push(CheckedDevice {
            device: status.device.clone(),
            state: if status.refused.is_some() { State::Slow } else { State::Accelerated },
            why: status.refused.clone(),
            slow_parts: parts(status),
            traffic,
        });
    }
    let seconds = time.as_secs_f64();
    // Without a count there is no rate.
    let softirq_cpus = spent.filter(|_| seconds > 0.0).map(|spent| spent / seconds);
    Check { netns, seconds, devices, traffic: all, softirq_cpus }
}

/// Lists the parts of a device that would take the slow path while the device itself is
/// accelerated.
fn parts(status: DeviceStatus) -> Vec<SlowPart> {
    let alone =
        Status { devices: vec![DeviceStatus { refused: None, ..status }], ..Status::default() };
    let part = |(name, refused): (&str, &Refused)| SlowPart {
        name: name.to_owned(),
        why: refused.clone(),
    };
    alone.refusals().map(part).collect()
}

/// A device with the state that decides the path of its packets.
struct Device<'a> {
    machine: &'a MachineSnapshot,
    plan: &'a Plan,
    device: &'a DevicePlan,
    id: DeviceId,
}

/// Path that packets would take.
enum Verdict {
    Fast,
    /// With the code of a refusal or the name of a reason.
    Slow(&'static str),
    /// The packets may come from several devices, of which some take the slow path.
    Uncertain,
}

/// Packets of the host itself, which pass no tenant's port.
const OWN: &str = "host_own";
/// The counting map was full.
const UNCOUNTED: &str = "uncounted";

impl Device<'_> {
    fn traffic(&self, looked: &TrafficCounts) -> Traffic {
        let mut traffic = Traffic::default();
        for (seen, counted) in &looked.seen {
            let amount = Amount::from(counted);
            // Group and non-IP packets always take the slow path: not part of the share.
            if matches!(seen.class, Class::Group | Class::Other) {
                traffic.other.add(amount);
                continue;
            }
            match self.verdict(seen) {
                Verdict::Fast => traffic.fast.add(amount),
                Verdict::Uncertain => traffic.uncertain.add(amount),
                Verdict::Slow(reason) => {
                    traffic.slow.add(amount);
                    traffic.reasons.entry(reason.to_owned()).or_default().add(amount);
                }
            }
        }
        // Counted without addresses, so their path is unknown.
        for ((_, class), counted) in &looked.rest {
            match class {
                Class::Group | Class::Other => traffic.other.add(counted.into()),
                Class::Ipv4 | Class::Ipv6 => {
                    traffic.uncertain.add(counted.into());
                    traffic.reasons.entry(UNCOUNTED.to_owned()).or_default().add(counted.into());
                }
            }
        }
        traffic
    }

    fn verdict(&self, seen: &CountKey) -> Verdict {
        let (source, destination) = if seen.to_wire {
            ("encap_source", "encap_destination")
        } else {
            ("decap_destination", "decap_source")
        };
        // A refusal of the device applies to all its packets.
        if let Some(refused) = &self.device.refused {
            return Verdict::Slow(refused.code());
        }
        // IPv6 refusals apply to routed packets only.
        if let (Class::Ipv6, Some(refused), true) =
            (seen.class, self.device.ipv6.first(), self.device.routed)
        {
            return Verdict::Slow(refused.code());
        }
        let overlay = match self.machine.sandboxes.get(&self.id.netns) {
            Some(sandbox) => &sandbox.snapshot.overlay,
            None => &self.machine.home.overlay,
        };
        // The device is not in this snapshot.
        let Some(link) = overlay.links.get(&self.id.index) else { return Verdict::Uncertain };
        let domain = DeviceId { index: link.master.unwrap_or(self.id.index), ..self.id };
        if !matches!(self.plan.fdb.get(&(domain, seen.remote)), Some(Fdb::Remote(_))) {
            // If a single VTEP is refused, it is the reason. With several, the address does not
            // identify one.
            let mut slow = self.device.remotes.values().filter_map(|to| to.refused.as_ref());
            return match (slow.next(), slow.next()) {
                (Some(refused), None) => Verdict::Slow(refused.code()),
                _ => Verdict::Slow(destination),
            };
        }
        // The host's own packets pass no tenant's port, where the program is attached.
        if seen.to_wire && seen.from == 0 {
            return Verdict::Slow(OWN);
        }
        if self.device.routed {
            return self.routed(seen);
        }
        if matches!(self.plan.fdb.get(&(domain, seen.local)), Some(Fdb::Local { .. })) {
            return Verdict::Fast;
        }
        // If the port is known, its refusal is the reason.
        let port = overlay.bridge_fdb.get(&(domain.index, seen.local)).map(|entry| entry.port);
        let refused = self.device.ports.iter().filter(|known| Some(known.id.index) == port);
        match refused.filter_map(|port| port.refused.as_ref()).next() {
            Some(refused) => Verdict::Slow(refused.code()),
            None => Verdict::Slow(source),
        }
    }

    /// Judges routed packets. Their MAC addresses belong to routers, so ports identify them.
    fn routed(&self, seen: &CountKey) -> Verdict {
        let ports = &self.device.ports;
        if let Some(port) = ports.iter().find(|port| seen.to_wire && port.id.index == seen.from) {
            return match &port.refused {
                Some(refused) => Verdict::Slow(refused.code()),
                None => Verdict::Fast,
            };
        }
        let mut refused = ports.iter().filter_map(|port| port.refused.as_ref());
        match (ports.iter().any(|port| port.refused.is_none()), refused.next()) {
            (true, None) => Verdict::Fast,
            // The addresses do not identify the port.
            (true, Some(_)) => Verdict::Uncertain,
            (false, Some(refused)) => Verdict::Slow(refused.code()),
            (false, None) => Verdict::Slow(OWN),
        }
    }
}

/// Reads the time that all CPUs together have spent in softirqs, in seconds (proc_stat(5)).
fn softirq() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: f64 = stat.lines().next()?.split_whitespace().nth(7)?.parse().ok()?;
    let second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    Some(ticks / second as f64)
}
