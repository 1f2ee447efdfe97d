//! Devices at the edge of the watched namespaces: behind them are other machines.

use std::collections::BTreeMap;

use netstate::Interface;

/// Returns the edge devices as pairs of namespace inode and device index.
///
/// NICs are edge devices. If only some namespaces are watched (`whole` is false), so are veth
/// devices whose other end is in none of them. If a device is named, only that one is.
pub(crate) fn edges(
    spaces: &BTreeMap<u32, Vec<Interface>>,
    whole: bool,
    named: Option<&str>,
) -> Vec<(u32, u32)> {
    let is_edge = |inode: u32, link: &Interface| match named {
        Some(name) => link.name == name,
        None => link.bus.is_some() || !whole && is_open_veth(spaces, inode, link),
    };
    let of = |(inode, links): (&u32, &Vec<Interface>)| {
        let inode = *inode;
        let links = links.iter().filter(|link| is_edge(inode, link));
        links.map(|link| (inode, link.index)).collect::<Vec<_>>()
    };
    spaces.iter().flat_map(of).collect()
}

/// Returns whether this is a veth device whose other end is not watched. Each namespace numbers the
/// others by itself, so two ends are matched by each naming the other's index.
fn is_open_veth(spaces: &BTreeMap<u32, Vec<Interface>>, inode: u32, link: &Interface) -> bool {
    let (Some("veth"), Some(peer), Some(_)) = (link.kind.as_deref(), link.link, link.link_netns)
    else {
        // Without a namespace number, the other end is in the same namespace.
        return false;
    };
    let is_peer = |other: &Interface| {
        let is_veth = other.kind.as_deref() == Some("veth") && other.link_netns.is_some();
        is_veth && other.index == peer && other.link == Some(link.index)
    };
    let others = spaces.iter().filter(|(other, _)| **other != inode);
    !others.flat_map(|(_, links)| links).any(is_peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, index: u32) -> Interface {
        Interface { index, name: name.to_owned(), ..Interface::default() }
    }

    fn veth(name: &str, index: u32, peer: u32) -> Interface {
        let kind = Some("veth".to_owned());
        Interface { kind, link: Some(peer), link_netns: Some(0), ..device(name, index) }
    }

    #[test]
    fn behind_an_edge_is_what_is_not_watched() {
        let nic = Interface { bus: Some("pci".to_owned()), ..device("eth0", 2) };
        let within = Interface { link_netns: None, ..veth("within", 9, 10) };
        let host = vec![nic, veth("to-pod", 3, 2), within];
        let pod = vec![veth("eth0", 2, 3), veth("out", 4, 77)];
        let spaces = BTreeMap::from([(1, host), (2, pod)]);
        assert_eq!(edges(&spaces, true, None), [(1, 2)]);
        assert_eq!(edges(&spaces, false, None), [(1, 2), (2, 4)]);
        assert_eq!(edges(&spaces, true, Some("eth0")), [(1, 2), (2, 2)]);
        let alone = BTreeMap::from([(2, spaces[&2].clone())]);
        assert_eq!(edges(&alone, false, None), [(2, 2), (2, 4)]);
    }
}
