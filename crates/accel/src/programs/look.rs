//! Counting programs (`bpf/look.bpf.c`) at a VXLAN device, and their counts by address.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use packet::ethernet::MacAddr;
use sys::tcx::{self, Hook};

use super::object::failed;
use crate::Result;
use crate::model::Counted;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/look.bpf.o"));

/// Size of `struct seen`, bytes.
const KEY: usize = 20;
/// Number of values in `enum class`.
const CLASSES: usize = 4;

/// Class of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Unicast IPv4.
    Ipv4,
    /// Unicast IPv6.
    Ipv6,
    /// Multicast or broadcast.
    Group,
    /// ARP, VLAN-tagged and other packets.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CountKey {
    /// Input device of packets to the wire. 0: sent by the host itself, or from the wire.
    pub(crate) from: u32,
    /// To the wire rather than from it.
    pub(crate) to_wire: bool,
    pub(crate) class: Class,
    /// Address on this host's side.
    pub(crate) local: MacAddr,
    /// Address on the remote side.
    pub(crate) remote: MacAddr,
}

/// Counts at a device.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounts {
    pub(crate) seen: BTreeMap<CountKey, Counted>,
    /// Packets that found no free entry in `seen`, by direction and class.
    pub(crate) rest: BTreeMap<(bool, Class), Counted>,
}

/// Counting programs at one device. Dropping the value detaches them.
pub(crate) struct TrafficCounter {
    // Before `object`: fields are dropped in order, and links must be detached first.
    _links: [tcx::Link; 2],
    object: Object,
}

impl TrafficCounter {
    /// Attaches the programs to a device of the calling thread's namespace.
    pub(crate) fn attach(ifindex: u32, name: &str) -> Result<TrafficCounter> {
        let object = ObjectBuilder::default()
            .open_memory(OBJECT)
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(|e| failed("load", "BPF counting programs", e.to_string()))?;
        let attach = |program: &str, hook| {
            let found = object.progs().find(|one| one.name() == OsStr::new(program));
            let found =
                found.ok_or_else(|| failed("find", format!("program {program}"), "none".into()))?;
            tcx::attach(found.as_fd(), ifindex, hook)
                .map_err(|e| failed("attach to", format!("tcx of {name}"), e.errno.to_string()))
        };
        let links =
            [attach("look_from_wire", Hook::Ingress)?, attach("look_to_wire", Hook::Egress)?];
        Ok(TrafficCounter { _links: links, object })
    }

    pub(crate) fn read(&self) -> Result<TrafficCounts> {
        let mut counts = TrafficCounts::default();
        let map = |name: &str| {
            let found = self.object.maps().find(|map| map.name() == OsStr::new(name));
            found.ok_or_else(|| failed("find", format!("map {name}"), "none".into()))
        };
        let seen = map("seen")?;
        for key in seen.keys() {
            let value = seen.lookup(&key, MapFlags::ANY);
            let value = value.map_err(|e| failed("read", "map seen", e.to_string()))?;
            if let (Some(key), Some(counted)) = (parse(&key), value.as_deref().and_then(counted)) {
                counts.seen.insert(key, counted);
            }
        }
        let rest = map("rest")?;
        for at in 0..2 * CLASSES {
            let value = rest.lookup(&(at as u32).to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(|e| failed("read", "map rest", e.to_string()))?;
            let Some(counted) = value.as_deref().and_then(counted) else { continue };
            if counted.packets > 0 {
                let (to_wire, class) = (at / CLASSES == 1, class((at % CLASSES) as u8));
                counts.rest.insert((to_wire, class), counted);
            }
        }
        Ok(counts)
    }
}

fn class(number: u8) -> Class {
    match number {
        0 => Class::Ipv4,
        1 => Class::Ipv6,
        2 => Class::Group,
        _ => Class::Other,
    }
}

fn parse(key: &[u8]) -> Option<CountKey> {
    let key: &[u8; KEY] = key.try_into().ok()?;
    let mac = |at: usize| Some(MacAddr(key[at..at + 6].try_into().ok()?));
    let to_wire = key[4] == 1;
    let (destination, source) = (mac(6)?, mac(12)?);
    // Order the addresses by side rather than by direction.
    let (local, remote) = if to_wire { (source, destination) } else { (destination, source) };
    let from = u32::from_ne_bytes(key[..4].try_into().ok()?);
    Some(CountKey { from, to_wire, class: class(key[5]), local, remote })
}

fn counted(value: &[u8]) -> Option<Counted> {
    let word = |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
    Some(Counted { packets: word(0)?, bytes: word(8)? })
}
