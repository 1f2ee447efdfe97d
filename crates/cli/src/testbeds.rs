//! Modes as a run stands on them: built with every offload profile and MTU,
//! steered, described for the results.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use lab::{Capabilities, Mode, Network, Params};
use load::EngineError;
use measure::guest::{GuestEnd, Guests};
use measure::path_netns::PathNetns;
use measure::path_under_test::{PathUnderTest, ServerEnd};
use results::{
    Alternative, Cell, DeviceRecord, ModeRecord, Placement, Profile, Status, TestbedRecord,
};
use testbed::{NIC, Offload, SECOND_NIC, Setting};

use crate::progress::Progress;

/// What every mode is built with.
pub struct BuildOptions<'a> {
    /// Offload profiles of the wire; a testbed each.
    pub offloads: &'a [Offload],
    /// MTUs of the underlay, bytes.
    pub mtus: &'a [u32],
    /// Whose CPUs the wire's NICs steer flows to; `None` leaves it to veth.
    pub steered_to: Option<&'a Placement>,
}

/// A setting that a built mode does not take.
pub struct Refused {
    /// Name of the mode.
    pub mode: &'static str,
    /// What it was built with.
    pub params: Params,
    /// Index of the setting.
    pub setting: usize,
    /// What the device or the kernel answered.
    pub reason: String,
}

/// A built mode and what it was built with.
pub struct Built {
    /// How the testbed is networked.
    pub mode: &'static dyn Mode,
    /// What it was built with.
    pub params: Params,
    /// Its hosts, and the hops that prove the path.
    pub network: Network,
    /// Its virtual machines, where client and server are in some.
    pub guests: Option<Arc<Guests>>,
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
            let params = Params { mtu, offload };
            let network = mode.build(&params).and_then(|network| {
                if let Some(placement) = wanted.steered_to {
                    steer(&network, placement)?;
                };
                Ok(network)
            });
            let network = network.map_err(|error| error.to_string()).and_then(|network| {
                let guests = guests(&network).map_err(|error| error.to_string())?;
                Ok((network, guests))
            });
            match network {
                Ok((network, guests)) => {
                    for note in &network.notes {
                        if !record.notes.contains(note) {
                            record.notes.push(note.clone());
                        }
                    }
                    for &lab::Alternative { mode, advice } in mode.alternatives(&network) {
                        let alternative =
                            Alternative { mode: mode.to_owned(), advice: advice.to_owned() };
                        if !record.alternatives.contains(&alternative) {
                            record.alternatives.push(alternative);
                        }
                    }
                    built.push(Built { mode, params, network, guests });
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
/// did not work to the end, and that is why its cells failed.
pub fn ended_early(
    built: &Built,
    error: &lab::Error,
    records: &mut [ModeRecord],
    cells: &mut [Cell],
) {
    let mode = built.mode.name();
    for record in records.iter_mut().filter(|record| record.mode == mode) {
        record.status = Status::Failed;
        record.reason = Some(format!("ended during the run: {error}"));
    }
    for cell in cells.iter_mut().filter(|cell| {
        (cell.mode.as_str(), cell.offload.name(), cell.mtu)
            == (mode, built.params.offload.name(), built.params.mtu)
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
pub fn testbed_record(built: &Built) -> anyhow::Result<TestbedRecord> {
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
        devices,
    })
}

/// The settings that a built mode takes; those it refuses, with the reason.
pub fn settings(built: &Built, settings: &[Setting], refused: &mut Vec<Refused>) -> Vec<usize> {
    let mut taken = Vec::new();
    for (at, setting) in settings.iter().enumerate() {
        match setting.apply(built.network.hosts()).and_then(|held| Ok(held.restore()?)) {
            Ok(()) => taken.push(at),
            Err(error) => {
                refused.push(Refused {
                    mode: built.mode.name(),
                    params: built.params,
                    setting: at,
                    reason: format!("{error:#}"),
                });
            }
        }
    }
    taken
}
