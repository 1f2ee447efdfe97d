//! Matches and targets of x_tables in rules of iptables-nft (`match`, `target`). Their binary data
//! follows the structs of `linux/netfilter/xt_*.h`.

use std::net::IpAddr;

use crate::value::{Cause, Doubt};
use crate::wire::UnsupportedContent;

#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of the structures")]
pub enum Match {
    /// `comment`.
    Always,
    /// `conntrack`, revisions 1 to 3.
    Conntrack(Box<Conntrack>),
    /// `state`: bits as in `Conntrack::state`.
    State {
        mask: u32,
    },
    Mark {
        mark: u32,
        mask: u32,
        inverted: bool,
    },
    Connmark {
        mark: u32,
        mask: u32,
        inverted: bool,
    },
    AddressType {
        source: u16,
        destination: u16,
        not_source: bool,
        not_destination: bool,
    },
    /// `multiport`: ranges, both ends included.
    Multiport {
        which: Which,
        ranges: Vec<(u16, u16)>,
        inverted: bool,
    },
    Tcp {
        ports: Ports,
        flag_mask: u8,
        flags: u8,
        not_flags: bool,
        has_option: bool,
    },
    Udp {
        ports: Ports,
    },
    Icmp {
        kind: u8,
        codes: (u8, u8),
        inverted: bool,
        v6: bool,
    },
    /// `iprange`.
    AddressRange {
        source: Option<Range>,
        destination: Option<Range>,
    },
    Physdev(Box<Physdev>),
    /// A known match that forces the slow path.
    Slow(Doubt),
}

/// Ports that `multiport` matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "by their names")]
pub enum Which {
    Source,
    Destination,
    Either,
}

/// Ranges of ports, both ends included, with inversion flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "by their names")]
pub struct Ports {
    pub source: (u16, u16),
    pub destination: (u16, u16),
    pub not_source: bool,
    pub not_destination: bool,
}

/// A range of addresses (`union nf_inet_addr`), both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "by their names")]
pub struct Range {
    pub least: [u8; 16],
    pub most: [u8; 16],
    pub inverted: bool,
}

impl Range {
    /// Whether the range contains an address, with inversion applied.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let inside = match address {
            IpAddr::V4(address) => {
                let octets = address.octets();
                self.least[..4] <= octets[..] && octets[..] <= self.most[..4]
            }
            IpAddr::V6(address) => (self.least..=self.most).contains(&address.octets()),
        };
        inside != self.inverted
    }
}

/// `struct xt_conntrack_mtinfo3`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of the structure")]
pub struct Conntrack {
    /// Address and mask: source and destination of the original direction, then of the reply
    /// direction.
    pub addresses: [([u8; 16], [u8; 16]); 4],
    pub protocol: u16,
    /// Ranges in the order of `addresses`.
    pub ports: [(u16, u16); 4],
    pub flags: u16,
    pub inverted: u16,
    pub state: u16,
    pub status: u16,
}

/// `struct xt_physdev_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of the structure")]
pub struct Physdev {
    pub input: [u8; 16],
    pub input_mask: [u8; 16],
    pub output: [u8; 16],
    pub output_mask: [u8; 16],
    pub inverted: u8,
    pub which: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields have the names of the structures")]
pub enum Target {
    /// `MARK`: clears the bits of `mask`, then XORs `mark`.
    Mark {
        mark: u32,
        mask: u32,
    },
    Connmark {
        mode: ConnmarkMode,
        mark: u32,
        connection_mask: u32,
        packet_mask: u32,
    },
    Reject,
    /// A known target that forces the slow path.
    Slow(Doubt),
}

/// Mode of target `CONNMARK` (`XT_CONNMARK_SET` …).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "by their names")]
pub enum ConnmarkMode {
    Set,
    Save,
    Restore,
}

/// Matches that force the slow path, whatever their data.
pub const SLOW_MATCHES: [(&str, Cause); 44] = [
    ("limit", Cause::Counting),
    ("hashlimit", Cause::Counting),
    ("quota", Cause::Counting),
    ("connbytes", Cause::Counting),
    ("connlimit", Cause::Counting),
    ("nfacct", Cause::Counting),
    ("rateest", Cause::Counting),
    ("recent", Cause::Counting),
    ("statistic", Cause::Time),
    ("time", Cause::Time),
    ("cpu", Cause::Time),
    ("set", Cause::Unannounced),
    ("connlabel", Cause::Unannounced),
    ("length", Cause::Packet),
    ("ttl", Cause::Packet),
    ("hl", Cause::Packet),
    ("dscp", Cause::Packet),
    ("tos", Cause::Packet),
    ("ecn", Cause::Packet),
    ("tcpmss", Cause::Packet),
    ("string", Cause::Packet),
    ("u32", Cause::Packet),
    ("bpf", Cause::Packet),
    ("mac", Cause::Packet),
    ("owner", Cause::Packet),
    ("socket", Cause::Packet),
    ("cgroup", Cause::Packet),
    ("pkttype", Cause::Packet),
    ("policy", Cause::Packet),
    ("rpfilter", Cause::Packet),
    ("realm", Cause::Packet),
    ("helper", Cause::Packet),
    ("osf", Cause::Packet),
    ("cluster", Cause::Packet),
    ("devgroup", Cause::Packet),
    ("frag", Cause::Packet),
    ("ah", Cause::Packet),
    ("esp", Cause::Packet),
    ("sctp", Cause::Packet),
    ("dccp", Cause::Packet),
    ("ipcomp", Cause::Packet),
    ("ipvs", Cause::Packet),
    ("ipv6header", Cause::Packet),
    ("l2tp", Cause::Packet),
];

/// Targets that force the slow path, whatever their data.
pub const SLOW_TARGETS: [&str; 31] = [
    "LOG",
    "NFLOG",
    "NFQUEUE",
    "ULOG",
    "TRACE",
    "AUDIT",
    "TEE",
    "TPROXY",
    "CT",
    "NOTRACK",
    "TCPMSS",
    "TCPOPTSTRIP",
    "DSCP",
    "TOS",
    "TTL",
    "HL",
    "ECN",
    "CLASSIFY",
    "CHECKSUM",
    "SET",
    "SECMARK",
    "CONNSECMARK",
    "SYNPROXY",
    "RATEEST",
    "IDLETIMER",
    "LED",
    "HMARK",
    "MASQUERADE",
    "SNAT",
    "DNAT",
    "REDIRECT",
];

/// Binary data of a match or target.
struct Info<'a>(&'a [u8]);

impl Info<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], UnsupportedContent> {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk::<N>());
        bytes.copied().ok_or_else(|| format!("only {} bytes", self.0.len()))
    }

    fn u8(&self, at: usize) -> Result<u8, UnsupportedContent> {
        Ok(self.bytes::<1>(at)?[0])
    }

    /// Reads a flag, stored as a whole byte.
    fn flag(&self, at: usize) -> Result<bool, UnsupportedContent> {
        Ok(self.u8(at)? != 0)
    }

    fn u16(&self, at: usize) -> Result<u16, UnsupportedContent> {
        Ok(u16::from_ne_bytes(self.bytes(at)?))
    }

    fn u32(&self, at: usize) -> Result<u32, UnsupportedContent> {
        Ok(u32::from_ne_bytes(self.bytes(at)?))
    }

    /// Checks the size of the struct, possibly rounded up by the kernel.
    fn is(&self, size: usize) -> Result<(), UnsupportedContent> {
        if self.0.len() == size || self.0.len() == size.next_multiple_of(8) {
            Ok(())
        } else {
            Err(format!("{} bytes, expected {size}", self.0.len()))
        }
    }
}

pub(crate) fn matches(name: &str, revision: u32, info: &[u8]) -> Result<Match, UnsupportedContent> {
    let inner = || -> Result<Match, UnsupportedContent> {
        let info = Info(info);
        Ok(match (name, revision) {
            ("comment", 0) => Match::Always,
            ("conntrack", 1..=3) => Match::Conntrack(Box::new(conntrack(&info, revision)?)),
            ("state", 0) => {
                info.is(4)?;
                Match::State { mask: info.u32(0)? }
            }
            ("mark" | "connmark", 1) => {
                info.is(12)?;
                let (mark, mask, inverted) = (info.u32(0)?, info.u32(4)?, info.flag(8)?);
                match name {
                    "mark" => Match::Mark { mark, mask, inverted },
                    _ => Match::Connmark { mark, mask, inverted },
                }
            }
            ("addrtype", 0) => {
                info.is(12)?;
                Match::AddressType {
                    source: info.u16(0)?,
                    destination: info.u16(2)?,
                    not_source: info.u32(4)? != 0,
                    not_destination: info.u32(8)? != 0,
                }
            }
            ("addrtype", 1) => {
                info.is(8)?;
                let flags = info.u32(4)?;
                // Inverted source and destination only; `--limit-iface-*` is unsupported.
                if flags & !3 != 0 {
                    return Err(format!("flags {flags:#x}"));
                }
                Match::AddressType {
                    source: info.u16(0)?,
                    destination: info.u16(2)?,
                    not_source: flags & 1 != 0,
                    not_destination: flags & 2 != 0,
                }
            }
            ("multiport", 1) => multiport(&info)?,
            ("tcp", 0) => {
                info.is(12)?;
                let flags = info.u8(11)?;
                // The known inversion flags.
                if flags & !0x0f != 0 {
                    return Err(format!("flags {flags:#x}"));
                }
                Match::Tcp {
                    ports: ports(&info, flags)?,
                    has_option: info.flag(8)?,
                    flag_mask: info.u8(9)?,
                    flags: info.u8(10)?,
                    not_flags: flags & 4 != 0,
                }
            }
            ("udp", 0) => {
                info.is(10)?;
                let flags = info.u8(8)?;
                // A later version's flags may change the meaning of the match.
                if flags & !3 != 0 {
                    return Err(format!("flags {flags:#x}"));
                }
                Match::Udp { ports: ports(&info, flags)? }
            }
            ("icmp" | "icmp6", 0) => {
                info.is(4)?;
                Match::Icmp {
                    kind: info.u8(0)?,
                    codes: (info.u8(1)?, info.u8(2)?),
                    inverted: info.u8(3)? & 1 != 0,
                    v6: name == "icmp6",
                }
            }
            ("iprange", 1) => {
                info.is(68)?;
                let flags = info.u8(64)?;
                // Two ranges and their inversion.
                if flags & !0x33 != 0 {
                    return Err(format!("flags {flags:#x}"));
                }
                let range = |at: usize, bit: u8| -> Result<Option<Range>, UnsupportedContent> {
                    let (least, most) = (info.bytes(at)?, info.bytes(at + 16)?);
                    let inverted = flags & bit << 4 != 0;
                    Ok((flags & bit != 0).then_some(Range { least, most, inverted }))
                };
                Match::AddressRange { source: range(0, 1)?, destination: range(32, 2)? }
            }
            ("physdev", 0) => {
                info.is(66)?;
                Match::Physdev(Box::new(Physdev {
                    input: info.bytes(0)?,
                    input_mask: info.bytes(16)?,
                    output: info.bytes(32)?,
                    output_mask: info.bytes(48)?,
                    inverted: info.u8(64)?,
                    which: info.u8(65)?,
                }))
            }
            _ => {
                let slow = SLOW_MATCHES.iter().find(|(slow, _)| *slow == name);
                let (name, cause) = slow.ok_or("unknown match")?;
                Match::Slow(Doubt::new(*cause, name))
            }
        })
    };
    inner().map_err(|why| format!("{name} revision {revision}: {why}"))
}

/// Decodes `struct xt_conntrack_mtinfo1`, `…2` or `…3`.
fn conntrack(info: &Info<'_>, revision: u32) -> Result<Conntrack, UnsupportedContent> {
    // Addresses, expiration, then protocol, four ports and flags.
    const AT: usize = 8 * 16 + 8;
    let address = |at: usize| -> Result<_, UnsupportedContent> {
        Ok((info.bytes(at * 32)?, info.bytes(at * 32 + 16)?))
    };
    // Ports of revisions 1 and 2 are big-endian. Revision 3 has upper bounds after the flags.
    let port = |at: usize| -> Result<(u16, u16), UnsupportedContent> {
        let low = info.u16(AT + 2 + 2 * at)?;
        match revision {
            3 => Ok((low, info.u16(AT + 18 + 2 * at)?)),
            _ => Ok((u16::from_be(low), u16::from_be(low))),
        }
    };
    let (state, status) = match revision {
        1 => {
            info.is(AT + 16)?;
            (u16::from(info.u8(AT + 14)?), u16::from(info.u8(AT + 15)?))
        }
        _ => {
            info.is(AT + if revision == 3 { 26 } else { 18 })?;
            (info.u16(AT + 14)?, info.u16(AT + 16)?)
        }
    };
    let conntrack = Conntrack {
        addresses: [address(0)?, address(1)?, address(2)?, address(3)?],
        protocol: info.u16(AT)?,
        ports: [port(0)?, port(1)?, port(2)?, port(3)?],
        flags: info.u16(AT + 10)?,
        inverted: info.u16(AT + 12)?,
        state,
        status,
    };
    // All flags up to XT_CONNTRACK_STATE_ALIAS, which only user space uses.
    if conntrack.flags & !0x3fff != 0 {
        return Err(format!("flags {:#x}", conntrack.flags));
    }
    Ok(conntrack)
}

/// Reads `spts` and `dpts` of `struct xt_tcp` or `struct xt_udp`.
fn ports(info: &Info<'_>, inverted: u8) -> Result<Ports, UnsupportedContent> {
    Ok(Ports {
        source: (info.u16(0)?, info.u16(2)?),
        destination: (info.u16(4)?, info.u16(6)?),
        not_source: inverted & 1 != 0,
        not_destination: inverted & 2 != 0,
    })
}

/// Decodes `struct xt_multiport_v1`.
fn multiport(info: &Info<'_>) -> Result<Match, UnsupportedContent> {
    const MOST: usize = 15;
    info.is(48)?;
    let which = match info.u8(0)? {
        0 => Which::Source,
        1 => Which::Destination,
        2 => Which::Either,
        // A later version's flags may change the meaning of the match.
        which => return Err(format!("flags {which}")),
    };
    let count = usize::from(info.u8(1)?);
    // More than the struct can hold.
    if count > MOST {
        return Err(format!("{count} ports"));
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < count {
        let first = info.u16(2 + 2 * at)?;
        // A flag at the first port marks a range of two ports.
        let is_range = info.flag(32 + at)?;
        at += usize::from(is_range);
        // A range without its second port: another format.
        if at >= count {
            return Err("incomplete range".to_owned());
        }
        ranges.push((first, info.u16(2 + 2 * at)?));
        at += 1;
    }
    Ok(Match::Multiport { which, ranges, inverted: info.flag(47)? })
}

pub(crate) fn target(name: &str, revision: u32, info: &[u8]) -> Result<Target, UnsupportedContent> {
    let inner = || -> Result<Target, UnsupportedContent> {
        let info = Info(info);
        Ok(match (name, revision) {
            ("MARK", 2) => {
                info.is(8)?;
                Target::Mark { mark: info.u32(0)?, mask: info.u32(4)? }
            }
            ("CONNMARK", 1 | 2) => {
                // Revision 2 has a shift before the mode.
                let at = if revision == 1 { 12 } else { 14 };
                info.is(16)?;
                // Shifted marks are not evaluated.
                if revision == 2 && info.u8(13)? != 0 {
                    return Err("unsupported shift".to_owned());
                }
                let mode = match info.u8(at)? {
                    0 => ConnmarkMode::Set,
                    1 => ConnmarkMode::Save,
                    2 => ConnmarkMode::Restore,
                    // A later version's mode.
                    mode => return Err(format!("mode {mode}")),
                };
                let (mark, connection_mask) = (info.u32(0)?, info.u32(4)?);
                Target::Connmark { mode, mark, connection_mask, packet_mask: info.u32(8)? }
            }
            ("REJECT", _) => Target::Reject,
            _ => {
                let slow = SLOW_TARGETS.iter().find(|slow| **slow == name);
                Target::Slow(Doubt::new(Cause::Effect, slow.ok_or("unknown target")?))
            }
        })
    };
    inner().map_err(|why| format!("{name} revision {revision}: {why}"))
}
