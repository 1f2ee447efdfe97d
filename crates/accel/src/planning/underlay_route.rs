//! Paths to remote VTEPs: NIC, next hop and the fields of the outer headers.

use std::net::IpAddr;

use netstate::interface::{Interface, Vxlan};
use netstate::overlay::VxlanEntry;
use packet::ethernet::MacAddr;

use crate::eligibility::{UNDERLAY_ROUTE, UnderlayCase, first};
use crate::model::{NetnsSnapshot, NetnsView, Refusal, TunnelGso, UnderlayRoute};

/// Bytes that VXLAN adds in front of the inner IP packet, over IPv4 and over IPv6 (RFC 7348).
const OVERHEAD: [u32; 2] = [50, 70];
/// Value of the option `tos inherit` (`drivers/net/vxlan`, `vxlan_xmit_one`). Routes and rules by
/// type of service are refused, so it does not affect the route.
const INHERITED_TOS: u8 = 1;
/// ECN bits of the type of service.
const ECN: u8 = 3;

/// Returns the VTEP to which a VXLAN device sends frames for an address, if it is a single one.
fn destination(
    snapshot: &NetnsSnapshot,
    index: u32,
    vxlan: &Vxlan,
    mac: MacAddr,
) -> Option<IpAddr> {
    let plain = |entries: &Vec<VxlanEntry>| match entries.as_slice() {
        [VxlanEntry { remote, port: None, vni: None, link: None }] => {
            remote.filter(|remote| !remote.is_multicast() && !remote.is_unspecified())
        }
        // Several destinations, or one with its own port, VNI or link, take the slow path.
        _ => None,
    };
    match snapshot.overlay.vxlan_fdb.get(&(index, mac)) {
        Some(entries) => plain(entries),
        // A learning device may add an entry any moment.
        None if vxlan.learning => None,
        None => plain(snapshot.overlay.vxlan_fdb.get(&(index, MacAddr([0; 6])))?),
    }
}

/// Whether the device's bridge answers for neighbours. One port with `neigh_suppress` is enough:
/// the bridge also answers unicast solicitations, whatever port the frame is for
/// (net/bridge/br_arp_nd_proxy.c, `br_do_suppress_nd`). The option has no other effect on unicast
/// packets, and ARP always takes the slow path.
fn suppresses(snapshot: &NetnsSnapshot, device: &Interface) -> bool {
    let is_beside = |other: &&Interface| device.master.is_some() && other.master == device.master;
    let suppressed =
        |other: &Interface| other.port.as_ref().is_some_and(|port| port.neigh_suppress);
    snapshot.overlay.links.values().filter(is_beside).any(suppressed)
}

/// Returns the remote VTEP for an address, and the path to it or why its packets take the slow
/// path.
pub(crate) fn to_address(
    view: NetnsView<'_>,
    index: u32,
    vxlan: &Vxlan,
    mac: MacAddr,
) -> Option<(IpAddr, Result<UnderlayRoute, Refusal>)> {
    let to = destination(view.snapshot, index, vxlan, mac)?;
    Some((to, underlay_route(view, index, vxlan, to)))
}

/// Returns the path to a remote VTEP, or why its packets take the slow path.
fn underlay_route(
    view: NetnsView<'_>,
    index: u32,
    vxlan: &Vxlan,
    to: IpAddr,
) -> Result<UnderlayRoute, Refusal> {
    let case = UnderlayCase::new(view, index, vxlan, to);
    first(UNDERLAY_ROUTE, &case)?;
    let (route, nic) = (case.route()?, case.nic()?);
    let (mtu, default_ttl) = case.defaults()?;
    // A route's MTU cannot exceed the NIC's.
    let path = route.mtu.unwrap_or(mtu).min(nic.mtu);
    let (start, end) = vxlan.source_ports.unwrap_or_default();
    // 0 means the route's time to live.
    let ttl = if vxlan.ttl != 0 { Some(vxlan.ttl) } else { route.ttl };
    Ok(UnderlayRoute {
        nic: route.link,
        mtu: path.saturating_sub(OVERHEAD[usize::from(vxlan.is_ipv6())]).min(case.device().mtu),
        vxlan: index,
        vni: vxlan.vni,
        local: case.source()?,
        remote: to,
        udp_port: vxlan.port,
        source_ports: if start < end { (start, end) } else { view.snapshot.local_ports },
        gso: TunnelGso::new(case.device(), view.snapshot.big_tunnels),
        dont_fragment: vxlan.detail.df == Some(true),
        checksum: vxlan.sends_checksum(),
        proxy: vxlan.proxy == Some(true) || suppresses(view.snapshot, case.device()),
        ttl: ttl.unwrap_or(default_ttl),
        tos: vxlan.detail.tos & !ECN,
        inherits_tos: vxlan.detail.tos == INHERITED_TOS,
        label: vxlan.detail.label,
        next_hop: case.next_hop()?,
        source: case.nic_mac()?,
    })
}
