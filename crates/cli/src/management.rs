//! Devices that carry an SSH connection of this machine: a change of their settings can cut the
//! administrator off.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Context;
use netstate::Netlink;
use netstate::inet_diag::tcp_connections_to;
use netstate::interface::Interface;

/// Port of SSH (RFC 4253, section 4.1).
const SSH: u16 = 22;

/// Returns the names of the devices of SSH connections to this machine, and of the devices below
/// them.
pub fn devices() -> anyhow::Result<BTreeSet<String>> {
    let own = std::env::var("SSH_CONNECTION").ok().and_then(|text| parse(&text));
    let ports: BTreeSet<u16> = own.iter().map(|(_, port)| *port).chain([SSH]).collect();
    let mut others: BTreeSet<IpAddr> = own.iter().map(|(client, _)| *client).collect();
    for port in ports {
        let connections = tcp_connections_to(port);
        let connections = connections.with_context(|| format!("connections to port {port}"))?;
        others.extend(connections.into_iter().map(|(_, other)| other));
    }
    let netlink = Netlink::open()?;
    let links = netlink.links()?;
    let mut found = BTreeSet::new();
    for other in others {
        // Without a route to it, the connection is dead.
        let Ok(way) = netlink.way_to(other, None) else { continue };
        add(way.link, &links, &netlink, &mut found);
    }
    let name = |link: &&Interface| found.contains(&link.index);
    Ok(links.iter().filter(name).map(|link| link.name.clone()).collect())
}

/// Adds a device and those below it: ports of a bridge or bond, the device of a VLAN or tunnel.
fn add(index: u32, links: &[Interface], netlink: &Netlink, found: &mut BTreeSet<u32>) {
    // Links form circles, as those of a veth pair do.
    if !found.insert(index) {
        return;
    }
    let Some(link) = links.iter().find(|link| link.index == index) else { return };
    // The related link of a veth device is its other end.
    if let Some(below) = link.link
        && link.kind.as_deref() != Some("veth")
        && link.link_netns.is_none()
    {
        add(below, links, netlink, found);
    }
    if let Some(vxlan) = &link.vxlan {
        let underlay = vxlan.remote.and_then(|remote| netlink.way_to(remote, None).ok());
        for below in vxlan.device.into_iter().chain(underlay.map(|way| way.link)) {
            add(below, links, netlink, found);
        }
    }
    for port in links.iter().filter(|port| port.master == Some(index)) {
        add(port.index, links, netlink, found);
    }
}

/// Returns the client's address and the server's port of `SSH_CONNECTION` (ssh(1)).
fn parse(text: &str) -> Option<(IpAddr, u16)> {
    let mut words = text.split(' ');
    let client = words.next()?.split('%').next()?.parse::<IpAddr>().ok()?;
    let port = words.nth(2)?.parse().ok()?;
    Some((client.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shells_own_connection_is_read() {
        let client: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(parse("192.0.2.1 50000 192.0.2.7 2222"), Some((client, 2222)));
        assert_eq!(parse("::ffff:192.0.2.1 1 ::1 22"), Some((client, 22)));
        assert!(parse("fe80::1%eth0 50000 fe80::2%eth0 22").is_some());
        for odd in ["", "192.0.2.1", "192.0.2.1 1 192.0.2.7", "here 1 there 22"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }
}
