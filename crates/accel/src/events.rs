//! What has changed from one status to the next, as events for a log: a line of JSON each.
//!
//! Events are differences of what was noted. Whoever follows late sees the last state of
//! each thing, not each step between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::status::{DeviceStatus, Refused, Status};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// When it was seen: RFC 3339, UTC, milliseconds.
    pub time: String,
    /// What has happened.
    #[serde(flatten)]
    pub what: What,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The process serves a namespace from now on; its devices come next.
    Started {
        /// Process.
        pid: u32,
        /// Version of overlane.
        version: String,
        /// Inode of the network namespace.
        netns: u64,
        /// Process that it has taken over from.
        predecessor: Option<u32>,
    },
    /// A VXLAN device.
    Device {
        /// Name.
        device: String,
        /// What it is now.
        state: State,
        /// Why it is slow.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Refused>,
    },
    /// A tenant's port.
    Port {
        /// VXLAN device that it belongs to.
        device: String,
        /// Name.
        port: String,
        /// What it is now.
        state: State,
        /// Why it is slow.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Refused>,
    },
    /// A plan was published, or withdrawn.
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
    /// Everything is slow, or no longer.
    Problem {
        /// Why; none: it is over.
        problem: Option<String>,
    },
    /// The process that looks for sandboxes is gone: devices there stay slow.
    FinderLost,
    /// Another process has taken over.
    HandedOver,
    /// The fast path is detached.
    Stopped,
}

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its packets may take the fast path.
    Accelerated,
    /// All its packets take the slow path.
    Slow,
    /// It is not there any more, or not asked for.
    Gone,
}

impl Event {
    /// One that happens now.
    pub fn now(what: What) -> Event {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        Event { time, what }
    }
}

fn state(refused: Option<&Refused>) -> State {
    if refused.is_some() { State::Slow } else { State::Accelerated }
}

/// What has changed. A device in another sandbox of the same name is the same to a reader.
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
