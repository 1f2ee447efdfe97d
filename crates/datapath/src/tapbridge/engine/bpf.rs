//! The kernel part of the bpf engine: `bpf/redirect.bpf.c` at the egress of both devices.
//!
//! Frames that the program does not handle (with netmap: ARP, ICMP, options, fragments, VLAN tags)
//! go to the devices' queues, where the threads of the epoll engine move them. The programs are
//! removed with the devices. Requirements: both devices in one network namespace, because tc cannot
//! redirect to another; the same offloads on both, because the program does not segment; clsact;
//! CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.
//!
//! Limits: a frame counts as forwarded when it is redirected. If the other device is down and drops
//! it, only that device's counter shows that. The packet counters of the devices do not include
//! redirected frames (`drivers/net/tun.c` counts only frames that cross into user space).

use std::ffi::OsStr;
use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapFlags, MapHandle, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use super::super::netmap::Netmap;
use super::super::{Bridge, Port, Side};
use crate::bpf::load;
use crate::counters::Counters;
use sys::netns::NetNs;
use sys::tap::Offload;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));

/// Size of `struct settings` in the C source: five words.
const SETTINGS: usize = 20;

/// Size of `struct moved` in the C source: two `u64`.
const MOVED: usize = 16;

/// The attached programs of both directions.
#[derive(Debug)]
pub(super) struct Redirect {
    /// Counters of frames from the left and from the right.
    moved: [MapHandle; 2],
}

impl Redirect {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// Returns the reason as text; nothing is attached.
    pub(super) fn attach(bridge: &Bridge) -> Result<Redirect, String> {
        let (Some(left), Some(right)) = (bridge.left.tap(), bridge.right.tap()) else {
            return Err("tc cannot access a guest's memory".to_owned());
        };
        let needed = Offload::CSUM | Offload::TSO4 | Offload::TSO6;
        // tc redirects GSO packets whole, so the target must accept whatever the source produces.
        if left.offload() != right.offload() || !left.offload().contains(needed) {
            return Err(format!(
                "the bpf engine does not segment, but {} supports the offloads {} and {} supports \
                    {}",
                left.name(),
                left.offload(),
                right.name(),
                right.offload()
            ));
        }
        let netns = left.netns().map_err(|e| e.to_string())?;
        // `bpf_redirect` takes an interface index of the same namespace.
        if netns.inode() != right.netns().map_err(|e| e.to_string())?.inode() {
            return Err(format!(
                "{} and {} are in different network namespaces, and tc cannot redirect between \
                    namespaces",
                left.name(),
                right.name()
            ));
        }
        let indices = [index(left, &netns)?, index(right, &netns)?];
        let netmap = bridge.netmap.as_ref();
        let from_left = redirect(indices[0], indices[1], netmap, &netns);
        let both = from_left.and_then(|from_left| {
            Ok([from_left, redirect(indices[1], indices[0], netmap, &netns)?])
        });
        match both {
            Ok(moved) => Ok(Redirect { moved }),
            Err(reason) => {
                for index in indices {
                    detach(index, &netns);
                }
                Err(reason)
            }
        }
    }

    pub(super) fn count(&self, from: Side, counters: &mut Counters) {
        // If the map cannot be read, the other counters are still valid.
        let Ok(Some(cpus)) =
            // The counters stay at their last values; packets are not affected.
            self.moved[from as usize].lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        else {
            return;
        };
        for cpu in cpus {
            // The size of the values was checked when the map was opened.
            let Some(value) = cpu.first_chunk::<MOVED>() else { continue };
            let (frames, bytes) = value.split_at(8);
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
            let (frames, bytes) = (word(frames), word(bytes));
            counters.in_kernel += frames;
            counters.received += frames;
            counters.received_bytes += bytes;
            counters.forwarded += frames;
            counters.forwarded_bytes += bytes;
        }
    }
}

fn index(port: &Port, netns: &NetNs) -> Result<u32, String> {
    let index = netns.run(|| nix::net::if_::if_nametoindex(port.name()));
    let index = index.map_err(|e| e.to_string())?;
    index.map_err(|e| format!("if_nametoindex {}: {e}", port.name()))
}

/// Redirects the egress of one device to the ingress of another.
fn redirect(
    from: u32,
    to: u32,
    netmap: Option<&Netmap>,
    netns: &NetNs,
) -> Result<MapHandle, String> {
    let object = load(OBJECT, &settings(to, netmap))?;
    let moved = object
        .maps()
        .find(|map| map.name() == OsStr::new("moved"))
        .ok_or("the BPF object has no map \"moved\"")?;
    let moved = MapHandle::try_from(&moved).map_err(|e| format!("map \"moved\": {e}"))?;
    // The object is from another build: its counters cannot be read.
    if moved.value_size() as usize != MOVED {
        return Err(format!("map \"moved\": expected {MOVED} bytes, got {}", moved.value_size()));
    }
    let program = object.progs_mut().next().ok_or("the BPF object has no program")?;
    let program = program.as_fd();
    netns
        .run(|| {
            let mut hook = TcHookBuilder::new(program)
                .ifindex(from as i32)
                .replace(true)
                .handle(1)
                .priority(1)
                .hook(TC_EGRESS);
            hook.create().map_err(|e| format!("creating the clsact qdisc: {e}"))?;
            hook.attach().map(drop).map_err(|e| format!("attaching the tc filter: {e}"))
        })
        .map_err(|e| e.to_string())??;
    Ok(moved)
}

/// Removes the clsact qdisc with all filters. The device belongs to this process, so no filters of
/// other programs are lost.
fn detach(index: u32, netns: &NetNs) {
    let _ = netns.run(|| {
        let mut hook = TcHook::new(netns.as_fd());
        hook.ifindex(index as i32).attach_point(TC_EGRESS | TC_INGRESS);
        // There may be none.
        let _ = hook.destroy();
    });
}

/// Serializes `struct settings`.
fn settings(target: u32, netmap: Option<&Netmap>) -> [u8; SETTINGS] {
    let mut bytes = [0; SETTINGS];
    bytes[..4].copy_from_slice(&target.to_ne_bytes());
    let Some(netmap) = netmap else { return bytes };
    bytes[4..8].copy_from_slice(&1u32.to_ne_bytes());
    // In network byte order, so that the program compares without converting.
    bytes[8..12].copy_from_slice(&netmap.mask().octets());
    bytes[12..16].copy_from_slice(&netmap.network(Side::Left).octets());
    bytes[16..20].copy_from_slice(&netmap.network(Side::Right).octets());
    bytes
}
