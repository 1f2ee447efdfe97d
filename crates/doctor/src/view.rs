//! A host with resolved links: each device's peer, ports and underlay.
//!
//! A saved host may hold any values. Every look-up can fail, none panics, and every walk ends.
//! Look-ups per device use an index, so that none scans all devices.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use netstate::cpu::parse_list;
use netstate::entry::{Address, Knowledge, Neighbour};
use netstate::interface::{Interface, Vxlan};
use netstate::route::NextHop;

use crate::host::{Device, Feature, Host, Interrupt, Namespace, Reading, TunnelPaths};

/// Position of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// Index into [`Host::namespaces`].
    pub namespace: usize,
    /// Interface index within that namespace.
    pub index: u32,
}

/// A device with its namespace.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRef<'a> {
    /// Namespace and index of the device.
    pub place: DeviceKey,
    pub namespace: &'a Namespace,
    /// Link as the kernel reports it.
    pub interface: &'a Interface,
    /// Data from its driver, if read.
    pub device: Option<&'a Device>,
}

/// Route of a VXLAN device to one remote.
#[derive(Debug, Clone, Copy)]
pub struct Underlay<'a> {
    /// Underlay address of the remote VTEP.
    pub remote: IpAddr,
    /// Route of the outer packets.
    pub way: &'a NextHop,
    /// Output device of the route.
    pub nic: DeviceRef<'a>,
}

#[derive(Debug, Clone)]
pub struct QueueInterrupt<'a> {
    /// Interrupt as the kernel reports it.
    pub interrupt: &'a Interrupt,
    /// CPUs that take it.
    pub cpus: BTreeSet<u32>,
    /// Number of interrupts between the two readings.
    pub moved: u64,
}

/// A host with indices by inode, place and address.
#[derive(Debug)]
pub struct View<'a> {
    host: &'a Host,
    namespaces: HashMap<u64, usize>,
    links: HashMap<DeviceKey, usize>,
    ports: BTreeMap<DeviceKey, Vec<DeviceKey>>,
    /// Positions in [`Namespace::tunnels`].
    tunnels: HashMap<DeviceKey, usize>,
    /// Devices that have an address.
    addressed: HashMap<IpAddr, Vec<DeviceKey>>,
    segments: HashMap<DeviceKey, DeviceKey>,
}

impl<'a> From<DeviceRef<'a>> for settings::Target<'a> {
    fn from(spot: DeviceRef<'a>) -> settings::Target<'a> {
        settings::Target { namespace: spot.namespace.into(), interface: spot.interface }
    }
}

impl<'a> DeviceRef<'a> {
    /// Kind of the link (`IFLA_INFO_KIND`), `""` if the driver has none.
    pub fn kind(&self) -> &'a str {
        self.interface.kind.as_deref().unwrap_or_default()
    }

    /// Name of the device (`IFLA_IFNAME`).
    pub fn name(&self) -> &'a str {
        &self.interface.name
    }

    /// Returns a feature. `Ok(None)`: the kernel has no feature of this name.
    ///
    /// # Errors
    /// Why features could not be read.
    pub fn feature(&self, name: &str) -> Result<Option<Feature>, &'a str> {
        match self.device.and_then(|device| device.features.as_ref()) {
            Some(Reading::Read(features)) => Ok(features.get(name).copied()),
            Some(Reading::Unread(reason)) => Err(reason),
            None => Err("its features were not read"),
        }
    }

    /// Attributes of a VXLAN device; `None` for other devices.
    pub fn vxlan(&self) -> Option<&'a Vxlan> {
        self.interface.vxlan.as_ref()
    }

    /// Whether a device is hardware, real or emulated by a hypervisor.
    pub fn is_physical(&self) -> bool {
        self.interface.bus.is_some()
    }

    /// Whether a device can be the underlay of tunnels, unlike a bridge or a tunnel.
    pub fn is_nic(&self) -> bool {
        self.is_physical() || self.kind() == "veth"
    }

    /// Addresses of the device. None if they were not read.
    pub fn addresses(&self) -> impl Iterator<Item = &'a Address> + use<'a> {
        let index = self.interface.index;
        let all = self.namespace.addresses.get().into_iter().flatten();
        all.filter(move |known| known.link == index)
    }

    /// Addresses behind the device that do not answer ARP or neighbour discovery.
    pub fn silent(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let index = self.interface.index;
        let all = self.namespace.neighbours.get().into_iter().flatten();
        let failed =
            move |known: &&Neighbour| known.link == index && known.knowledge == Knowledge::Failed;
        all.filter(failed).map(|known| known.address)
    }

    /// Whether an address behind the device does not answer ARP or neighbour discovery.
    pub fn is_silent(&self, address: IpAddr) -> bool {
        self.silent().any(|silent| silent == address)
    }

    /// Counter increases since the first reading; `None` without a second reading.
    pub fn moved(&self) -> Option<netstate::interface::Counters> {
        let later = self.namespace.later.get()?.get(&self.interface.index)?;
        Some(later.since(&self.interface.counters))
    }
}

/// Whether programs of a namespace sent IP packets between the readings. Discovery of neighbours and
/// groups, which is for the link only, does not count. `None` without counters.
pub fn sent_packets(namespace: &Namespace) -> Option<bool> {
    let pair = namespace.snmp.get()?;
    Some(pair.after.since(&pair.before).ip.out_requests > 0)
}

impl<'a> View<'a> {
    /// Resolves the links of a host.
    pub fn new(host: &'a Host) -> View<'a> {
        let mut view = View {
            host,
            namespaces: HashMap::new(),
            links: HashMap::new(),
            ports: BTreeMap::new(),
            tunnels: HashMap::new(),
            addressed: HashMap::new(),
            segments: HashMap::new(),
        };
        for (at, namespace) in host.namespaces.iter().enumerate() {
            // A saved host may contain a number twice. The first one counts, here and below.
            view.namespaces.entry(namespace.inode).or_insert(at);
            for (position, link) in namespace.interfaces.get().into_iter().flatten().enumerate() {
                let place = DeviceKey { namespace: at, index: link.index };
                view.links.entry(place).or_insert(position);
                if let Some(master) = link.master {
                    let bridge = DeviceKey { namespace: at, index: master };
                    view.ports.entry(bridge).or_default().push(place);
                }
            }
        }
        for (at, namespace) in host.namespaces.iter().enumerate() {
            for (position, tunnel) in namespace.tunnels.iter().enumerate() {
                let place = DeviceKey { namespace: at, index: tunnel.link };
                view.tunnels.entry(place).or_insert(position);
            }
            for known in namespace.addresses.get().into_iter().flatten() {
                let place = DeviceKey { namespace: at, index: known.link };
                view.addressed.entry(known.address).or_default().push(place);
            }
        }
        view.segments = view.find_segments();
        view
    }

    /// Returns the host behind the view.
    pub fn host(&self) -> &'a Host {
        self.host
    }

    /// Every device but loopback.
    pub fn devices(&self) -> impl Iterator<Item = DeviceRef<'a>> + '_ {
        (0..self.host.namespaces.len()).flat_map(|namespace| self.devices_of(namespace))
    }

    /// Every device of one namespace but loopback.
    pub fn devices_of(&self, namespace: usize) -> impl Iterator<Item = DeviceRef<'a>> + '_ {
        let links = self.host.namespaces.get(namespace).and_then(|one| one.interfaces.get());
        let places =
            links.into_iter().flatten().map(move |link| DeviceKey { namespace, index: link.index });
        places.filter_map(|place| self.spot(place)).filter(|spot| !spot.interface.loopback)
    }

    pub fn spot(&self, place: DeviceKey) -> Option<DeviceRef<'a>> {
        let namespace = self.host.namespaces.get(place.namespace)?;
        let interface = namespace.interfaces.get()?.get(*self.links.get(&place)?)?;
        Some(DeviceRef { place, namespace, interface, device: namespace.devices.get(&place.index) })
    }

    /// The namespace's position by inode number.
    pub fn namespace(&self, inode: u64) -> Option<usize> {
        self.namespaces.get(&inode).copied()
    }

    /// Returns the device that `IFLA_LINK` names: a veth's peer, or the device below a VLAN.
    pub fn link(&self, spot: DeviceRef<'a>) -> Option<DeviceRef<'a>> {
        let index = spot.interface.link?;
        let namespace = match spot.interface.link_netns {
            None => spot.place.namespace,
            // Without the namespace, the index would name an unrelated device here.
            Some(_) => self.namespace(spot.device?.link_namespace?)?,
        };
        self.spot(DeviceKey { namespace, index })
    }

    /// A veth's other end.
    pub fn peer(&self, spot: DeviceRef<'a>) -> Option<DeviceRef<'a>> {
        self.link(spot).filter(|peer| spot.kind() == "veth" && peer.kind() == "veth")
    }

    /// The bridge that a device is a port of.
    pub fn bridge(&self, spot: DeviceRef<'a>) -> Option<DeviceRef<'a>> {
        let index = spot.interface.master?;
        let bridge = self.spot(DeviceKey { namespace: spot.place.namespace, index })?;
        (bridge.kind() == "bridge").then_some(bridge)
    }

    pub fn ports(&self, bridge: DeviceRef<'a>) -> impl Iterator<Item = DeviceRef<'a>> + '_ {
        let ports = self.ports.get(&bridge.place).into_iter().flatten();
        ports.filter_map(|place| self.spot(*place))
    }

    /// Every VXLAN device with its attributes.
    pub fn tunnels(&self) -> impl Iterator<Item = (DeviceRef<'a>, &'a Vxlan)> + '_ {
        self.devices().filter_map(|spot| Some((spot, spot.vxlan()?)))
    }

    /// Every VXLAN device with settings of its own. An external device gets remote, VNI and
    /// checksum with each packet.
    pub fn fixed_tunnels(&self) -> impl Iterator<Item = (DeviceRef<'a>, &'a Vxlan)> + '_ {
        self.tunnels().filter(|(_, vxlan)| !vxlan.external)
    }

    /// Routes of a VXLAN device, if they were read.
    pub fn ways(&self, tunnel: DeviceRef<'a>) -> Option<&'a TunnelPaths> {
        tunnel.namespace.tunnels.get(*self.tunnels.get(&tunnel.place)?)
    }

    /// Returns a VXLAN device's routes to its remotes. Remotes without a route are left out.
    pub fn underlays(&self, tunnel: DeviceRef<'a>) -> Vec<Underlay<'a>> {
        let Some(found) = self.ways(tunnel) else { return Vec::new() };
        let Some(namespace) = self.namespace(found.underlay) else { return Vec::new() };
        let ways = found.ways.iter().filter_map(|(remote, way)| {
            let way = way.get()?;
            let nic = self.spot(DeviceKey { namespace, index: way.link })?;
            Some(Underlay { remote: *remote, way, nic })
        });
        ways.collect()
    }

    /// Returns the output devices of VXLAN packets, each once.
    pub fn underlay_nics(&self) -> Vec<DeviceRef<'a>> {
        let mut seen = BTreeSet::new();
        let mut nics = Vec::new();
        for (tunnel, _) in self.tunnels() {
            for underlay in self.underlays(tunnel) {
                if !underlay.nic.interface.loopback && seen.insert(underlay.nic.place) {
                    nics.push(underlay.nic);
                }
            }
        }
        nics
    }

    /// Returns the NIC that a VXLAN device is bound to, or that has its local address.
    pub fn tunnel_nic(&self, tunnel: DeviceRef<'a>) -> Option<DeviceRef<'a>> {
        let vxlan = tunnel.vxlan()?;
        let namespace = self.namespace(self.ways(tunnel)?.underlay)?;
        let bound = vxlan.device.and_then(|index| self.spot(DeviceKey { namespace, index }));
        bound.or_else(|| {
            let mut own = self.with_address(vxlan.local?);
            own.find(|spot| spot.place.namespace == namespace)
        })
    }

    /// Returns the NICs under tunnels, also those that are down: no route leads through them. A NIC
    /// may occur more than once.
    pub fn tunnel_nics(&self) -> Vec<DeviceRef<'a>> {
        let mut nics = self.underlay_nics();
        nics.extend(self.tunnels().filter_map(|(tunnel, _)| self.tunnel_nic(tunnel)));
        nics
    }

    /// Returns the NICs that carry overlays: NICs under tunnels, and hardware that is a bridge
    /// port.
    pub fn carrying_nics(&self) -> Vec<DeviceRef<'a>> {
        let mut nics = self.underlay_nics();
        nics.extend(
            self.devices().filter(|spot| spot.is_physical() && self.bridge(*spot).is_some()),
        );
        nics.sort_by_key(|nic| nic.place);
        nics.dedup_by_key(|nic| nic.place);
        nics
    }

    /// Returns the interrupts of a device's receive queues, with their counts between the two
    /// readings. Empty for drivers with other interrupt names.
    pub fn receive_interrupts(&self, spot: DeviceRef<'a>) -> Vec<QueueInterrupt<'a>> {
        let Some(pair) = self.host.machine.interrupts.get() else { return Vec::new() };
        let own = spot.device.and_then(|device| device.interrupts.as_deref()).unwrap_or_default();
        let of_a_queue = |name: &str| {
            let name = name.to_ascii_lowercase();
            ["rx", "input", "mlx5_comp", "ntfy"].iter().any(|part| name.contains(part))
        };
        let own = own.iter().filter(|interrupt| of_a_queue(&interrupt.name));
        own.map(|interrupt| QueueInterrupt {
            interrupt,
            cpus: parse_list(&interrupt.cpus).unwrap_or_default(),
            // A saved host may hold any counts: saturate instead of overflowing.
            moved: pair
                .after
                .since(&pair.before, &interrupt.name)
                .values()
                .fold(0, |sum: u64, moved| sum.saturating_add(*moved)),
        })
        .collect()
    }

    /// Returns a place that all devices of one layer-2 segment have in common. Veth pairs and
    /// bridges join segments, as far as they were read.
    pub fn segment(&self, spot: DeviceRef<'a>) -> DeviceKey {
        self.segments.get(&spot.place).copied().unwrap_or(spot.place)
    }

    /// Returns the devices with an address on the segment of `near`.
    pub fn neighbour_with(&self, near: DeviceRef<'a>, address: IpAddr) -> Vec<DeviceRef<'a>> {
        let segment = self.segment(near);
        let places = self.addressed.get(&address).into_iter().flatten();
        let spots = places.filter_map(|place| self.spot(*place));
        spots.filter(|spot| self.segment(*spot) == segment).collect()
    }

    /// Returns the devices with an address, on any segment.
    pub fn with_address(&self, address: IpAddr) -> impl Iterator<Item = DeviceRef<'a>> + '_ {
        let places = self.addressed.get(&address).into_iter().flatten();
        places.filter_map(|place| self.spot(*place))
    }

    fn find_segments(&self) -> HashMap<DeviceKey, DeviceKey> {
        let mut joined: HashMap<DeviceKey, Vec<DeviceKey>> = HashMap::new();
        let mut join = |a: DeviceKey, b: DeviceKey| {
            joined.entry(a).or_default().push(b);
            joined.entry(b).or_default().push(a);
        };
        for spot in self.devices() {
            if let Some(peer) = self.peer(spot) {
                join(spot.place, peer.place);
            }
            if let Some(bridge) = self.bridge(spot) {
                join(spot.place, bridge.place);
            }
        }
        let mut segments = HashMap::new();
        for spot in self.devices() {
            let mut waiting = vec![spot.place];
            while let Some(place) = waiting.pop() {
                // Visited already: links may form a cycle.
                if segments.contains_key(&place) {
                    continue;
                }
                segments.insert(place, spot.place);
                waiting.extend(joined.get(&place).into_iter().flatten());
            }
        }
        segments
    }
}
