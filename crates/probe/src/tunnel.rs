//! Temporary tunnel devices. The kernel encapsulates, so that packets have the form that they have
//! in a real overlay: segmentation and partial checksums inside the tunnel.
//!
//! A device is created in an anonymous namespace, with its underlay in the caller's. It has no name
//! in the caller's namespace, no address, and a VNI that no other device uses. When the process
//! ends, the kernel removes it.
//!
//! A GRE device has a name in the caller's namespace while the kernel creates it. GRE is tested
//! only if its module is loaded: loading it adds devices (`gre0`) to the machine's namespace, which
//! would remain.

use std::net::IpAddr;
use std::path::Path;

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
/// Name of a GRE device. The caller's namespace must not have it.
const GRE: &str = "overlane-probe";
/// Module of GRE over IPv4, and over IPv6.
const GRE_MODULES: [&str; 2] = ["ip_gre", "ip6_gre"];

/// An anonymous namespace for temporary tunnel devices, one device at a time. It is made once: the
/// kernel needs several milliseconds of CPU time to make and remove a namespace.
#[derive(Debug)]
pub struct TunnelSpace {
    here: Netlink,
    outside: NetNs,
    inside: Netlink,
    socket: PacketSocket,
    netns: NetNs,
}

/// A temporary tunnel device to the peer. It is removed on drop.
#[derive(Debug)]
pub struct TunnelDevice<'a> {
    space: &'a TunnelSpace,
    index: u32,
    /// Whether frames have an Ethernet header.
    is_ethernet: bool,
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

impl TunnelSpace {
    /// Makes the namespace. Underlays are in that of the calling thread.
    ///
    /// # Errors
    /// The reason why this process cannot, as text.
    pub fn open() -> Result<TunnelSpace, String> {
        let here = Netlink::open().map_err(|e| e.to_string())?;
        let outside = NetNs::current().map_err(|e| e.to_string())?;
        let netns = NetNs::new().map_err(|e| e.to_string())?;
        let inside = Netlink::open_in(&netns).map_err(|e| e.to_string())?;
        // Otherwise the kernel would send multicast reports into the tunnel.
        let quiet = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        netns.run(quiet).map_err(|e| e.to_string())?.ok();
        let socket = netns.run(PacketSocket::open).and_then(|socket| socket);
        let socket = socket.map_err(|e| e.to_string())?;
        Ok(TunnelSpace { here, outside, inside, socket, netns })
    }

    /// Creates a device for the tunnel of a class.
    ///
    /// # Errors
    /// The reason why this process or kernel cannot, as text.
    pub fn create(
        &self,
        class: &Class,
        underlay: Underlay<'_>,
        port: u16,
        vni: u32,
    ) -> Result<TunnelDevice<'_>, String> {
        let tunnel = class.tunnel.ok_or("the class has no tunnel")?;
        let TunnelSpace { here, inside, netns, .. } = self;
        if tunnel.kind == TunnelKind::Gre {
            return self.create_gre(underlay, vni);
        }
        let device = Device {
            name: NAME,
            kind: tunnel.outermost(),
            checksum: tunnel.checksum,
            port,
            vni: Vni::new(vni).map_err(|e| e.to_string())?,
        };
        // Dropped on failure: while a device exists, the next one cannot have its VNI.
        let mut made = TunnelDevice { space: self, index: 0, is_ethernet: true };
        device.create(here, underlay, netns)?;
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
            device.create(inside, underlay, netns)?;
            name = NESTED;
        }
        let link = inside.link(name).map_err(|e| e.to_string())?;
        inside.set_up(&link.name).map_err(|e| e.to_string())?;
        made.index = link.index;
        Ok(made)
    }

    fn create_gre(&self, underlay: Underlay<'_>, key: u32) -> Result<TunnelDevice<'_>, String> {
        let (local, remote) = underlay.addresses;
        let module = GRE_MODULES[usize::from(remote.is_ipv6())];
        // Checked first, because a request would load the module, whose devices would remain.
        if !Path::new("/sys/module").join(module).exists() {
            return Err(format!("GRE needs the module {module}, which is not loaded"));
        }
        let headers = if remote.is_ipv4() { 24 } else { 44 };
        let mtu = underlay.mtu.saturating_sub(headers);
        let mut made = TunnelDevice { space: self, index: 0, is_ethernet: false };
        let added = self.inside.add_gre_from(GRE, (local, remote), key, mtu, &self.outside);
        added.and_then(|()| self.inside.set_up(GRE)).map_err(|e| e.to_string())?;
        made.index = self.inside.link(GRE).map_err(|e| e.to_string())?.index;
        Ok(made)
    }
}

impl TunnelDevice<'_> {
    /// Sends a frame through the tunnel.
    pub fn send(&self, frame: &Frame) -> Result<(), nix::errno::Errno> {
        let socket = &self.space.socket;
        match self.is_ethernet {
            true => socket.send(self.index, &frame.vnet(), &frame.bytes),
            false => {
                let (header, packet) = frame.without_ethernet();
                socket.send_as(frame.ether_type(), self.index, &header, packet)
            }
        }
    }
}

impl Drop for TunnelDevice<'_> {
    fn drop(&mut self) {
        let inside = &self.space.inside;
        if let Ok(links) = inside.links() {
            // The inner one first: its underlay is the other one.
            for name in [NESTED, NAME, GRE] {
                if links.iter().any(|link| link.name == name) {
                    // A device that stays is removed with the namespace, and carries nothing.
                    let _ = inside.delete_link(name);
                }
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
                let geneve = Geneve { name, vni, remote, port, udp_csum };
                netlink.add_geneve_in(&geneve, INNER_SOURCE, mtu, netns).map_err(|e| e.to_string())
            }
            TunnelKind::Gre => Err("GRE has no UDP port".to_owned()),
        }
    }
}
