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
use crate::frame::{Frame, INNER_DESTINATION, INNER_SOURCE, INNER_V4, nested_port};

const NAME: &str = "tunnel";
/// Name of a tunnel device whose underlay is another one.
const NESTED: &str = "nested";

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
        // Otherwise the kernel would send multicast reports into the tunnel.
        let quiet = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        netns.run(quiet).map_err(|e| e.to_string())?.ok();
        let device = Device {
            name: NAME,
            kind: tunnel.outermost(),
            checksum: tunnel.checksum,
            port,
            vni: Vni::new(vni).map_err(|e| e.to_string())?,
        };
        device.create(&here, underlay, &netns)?;
        let mut name = NAME;
        if tunnel.nested {
            let [own, peer] = INNER_V4.map(IpAddr::from);
            // The tunnel's own packets need an address and a next hop in the namespace.
            let joined = inside
                .set_up(NAME)
                .and_then(|()| inside.add_address(NAME, own, 24))
                .and_then(|()| inside.add_neighbour(NAME, peer, INNER_DESTINATION));
            joined.map_err(|e| e.to_string())?;
            let mtu = inside.link(NAME).map_err(|e| e.to_string())?.mtu;
            let underlay = Underlay { device: NAME, mtu, addresses: (own, peer) };
            let port = nested_port(tunnel.kind);
            let device = Device { name: NESTED, kind: tunnel.kind, port, ..device };
            device.create(&inside, underlay, &netns)?;
            name = NESTED;
        }
        let link = inside.link(name).map_err(|e| e.to_string())?;
        let socket = netns.run(PacketSocket::open).and_then(|socket| socket);
        let socket = socket.map_err(|e| e.to_string())?;
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
        // The kernel would remove them with their namespace, but only some time later.
        if let Ok(links) = self.inside.links() {
            for link in links.iter().filter(|link| [NESTED, NAME].contains(&link.name.as_str())) {
                // The namespace ends anyway; a device that stays there carries nothing.
                let _ = self.inside.delete_link(&link.name);
            }
        }
    }
}

/// A tunnel device to be created.
#[derive(Clone, Copy)]
struct Device {
    name: &'static str,
    kind: TunnelKind,
    checksum: bool,
    port: u16,
    vni: Vni,
}

impl Device {
    /// Creates the device in a namespace, with its underlay in that of the netlink socket.
    fn create(
        self,
        netlink: &Netlink,
        underlay: Underlay<'_>,
        netns: &NetNs,
    ) -> Result<(), String> {
        let Device { name, kind, checksum: udp_csum, port, vni } = self;
        let (local, remote) = underlay.addresses;
        let headers = if remote.is_ipv4() { 50 } else { 70 };
        let mtu = underlay.mtu.saturating_sub(headers);
        match kind {
            TunnelKind::Vxlan => {
                let vxlan = Vxlan {
                    name,
                    vni: Some(vni),
                    local,
                    remote: Some(remote),
                    underlay: underlay.device,
                    port,
                    learning: false,
                    udp_csum,
                };
                netlink.add_vxlan_in(&vxlan, INNER_SOURCE, mtu, netns).map_err(|e| e.to_string())
            }
            TunnelKind::Geneve => {
                let IpAddr::V4(remote) = remote else {
                    return Err("no Geneve device over IPv6 is made here".to_owned());
                };
                let geneve = Geneve { name, vni, remote, port, udp_csum };
                netlink.add_geneve_in(&geneve, INNER_SOURCE, mtu, netns).map_err(|e| e.to_string())
            }
            TunnelKind::Gre => Err("no GRE device is made here".to_owned()),
        }
    }
}
