//! Differences between two status reports as events for a log, one line of JSON each.
//!
//! A slow reader sees the latest state of each object, not every step in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::status::{DeviceStatus, Refused, Status};

/// An event of the fast path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Time of observation: RFC 3339, UTC, milliseconds.
    pub time: String,
    /// Kind of event.
    #[serde(flatten)]
    pub what: What,
}

/// Kind of event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The process now serves a namespace. Events for its devices follow.
    Started {
        /// Process id.
        pid: u32,
        /// Version of overlane.
        version: String,
        /// Inode of the network namespace.
        netns: u64,
        /// Process id of the predecessor after a takeover.
        predecessor: Option<u32>,
    },
    /// A VXLAN device changed state.
    Device {
        /// Name.
        device: String,
        /// New state.
        state: State,
        /// Why it takes the slow path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Refused>,
    },
    /// A tenant's port changed state.
    Port {
        /// Its VXLAN device.
        device: String,
        /// Name.
        port: String,
        /// New state.
        state: State,
        /// Why it takes the slow path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Refused>,
    },
    /// A plan was put into force, or withdrawn.
    Generation {
        /// Generation of the maps.
        generation: u64,
        /// Whether packets may take the fast path.
        in_force: bool,
        /// Forwarding entries.
        entries: usize,
        /// Entries that did not fit.
        left_out: usize,
    },
    /// The reconciler failed, so that all packets take the slow path, or recovered.
    Problem {
        /// Cause; null: recovered.
        problem: Option<String>,
    },
    /// The process that finds sandboxes has ended. Devices in sandboxes take the slow path.
    FinderLost,
    /// Another process took over.
    HandedOver,
    /// The fast path was detached.
    Stopped,
}

/// State of a device or port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its packets may take the fast path.
    Accelerated,
    /// All its packets take the slow path.
    Slow,
    /// It was removed, or is no longer asked for.
    Gone,
}

impl Event {
    /// An event with the current time.
    pub fn now(what: What) -> Event {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Event { time, what }
    }
}

fn state(refused: Option<&Refused>) -> State {
    if refused.is_some() { State::Slow } else { State::Accelerated }
}

/// Lists the changes. A device that moved to another sandbox of the same name counts as unchanged.
pub fn changes(before: &Status, after: &Status) -> Vec<What> {
    let mut all = Vec::new();
    if before.problem != after.problem {
        all.push(What::Problem { problem: after.problem.clone() });
    }
    if before.generation != after.generation {
        all.push(What::Generation {
            generation: after.generation,
            in_force: after.generation & 1 == 0 && after.problem.is_none(),
            entries: after.entries,
            left_out: after.left_out,
        });
    }
    let named = |status: &'_ Status| -> BTreeMap<String, DeviceStatus> {
        status.devices.iter().map(|device| (device.device.clone(), device.clone())).collect()
    };
    let (old, new) = (named(before), named(after));
    for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        device(name, old.get(name), new.get(name), &mut all);
    }
    all
}

fn device(name: &str, old: Option<&DeviceStatus>, new: Option<&DeviceStatus>, all: &mut Vec<What>) {
    let is = |device: &DeviceStatus| device.refused.clone();
    if old.map(is) != new.map(is) {
        let refused = new.and_then(|device| device.refused.as_ref());
        all.push(What::Device {
            device: name.to_owned(),
            state: new.map_or(State::Gone, |_| state(refused)),
            why: refused.cloned(),
        });
    }
    let ports = |device: Option<&DeviceStatus>| -> BTreeMap<String, Option<Refused>> {
        let ports = device.map(|device| device.ports.as_slice()).unwrap_or_default();
        ports.iter().map(|port| (port.name.clone(), port.refused.clone())).collect()
    };
    let (old, new) = (ports(old), ports(new));
    for port in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        if old.get(port) == new.get(port) {
            continue;
        }
        let refused = new.get(port).and_then(Option::as_ref);
        all.push(What::Port {
            device: name.to_owned(),
            port: port.clone(),
            state: new.get(port).map_or(State::Gone, |_| state(refused)),
            why: refused.cloned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::PortStatus;

    fn refused(code: &str) -> Option<Refused> {
        Some(Refused {
            code: code.to_owned(),
            object: "o".to_owned(),
            evidence: "e".to_owned(),
            remedy: "r".to_owned(),
        })
    }

    fn status(generation: u64, code: Option<&str>, ports: &[&str]) -> Status {
        let ports = ports.iter().map(|name| PortStatus {
            name: (*name).to_owned(),
            refused: None,
            entries: 0,
            packets: BTreeMap::new(),
            id: None,
        });
        let device = DeviceStatus {
            device: "vxlan0".to_owned(),
            refused: code.and_then(refused),
            entries: 0,
            packets: BTreeMap::new(),
            ports: ports.collect(),
            ipv6: Vec::new(),
            remotes: Vec::new(),
            id: None,
        };
        Status { generation, devices: vec![device], ..Status::default() }
    }

    fn lines(before: &Status, after: &Status) -> Vec<String> {
        let all = changes(before, after).into_iter();
        all.map(|what| serde_json::to_string(&what).unwrap()).collect()
    }

    #[test]
    fn each_change_is_an_event_and_nothing_else_is() {
        let one = status(2, None, &["a"]);
        assert_eq!(changes(&one, &one), []);
        assert_eq!(
            lines(&Status::default(), &one),
            [
                r#"{"event":"generation","generation":2,"in_force":true,"entries":0,"left_out":0}"#,
                r#"{"event":"device","device":"vxlan0","state":"accelerated"}"#,
                r#"{"event":"port","device":"vxlan0","port":"a","state":"accelerated"}"#,
            ]
        );
        assert_eq!(
            lines(&one, &status(2, Some("AX201"), &["b"])),
            [
                r#"{"event":"device","device":"vxlan0","state":"slow","why":{"code":"AX201","object":"o","evidence":"e","remedy":"r"}}"#,
                r#"{"event":"port","device":"vxlan0","port":"a","state":"gone"}"#,
                r#"{"event":"port","device":"vxlan0","port":"b","state":"accelerated"}"#,
            ]
        );
        let gone = lines(&one, &Status { generation: 2, ..Status::default() });
        assert_eq!(gone.len(), 2, "{gone:?}");
        let stuck = Status { problem: Some("p".to_owned()), generation: 3, ..one.clone() };
        assert_eq!(lines(&one, &stuck)[0], r#"{"event":"problem","problem":"p"}"#);
        assert!(lines(&one, &stuck)[1].contains(r#""in_force":false"#));
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let event = Event::now(What::FinderLost);
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["event"], "finder_lost");
        assert!(json["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{json}");
        assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
    }
}
