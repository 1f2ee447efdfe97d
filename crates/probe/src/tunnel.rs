//! Temporary tunnel devices. The kernel encapsulates, so that packets have the form that they have
//! in a real overlay: segmentation and partial checksums inside the tunnel.
//!
//! A device is created in an anonymous namespace, with its underlay in the caller's. It has no name
//! in the caller's namespace, no address, and a VNI that no other device uses. When the process
//! ends, the kernel removes it.

use std::net::IpAddr;

use netstate::Netlink;
use netstate::link::{Geneve, Vxlan};
use packet::vxlan::Vni;
use sys::netns::NetNs;
use sys::packet_socket::PacketSocket;

use crate::class::{Class, TunnelKind};
use crate::frame::{Frame, INNER_SOURCE};

const NAME: &str = "tunnel";

/// A temporary tunnel device to the peer.
#[derive(Debug)]
pub struct TunnelDevice {
    inside: Netlink,
    socket: PacketSocket,
    index: u32,
    _netns: NetNs,
}

/// Underlay of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct Underlay<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Own address and the peer's.
    pub addresses: (IpAddr, IpAddr),
}

impl TunnelDevice {
    /// Creates a device for the tunnel of a class.
    ///
    /// # Errors
    /// The reason why this process or kernel cannot, as text.
    pub fn create(
        class: &Class,
        underlay: Underlay<'_>,
        port: u16,
        vni: u32,
    ) -> Result<TunnelDevice, String> {
        let tunnel = class.tunnel.ok_or("the class has no tunnel")?;
        let here = Netlink::open().map_err(|e| e.to_string())?;
        let netns = NetNs::new().map_err(|e| e.to_string())?;
        let inside = Netlink::open_in(&netns).map_err(|e| e.to_string())?;
        let vni = Vni::new(vni).map_err(|e| e.to_string())?;
        let (local, remote) = underlay.addresses;
        let headers = if remote.is_ipv4() { 50 } else { 70 };
        match tunnel.kind {
            TunnelKind::Vxlan => {
                let vxlan = Vxlan {
                    name: NAME,
                    vni: Some(vni),
                    local,
                    remote: Some(remote),
                    underlay: underlay.device,
                    port,
                    learning: false,
                    udp_csum: tunnel.checksum,
                };
                let mtu = underlay.mtu.saturating_sub(headers);
                here.add_vxlan_in(&vxlan, INNER_SOURCE, mtu, &netns).map_err(|e| e.to_string())?;
            }
            TunnelKind::Geneve => {
                let IpAddr::V4(remote) = remote else {
                    return Err("no Geneve device over IPv6 is made here".to_owned());
                };
                let udp_csum = tunnel.checksum;
                let geneve = Geneve { name: NAME, vni, remote, port, udp_csum };
                let mtu = underlay.mtu.saturating_sub(headers);
                here.add_geneve_in(&geneve, INNER_SOURCE, mtu, &netns)
                    .map_err(|e| e.to_string())?;
            }
            TunnelKind::Gre => return Err("no GRE device is made here".to_owned()),
        }
        let link = inside.links().map_err(|e| e.to_string())?;
        let link = link.into_iter().find(|link| !link.loopback && link.mac == Some(INNER_SOURCE));
        let link = link.ok_or("the new device is not in its namespace")?;
        let socket = netns
            .run(|| {
                // Otherwise the kernel would send multicast reports into the tunnel.
                let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
                PacketSocket::open()
            })
            .and_then(|socket| socket)
            .map_err(|e| e.to_string())?;
        inside.set_up(&link.name).map_err(|e| e.to_string())?;
        Ok(TunnelDevice { inside, socket, index: link.index, _netns: netns })
    }

    /// Sends a frame through the tunnel.
    ///
    /// # Errors
    /// As [`PacketSocket::send`].
    pub fn send(&self, frame: &Frame) -> Result<(), nix::errno::Errno> {
        self.socket.send(self.index, &frame.vnet(), &frame.bytes)
    }
}

impl Drop for TunnelDevice {
    fn drop(&mut self) {
        // The kernel would remove it with its namespace, but only some time later.
        if let Ok(links) = self.inside.links() {
            for link in links.iter().filter(|link| link.index == self.index) {
                let _ = self.inside.delete_link(&link.name);
            }
        }
    }
}
