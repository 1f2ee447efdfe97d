//! FRR as the control plane of VXLAN devices: EVPN (RFC 7432, RFC 8365).
//!
//! `zebra` reads the host's own VXLAN devices, bridges and neighbours, `bgpd` announces them.
//! What others announce, `zebra` writes to the kernel: a remote VTEP (route of type 3) as the
//! device's default destination, a hardware address (type 2) as forwarding entries of bridge
//! and device, its IP address (type 2) as a neighbour on the bridge.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use netstate::MacAddr;
use netstate::control_plane::Controlled;
use testbed::{Host, Process, Processes};

use super::frr;
use super::{AS, CLUSTER_ID, LIMIT};
use crate::unsupported::Supported;
use crate::{Capabilities, Result};

/// By what number the kernel knows `zebra`'s neighbours (`RTPROT_ZEBRA` of
/// `linux/rtnetlink.h`).
const ZEBRA: u8 = 11;
/// Destination of frames to addresses without an entry.
const DEFAULT: MacAddr = MacAddr([0; 6]);

/// The third leaf, which has no tenant yet: its name, and its number.
pub(crate) const C: (&str, u8) = ("c", 3);
/// The discard service (RFC 863): what tenants tell their gateway first.
const DISCARD: u16 = 9;

/// A leaf's address on the underlay, which its VTEP has; leaves count from 1.
pub(crate) const fn vtep(leaf: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, leaf)
}

/// Address of a leaf's bridge: the tenants' gateway there.
pub(crate) const fn gateway(leaf: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, leaf)
}

/// What a host's `bgpd` is told.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    /// The host's end of the sessions, and its VTEP.
    pub(crate) address: Ipv4Addr,
    /// Other ends of its sessions.
    pub(crate) peers: Vec<Ipv4Addr>,
    /// It passes the routes of one peer on to the others, and has none of its own.
    pub(crate) reflects: bool,
}

/// A tenant behind another host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) address: Ipv4Addr,
    pub(crate) mac: MacAddr,
    /// Of its host.
    pub(crate) vtep: Ipv4Addr,
}

/// Whether FRR is installed and may be run.
pub(crate) fn installed(machine: &Capabilities) -> Supported {
    frr::installed(machine)
}

/// Starts FRR in a host; the programs in the order that they are to end in.
///
/// # Errors
/// The program that failed, with what it printed.
pub(crate) fn start(tree: &Processes, host: &Host, speaker: &Speaker) -> Result<Vec<Process>> {
    frr::start_with(tree, host, "", &configuration(speaker))
}

fn configuration(speaker: &Speaker) -> String {
    let address = speaker.address;
    let mut text = format!(
        "frr defaults datacenter
router bgp {AS}
 bgp router-id {address}
 no bgp default ipv4-unicast
"
    );
    // Writing to a string never fails.
    if speaker.reflects {
        let _ = writeln!(text, " bgp cluster-id {CLUSTER_ID}");
    }
    for peer in &speaker.peers {
        let _ = writeln!(text, " neighbor {peer} remote-as {AS}");
        let _ = writeln!(text, " neighbor {peer} update-source {address}");
    }
    text += " address-family l2vpn evpn\n";
    for peer in &speaker.peers {
        let _ = writeln!(text, "  neighbor {peer} activate");
        if speaker.reflects {
            let _ = writeln!(text, "  neighbor {peer} route-reflector-client");
        }
    }
    if !speaker.reflects {
        text += "  advertise-all-vni\n";
    }
    text + " exit-address-family\n"
}

/// Has a tenant show itself to its gateway: its request for the gateway's address tells the
/// host its own.
///
/// # Errors
/// When nothing can be sent.
pub(crate) fn greet(tenant: &Host, address: IpAddr, gateway: Ipv4Addr) -> Result<()> {
    let from = SocketAddr::new(address, 0);
    let say = || UdpSocket::bind(from)?.send_to(&[0], (gateway, DISCARD)).map(drop);
    let said = tenant.netns().run(say)?;
    Ok(said.map_err(|error| sys::Error::io("send datagram from", tenant.name(), &error))?)
}

/// Waits until the device of `host` floods to these remote VTEPs (routes of type 3).
///
/// # Errors
/// What is missing, with what the programs of all hosts printed.
pub(crate) fn floods_to(
    host: &Host,
    programs: &mut [&mut Process],
    device: &str,
    vteps: &[Ipv4Addr],
) -> Result<()> {
    let index = host.netlink().link(device)?.index;
    let what = format!("EVPN's remote ends in {}", host.name());
    wait(&what, programs, || {
        let entries = host.netlink().fdb()?;
        let floods = |vtep: Ipv4Addr| {
            entries.iter().any(|entry| {
                (entry.link, entry.mac, entry.remote) == (index, Some(DEFAULT), Some(vtep.into()))
            })
        };
        let missing = vteps.iter().find(|vtep| !floods(**vtep));
        Ok(missing.map(|vtep| format!("{device} does not flood to {vtep}")))
    })
}

/// Waits until `zebra` has told the kernel of `host` all of a tenant behind another host
/// (routes of type 2): the forwarding entries of bridge and device, and the neighbour.
///
/// # Errors
/// What is missing, with what the programs of all hosts printed.
pub(crate) fn learns(
    host: &Host,
    programs: &mut [&mut Process],
    bridge: &str,
    device: &str,
    tenant: &Remote,
) -> Result<()> {
    let netlink = host.netlink();
    let (bridge, port) = (netlink.link(bridge)?.index, netlink.link(device)?.index);
    let Remote { address, mac, vtep } = *tenant;
    let wanted = [
        Controlled { link: port, bridge: Some(bridge), mac, address: None, protocol: None },
        Controlled { link: port, bridge: None, mac, address: Some(vtep.into()), protocol: None },
    ];
    let at = Some(IpAddr::V4(address));
    let neighbour =
        Controlled { link: bridge, bridge: None, mac, address: at, protocol: Some(ZEBRA) };
    let what = format!("EVPN's entries of {address} in {}", host.name());
    wait(&what, programs, || {
        let fdb = netlink.controlled_fdb()?;
        let neighbours = netlink.controlled_neighbours()?;
        let is_there = |entry: &&Controlled| fdb.contains(entry);
        Ok(match wanted.iter().find(|entry| !is_there(entry)) {
            Some(entry) => Some(format!("{entry:?} is not among {fdb:?}")),
            None if !neighbours.contains(&neighbour) => {
                Some(format!("{neighbour:?} is not among {neighbours:?}"))
            }
            None => None,
        })
    })
}

/// Waits until nothing is missing.
fn wait(
    what: &str,
    programs: &mut [&mut Process],
    mut missing: impl FnMut() -> Result<Option<String>>,
) -> Result<()> {
    testbed::poll(what, LIMIT, || {
        programs.iter_mut().try_for_each(|program| program.check())?;
        let Some(missing) = missing()? else { return Ok(Ok(())) };
        let said: Vec<_> = programs.iter().map(|program| program.output()).collect();
        Ok(Err(format!("{missing}\n{}", said.concat())))
    })
}

#[cfg(test)]
mod tests {
    use test_support::{need, require};

    use super::*;

    #[test]
    fn frr_reads_every_configuration() {
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let leaf = Speaker { address: a, peers: vec![b], reflects: false };
        let spine = Speaker { address: b, peers: vec![a], reflects: true };
        let texts = [configuration(&leaf), configuration(&spine)];
        assert!(texts[0].contains("advertise-all-vni") && !texts[0].contains("reflector"));
        assert!(texts[1].contains("route-reflector-client") && !texts[1].contains("all-vni"));
        require!(need::root(), frr::tests::bgpd_is_installed());
        texts.iter().for_each(|text| frr::tests::is_read_by_bgpd(text));
    }
}
