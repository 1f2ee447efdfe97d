//! `vxlan+accel`, `vxlan6+accel`: the testbed of `vxlan` or `vxlan6`, with `overlane accel`'s
//! fast path in both hosts. Packets bypass the bridge and the VXLAN device.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};
use std::time::Duration;

use accel::{Accel, Counted, Reason, Status, Wanted};
use netstate::{Counters, Hop, Meter, Metered, Side, TrafficDirection};
use testbed::{Host, NIC};

use super::bridge::{PORT_DEVICE, Tenants};
use super::vxlan::{DEVICE, TENANT_B, Underlay, tunnelled};
use crate::{Capabilities, Label, Mode, Network, PORT, Params, Result, Unsupported};

/// Time limit for the fast path to learn the tenants.
const LIMIT: Duration = Duration::from_secs(60);

/// `vxlan` with the fast path in both hosts, over one of two underlays.
pub struct VxlanAccel(Underlay);

/// The variant over an IPv4 underlay.
pub const V4: VxlanAccel = VxlanAccel(Underlay::V4);
/// The variant over an IPv6 underlay. Not in `--modes all`.
pub const V6: VxlanAccel = VxlanAccel(Underlay::V6);

impl Mode for VxlanAccel {
    fn label(&self) -> Label {
        match self.0 {
            Underlay::V4 => Label::new(
                "vxlan+accel",
                "tenant - veth - eBPF bypassing bridge and kernel VXLAN device - wire",
            ),
            Underlay::V6 => Label::new(
                "vxlan6+accel",
                "tenant - veth - eBPF bypassing bridge and VXLAN device - wire, IPv6 underlay",
            )
            .not_in_all(),
        }
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        self.0.probe(machine)?;
        machine.fast_path()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        accelerated(tunnelled(params, self.0)?, TENANT_B, self.0.tenant_mtu(params))
    }
}

/// The network of these tenants, with the fast path in both hosts.
pub(super) fn accelerated(tenants: Tenants, server: Ipv4Addr, mtu: u32) -> Result<Network> {
    let both = [start(&tenants.a)?, start(&tenants.b)?];
    settle([&tenants.tenant_a, &tenants.tenant_b], server, server, &both)?;
    let hops = hops(DEVICE, &both, [("a", PORT_DEVICE), ("b", PORT_DEVICE)]);
    let [from_a, from_b] = both;
    Ok(tenants
        .network_between(server, mtu, hops)
        // The fast path stops when it is dropped.
        .keeping(Box::new(from_a))
        .keeping(Box::new(from_b))
        .noting(SHORTCUTS)
        .noting(MIRRORS))
}

/// Note printed with the figures.
pub(super) const SHORTCUTS: &str = "GSO packets that need outer checksums bypass the bridge only; the VXLAN device sends them; if the NIC has no GRO, it also merges received segments (excused in its hop)";
pub(super) const MIRRORS: &str = "threads that mirror the kernel's state are not pinned to CPUs";

/// One end of a tunnel with the fast path.
pub(super) struct End<'a> {
    /// The host with the fast path.
    pub(super) host: &'a str,
    /// Namespace with the VXLAN device and the tenant's port.
    pub(super) at: &'a str,
    pub(super) device: &'a str,
    pub(super) port: &'a str,
    pub(super) accel: &'a Arc<Accel>,
}

/// Returns the hops when packets bypass the bridge and the VXLAN device `device`. `at` gives
/// each side's namespace with both, and the tenant's port there.
pub(super) fn hops(device: &str, both: &[Arc<Accel>; 2], at: [(&str, &str); 2]) -> Vec<Hop> {
    let ([from_a, from_b], [(a, port_a), (b, port_b)]) = (both, at);
    let from = End { host: "a", at: a, device, port: port_a, accel: from_a };
    [
        into_tunnel(&from),
        vec![
            Hop::tx("a", NIC),
            Hop::rx("b", NIC),
            Hop::stage("b", "accel", Side::Rx, meter(from_b, carried)),
            Hop::rx(b, device).bypassed_but_for(TrafficDirection::Both, meter(from_b, shortcut)),
            Hop::tx(b, port_b).bypassed_but_for(TrafficDirection::Forward, meter(from_b, merged)),
        ],
    ]
    .concat()
}

/// Returns the hops from the sender's port up to, but without, its NIC.
pub(super) fn into_tunnel(from: &End<'_>) -> Vec<Hop> {
    vec![
        // In the reverse direction the fast path delivers straight to the tenant's end of the
        // veth pair.
        Hop::rx(from.at, from.port)
            .bypassed_but_for(TrafficDirection::Reverse, meter(from.accel, merged)),
        Hop::stage(from.host, "accel", Side::Tx, meter(from.accel, carried)),
        Hop::tx(from.at, from.device)
            .bypassed_but_for(TrafficDirection::Both, meter(from.accel, shortcut)),
    ]
}

/// Starts the fast path of a host. Fails unless it accelerates the VXLAN device.
pub(super) fn start(host: &Host) -> Result<Arc<Accel>> {
    let accel = run(host)?;
    let status = accel.status();
    let refused = status.devices.iter().find_map(|device| device.refused.as_ref());
    let refused = refused.map(ToString::to_string);
    match refused.or(status.problem) {
        Some(reason) => Err(failed(host, &reason)),
        None => Ok(accel),
    }
}

/// Starts the fast path of a host for all devices that it supports.
pub(super) fn run(host: &Host) -> Result<Arc<Accel>> {
    let accel = Accel::start(host.netns(), Wanted::All);
    Ok(Arc::new(accel.map_err(|error| failed(host, &error.to_string()))?))
}

fn failed(host: &Host, problem: &str) -> testbed::Error {
    let part = format!("the fast path of {}", host.name());
    testbed::Error::NotStarted { part, reason: problem.to_owned() }
}

/// Exchanges datagrams between the tenants until every host's fast path carries packets both
/// ways: bridges and neighbour tables learn from the first packets, and the mirror follows
/// them. The server's own address is `server`; the client reaches it at `target`.
pub(super) fn settle(
    [client, serving]: [&Host; 2],
    server: Ipv4Addr,
    target: Ipv4Addr,
    all: &[Arc<Accel>],
) -> Result<()> {
    let socket = |host: &Host, at: (Ipv4Addr, u16)| {
        let socket = host.netns().run(|| UdpSocket::bind(at))?;
        let socket = socket.and_then(|socket| {
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            Ok(socket)
        });
        socket.map_err(|e| sys::Error::io("bind UDP socket in", host.name(), &e))
    };
    let one = socket(client, (Ipv4Addr::UNSPECIFIED, 0))?;
    // A service forwards this port only. Otherwise pick a free port: this one may be in use.
    let other = socket(serving, (server, if target == server { 0 } else { PORT }))?;
    let to = other.local_addr().map_err(|e| sys::Error::io("name", "UDP socket", &e))?;
    let to = SocketAddr::new(target.into(), to.port());
    // Ignore a lost datagram: the caller retries.
    let there_and_back = || {
        let mut buffer = [0; 1];
        one.send_to(&buffer, to)?;
        let (_, from) = other.recv_from(&mut buffer)?;
        other.send_to(&buffer, from)?;
        one.recv_from(&mut buffer).map(drop)
    };
    let taken = || -> Vec<[u64; 2]> {
        let counts = all.iter().map(|accel| carried(&accel.status()).carried);
        counts.map(|carried| [carried.tx_packets, carried.rx_packets]).collect()
    };
    testbed::poll("the fast path of every host", LIMIT, || {
        let before = taken();
        let answered = there_and_back();
        let now = taken();
        let carries = before.iter().flatten().zip(now.iter().flatten()).all(|(b, n)| n > b);
        Ok((answered.is_ok() && carries).then_some(()).ok_or_else(|| {
            let left: Vec<_> = all
                .iter()
                .map(|accel| accel.status())
                .map(|status| (carried(&status).left, slow(&status)))
                .collect();
            format!("packets accelerated at each: {now:?}, left to the kernel: {left:?}")
        }))
    })?;
    Ok(())
}

/// Lists devices that take the slow path, with the reason.
fn slow(status: &Status) -> Vec<String> {
    status.refusals().map(|(name, refused)| format!("{name}: {refused}")).collect()
}

/// Returns a meter that reads a fast path's counters. It does not keep the fast path alive.
pub(super) fn meter(accel: &Arc<Accel>, read: fn(&Status) -> Metered) -> Meter {
    let accel: Weak<Accel> = Arc::downgrade(accel);
    Meter::new(move || accel.upgrade().map_or_else(Metered::default, |accel| read(&accel.status())))
}

/// Returns the packets it forwarded or left to the VXLAN device to merge, and those it left to the
/// kernel by reason.
pub(super) fn carried(status: &Status) -> Metered {
    let mut metered = Metered::default();
    let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = &mut metered.carried;
    for reason in Reason::ALL {
        let Some(counted) = status.packets.get(reason.word()) else { continue };
        let (packets, bytes) = match reason {
            Reason::EncapHit | Reason::EncapShortcut => (&mut *tx_packets, &mut *tx_bytes),
            Reason::DecapHit | Reason::DecapMerge => (&mut *rx_packets, &mut *rx_bytes),
            _ => {
                // Both directions have a reason of this meaning: sum them.
                *metered.left.entry(reason.meaning().to_owned()).or_default() += counted.packets;
                continue;
            }
        };
        *packets += counted.packets;
        *bytes += counted.bytes;
    }
    metered
}

/// Returns the packets that packet filters and routes saw but the VXLAN device did not.
pub(super) fn half(status: &Status) -> Metered {
    both(status.sent_half(), counted(status, Reason::DecapHalf))
}

/// Returns the packets that the VXLAN device handles by design: it computes checksums of packets sent,
/// and merges segments received.
pub(super) fn shortcut(status: &Status) -> Metered {
    both(counted(status, Reason::EncapShortcut), counted(status, Reason::DecapMerge))
}

/// Returns the packets that the VXLAN device merges, as a tenant's port sends them: at most as many.
fn merged(status: &Status) -> Metered {
    both(counted(status, Reason::DecapMerge), Counted::default())
}

fn counted(status: &Status, reason: Reason) -> Counted {
    status.packets.get(reason.word()).copied().unwrap_or_default()
}

fn both(sent: Counted, received: Counted) -> Metered {
    let carried = Counters {
        rx_packets: received.packets,
        rx_bytes: received.bytes,
        tx_packets: sent.packets,
        tx_bytes: sent.bytes,
        ..Counters::default()
    };
    Metered { carried, ..Metered::default() }
}
