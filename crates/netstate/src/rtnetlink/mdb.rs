//! Multicast forwarding entries of bridges (`bridge mdb`; `struct br_mdb_entry` of
//! `linux/if_bridge.h`).

use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::dump::{attributes, dump};
use crate::netlink::{Error, Result};

/// Bridges answer with the type of the request, VXLAN devices with this one.
const RTM_NEWMDB: u16 = 84;
const RTM_GETMDB: u16 = 86;
const MDBA_MDB: u16 = 1;
const MDBA_ROUTER: u16 = 2;
/// `MDBA_MDB_ENTRY`, `MDBA_MDB_ENTRY_INFO`, `MDBA_ROUTER_PORT`.
const FIRST: u16 = 1;
/// `struct br_port_msg`: the family, padding, the index of the bridge.
const HEAD: usize = 8;
const AF_BRIDGE: u8 = 7;
/// Offsets in `struct br_mdb_entry`: address, and its protocol.
const ADDRESS: usize = 8;
const PROTOCOL: usize = 24;
/// `ETH_P_IP`, `ETH_P_IPV6`.
const IP: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Receivers of multicast packets on the bridges of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multicast {
    /// Ports with a member of a group.
    pub members: Vec<Member>,
    /// Indices of ports behind which a multicast router is: they get all groups.
    pub routers: Vec<u32>,
}

/// A bridge port with a member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Index of the port.
    pub port: u32,
    /// Address of the group.
    pub group: IpAddr,
}

impl Multicast {
    /// Reads the bridges of the calling thread's namespace.
    ///
    /// # Errors
    /// If the kernel refuses the dump, unless it has no bridges.
    pub fn read() -> Result<Multicast> {
        let mut found = Multicast::default();
        let mut request = [0; HEAD];
        request[0] = AF_BRIDGE;
        let answer =
            dump(NETLINK_ROUTE, (RTM_GETMDB, &request), "multicast groups", |kind, all| {
                if [RTM_NEWMDB, RTM_GETMDB].contains(&kind) {
                    found.add(all);
                }
            });
        match answer {
            Err(Error::Kernel { errno: Errno::EOPNOTSUPP, .. }) => Ok(found),
            answer => answer.map(|()| found),
        }
    }

    /// Adds the contents of a message.
    fn add(&mut self, message: &[u8]) {
        for (kind, value) in attributes(message.get(HEAD..).unwrap_or_default()) {
            match kind {
                MDBA_MDB => {
                    let entries = attributes(value).filter(|(kind, _)| *kind == FIRST);
                    let infos = entries.flat_map(|(_, entry)| attributes(entry));
                    let infos = infos.filter(|(kind, _)| *kind == FIRST);
                    self.members.extend(infos.filter_map(|(_, info)| member(info)));
                }
                MDBA_ROUTER => {
                    let ports = attributes(value).filter(|(kind, _)| *kind == FIRST);
                    self.routers.extend(ports.filter_map(|(_, port)| index(port)));
                }
                // Entries of VXLAN devices have another message.
                _ => {}
            }
        }
    }
}

fn member(info: &[u8]) -> Option<Member> {
    let address = info.get(ADDRESS..)?;
    let protocol = u16::from_be_bytes(*info.get(PROTOCOL..)?.first_chunk()?);
    let group = match protocol {
        IP => IpAddr::from(*address.first_chunk::<4>()?),
        IPV6 => IpAddr::from(*address.first_chunk::<16>()?),
        // A group of hardware addresses.
        _ => return None,
    };
    Some(Member { port: index(info)?, group })
}

fn index(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::to_attribute;

    fn entry(port: u32, address: &[u8], protocol: u16) -> Vec<u8> {
        let mut info = port.to_ne_bytes().to_vec();
        info.extend([0; 4]);
        info.extend(address);
        info.resize(PROTOCOL, 0);
        info.extend(protocol.to_be_bytes());
        info.extend([0; 2]);
        to_attribute(MDBA_MDB, &to_attribute(FIRST, &to_attribute(FIRST, &info)))
    }

    #[test]
    fn members_and_routers_are_read() {
        let group: std::net::Ipv6Addr = "ff02::1:ff00:2".parse().unwrap();
        let message = [
            vec![AF_BRIDGE, 0, 0, 0, 9, 0, 0, 0],
            entry(4, &[239, 1, 1, 1], IP),
            entry(5, &group.octets(), IPV6),
            entry(5, &[1, 0, 0x5e, 1, 1, 1], 0),
            to_attribute(MDBA_ROUTER, &to_attribute(FIRST, &7_u32.to_ne_bytes())),
        ]
        .concat();
        let mut found = Multicast::default();
        found.add(&message);
        let member = |port, group: IpAddr| Member { port, group };
        let expected = [member(4, [239, 1, 1, 1].into()), member(5, group.into())];
        assert_eq!(found, Multicast { members: expected.to_vec(), routers: vec![7] });
        // A truncated message ends early.
        for length in 0..message.len() {
            Multicast::default().add(&message[..length]);
        }
    }
}
