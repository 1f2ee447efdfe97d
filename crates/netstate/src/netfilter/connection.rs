//! Queries and changes single conntrack entries through ctnetlink
//! (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use crate::dump::{attribute, attributes, dump_once, to_attribute};
use crate::netlink::{Error, Result};

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_NEW: u16 = 0;
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLA_F_NESTED: u16 = 0x8000;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
// enum ctattr_type.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_HELP: u16 = 5;
const CTA_NAT_SRC: u16 = 6;
const CTA_TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const CTA_COUNTERS_ORIG: u16 = 9;
const CTA_ID: u16 = 12;
const CTA_NAT_DST: u16 = 13;
const CTA_SEQ_ADJ_ORIG: u16 = 15;
const CTA_SEQ_ADJ_REPLY: u16 = 16;
const CTA_ZONE: u16 = 18;
const CTA_LABELS: u16 = 22;
const CTA_SYNPROXY: u16 = 24;
// enum ctattr_tuple, ctattr_ip, ctattr_l4proto, ctattr_protoinfo_tcp, ctattr_nat, ctattr_protonat.
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_WSCALE_ORIGINAL: u16 = 2;
const CTA_PROTOINFO_TCP_WSCALE_REPLY: u16 = 3;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;
const CTA_NAT_V4_MINIP: u16 = 1;
const CTA_NAT_V4_MAXIP: u16 = 2;
const CTA_NAT_PROTO: u16 = 3;
const CTA_NAT_V6_MINIP: u16 = 4;
const CTA_NAT_V6_MAXIP: u16 = 5;
const CTA_PROTONAT_PORT_MIN: u16 = 1;
const CTA_PROTONAT_PORT_MAX: u16 = 2;
/// `IPS_*` of `linux/netfilter/nf_conntrack_common.h`.
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_DST_NAT: u32 = 1 << 5;
/// `IP_CT_TCP_FLAG_WINDOW_SCALE`, `IP_CT_TCP_FLAG_SACK_PERM`: what the handshake agreed.
const AGREED: u8 = 1 | 2;
/// Attempts to replace an entry, if packets create another one meanwhile.
const ATTEMPTS: usize = 10;
/// `IP_CT_TCP_FLAG_BE_LIBERAL`: packets outside the window are not invalid.
const BE_LIBERAL: u8 = 8;
/// Marks entries that [`Connections::make_liberal`] has changed. The kernel uses this bit
/// (`IP_CT_TCP_SIMULTANEOUS_OPEN`) in `last_flags` only, not in the flags of a direction.
const OURS: u8 = 0x80;
/// `TCP_CONNTRACK_ESTABLISHED`.
const ESTABLISHED: u8 = 3;
/// `TCP_CONNTRACK_CLOSE`.
const CLOSE: u8 = 8;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
const OBJECT: &str = "conntrack entry";

/// Addresses and ports of a direction, for TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Address and port of the sender.
    pub source: (IpAddr, u16),
    /// Destination address and port, of the same family.
    pub destination: (IpAddr, u16),
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u8,
}

impl Tuple {
    /// Returns the tuple of replies if nothing is translated.
    #[must_use]
    pub fn reversed(self) -> Tuple {
        Tuple { source: self.destination, destination: self.source, ..self }
    }
}

/// A conntrack entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Tuple of the first packet as it arrived.
    pub original: Tuple,
    /// Tuple of replies as they arrive.
    pub reply: Tuple,
    /// `IPS_*`.
    pub status: u32,
    /// `ct mark`, which rules may set and match.
    pub mark: u32,
    /// TCP: the connection is established. Other protocols: always true.
    pub is_established: bool,
    /// TCP: `enum tcp_conntrack`.
    pub tcp_state: Option<u8>,
    /// TCP: packets outside the window are valid, of the original and the reply direction.
    pub liberal: [bool; 2],
    /// TCP: [`Connections::make_liberal`] has made it so, in a direction at least.
    pub is_marked: bool,
    /// The entry has counters of packets and bytes. It had them from the start (`nf_conntrack_acct`).
    pub is_counted: bool,
    /// A property beyond addresses and ports that affects the packets, or content that is not
    /// supported: a helper, adjusted sequence numbers, a zone.
    pub oddity: Option<&'static str>,
}

/// Passes every TCP and UDP connection in the calling thread's namespace to `each`. Entries that
/// come or go meanwhile may be missing.
///
/// # Errors
/// If the kernel refuses, for instance because it has no ctnetlink.
pub fn connections(mut each: impl FnMut(&Entry)) -> Result<()> {
    const IPPROTO_TCP: u8 = 6;
    const IPPROTO_UDP: u8 = 17;
    let request = (NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET, &[0_u8; 4][..]);
    // An interrupted dump is not repeated: the table changes all the time.
    dump_once(NETLINK_NETFILTER, request, "conntrack entries", |_, payload| {
        // Other protocols have no ports, so parsing their tuples fails.
        if let Ok(entry) = entry(payload.get(4..).unwrap_or_default())
            && matches!(entry.original.protocol, IPPROTO_TCP | IPPROTO_UDP)
        {
            each(&entry);
        }
    })
    .map(drop)
}

/// Conntrack of one network namespace.
pub struct Connections {
    socket: Socket,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connections")
    }
}

impl Connections {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If no file descriptor is available.
    pub fn open() -> Result<Connections> {
        let failed =
            |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, OBJECT, &e));
        let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed("socket"))?;
        socket.bind_auto().map_err(failed("bind"))?;
        Ok(Connections { socket })
    }

    /// Returns the entry of packets in this direction, which may be the original or the reply
    /// direction.
    ///
    /// # Errors
    /// If the kernel refuses, for instance because it has no ctnetlink.
    pub fn get(&self, tuple: &Tuple) -> Result<Option<Entry>> {
        let payload = question(tuple, &[]);
        match self.ask(IPCTNL_MSG_CT_GET, NLM_F_REQUEST, &payload) {
            Ok(answer) => entry(answer.get(4..).unwrap_or_default()).map(Some),
            // Conntrack has no entry for the tuple.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes conntrack accept packets outside the TCP window, in both directions of this
    /// connection, and marks its entry.
    ///
    /// # Errors
    /// If the kernel refuses. `ENOENT`: the connection is gone.
    pub fn make_liberal(&self, original: &Tuple) -> Result<()> {
        self.set_liberal(original, true)
    }

    /// Makes conntrack compare packets with the TCP windows again, in both directions of this
    /// connection.
    ///
    /// # Errors
    /// If the kernel refuses. `ENOENT`: the connection is gone.
    pub fn make_strict(&self, original: &Tuple) -> Result<()> {
        self.set_liberal(original, false)
    }

    fn set_liberal(&self, original: &Tuple, is_liberal: bool) -> Result<()> {
        // `struct nf_ct_tcp_flags`: flags, and a mask.
        const BOTH: u8 = BE_LIBERAL | OURS;
        let flags = [if is_liberal { BOTH } else { 0 }, BOTH];
        let tcp = [
            to_attribute(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &flags),
            to_attribute(CTA_PROTOINFO_TCP_FLAGS_REPLY, &flags),
        ]
        .concat();
        let info = nested(CTA_PROTOINFO, &nested(CTA_PROTOINFO_TCP, &tcp));
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        self.ask(IPCTNL_MSG_CT_NEW, flags, &question(original, &info)).map(drop)
    }

    /// Replaces the entry of a TCP connection by one without windows and without the liberal flag.
    /// Conntrack takes the windows from the next segment of each direction, as for a connection
    /// that it finds in progress, and then compares segments with them. State, timeout, mark,
    /// labels and translation remain; counters begin at zero.
    ///
    /// # Errors
    /// If the kernel refuses, or if packets have created another entry each time. `ENOENT`: the
    /// connection is gone.
    pub fn forget_windows(&self, original: &Tuple) -> Result<()> {
        let found = self.ask(IPCTNL_MSG_CT_GET, NLM_F_REQUEST, &question(original, &[]))?;
        let found = found.get(4..).unwrap_or_default();
        let fresh = without_windows(&entry(found)?, found);
        let id = attribute(found, CTA_ID).map_or_else(Vec::new, |id| to_attribute(CTA_ID, id));
        let delete = |rest: &[u8]| {
            let request = question(original, rest);
            self.ask(IPCTNL_MSG_CT_DELETE, NLM_F_REQUEST | NLM_F_ACK, &request)
        };
        // With its id: not an entry that has replaced it since.
        delete(&id)?;
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let mut attempts = 1;
        loop {
            match self.ask(IPCTNL_MSG_CT_NEW, flags, &fresh) {
                // A packet has created an entry since, in either direction, without translation.
                Err(error) if error.errno() == Some(Errno::EEXIST) && attempts < ATTEMPTS => {
                    attempts += 1;
                    match delete(&[]) {
                        Err(error) if error.errno() != Some(Errno::ENOENT) => return Err(error),
                        _ => {}
                    }
                }
                result => return result.map(drop),
            }
        }
    }

    /// Makes conntrack treat a connection as reset. `tuple` may be of either direction.
    ///
    /// # Errors
    /// If the kernel refuses. `ENOENT`: the connection is gone.
    pub fn close(&self, tuple: &Tuple) -> Result<()> {
        let state = to_attribute(CTA_PROTOINFO_TCP_STATE, &[CLOSE]);
        let info = nested(CTA_PROTOINFO, &nested(CTA_PROTOINFO_TCP, &state));
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        self.ask(IPCTNL_MSG_CT_NEW, flags, &question(tuple, &info)).map(drop)
    }

    /// Sends a request and returns the payload of the answer. It is empty for an acknowledgement.
    fn ask(&self, what: u16, flags: u16, payload: &[u8]) -> Result<Vec<u8>> {
        let failed =
            |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, OBJECT, &e));
        let mut request = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
        request.extend((NFNL_SUBSYS_CTNETLINK << 8 | what).to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend([0; 8]);
        request.extend(payload);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(failed("request"))?;
        let mut bytes = Vec::with_capacity(4 << 10);
        self.socket.recv(&mut bytes, 0).map_err(failed("read"))?;
        let kind = bytes.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
        let payload = bytes.get(HEADER..).unwrap_or_default();
        match kind {
            Some(NLMSG_ERROR) => {
                let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                // Errno 0 is an acknowledgement.
                if code == 0 {
                    return Ok(Vec::new());
                }
                let errno = Errno::from_raw(code.saturating_neg());
                Err(Error::Kernel { operation: "request", object: OBJECT.to_owned(), errno })
            }
            Some(kind) if kind == NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW => {
                // Without NLM_F_ACK there is no acknowledgement to read.
                Ok(payload.to_vec())
            }
            kind => Err(Error::Answer {
                operation: "request",
                object: OBJECT.to_owned(),
                expected: "IPCTNL_MSG_CT_NEW",
                got: format!("message of type {kind:?}"),
            }),
        }
    }
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    to_attribute(kind | NLA_F_NESTED, value)
}

/// Builds `struct nfgenmsg`, the tuple, and further attributes.
fn question(tuple: &Tuple, rest: &[u8]) -> Vec<u8> {
    let (family, inside) = inside(tuple);
    [&[family, 0, 0, 0][..], &nested(CTA_TUPLE_ORIG, &inside), rest].concat()
}

/// Builds the request for an entry like `entry`, whose attributes are `found`, without windows.
fn without_windows(entry: &Entry, found: &[u8]) -> Vec<u8> {
    let tcp = attribute(found, CTA_PROTOINFO).and_then(|info| attribute(info, CTA_PROTOINFO_TCP));
    let of_tcp = |kind| tcp.and_then(|tcp| attribute(tcp, kind));
    let mut protocol = Vec::new();
    for kind in
        [CTA_PROTOINFO_TCP_STATE, CTA_PROTOINFO_TCP_WSCALE_ORIGINAL, CTA_PROTOINFO_TCP_WSCALE_REPLY]
    {
        protocol.extend(of_tcp(kind).map_or_else(Vec::new, |value| to_attribute(kind, value)));
    }
    for kind in [CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY] {
        let flags = of_tcp(kind).and_then(|flags| flags.first()).map_or(0, |flags| flags & AGREED);
        // `struct nf_ct_tcp_flags`: flags, and a mask.
        protocol.extend(to_attribute(kind, &[flags, AGREED | BE_LIBERAL]));
    }
    // Other bits are the kernel's own, or follow from the translation.
    let status = entry.status & (IPS_SEEN_REPLY | IPS_ASSURED) | IPS_CONFIRMED;
    let mut rest = nested(CTA_PROTOINFO, &nested(CTA_PROTOINFO_TCP, &protocol));
    rest.extend(to_attribute(CTA_STATUS, &status.to_be_bytes()));
    for kind in [CTA_TIMEOUT, CTA_MARK, CTA_LABELS] {
        rest.extend(
            attribute(found, kind).map_or_else(Vec::new, |value| to_attribute(kind, value)),
        );
    }
    // The kernel derives the reply tuple from the translation.
    rest.extend(nested(CTA_TUPLE_REPLY, &inside(&entry.original.reversed()).1));
    let leaves = entry.reply.reversed();
    if entry.status & IPS_SRC_NAT != 0 {
        rest.extend(nested(CTA_NAT_SRC, &translation(leaves.source)));
    }
    if entry.status & IPS_DST_NAT != 0 {
        rest.extend(nested(CTA_NAT_DST, &translation(leaves.destination)));
    }
    question(&entry.original, &rest)
}

/// A translation to exactly this address and port.
fn translation((address, port): (IpAddr, u16)) -> Vec<u8> {
    let ports = [CTA_PROTONAT_PORT_MIN, CTA_PROTONAT_PORT_MAX]
        .map(|kind| to_attribute(kind, &port.to_be_bytes()))
        .concat();
    let addresses = match address {
        IpAddr::V4(address) => [CTA_NAT_V4_MINIP, CTA_NAT_V4_MAXIP]
            .map(|kind| to_attribute(kind, &address.octets()))
            .concat(),
        IpAddr::V6(address) => [CTA_NAT_V6_MINIP, CTA_NAT_V6_MAXIP]
            .map(|kind| to_attribute(kind, &address.octets()))
            .concat(),
    };
    [addresses, nested(CTA_NAT_PROTO, &ports)].concat()
}

/// Builds the attributes of a tuple. Returns the address family, too.
fn inside(tuple: &Tuple) -> (u8, Vec<u8>) {
    let (family, addresses) = match (tuple.source.0, tuple.destination.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (
            AF_INET,
            [
                to_attribute(CTA_IP_V4_SRC, &from.octets()),
                to_attribute(CTA_IP_V4_DST, &to.octets()),
            ]
            .concat(),
        ),
        // IPv6. An IPv4 address beside an IPv6 one is written as mapped.
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let both = [
                to_attribute(CTA_IP_V6_SRC, &octets(from)),
                to_attribute(CTA_IP_V6_DST, &octets(to)),
            ];
            (AF_INET6, both.concat())
        }
    };
    let ports = [
        to_attribute(CTA_PROTO_NUM, &[tuple.protocol]),
        to_attribute(CTA_PROTO_SRC_PORT, &tuple.source.1.to_be_bytes()),
        to_attribute(CTA_PROTO_DST_PORT, &tuple.destination.1.to_be_bytes()),
    ]
    .concat();
    (family, [nested(CTA_TUPLE_IP, &addresses), nested(CTA_TUPLE_PROTO, &ports)].concat())
}

/// Parses an answer's attributes.
fn entry(payload: &[u8]) -> Result<Entry> {
    let malformed = |got: &str| Error::Answer {
        operation: "read",
        object: OBJECT.to_owned(),
        expected: "both tuples and the status",
        got: got.to_owned(),
    };
    let find = |kind| attribute(payload, kind);
    let number = |kind| {
        find(kind).and_then(|value| value.first_chunk()).map(|bytes| u32::from_be_bytes(*bytes))
    };
    let original =
        find(CTA_TUPLE_ORIG).and_then(tuple).ok_or_else(|| malformed("no original tuple"))?;
    let reply = find(CTA_TUPLE_REPLY).and_then(tuple).ok_or_else(|| malformed("no reply tuple"))?;
    let tcp = find(CTA_PROTOINFO).and_then(|info| attribute(info, CTA_PROTOINFO_TCP));
    let state = tcp.and_then(|tcp| attribute(tcp, CTA_PROTOINFO_TCP_STATE));
    let flags = [CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY].map(|kind| {
        let flags = tcp.and_then(|tcp| attribute(tcp, kind)).and_then(|flags| flags.first());
        flags.copied().unwrap_or(0)
    });
    // Entries created through ctnetlink have all-zero numbers here: nothing is adjusted.
    let is_adjusted = |numbers| attributes(numbers).any(|(_, number)| number != [0; 4]);
    let oddity = attributes(payload).find_map(|(kind, value)| match kind {
        CTA_HELP => Some("helper"),
        CTA_SYNPROXY if !is_adjusted(value) => None,
        CTA_SEQ_ADJ_ORIG | CTA_SEQ_ADJ_REPLY | CTA_SYNPROXY => Some("adjusted sequence numbers"),
        CTA_ZONE => Some("zone"),
        // Other attributes do not change packets.
        _ => None,
    });
    let zone = |of| find(of).is_some_and(|tuple| attribute(tuple, CTA_TUPLE_ZONE).is_some());
    let in_zone = zone(CTA_TUPLE_ORIG) || zone(CTA_TUPLE_REPLY);
    Ok(Entry {
        original,
        reply,
        status: number(CTA_STATUS).ok_or_else(|| malformed("no status"))?,
        mark: number(CTA_MARK).unwrap_or(0),
        // Protocols without TCP state count as established.
        is_established: tcp.is_none() || state == Some(&[ESTABLISHED]),
        tcp_state: state.and_then(|state| state.first().copied()),
        liberal: flags.map(|flags| flags & BE_LIBERAL != 0),
        is_marked: flags.iter().any(|flags| flags & OURS != 0),
        is_counted: find(CTA_COUNTERS_ORIG).is_some(),
        oddity: oddity.or(in_zone.then_some("zone")),
    })
}

fn tuple(value: &[u8]) -> Option<Tuple> {
    let (addresses, ports) = (attribute(value, CTA_TUPLE_IP)?, attribute(value, CTA_TUPLE_PROTO)?);
    let four = |kind| {
        attribute(addresses, kind)?
            .first_chunk::<4>()
            .map(|bytes| IpAddr::V4(Ipv4Addr::from(*bytes)))
    };
    let six = |kind| {
        attribute(addresses, kind)?
            .first_chunk::<16>()
            .map(|bytes| IpAddr::V6(Ipv6Addr::from(*bytes)))
    };
    let port = |kind| attribute(ports, kind)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    Some(Tuple {
        source: (four(CTA_IP_V4_SRC).or_else(|| six(CTA_IP_V6_SRC))?, port(CTA_PROTO_SRC_PORT)?),
        destination: (
            four(CTA_IP_V4_DST).or_else(|| six(CTA_IP_V6_DST))?,
            port(CTA_PROTO_DST_PORT)?,
        ),
        protocol: *attribute(ports, CTA_PROTO_NUM)?.first()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses(six: bool) -> (IpAddr, IpAddr) {
        if six {
            ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
        } else {
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
        }
    }

    proptest! {
        #[test]
        fn a_tuple_is_read_as_it_is_written(six: bool, from: u16, to: u16, protocol: u8) {
            let (source, destination) = addresses(six);
            let written =
                Tuple { source: (source, from), destination: (destination, to), protocol };
            let message = question(&written, &[]);
            let value = attribute(&message[4..], CTA_TUPLE_ORIG).unwrap();
            prop_assert_eq!(tuple(value), Some(written));
            prop_assert_eq!(written.reversed().reversed(), written);
        }

        #[test]
        fn garbage_is_an_error(bytes: Vec<u8>, cut in 0_usize..80) {
            let _ = entry(&bytes);
            let (source, destination) = addresses(false);
            let whole = Tuple { source: (source, 1), destination: (destination, 2), protocol: 6 };
            let message = question(&whole, &[]);
            prop_assert!(entry(&message[4..message.len().min(4 + cut)]).is_err());
        }
    }
}
