//! Testbeds of a run: builds the modes with every offload profile and MTU, steers flows, and
//! describes them for the results.

use std::collections::BTreeMap;
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

pub struct BuildOptions<'a> {
    /// Offload profiles of the wire, one testbed each.
    pub offloads: &'a [Offload],
    /// MTUs of the underlay, in bytes.
    pub mtus: &'a [u32],
    /// CPUs to which the wire's NICs steer flows. `None` leaves it to veth.
    pub steered_to: Option<&'a Placement>,
    /// The ends of all modes use IPv6.
    pub ipv6: bool,
    /// TCP of the clients asks for ECN.
    pub ecn: bool,
}

/// A setting that a mode does not support.
pub struct Refused {
    pub mode: &'static str,
    pub params: Params,
    pub setting: usize,
    /// Unsupported, or failed unexpectedly.
    pub status: Status,
    /// Error of the device or the kernel.
    pub reason: String,
}

/// A built mode and its build parameters.
pub struct Built {
    /// Index of the guest setting that it was built with. `None`: defaults.
    pub setting: Option<usize>,
    pub mode: &'static dyn Mode,
    pub params: Params,
    /// Its hosts, and the hops that prove the path.
    pub network: Network,
    /// Its virtual machines, if client and server run in some.
    pub guests: Option<Arc<Guests>>,
    pub took: Duration,
}

/// Result of building a mode.
pub struct Attempt {
    pub record: ModeRecord,
    /// It could not be built without root.
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
    // The probe knows the missing feature and its remedy; a failed build does not.
    if let Err(unsupported) = mode.probe(capabilities) {
        record.status = Status::Unsupported;
        record.reason = Some(unsupported.reason);
        record.remedy = Some(unsupported.remedy);
        return Attempt { record, needs_root: unsupported.needs_root };
    }
    let before = built.len();
    for &mtu in wanted.mtus {
        for &offload in wanted.offloads {
            let params = Params { ipv6: wanted.ipv6, ..Params::new(mtu, offload) };
            match stand(mode, params, None, wanted) {
                Ok(one) => {
                    let network = &one.network;
                    for note in &network.notes {
                        // Testbeds of one mode often have the same notes.
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
                    record.status = error.status();
                    if let NotBuilt::Unsupported(unsupported) = &error {
                        record.remedy = Some(unsupported.remedy.clone());
                    }
                    record.reason = Some(format!("offload {offload}, MTU {mtu}: {error}"));
                    // Drop all testbeds of the mode: it is measured with every profile or none.
                    built.truncate(before);
                    return record.into();
                }
            }
        }
    }
    record.into()
}

/// Why a mode could not be built with its parameters.
#[derive(Debug, thiserror::Error)]
pub enum NotBuilt {
    /// The mode does not support them.
    #[error("{}", .0.reason)]
    Unsupported(lab::Unsupported),
    /// A step failed.
    #[error("{0}")]
    Failed(String),
}

impl NotBuilt {
    fn status(&self) -> Status {
        match self {
            NotBuilt::Unsupported(_) => Status::Unsupported,
            NotBuilt::Failed(_) => Status::Failed,
        }
    }
}

/// Builds a mode, steers its flows, and starts its guests.
///
/// # Errors
/// The reason why it could not be built.
pub fn stand(
    mode: &'static dyn Mode,
    params: Params,
    setting: Option<usize>,
    wanted: &BuildOptions<'_>,
) -> Result<Built, NotBuilt> {
    let failed = |error: &dyn std::fmt::Display| NotBuilt::Failed(error.to_string());
    let begun = Instant::now();
    let network = mode.build(&params).and_then(|network| {
        if let Some(placement) = wanted.steered_to {
            steer(&network, placement)?;
        };
        // Servers accept ECN by default. A guest as the client has a kernel of its own.
        if wanted.ecn && network.guests().is_none() {
            network.client().sysctl("net/ipv4/tcp_ecn", "1")?;
        }
        Ok(network)
    });
    let network = network.map_err(|error| failed(&error))?;
    let network = match params.ipv6 {
        true => network.over_ipv6().map_err(NotBuilt::Unsupported)?,
        false => network,
    };
    let guests = guests(&network).map_err(|error| failed(&error))?;
    Ok(Built { setting, mode, params, network, guests, took: begun.elapsed() })
}

/// Builds each mode in `built` again with each setting of guests, and over IPv6, and appends the result to `built`.
/// Returns the additional steps of each original entry.
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
        for (found, steps) in steps.iter_mut().enumerate() {
            let mode = built[found].mode;
            let guest = match varied {
                Varied::Guests(guest) => *guest.options(),
                Varied::Ipv6 => built[found].params.guest,
                // The setting is applied to the hosts of the default testbed.
                Varied::Hosts(_) => continue,
            };
            let ipv6 = built[found].params.ipv6 || *varied == Varied::Ipv6;
            let params = Params { guest, ipv6, ..built[found].params };
            let mut refuse = |status, reason| {
                refused.push(Refused { mode: mode.name(), params, setting, status, reason });
            };
            // Other modes may still support the setting.
            if let Err(unsupported) = mode.takes(&guest) {
                // The other values are measured; this one is listed with the reason.
                let reason = format!("{}; {}", unsupported.reason, unsupported.remedy);
                refuse(Status::Unsupported, reason);
                continue;
            }
            progress.build(&format!("{} {varied}", mode.name()), mode.build_seconds());
            match stand(mode, params, Some(setting), wanted) {
                Ok(one) => {
                    for record in records.iter_mut().filter(|record| record.mode == mode.name()) {
                        let new = match varied {
                            Varied::Guests(guest) => {
                                vec![in_force(guest, &one.network, &built[found].network)]
                            }
                            _ => one.network.notes.clone(),
                        };
                        for note in new {
                            if !record.notes.contains(&note) {
                                record.notes.push(note);
                            }
                        }
                    }
                    steps.push(Step { setting, subject: built.len() });
                    built.push(one);
                }
                Err(error) => refuse(error.status(), error.to_string()),
            }
            progress.built();
        }
    }
    steps
}

/// Describes the effective values of a guest setting, compared with guests without it.
fn in_force(setting: &GuestSetting, varied: &Network, found: &Network) -> String {
    let guests = |network: &Network| network.guests().map(|guests| guests.in_force.clone());
    let both = guests(varied).into_iter().flatten().zip(guests(found).into_iter().flatten());
    let mut said: Vec<String> = both
        .map(|(varied, found)| {
            varied.beside(&found).unwrap_or("no difference from the default".into())
        })
        .collect();
    // Client and server usually have the same values.
    said.dedup();
    format!("{setting}: in effect {}", said.join("; server "))
}

/// Starts the server in its guest, if client and server are virtual machines.
fn guests(network: &Network) -> Result<Option<Arc<Guests>>, EngineError> {
    let Some(guests) = network.guests() else { return Ok(None) };
    let end = |(name, stream): &(String, UnixStream)| {
        // The testbed keeps its own copy of the control channel.
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

/// Steers packets that the wire's NICs receive to the CPUs of their host's threads. A host between
/// the two runs no threads of the load, so its NICs use the CPUs of both.
///
/// # Errors
/// If sysfs is not writable.
pub fn steer(network: &Network, placement: &Placement) -> lab::Result<()> {
    let Placement { client_cpus, server_cpus, .. } = placement;
    let both = [client_cpus.as_slice(), server_cpus].concat();
    for host in network.hosts() {
        let cpus = match host.name() {
            "a" => client_cpus,
            "b" => server_cpus,
            name if name.starts_with("network") => &both,
            // Tenants, routers and hosts of daemons have no NIC on the wire.
            _ => continue,
        };
        for nic in [NIC, SECOND_NIC] {
            // Modes without a wire have no NIC to steer.
            if host.netlink().link(nic).is_ok() {
                host.steer(nic, cpus)?;
            }
        }
    }
    Ok(())
}

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

/// Marks a mode as failed because one of its programs ended during the run, and adds this reason to
/// its cells. `setting` is the setting of its guests.
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

/// Converts the offload profile of a testbed for the results.
pub fn profile(offload: Offload) -> Profile {
    match offload {
        Offload::Full => Profile::Full,
        Offload::NoTunnel => Profile::NoTunnel,
        Offload::None => Profile::None,
    }
}

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
        damage: None,
    }
}

/// Reads the active features of the devices of a built mode.
pub fn testbed_record(built: &Built, settings: &[Varied]) -> anyhow::Result<TestbedRecord> {
    let (mut devices, mut qdiscs) = (Vec::new(), BTreeMap::new());
    for hop in &built.network.hops {
        // Other hops have no offload features.
        if hop.kind != netstate::HopKind::Device {
            continue;
        }
        let Some(host) = built.network.host(&hop.host) else { continue };
        let link = host.netlink().link(&hop.device)?;
        if let Some(qdisc) = link.qdisc {
            qdiscs.insert(format!("{}/{}", hop.host, hop.device), qdisc);
        }
        devices.push(DeviceRecord {
            host: hop.host.clone(),
            device: hop.device.clone(),
            mtu: link.mtu,
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
        qdiscs,
        guests: built
            .network
            .guests()
            .map_or_else(Vec::new, |guests| guests.in_force.iter().map(guest_record).collect()),
        probe: None,
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

/// Tries all host settings on a built mode, the subject with this index. Returns the steps of those
/// that work, and adds the others to `refused` with the reason.
pub fn settings(
    built: &Built,
    subject: usize,
    settings: &[Varied],
    refused: &mut Vec<Refused>,
) -> Vec<Step> {
    let mut taken = Vec::new();
    for (at, varied) in settings.iter().enumerate() {
        let Varied::Hosts(setting) = varied else { continue };
        // Apply and restore the setting once, to find out whether the mode supports it.
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
