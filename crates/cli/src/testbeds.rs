//! Modes as a run stands on them: built with every offload profile and MTU,
//! steered, described for the results.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::guest::{GuestSetting, InForce};
use lab::{Capabilities, Mode, Network, Params};
use load::EngineError;
use measure::guest::{GuestEnd, Guests};
use measure::path_netns::PathNetns;
use measure::path_under_test::{PathUnderTest, ServerEnd};
use measure::plan::Step;
use results::{
    Alternative, Cell, DeviceRecord, GuestRecord, ModeRecord, Placement, Profile, Status,
    TapRecord, TestbedRecord,
};
use testbed::{NIC, Offload, SECOND_NIC};

use crate::progress::Progress;
use crate::variation::Varied;

/// What every mode is built with.
pub struct BuildOptions<'a> {
    /// Offload profiles of the wire; a testbed each.
    pub offloads: &'a [Offload],
    /// MTUs of the underlay, bytes.
    pub mtus: &'a [u32],
    /// Whose CPUs the wire's NICs steer flows to; `None` leaves it to veth.
    pub steered_to: Option<&'a Placement>,
}

/// A setting that a mode does not take.
pub struct Refused {
    /// Name of the mode.
    pub mode: &'static str,
    /// What it was built with.
    pub params: Params,
    /// Index of the setting.
    pub setting: usize,
    /// Unsupported, or failed where it was not expected.
    pub status: Status,
    /// What the device or the kernel answered.
    pub reason: String,
}

/// A built mode and what it was built with.
pub struct Built {
    /// Index of the setting that it was built for; `None`: as found.
    pub setting: Option<usize>,
    /// How the testbed is networked.
    pub mode: &'static dyn Mode,
    /// What it was built with.
    pub params: Params,
    /// Its hosts, and the hops that prove the path.
    pub network: Network,
    /// Its virtual machines, where client and server are in some.
    pub guests: Option<Arc<Guests>>,
    /// How long it took to build.
    pub took: Duration,
}

/// What became of building a mode.
pub struct Attempt {
    /// Its entry in the results.
    pub record: ModeRecord,
    /// It was not built for want of root's rights.
    pub needs_root: bool,
}

impl From<ModeRecord> for Attempt {
    fn from(record: ModeRecord) -> Attempt {
        Attempt { record, needs_root: false }
    }
}

/// Builds a mode with every offload profile and MTU.
pub fn build(
    mode: &'static dyn Mode,
    wanted: &BuildOptions<'_>,
    capabilities: &Capabilities,
    progress: &Progress,
    built: &mut Vec<Built>,
) -> Attempt {
    progress.build(mode.name(), mode.build_seconds());
    let attempt = try_to_build(mode, wanted, capabilities, built);
    progress.built();
    attempt
}

fn try_to_build(
    mode: &'static dyn Mode,
    wanted: &BuildOptions<'_>,
    capabilities: &Capabilities,
    built: &mut Vec<Built>,
) -> Attempt {
    let mut record = ModeRecord { status: Status::Ok, reason: None, ..failed(mode, "") };
    if let Err(unsupported) = mode.probe(capabilities) {
        record.status = Status::Unsupported;
        record.reason = Some(unsupported.reason);
        record.remedy = Some(unsupported.remedy);
        return Attempt { record, needs_root: unsupported.needs_root };
    }
    let before = built.len();
    for &mtu in wanted.mtus {
        for &offload in wanted.offloads {
            let params = Params::new(mtu, offload);
            match stand(mode, params, None, wanted) {
                Ok(one) => {
                    let network = &one.network;
                    for note in &network.notes {
                        if !record.notes.contains(note) {
                            record.notes.push(note.clone());
                        }
                    }
                    for &lab::Alternative { mode, advice } in mode.alternatives(network) {
                        let alternative =
                            Alternative { mode: mode.to_owned(), advice: advice.to_owned() };
                        if !record.alternatives.contains(&alternative) {
                            record.alternatives.push(alternative);
                        }
                    }
                    built.push(one);
                }
                Err(error) => {
                    record.status = Status::Failed;
                    record.reason = Some(format!("offload {offload}, MTU {mtu}: {error}"));
                    // A mode is measured with every profile or with none.
                    built.truncate(before);
                    return record.into();
                }
            }
        }
    }
    record.into()
}

/// A mode, built and steered, with its guests at work.
///
/// # Errors
/// Why it could not be built.
pub fn stand(
    mode: &'static dyn Mode,
    params: Params,
    setting: Option<usize>,
    wanted: &BuildOptions<'_>,
) -> Result<Built, String> {
    let begun = Instant::now();
    let network = mode.build(&params).and_then(|network| {
        if let Some(placement) = wanted.steered_to {
            steer(&network, placement)?;
        };
        Ok(network)
    });
    let network = network.map_err(|error| error.to_string())?;
    let guests = guests(&network).map_err(|error| error.to_string())?;
    Ok(Built { setting, mode, params, network, guests, took: begun.elapsed() })
}

/// Builds what is in `built` once more for each setting of guests, behind it; what each of the
/// first is then measured under besides.
pub fn build_varied(
    settings: &[Varied],
    wanted: &BuildOptions<'_>,
    progress: &Progress,
    built: &mut Vec<Built>,
    records: &mut [ModeRecord],
    refused: &mut Vec<Refused>,
) -> Vec<Vec<Step>> {
    let mut steps = vec![Vec::new(); built.len()];
    for (setting, varied) in settings.iter().enumerate() {
        let Varied::Guests(guest) = varied else { continue };
        for (found, steps) in steps.iter_mut().enumerate() {
            let mode = built[found].mode;
            let params = Params { guest: *guest.options(), ..built[found].params };
            let mut refuse = |status, reason| {
                refused.push(Refused { mode: mode.name(), params, setting, status, reason });
            };
            if let Err(unsupported) = mode.takes(guest.options()) {
                let reason = format!("{}; {}", unsupported.reason, unsupported.remedy);
                refuse(Status::Unsupported, reason);
                continue;
            }
            progress.build(&format!("{} {guest}", mode.name()), mode.build_seconds());
            match stand(mode, params, Some(setting), wanted) {
                Ok(one) => {
                    for record in records.iter_mut().filter(|record| record.mode == mode.name()) {
                        let note = in_force(guest, &one.network, &built[found].network);
                        if !record.notes.contains(&note) {
                            record.notes.push(note);
                        }
                    }
                    steps.push(Step { setting, subject: built.len() });
                    built.push(one);
                }
                Err(reason) => refuse(Status::Failed, reason),
            }
            progress.built();
        }
    }
    steps
}

/// What a setting of guests came to, beside guests as found.
fn in_force(setting: &GuestSetting, varied: &Network, found: &Network) -> String {
    let guests = |network: &Network| network.guests().map(|guests| guests.in_force.clone());
    let both = guests(varied).into_iter().flatten().zip(guests(found).into_iter().flatten());
    let mut said: Vec<String> = both
        .map(|(varied, found)| varied.beside(&found).unwrap_or("nothing else than as found".into()))
        .collect();
    // Mostly client and server say the same.
    said.dedup();
    format!("{setting}: in force {}", said.join("; server "))
}

/// Has the server's guest serve, where client and server are virtual machines.
fn guests(network: &Network) -> Result<Option<Arc<Guests>>, EngineError> {
    let Some(guests) = network.guests() else { return Ok(None) };
    let end = |(name, stream): &(String, UnixStream)| {
        let stream = stream.try_clone().map_err(|error| EngineError::Guest {
            guest: name.clone(),
            message: format!("control channel: dup: {error}"),
        })?;
        Ok::<_, EngineError>(GuestEnd { name: name.clone(), stream })
    };
    let (client, server) = (end(&guests.client)?, end(&guests.server)?);
    let data_port = network.address.listen.port();
    Guests::open(client, server, guests.listen, data_port, guests.target)
        .map(|guests| Some(Arc::new(guests)))
}

/// Steers what the wire's NICs receive to the CPUs of their host's threads. A host between the
/// two has no threads of ours: what its NICs receive goes to the CPUs of both.
///
/// # Errors
/// Where sysfs forbids it.
pub fn steer(network: &Network, placement: &Placement) -> lab::Result<()> {
    let Placement { client_cpus, server_cpus, .. } = placement;
    let both = [client_cpus.as_slice(), server_cpus].concat();
    for host in network.hosts() {
        let cpus = match host.name() {
            "a" => client_cpus,
            "b" => server_cpus,
            name if name.starts_with("network") => &both,
            // Tenants, routers and daemons' hosts have no NIC of the wire.
            _ => continue,
        };
        for nic in [NIC, SECOND_NIC] {
            // Modes that cross no wire have no NIC to steer.
            if host.netlink().link(nic).is_ok() {
                host.steer(nic, cpus)?;
            }
        }
    }
    Ok(())
}

/// The entry of a mode that was not measured.
pub fn failed(mode: &dyn Mode, reason: &str) -> ModeRecord {
    ModeRecord {
        mode: mode.name().to_owned(),
        path: mode.path().to_owned(),
        status: Status::Failed,
        reason: Some(reason.to_owned()),
        remedy: None,
        notes: Vec::new(),
        alternatives: Vec::new(),
    }
}

/// A program of the mode ended during the run: whatever was measured, the mode
/// did not work to the end, and that is why its cells failed. `setting` is what its guests
/// were started with.
pub fn ended_early(
    built: &Built,
    setting: Option<&str>,
    error: &lab::Error,
    records: &mut [ModeRecord],
    cells: &mut [Cell],
) {
    let mode = built.mode.name();
    let of = setting.map_or_else(String::new, |setting| format!("{setting}: "));
    for record in records.iter_mut().filter(|record| record.mode == mode) {
        record.status = Status::Failed;
        record.reason = Some(format!("{of}ended during the run: {error}"));
    }
    for cell in cells.iter_mut().filter(|cell| {
        (cell.mode.as_str(), cell.offload.name(), cell.mtu)
            == (mode, built.params.offload.name(), built.params.mtu)
            && setting.is_none_or(|setting| cell.setting.as_deref() == Some(setting))
    }) {
        if let Some(reason) = &mut cell.reason {
            *reason = format!("{error}; {reason}");
        }
    }
}

/// A testbed's offload profile, as results have it.
pub fn profile(offload: Offload) -> Profile {
    match offload {
        Offload::Full => Profile::Full,
        Offload::NoTunnel => Profile::NoTunnel,
        Offload::None => Profile::None,
    }
}

/// What is measured of a built mode.
pub fn subject(built: &Built) -> PathUnderTest {
    let hosts = built.network.hosts();
    let at = |host: &Arc<testbed::Host>| {
        hosts.iter().position(|other| Arc::ptr_eq(other, host)).unwrap_or_default()
    };
    PathUnderTest {
        datagram_warmup: built.network.datagram_warmup,
        mode: built.mode.name().to_owned(),
        offload: profile(built.params.offload),
        mtu: built.params.mtu,
        client: at(built.network.client()),
        server: match &built.guests {
            Some(guests) => ServerEnd::Guests(Arc::clone(guests)),
            None => ServerEnd::Here {
                place: at(built.network.server()),
                target: built.network.address.target,
                listen: built.network.address.listen,
            },
        },
        hops: built.network.hops.clone(),
        places: hosts
            .iter()
            .map(|host| PathNetns { name: host.name().to_owned(), netns: host.netns().clone() })
            .collect(),
    }
}

/// What the devices of a built mode really have switched on.
///
/// # Errors
/// When a device cannot be asked.
pub fn testbed_record(built: &Built, settings: &[Varied]) -> anyhow::Result<TestbedRecord> {
    let mut devices = Vec::new();
    for hop in &built.network.hops {
        if hop.kind != netstate::HopKind::Device {
            continue;
        }
        let Some(host) = built.network.host(&hop.host) else { continue };
        devices.push(DeviceRecord {
            host: hop.host.clone(),
            device: hop.device.clone(),
            mtu: host.netlink().link(&hop.device)?.mtu,
            features: host
                .features(&hop.device)?
                .into_iter()
                .map(|(name, feature)| (name, feature.active))
                .collect(),
        });
    }
    Ok(TestbedRecord {
        mode: built.mode.name().to_owned(),
        offload: profile(built.params.offload),
        mtu: built.params.mtu,
        tenant_mtu: built.network.tenant_mtu,
        setting: built.setting.map(|at| settings[at].to_string()),
        devices,
        guests: built
            .network
            .guests()
            .map_or_else(Vec::new, |guests| guests.in_force.iter().map(guest_record).collect()),
    })
}

fn guest_record(guest: &InForce) -> GuestRecord {
    GuestRecord {
        name: guest.guest.clone(),
        kernel: guest.kernel.clone(),
        cpus: guest.cpus,
        queues: guest.queues,
        mrg_rxbuf: guest.mrg_rxbuf,
        tunnel_gso: guest.tunnel_gso,
        tap: guest.tap.as_ref().map(|tap| TapRecord {
            device: tap.device.clone(),
            queues: tap.queues,
            txqueuelen: tap.txqueuelen,
            sndbuf: tap.sndbuf,
            vhost: tap.vhost,
        }),
    }
}

/// The settings of hosts that a built mode, by its index, takes; those it refuses, with the
/// reason.
pub fn settings(
    built: &Built,
    subject: usize,
    settings: &[Varied],
    refused: &mut Vec<Refused>,
) -> Vec<Step> {
    let mut taken = Vec::new();
    for (at, varied) in settings.iter().enumerate() {
        let Varied::Hosts(setting) = varied else { continue };
        match setting.apply(built.network.hosts()).and_then(|held| Ok(held.restore()?)) {
            Ok(()) => taken.push(Step { setting: at, subject }),
            Err(error) => {
                refused.push(Refused {
                    mode: built.mode.name(),
                    params: built.params,
                    setting: at,
                    status: Status::Unsupported,
                    reason: format!("{error:#}"),
                });
            }
        }
    }
    taken
}
