//! Names of namespaces and devices.

use std::collections::{BTreeMap, BTreeSet};

use netstate::Netlink;
use netstate::namespace::{MachineNamespaces, discover};
use sys::netns::NetNs;

use crate::event::Encapsulation;

/// A network namespace in which packets are seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name: the given name, its mount's, its pod's or container's, its first process's, or its
    /// inode.
    pub name: String,
    /// UDP ports of its VXLAN and Geneve devices.
    pub tunnel_ports: BTreeMap<u16, Encapsulation>,
    /// Indices of devices through which packets enter this machine: NICs, TAP and TUN devices.
    pub origins: Vec<u32>,
}

/// The machine's namespaces by inode, as they were when read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    places: BTreeMap<u32, Place>,
    /// Descriptions of data that could not be read.
    pub left_out: BTreeSet<String>,
}

impl Places {
    /// Reads all namespaces of this machine.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn of_machine() -> Result<Places, sys::Error> {
        Places::of_machine_with(&mut |_, _| {})
    }

    /// Reads all namespaces of this machine and passes each, by its inode, to `visit` while it is
    /// held open. They are not held open afterwards.
    pub fn of_machine_with(visit: &mut dyn FnMut(u32, &NetNs)) -> Result<Places, sys::Error> {
        let MachineNamespaces { namespaces, left_out, .. } = discover()?;
        let own = NetNs::current()?.inode();
        let named = namespaces.into_iter().map(|(inode, found)| {
            let process = || found.members.first().map(|m| format!("{}:{}", m.pid, m.command));
            let name = match inode == own {
                true => Some("host".to_owned()),
                false => found.name().or_else(process),
            };
            (name, found.netns)
        });
        let mut places = Places::of(named, visit);
        places.left_out.extend(left_out);
        Ok(places)
    }

    /// Reads these namespaces, with the given names or their inodes as names.
    fn of(
        namespaces: impl IntoIterator<Item = (Option<String>, NetNs)>,
        visit: &mut dyn FnMut(u32, &NetNs),
    ) -> Places {
        let mut places = Places::default();
        for (name, netns) in namespaces {
            let inode = netns.inode();
            // The kernel's inodes of namespaces have 32 bits; events can name no others.
            let Ok(inode) = u32::try_from(inode) else { continue };
            visit(inode, &netns);
            let name = name.unwrap_or_else(|| format!("net:[{inode}]"));
            let links = netns.run(|| Netlink::open().and_then(|netlink| netlink.links()));
            let links = match links {
                Ok(Ok(links)) => links,
                // Go on without: device names come with the packets, but its tunnels are not
                // parsed.
                Ok(Err(error)) => {
                    places.left_out.insert(format!("devices of {name}: {error}"));
                    Vec::new()
                }
                Err(error) => {
                    places.left_out.insert(format!("devices of {name}: {error}"));
                    Vec::new()
                }
            };
            let vxlan = |link: &netstate::Interface| {
                Some((link.vxlan.as_ref()?.port, Encapsulation::Vxlan))
            };
            let geneve =
                |link: &netstate::Interface| Some((link.geneve_port?, Encapsulation::Geneve));
            let ports = links.iter().filter_map(|link| vxlan(link).or_else(|| geneve(link)));
            let is_origin = |link: &&netstate::Interface| {
                link.bus.is_some() || link.kind.as_deref() == Some("tun")
            };
            let place = Place {
                name,
                tunnel_ports: ports.collect(),
                origins: links.iter().filter(is_origin).map(|link| link.index).collect(),
            };
            places.places.insert(inode, place);
        }
        places
    }

    #[must_use]
    pub fn with(mut self, namespaces: impl IntoIterator<Item = NetNs>) -> Places {
        let others = namespaces.into_iter().map(|netns| (None, netns));
        let others = Places::of(others, &mut |_, _| {});
        for (inode, place) in others.places {
            self.places.entry(inode).or_insert(place);
        }
        self.left_out.extend(others.left_out);
        self
    }

    /// Returns the name of the namespace with this inode.
    pub fn name(&self, netns: Option<u32>) -> String {
        // The packet was at no device, so the event has no namespace.
        let Some(inode) = netns else { return "?".to_owned() };
        let known = self.places.get(&inode).map(|place| place.name.clone());
        known.unwrap_or_else(|| format!("net:[{inode}]"))
    }

    /// Returns the inodes, in order.
    pub fn inodes(&self) -> Vec<u32> {
        self.places.keys().copied().collect()
    }

    /// Returns namespaces and indices of the devices through which packets enter this machine.
    pub fn origins(&self) -> impl Iterator<Item = (u32, u32)> {
        let of = |(netns, place): (&u32, &Place)| {
            let netns = *netns;
            place.origins.clone().into_iter().map(move |index| (netns, index))
        };
        self.places.iter().flat_map(of)
    }

    /// Returns the UDP ports of VXLAN and Geneve devices over all namespaces.
    pub fn tunnel_ports(&self) -> BTreeMap<u16, Encapsulation> {
        let of = |place: &Place| place.tunnel_ports.clone();
        self.places.values().flat_map(of).collect()
    }
}
