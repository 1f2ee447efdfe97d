//! FRR as the control plane of VXLAN devices: EVPN (RFC 7432, RFC 8365).
//!
//! `zebra` reads the host's VXLAN devices, bridges and neighbours, and `bgpd` announces them.
//! `zebra` writes announcements of other hosts to the kernel: a remote VTEP (type 3) as the
//! device's default destination, a MAC address (type 2) as forwarding entries of bridge and
//! device, its IP address (type 2) as a neighbour on the bridge.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use netstate::MacAddr;
use netstate::control_plane::Controlled;
use netstate::route::Match;
use packet::vxlan::Vni;
use testbed::{Host, Process, Processes};

use super::frr;
use super::{AS, CLUSTER_ID, Daemon, LIMIT};
use crate::unsupported::Supported;
use crate::{Capabilities, Result};

/// Protocol number of `zebra`'s neighbours in the kernel (`RTPROT_ZEBRA` of
/// `linux/rtnetlink.h`).
const ZEBRA: u8 = 11;
/// MAC address of the default entry, for destinations without an entry.
const DEFAULT: MacAddr = MacAddr([0; 6]);

/// Name and number of the third leaf, which has no tenant at first.
pub(crate) const C: (&str, u8) = ("c", 3);
/// The discard service (RFC 863), to which tenants send their first datagram.
const DISCARD: u16 = 9;

/// Returns a leaf's VTEP address on the underlay. Leaves count from 1.
pub(crate) const fn vtep(leaf: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, leaf)
}

/// Returns the address of a leaf's bridge, the local tenants' gateway.
pub(crate) const fn gateway(leaf: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, leaf)
}

/// BGP configuration of a host.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    /// The host's address for sessions, also its VTEP.
    pub(crate) address: Ipv4Addr,
    pub(crate) peers: Vec<Ipv4Addr>,
    /// Whether it is a route reflector, which has no routes of its own.
    pub(crate) reflects: bool,
}

/// A tenant behind another host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) address: Ipv4Addr,
    pub(crate) mac: MacAddr,
    pub(crate) vtep: Ipv4Addr,
}

/// Checks whether FRR is installed and this process may run it.
pub(crate) fn installed(machine: &Capabilities) -> Supported {
    frr::installed(machine)
}

/// Checks whether FRR supports single VXLAN devices (release notes of 8.5: "SVD").
pub(crate) fn knows_devices_for_many() -> Supported {
    frr::since((8, 5))
}

/// Starts FRR in a host. Returns the programs in the order in which they must stop.
///
/// # Errors
/// The program that failed, with its output.
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
    // The reflector has no VNIs of its own to announce.
    if !speaker.reflects {
        text += "  advertise-all-vni\n";
    }
    text + " exit-address-family\n"
}

/// Routed tenant networks in a VRF (routes of type 5, RFC 9136).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routed {
    /// Name of the VRF's device.
    pub(crate) vrf: &'static str,
    /// VNI of its VXLAN device.
    pub(crate) vni: Vni,
}

/// Starts FRR in a host with routed tenant networks, as [`start`] does.
pub(crate) fn start_routed(
    tree: &Processes,
    host: &Host,
    speaker: &Speaker,
    routed: Routed,
) -> Result<Vec<Process>> {
    let [zebra, bgpd] = configurations(speaker, routed);
    frr::start_with(tree, host, &zebra, &bgpd)
}

/// Returns the configurations of `zebra` and `bgpd`. They announce the VRF's networks.
fn configurations(speaker: &Speaker, Routed { vrf, vni }: Routed) -> [String; 2] {
    let zebra = format!("vrf {vrf}\n vni {}\nexit-vrf\n", vni.get());
    let bgpd = format!(
        "{}router bgp {AS} vrf {vrf}
 bgp router-id {}
 address-family ipv4 unicast
  redistribute connected
 exit-address-family
 address-family l2vpn evpn
  advertise ipv4 unicast
 exit-address-family
",
        configuration(speaker),
        speaker.address
    );
    [zebra, bgpd]
}

/// A tenant network behind another host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteNetwork {
    /// An address of the network, and its prefix length, bits.
    pub(crate) network: (Ipv4Addr, u8),
    /// Next hop: the VTEP of its host.
    pub(crate) vtep: Ipv4Addr,
    /// MAC address of the router behind the VTEP.
    pub(crate) router: MacAddr,
}

/// Waits until `zebra` has installed the route to a network behind another host (type 5) in the
/// kernel of `host`: the VRF's route, and the entries of its next hop.
///
/// # Errors
/// The missing entry, with the output of the programs of all hosts.
pub(crate) fn learns_network(
    host: &Host,
    programs: &mut [&mut Process],
    [vrf, bridge, device]: [&str; 3],
    remote: &RemoteNetwork,
) -> Result<()> {
    let netlink = host.netlink();
    let index = |name: &str| netlink.link(name).map(|link| link.index);
    let (vrf, bridge, device) = (index(vrf)?, index(bridge)?, index(device)?);
    let ((network, prefix), via) = (remote.network, Some(IpAddr::V4(remote.vtep)));
    let route = Match { prefix, via, protocol: Daemon::Frr.protocol() };
    let entry =
        Controlled { link: device, bridge: None, mac: remote.router, address: via, protocol: None };
    let neighbour = Controlled { link: bridge, protocol: Some(ZEBRA), ..entry };
    let what = format!("EVPN's route to {network} in {}", host.name());
    wait(&what, programs, || {
        let found = netlink.matched_by(network.into(), Some(vrf))?;
        // Not there yet, or another route still wins.
        if found != Some(route) {
            return Ok(Some(format!("{network}/{prefix} has {found:?}")));
        }
        let (fdb, neighbours) = (netlink.controlled_fdb()?, netlink.controlled_neighbours()?);
        Ok(match (fdb.contains(&entry), neighbours.contains(&neighbour)) {
            (true, true) => None,
            (false, _) => Some(format!("{entry:?} is not among {fdb:?}")),
            (true, false) => Some(format!("{neighbour:?} is not among {neighbours:?}")),
        })
    })
}

/// Makes a tenant known to its host: the tenant's ARP request for its gateway contains its own
/// address.
pub(crate) fn greet(tenant: &Host, address: IpAddr, gateway: Ipv4Addr) -> Result<()> {
    let from = SocketAddr::new(address, 0);
    let say = || UdpSocket::bind(from)?.send_to(&[0], (gateway, DISCARD)).map(drop);
    let said = tenant.netns().run(say)?;
    Ok(said.map_err(|error| sys::Error::io("send datagram from", tenant.name(), &error))?)
}

/// Waits until the device of `host` floods to these remote VTEPs (routes of type 3).
///
/// # Errors
/// The missing VTEP, with the output of the programs of all hosts.
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

/// Waits until `zebra` has installed the entries of a tenant behind another host (type 2) in the
/// kernel of `host`: the forwarding entries of bridge and device, and the neighbour on the device
/// that has the gateway's address.
///
/// # Errors
/// The missing entry, with the output of the programs of all hosts.
pub(crate) fn learns(
    host: &Host,
    programs: &mut [&mut Process],
    [bridge, device, gateway]: [&str; 3],
    tenant: &Remote,
) -> Result<()> {
    let netlink = host.netlink();
    let index = |name: &str| netlink.link(name).map(|link| link.index);
    let (bridge, port, gateway) = (index(bridge)?, index(device)?, index(gateway)?);
    let Remote { address, mac, vtep } = *tenant;
    let wanted = [
        Controlled { link: port, bridge: Some(bridge), mac, address: None, protocol: None },
        Controlled { link: port, bridge: None, mac, address: Some(vtep.into()), protocol: None },
    ];
    let at = Some(IpAddr::V4(address));
    let neighbour =
        Controlled { link: gateway, bridge: None, mac, address: at, protocol: Some(ZEBRA) };
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
            // The neighbour is known, so the route has arrived.
            None => None,
        })
    })
}

/// Polls until `missing` returns `None`.
fn wait(
    what: &str,
    programs: &mut [&mut Process],
    mut missing: impl FnMut() -> Result<Option<String>>,
) -> Result<()> {
    testbed::poll(what, LIMIT, || {
        // Fail at once if a daemon has ended.
        programs.iter_mut().try_for_each(|program| program.check())?;
        let Some(missing) = missing()? else { return Ok(Ok(())) };
        let said: Vec<_> = programs.iter().map(|program| program.last_lines()).collect();
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
        let routed = Routed { vrf: "tenants", vni: Vni::new(4000).unwrap() };
        let [zebra, bgpd] = configurations(&leaf, routed);
        assert_eq!(zebra, "vrf tenants\n vni 4000\nexit-vrf\n");
        require!(need::root(), frr::tests::bgpd_is_installed());
        frr::tests::is_read_by_bgpd(&bgpd);
        texts.iter().for_each(|text| frr::tests::is_read_by_bgpd(text));
    }
}
