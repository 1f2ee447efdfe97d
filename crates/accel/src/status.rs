//! What the fast path says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{Counted, DeviceId, DevicePlan, Plan, Reason, Refusal};

/// What `packets` is keyed by: a [`Reason`]'s word.
#[cfg(feature = "schema")]
const REASON: &str = "^(encap|decap)_[a-z_]+$";

/// A refusal's code.
#[cfg(feature = "schema")]
const CODE: &str = "^AX[0-9]{3}$";

/// The fast path of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Status {
    /// Process; null: nothing is accelerated.
    pub pid: Option<u32>,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Generation of the maps; odd while every packet takes the slow path.
    pub generation: u64,
    /// Changes of single forwarding entries that were followed with all others in force.
    pub followed: u64,
    /// Forwarding entries in the maps.
    pub entries: usize,
    /// The most forwarding entries that the maps take (`--max-entries`); 0: nothing is
    /// accelerated.
    // As versions before 2 of the schema called it.
    #[serde(alias = "room")]
    pub max_entries: u32,
    /// Entries that did not fit and stay slow.
    pub left_out: usize,
    /// Why nothing is accelerated, when the reconciler has failed.
    pub problem: Option<String>,
    /// VXLAN devices.
    pub devices: Vec<DeviceStatus>,
    /// Packets by what became of them, each once; those that are zero are left out.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "pattern": REASON })))]
    pub packets: BTreeMap<String, Counted>,
    /// Packet sockets (`AF_PACKET`) on bridges, their ports and VXLAN devices: what goes the
    /// fast way does not come to them. Null: the kernel cannot tell (`CONFIG_PACKET_DIAG`).
    #[serde(default)]
    pub listeners: Option<Vec<Listener>>,
    /// Verdicts on flows through packet filters; none: no flow wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowsStatus>,
    /// Devices that a killed process has left.
    #[serde(default)]
    pub left_behind: Vec<String>,
    /// What the process may still do, in words: user, capabilities, Landlock, system calls.
    /// Absent: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<String>,
}

/// Verdicts on flows: connections whose packets come to packet filters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct FlowsStatus {
    /// Number of the state that verdicts are given by; with each new one all others are void.
    pub number: u64,
    /// Connections that were let go fast, since the start. One whose verdict was made void
    /// counts again.
    pub admitted: u64,
    /// Questions about connections that were answered by no.
    pub held: u64,
    /// Time spent on all of them, µs.
    pub spent_us: u64,
    /// What held them: a rule (table, chain, handle and why), or what conntrack says.
    pub reasons: BTreeMap<String, u64>,
}

/// A packet socket on a device that packets on the fast path do not come to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Listener {
    /// Device; null: the socket listens on all devices of its namespace.
    pub device: Option<String>,
    /// What it listens for, an `ETH_P_*` of `linux/if_ether.h`; 3: everything.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub protocol: u16,
    /// Inode of the socket (`socket:[inode]` in `/proc/PID/fd`).
    pub inode: u32,
}

/// A VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DeviceStatus {
    /// Name; of a device in another namespace, that namespace's name stands before it.
    pub device: String,
    /// Why it stays slow; null: it is accelerated.
    pub refused: Option<Refused>,
    /// Forwarding entries for addresses behind it.
    pub entries: usize,
    /// Packets that came for it from the wire, by what became of them, and those that it
    /// was spared of sending; those that are zero are left out.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "pattern": REASON })))]
    pub packets: BTreeMap<String, Counted>,
    /// The other ports of its bridge, or the devices that are routed to it.
    pub ports: Vec<PortStatus>,
    /// Why routed IPv6 packets stay slow, of the device and of the devices that are routed to
    /// it; IPv4 packets are not concerned.
    #[serde(default)]
    pub ipv6: Vec<Refused>,
    /// Remote VTEPs.
    pub remotes: Vec<RemoteStatus>,
    /// Where it is.
    #[serde(skip)]
    pub(crate) id: Option<DeviceId>,
}

/// A tenant's device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PortStatus {
    /// Name.
    pub name: String,
    /// Why it stays slow; null: it is accelerated.
    pub refused: Option<Refused>,
    /// Forwarding entries for addresses behind it.
    pub entries: usize,
    /// Packets that came from the tenant, by what became of them, and those that were
    /// delivered to it; those that are zero are left out.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "pattern": REASON })))]
    pub packets: BTreeMap<String, Counted>,
    /// Where it is.
    #[serde(skip)]
    pub(crate) id: Option<DeviceId>,
}

/// Why something stays slow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
#[serde(from = "Told")]
pub struct Refused {
    /// Stable code, `AX001` …: `overlane accel explain CODE` says what it means.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = CODE)))]
    pub code: String,
    /// The thing that is the cause, by name: what stays slow itself, or a bridge, NIC, chain …
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub object: String,
    /// What was seen.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub evidence: String,
    /// What would help.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub remedy: String,
}

impl Refused {
    /// A refusal of the thing with this name.
    fn new(name: &str, refusal: &Refusal) -> Refused {
        Refused {
            code: refusal.code().to_owned(),
            object: refusal.object().unwrap_or_else(|| name.to_owned()),
            evidence: refusal.to_string(),
            remedy: refusal.explanation().remedy.to_owned(),
        }
    }

    fn option(name: &str, refusal: Option<&Refusal>) -> Option<Refused> {
        refusal.map(|refusal| Refused::new(name, refusal))
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.code.is_empty() {
            write!(f, "{} ", self.code)?;
        }
        f.write_str(&self.evidence)
    }
}

/// How a process tells it: one that started before version 2 of the schema gives a sentence
/// only, and must still be told to end.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum Told {
    Refused { code: String, object: String, evidence: String, remedy: String },
    Sentence(String),
}

impl From<Told> for Refused {
    fn from(told: Told) -> Refused {
        let (code, object, evidence, remedy) = match told {
            Told::Refused { code, object, evidence, remedy } => (code, object, evidence, remedy),
            Told::Sentence(evidence) => (String::new(), String::new(), evidence, String::new()),
        };
        Refused { code, object, evidence, remedy }
    }
}

/// A remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct RemoteStatus {
    /// Address.
    pub name: String,
    /// Why it stays slow; null: it is accelerated.
    pub refused: Option<Refused>,
}

impl DeviceStatus {
    /// What a plan has; nothing is counted yet.
    pub(crate) fn all(plan: &Plan) -> Vec<DeviceStatus> {
        let mut entries = BTreeMap::new();
        for id in plan.fdb.iter().filter_map(|((domain, _), entry)| entry.device(*domain)) {
            *entries.entry(id).or_default() += 1;
        }
        plan.devices.iter().map(|device| DeviceStatus::of(device, &entries)).collect()
    }

    fn of(device: &DevicePlan, entries: &BTreeMap<DeviceId, usize>) -> DeviceStatus {
        let id = DeviceId { netns: device.sandbox.unwrap_or(0), index: device.index };
        let entries = |id| entries.get(&id).copied().unwrap_or(0);
        let ports = device.ports.iter().map(|port| PortStatus {
            name: port.name.clone(),
            refused: Refused::option(&port.name, port.refused.as_ref()),
            entries: entries(port.id),
            packets: BTreeMap::new(),
            id: Some(port.id),
        });
        let remotes = device.remotes.iter().map(|(address, remote)| {
            let name = address.to_string();
            RemoteStatus { refused: Refused::option(&name, remote.refused.as_ref()), name }
        });
        DeviceStatus {
            device: device.name.clone(),
            refused: Refused::option(&device.name, device.refused.as_ref()),
            entries: entries(id),
            packets: BTreeMap::new(),
            ports: ports.collect(),
            ipv6: device.ipv6.iter().map(|refusal| Refused::new(IPV6, refusal)).collect(),
            remotes: remotes.collect(),
            id: Some(id),
        }
    }
}

/// What is refused where routed IPv6 packets are.
const IPV6: &str = "IPv6";

impl Status {
    /// Fills in what was counted, of all and of each device, by the reasons' words.
    pub(crate) fn count(
        &mut self,
        all: BTreeMap<String, Counted>,
        each: &BTreeMap<DeviceId, BTreeMap<String, Counted>>,
    ) {
        let at = |id: Option<DeviceId>| id.and_then(|id| each.get(&id).cloned());
        self.packets = all;
        for device in &mut self.devices {
            device.packets = at(device.id).unwrap_or_default();
            for port in &mut device.ports {
                port.packets = at(port.id).unwrap_or_default();
            }
        }
    }

    /// Packets of a [`Reason`] by its word.
    pub fn packets(&self, word: &str) -> u64 {
        self.packets.get(word).map_or(0, |counted| counted.packets)
    }

    /// What was sent by the half path. At the tenants' devices, and thus in
    /// [`packets`](Status::packets), these packets have the reason why they were not taken.
    pub fn sent_half(&self) -> Counted {
        let of = |device: &DeviceStatus| device.packets.get(Reason::EncapHalf.word()).copied();
        let add = |sum: Counted, sent: Counted| Counted {
            packets: sum.packets + sent.packets,
            bytes: sum.bytes + sent.bytes,
        };
        self.devices.iter().filter_map(of).fold(Counted::default(), add)
    }

    /// What stays slow of its devices, their ports, routed IPv6 packets and remote VTEPs:
    /// name, why.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &Refused)> {
        self.devices.iter().flat_map(|device| {
            let own = std::iter::once((&device.device, &device.refused));
            let ports = device.ports.iter().map(|port| (&port.name, &port.refused));
            let remotes = device.remotes.iter().map(|remote| (&remote.name, &remote.refused));
            let all = own.chain(ports).chain(remotes);
            let ipv6 = device.ipv6.iter().map(|refused| (IPV6, refused));
            all.filter_map(|(name, refused)| Some((name.as_str(), refused.as_ref()?))).chain(ipv6)
        })
    }

    /// Whether packets of this device may be taken.
    pub fn accelerates(&self, device: &str) -> bool {
        self.generation & 1 == 0
            && self.devices.iter().any(|d| d.device == device && d.refused.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_of_an_older_process_is_read() {
        let old: Option<Refused> = serde_json::from_str("\"it is down\"").unwrap();
        assert_eq!(old.unwrap().to_string(), "it is down");
        let new = Refused::new("br0", &Refusal::DeviceDown {});
        assert_eq!((new.code.as_str(), new.object.as_str()), ("AX005", "br0"));
        assert_eq!(new.to_string(), "AX005 it is down");
        let json = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<Refused>(&json).unwrap(), new);
        let bridge = Refusal::VlanFiltering { bridge: "br0".into() };
        assert_eq!(Refused::new("vxlan0", &bridge).object, "br0");
    }
}
