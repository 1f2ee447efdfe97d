//! The status report of the fast path.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{Counted, DeviceId, DevicePlan, Plan, Reason, Refusal};

/// Pattern of the keys in `packets`: a [`Reason`]'s word.
#[cfg(feature = "schema")]
const REASON: &str = "^(encap|decap)_[a-z_]+$";

#[cfg(feature = "schema")]
const CODE: &str = "^AX[0-9]{3}$";

/// The fast path of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Status {
    /// Process id; null: nothing is accelerated.
    pub pid: Option<u32>,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Generation of the maps; odd while all packets take the slow path.
    pub generation: u64,
    /// Incremental changes: single forwarding entries that changed while the rest stayed in force.
    pub followed: u64,
    /// Changes of learned addresses beyond the budgets of their ports. New addresses behind these
    /// ports take the slow path until the budget is full again.
    #[serde(default)]
    pub unfollowed: u64,
    /// Forwarding entries in the maps.
    pub entries: usize,
    /// Limit of forwarding entries in the maps (`--max-entries`); 0: nothing is accelerated.
    // Name before version 2 of the schema.
    #[serde(alias = "room")]
    pub max_entries: u32,
    /// GSO packets from the wire take the fast path to every tenant, because the kernel can take the
    /// tunnel off them (`BPF_F_ADJ_ROOM_DECAP_L4_UDP`, Linux 7.3). Otherwise only those for a
    /// tenant's own socket do.
    #[serde(default)]
    pub decap_gso: bool,
    /// Entries that did not fit. Packets for them take the slow path.
    pub left_out: usize,
    /// Why nothing is accelerated, if the reconciler has failed.
    pub problem: Option<String>,
    /// VXLAN devices.
    pub devices: Vec<DeviceStatus>,
    /// Packets by outcome, each counted once. Zero counts are left out.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "pattern": REASON })))]
    pub packets: BTreeMap<String, Counted>,
    /// Packet sockets (`AF_PACKET`) on bridges, their ports and VXLAN devices. They do not receive
    /// accelerated packets. Null: unknown, the kernel lacks `CONFIG_PACKET_DIAG`.
    #[serde(default)]
    pub listeners: Option<Vec<Listener>>,
    /// Verdicts on flows through packet filters. Absent: no flow needs a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowsStatus>,
    /// Devices that a killed process left behind.
    #[serde(default)]
    pub left_behind: Vec<String>,
    /// Privileges that the process still has, as text: user, capabilities, Landlock, system calls.
    /// Absent: not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<String>,
}

/// Verdicts on flows: connections whose packets pass packet filters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct FlowsStatus {
    /// Number of the state that verdicts depend on. A new number voids all earlier verdicts.
    pub number: u64,
    /// Connections admitted to the fast path since the start. A connection whose verdict became
    /// void counts again.
    pub admitted: u64,
    /// Verdicts that denied the fast path.
    #[serde(rename = "held")]
    pub denied: u64,
    /// Time spent on all verdicts, µs.
    pub spent_us: u64,
    /// The caretaker was killed, which leaves connections to conntrack if this process is killed. TCP
    /// connections through packet filters take the slow path until the next start.
    #[serde(default)]
    pub unguarded: bool,
    /// Verdicts that denied, by reason: a rule (table, chain, handle, effect) or the state of
    /// conntrack.
    pub reasons: BTreeMap<String, u64>,
}

/// A packet socket on a device. It does not receive packets that take the fast path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Listener {
    /// Device; null: the socket receives from all devices of its namespace.
    pub device: Option<String>,
    /// Protocol that it receives, an `ETH_P_*` of `linux/if_ether.h`; 3: all.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub protocol: u16,
    /// Inode of the socket (`socket:[inode]` in `/proc/PID/fd`).
    pub inode: u32,
}

/// A VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct DeviceStatus {
    /// Name. A device in another namespace has that namespace's name as a prefix.
    pub device: String,
    /// Why it takes the slow path; null: it is accelerated.
    pub refused: Option<Refused>,
    /// Forwarding entries for addresses behind it.
    pub entries: usize,
    /// Packets that arrived for it from the wire, by outcome, and packets sent to the wire past it.
    /// Zero counts are left out.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "pattern": REASON })))]
    pub packets: BTreeMap<String, Counted>,
    /// The other ports of its bridge, or the devices that route to it.
    pub ports: Vec<PortStatus>,
    /// Why routed IPv6 packets take the slow path, for the device and for the devices that route to
    /// it. IPv4 packets are not affected.
    #[serde(default)]
    pub ipv6: Vec<Refused>,
    /// Remote VTEPs.
    pub remotes: Vec<RemoteStatus>,
    #[serde(skip)]
    pub(crate) id: Option<DeviceId>,
}

/// A tenant's device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct PortStatus {
    /// Name.
    pub name: String,
    /// Why it takes the slow path; null: it is accelerated.
    pub refused: Option<Refused>,
    /// Forwarding entries for addresses behind it.
    pub entries: usize,
    /// Packets from the tenant, by outcome, and packets delivered to it. Zero counts are left out.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "pattern": REASON })))]
    pub packets: BTreeMap<String, Counted>,
    #[serde(skip)]
    pub(crate) id: Option<DeviceId>,
}

/// Why something takes the slow path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
#[serde(from = "ReasonRecord")]
pub struct Refused {
    /// Stable code, `AX001` …: `overlane accel explain CODE` describes it.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = CODE)))]
    pub code: String,
    /// Name of the cause: the refused device itself, or a bridge, NIC, chain …
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub object: String,
    /// Observed condition.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub evidence: String,
    /// Steps that remove the condition.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub remedy: String,
}

impl Refused {
    /// A refusal of the device, port or VTEP called `name`.
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
        // Processes before version 2 of the schema send no code.
        if !self.code.is_empty() {
            write!(f, "{} ", self.code)?;
        }
        f.write_str(&self.evidence)
    }
}

/// A refusal on the wire. Processes started before version 2 of the schema send a sentence only;
/// such a process must still understand the request to stop.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum ReasonRecord {
    Refused { code: String, object: String, evidence: String, remedy: String },
    Sentence(String),
}

impl From<ReasonRecord> for Refused {
    fn from(record: ReasonRecord) -> Refused {
        let (code, object, evidence, remedy) = match record {
            ReasonRecord::Refused { code, object, evidence, remedy } => {
                (code, object, evidence, remedy)
            }
            ReasonRecord::Sentence(evidence) => {
                (String::new(), String::new(), evidence, String::new())
            }
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
    /// Why it takes the slow path; null: it is accelerated.
    pub refused: Option<Refused>,
}

impl DeviceStatus {
    /// Converts a plan. Packet counts are empty.
    pub(crate) fn all(plan: &Plan) -> Vec<DeviceStatus> {
        // Entries of the host itself belong to no device.
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

/// Name under which refusals of routed IPv6 packets are listed.
const IPV6: &str = "IPv6";

impl Status {
    /// Fills in the packet counts, total and per device, keyed by [`Reason`] words.
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

    /// Returns the packets of a [`Reason`], given its word.
    pub fn packets(&self, word: &str) -> u64 {
        self.packets.get(word).map_or(0, |counted| counted.packets)
    }

    /// Sums up the packets sent by the partial bypass. At the tenants' devices, and so in
    /// [`packets`](Status::packets), these packets are counted under the reason that excluded them
    /// from the fast path.
    pub fn sent_half(&self) -> Counted {
        let of = |device: &DeviceStatus| device.packets.get(Reason::EncapHalf.word()).copied();
        let add = |sum: Counted, sent: Counted| Counted {
            packets: sum.packets + sent.packets,
            bytes: sum.bytes + sent.bytes,
        };
        self.devices.iter().filter_map(of).fold(Counted::default(), add)
    }

    /// Returns the refusals of devices, ports, remote VTEPs and routed IPv6 packets: name and
    /// refusal.
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

    /// Whether packets of this device may take the fast path.
    pub fn accelerates(&self, device: &str) -> bool {
        // An odd generation sends all packets to the slow path.
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
