//! The ways to remote VTEPs: NIC, next hop, and what the outer headers say.

use std::net::IpAddr;

use netstate::overlay::{Device, Found, VxlanDevice, VxlanEntry};
use packet::ethernet::MacAddr;

use crate::abi::{Place, Remote};
use crate::filter::Flow;
use crate::plan::{Facts, Space, interference};

/// Bytes that VXLAN adds before the inner IP packet over IPv4, over IPv6.
const OVERHEAD: [u32; 2] = [50, 70];
/// Bits of the type of service that are ECN's.
const ECN: u8 = 3;

/// Why an address is none for a tunnel's end here: what the kernel makes of it depends
/// on more than its routes.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    let IpAddr::V6(six) = address else { return None };
    if six.is_unicast_link_local() {
        // It is another's on each link; the kernel has devices of their own for them.
        return Some("link-local");
    }
    six.to_ipv4_mapped().map(|_| "an IPv4 address in IPv6")
}

/// The one VTEP that a VXLAN device sends frames for an address to.
fn destination(facts: &Facts, index: u32, vxlan: &VxlanDevice, mac: MacAddr) -> Option<IpAddr> {
    let plain = |entries: &Vec<VxlanEntry>| match entries.as_slice() {
        [VxlanEntry { remote, port: None, vni: None, link: None }] => {
            remote.filter(|remote| !remote.is_multicast() && !remote.is_unspecified())
        }
        _ => None,
    };
    match facts.overlay.vxlan_fdb.get(&(index, mac)) {
        Some(entries) => plain(entries),
        // With learning there will be an entry soon.
        None if vxlan.learning => None,
        None => plain(facts.overlay.vxlan_fdb.get(&(index, MacAddr([0; 6])))?),
    }
}

/// What the family of an underlay gives to its outer headers where a route has nothing to
/// say.
struct Defaults {
    /// MTU of the NIC's routes, bytes.
    mtu: u32,
    /// Time to live, hop limit.
    ttl: u8,
}

fn defaults(facts: &Facts, nic: &Device, ipv6: bool) -> Result<Defaults, String> {
    if !ipv6 {
        return Ok(Defaults { mtu: nic.mtu, ttl: facts.default_ttl });
    }
    // ip6_mtu, ip6_dst_hoplimit.
    let settings = nic.ipv6.ok_or(format!("{}: IPv6 is disabled", nic.name))?;
    Ok(Defaults { mtu: settings.mtu, ttl: settings.hop_limit })
}

/// The address that a VXLAN device's datagrams come from.
fn source(facts: &Facts, vxlan: &VxlanDevice, route: &Found) -> Result<IpAddr, String> {
    let local = match (vxlan.local, vxlan.ipv6) {
        (Some(local), _) => local,
        (None, false) => route.source.ok_or("no source address")?,
        // RFC 6724 has rules that no route tells, and the kernel keeps the answer: nothing
        // is left to them only where there is one.
        (None, true) => {
            let global = |address: &&IpAddr| {
                address.is_ipv6() && !address.is_loopback() && unusable(**address).is_none()
            };
            let mut all = facts.overlay.addresses.iter().filter(global);
            let (one, another) = (all.next(), all.next());
            let one = *one.ok_or("no source address")?;
            if another.is_some() {
                return Err("it has no address of its own, and the host several".into());
            }
            one
        }
    };
    if !facts.overlay.addresses.contains(&local) {
        return Err(format!("{local} is not an address of this host"));
    }
    Ok(local)
}

/// The remote VTEP that a VXLAN device sends frames for an address to, and the way there
/// or why they stay slow.
pub(crate) fn remote(
    space: Space<'_>,
    index: u32,
    vxlan: &VxlanDevice,
    mac: MacAddr,
) -> Option<(IpAddr, Result<Remote, String>)> {
    let destination = destination(space.facts, index, vxlan, mac)?;
    Some((destination, way(space, index, vxlan, destination)))
}

/// The way to a remote VTEP, or why its packets stay slow.
fn way(space: Space<'_>, index: u32, vxlan: &VxlanDevice, to: IpAddr) -> Result<Remote, String> {
    let (facts, number) = (space.underlay, space.number);
    if to.is_ipv6() != vxlan.ipv6 {
        return Err("of another family than its VXLAN device".into());
    }
    if let Some(why) = unusable(to) {
        return Err(why.into());
    }
    let device = &space.facts.overlay.links[&index];
    let route = facts.routes.get(&(Place { netns: number, index }, to)).and_then(Option::as_ref);
    let family = if vxlan.ipv6 { "IPv6" } else { "IPv4" };
    let route = route.ok_or(format!("no unicast {family} route"))?;
    if let Some(why) = facts.overlay.odd_route(to) {
        return Err(format!("a route with {why}"));
    }
    let nic = facts.overlay.links.get(&route.link).ok_or("its NIC is unknown")?;
    let mac = nic.mac.filter(|_| nic.ethernet).ok_or(format!("{}: no Ethernet", nic.name))?;
    if !nic.running {
        return Err(format!("{} is down or has no carrier", nic.name));
    }
    if nic.master.is_some() {
        return Err(format!("{}: port of a bridge, bond or VRF", nic.name));
    }
    interference(facts, route.link, nic)?;
    let local = source(facts, vxlan, route)?;
    let flow = Flow { local, remote: to, port: vxlan.port, nic: (route.link, &nic.name) };
    facts.ruleset.passes(&flow)?;
    let hop = route.via.unwrap_or(to);
    let next_hop = facts.overlay.neighbours.get(&(route.link, hop));
    let next_hop = *next_hop.ok_or(format!("{hop}: no usable neighbour entry"))?;
    let defaults = defaults(facts, nic, vxlan.ipv6)?;
    let path = route.mtu.unwrap_or(defaults.mtu).min(nic.mtu);
    let (first, last) = vxlan.source_ports;
    let ttl = if vxlan.ttl != 0 { Some(vxlan.ttl) } else { route.ttl };
    Ok(Remote {
        nic: route.link,
        mtu: path.saturating_sub(OVERHEAD[usize::from(vxlan.ipv6)]).min(device.mtu),
        vxlan: index,
        vni: vxlan.vni,
        local,
        remote: to,
        udp_port: vxlan.port,
        source_ports: if first < last { (first, last) } else { space.facts.local_ports },
        dont_fragment: vxlan.df == Some(true),
        checksum: vxlan.checksum,
        proxy: vxlan.proxy,
        ttl: ttl.unwrap_or(defaults.ttl),
        tos: vxlan.tos & !ECN,
        label: vxlan.label,
        next_hop,
        source: mac,
    })
}
