//! The packet filter of the BPF programs: `struct filter` of `bpf/filter.h`.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::expression::Expression;

/// Same as `PATTERNS` of `bpf/filter.h`.
pub(crate) const PATTERNS: usize = 8;
const UDP: u8 = 17;
/// Sizes of `struct pattern` and the head of `struct filter`.
const PATTERN_BYTES: usize = 76;
const HEAD_BYTES: usize = 64;
pub(crate) const FILTER_BYTES: usize = HEAD_BYTES + PATTERNS * PATTERN_BYTES;

/// A flow pattern is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?}: {problem}, expected \"FROM -> TO\" or \"ADDRESS\", each ADDRESS[/PREFIX][:PORT], \
         IPv6 with a port as [ADDRESS]:PORT, \"*\" for any, and /tcp, /udp or /icmp at the end"
)]
pub struct PatternError {
    text: String,
    problem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Address and prefix length; `None`: any.
    pub network: Option<(IpAddr, u8)>,
    /// TCP or UDP port; `None`: any.
    pub port: Option<u16>,
}

/// A flow as given on the command line. It matches both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowPattern {
    /// Source.
    pub from: End,
    /// Destination.
    pub to: End,
    /// IP protocol number; `None`: any.
    pub protocol: Option<u8>,
}

impl FromStr for FlowPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<FlowPattern, PatternError> {
        let error = |problem: String| PatternError { text: text.to_owned(), problem };
        let (from, last) = match text.trim().split_once("->") {
            Some((from, to)) => (Some(from.trim()), to.trim()),
            None => (None, text.trim()),
        };
        // The protocol follows the last end; a number there is a prefix length.
        let (last, protocol) = match last.rsplit_once('/') {
            Some((last, "tcp")) => (last, Some(6)),
            Some((last, "udp")) => (last, Some(UDP)),
            Some((last, "icmp")) => (last, Some(1)),
            Some((last, "icmpv6")) => (last, Some(58)),
            Some((_, other)) if other.parse::<u8>().is_err() => {
                return Err(error(format!("{other:?} is not a protocol")));
            }
            _ => (last, None),
        };
        let any = End { network: None, port: None };
        let (from, to) = match from {
            Some(from) => (end(from), end(last)),
            None => (end(last), Ok(any)),
        };
        let (from, to) = (from.map_err(error)?, to.map_err(error)?);
        if let (Some((one, _)), Some((other, _))) = (from.network, to.network)
            // No packet can match addresses of both families.
            && one.is_ipv4() != other.is_ipv4()
        {
            return Err(error("one end is IPv4, the other IPv6".to_owned()));
        }
        Ok(FlowPattern { from, to, protocol })
    }
}

fn end(text: &str) -> Result<End, String> {
    let port_of = |port: &str| match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{port:?} is not a port")),
    };
    let (network, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']').ok_or("a [ without its ]")?;
            match rest.strip_prefix(':') {
                Some(port) => (address, Some(port_of(port)?)),
                None if rest.is_empty() => (address, None),
                None => return Err(format!("{rest:?} after the ]")),
            }
        }
        // More than one colon: an IPv6 address without a port.
        None if text.matches(':').count() > 1 => (text, None),
        None => match text.split_once(':') {
            Some((network, port)) => (network, Some(port_of(port)?)),
            None => (text, None),
        },
    };
    // Any network.
    if network == "*" {
        return Ok(End { network: None, port });
    }
    let (address, prefix) = match network.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (network, None),
    };
    let address: IpAddr = address.parse().map_err(|_| format!("{address:?} is not an address"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => most,
        Some(text) => match text.parse::<u8>() {
            Ok(length) if length <= most => length,
            _ => return Err(format!("{text:?} is not a prefix length")),
        },
    };
    Ok(End { network: Some((address, prefix)), port })
}

impl FlowPattern {
    /// Returns whether the pattern matches a flow between these ends, in either direction.
    pub fn is_of(&self, from: (IpAddr, u16), to: (IpAddr, u16), protocol: u8) -> bool {
        let is_end = |end: &End, (address, port): (IpAddr, u16)| {
            let (wanted, mask) = bits(end.network);
            (u128::from(mapped(address)) ^ wanted) & mask == 0
                && end.port.is_none_or(|wanted| wanted == port)
        };
        self.protocol.is_none_or(|wanted| wanted == protocol)
            && (is_end(&self.from, from) && is_end(&self.to, to)
                || is_end(&self.to, from) && is_end(&self.from, to))
    }

    fn emit(&self, bytes: &mut [u8]) {
        for (at, end) in [(0, &self.from), (36, &self.to)] {
            let (address, mask) = bits(end.network);
            bytes[at..at + 16].copy_from_slice(&address.to_be_bytes());
            bytes[at + 16..at + 32].copy_from_slice(&mask.to_be_bytes());
            bytes[at + 32..at + 34].copy_from_slice(&end.port.unwrap_or(0).to_be_bytes());
            bytes[at + 34..at + 36].fill(if end.port.is_some() { 0xff } else { 0 });
        }
        bytes[72] = self.protocol.unwrap_or(0);
        bytes[73] = if self.protocol.is_some() { 0xff } else { 0 };
    }
}

/// Returns the address as the programs have it: IPv4 mapped into IPv6.
pub(crate) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Returns address and mask, with IPv4 mapped into IPv6.
fn bits(network: Option<(IpAddr, u8)>) -> (u128, u128) {
    // A zero mask matches every address.
    let Some((address, prefix)) = network else { return (0, 0) };
    // An IPv4 prefix starts after the 96 bits of the mapping.
    let prefix = u32::from(prefix) + if address.is_ipv4() { 96 } else { 0 };
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    (u128::from(mapped(address)) & mask, mask)
}

/// Packets that may be selected in a window before the filter is written again: their cost must be
/// known before more are.
const ROOM: u32 = 256;

/// Selects packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Flows to match, by the packet's own or the tunnel's headers; empty: all.
    pub flows: Vec<FlowPattern>,
    /// Match only packets in tunnels with this VXLAN network identifier.
    pub vni: Option<u32>,
    /// Match only at devices of this name.
    pub device: Option<String>,
    /// Match only in namespaces with these inodes; empty: all.
    pub netns: Vec<u32>,
    /// Sample rate: one packet in this many; at least 1.
    pub sample: u32,
    pub drops_only: bool,
    /// Match only packets that satisfy this expression, by their own or the tunnel's headers.
    pub expression: Option<Expression>,
    /// Report the headers themselves, with this many bytes of payload; [`Filter::MOST_PAYLOAD`] at
    /// most.
    pub headers: Option<u16>,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter {
            flows: Vec::new(),
            vni: None,
            device: None,
            netns: Vec::new(),
            sample: 1,
            drops_only: false,
            expression: None,
            headers: None,
        }
    }
}

/// Further settings for the programs, besides the filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emitted {
    /// One packet in this many is selected; 0: none.
    pub sample: u32,
    /// Number of the window; `None`: packets are not followed in windows.
    pub window: Option<u32>,
    /// Bit masks of the devices where packets enter, and of the tunnels' ports (`struct filter`).
    pub origins: u64,
    pub tunnels: u64,
}

impl Emitted {
    /// Match every wanted packet, always.
    pub const ALL: Emitted = Emitted { sample: 1, window: None, origins: 0, tunnels: 0 };
}

impl Filter {
    /// Maximum number of flows of a filter.
    pub const MOST_FLOWS: usize = PATTERNS;
    /// Maximum number of payload bytes (`PAYLOAD_BYTES` of `bpf/event.h`).
    pub const MOST_PAYLOAD: u16 = 1500;

    /// Returns whether it selects packets by their headers.
    pub(crate) fn is_selective(&self) -> bool {
        !self.flows.is_empty() || self.vni.is_some() || self.expression.is_some()
    }

    /// Returns whether it selects packets by flows only, so that translated forms matter.
    pub(crate) fn is_by_flows(&self) -> bool {
        !self.flows.is_empty() && self.vni.is_none() && self.expression.is_none()
    }

    /// Returns whether a UDP datagram may match. A TCP or ICMP flow is never that of a tunnel
    /// around one.
    pub(crate) fn may_want_udp(&self) -> bool {
        let is_udp = |flow: &FlowPattern| flow.protocol.is_none_or(|protocol| protocol == UDP);
        self.flows.is_empty() || self.flows.iter().any(is_udp)
    }

    /// Serializes it for the programs. Flows beyond [`PATTERNS`] are left out.
    pub(crate) fn emit(&self, with: &Emitted) -> [u8; FILTER_BYTES] {
        let mut bytes = [0; FILTER_BYTES];
        let count = self.flows.len().min(PATTERNS);
        for (at, pattern) in self.flows.iter().take(PATTERNS).enumerate() {
            let from = HEAD_BYTES + at * PATTERN_BYTES;
            pattern.emit(&mut bytes[from..from + PATTERN_BYTES]);
        }
        bytes[..4].copy_from_slice(&(count as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.vni.unwrap_or(0).to_ne_bytes());
        bytes[8..12].copy_from_slice(&with.sample.to_ne_bytes());
        bytes[12] = u8::from(self.vni.is_some());
        bytes[13] = u8::from(!self.netns.is_empty());
        // If all packets are wanted, packets that are under way when the window opens must not be
        // selected.
        let is_of_window = with.window.is_some() && !self.is_selective();
        bytes[14] = u8::from(with.sample != 1 || is_of_window);
        bytes[15] = u8::from(self.device.is_some());
        if let Some(device) = &self.device {
            // IFNAMSIZ: a name has 15 bytes at most.
            let name = device.as_bytes();
            let length = name.len().min(15);
            bytes[16..16 + length].copy_from_slice(&name[..length]);
        }
        let payload = self.headers.unwrap_or(0).min(Filter::MOST_PAYLOAD);
        bytes[32..34].copy_from_slice(&payload.to_ne_bytes());
        bytes[34] = u8::from(self.headers.is_some());
        bytes[35] = u8::from(self.expression.is_some());
        bytes[36..40].copy_from_slice(&with.window.unwrap_or(0).to_ne_bytes());
        bytes[40..48].copy_from_slice(&with.origins.to_ne_bytes());
        bytes[48..56].copy_from_slice(&with.tunnels.to_ne_bytes());
        bytes[56] = u8::from(with.window.is_some());
        bytes[57] = u8::from(self.drops_only);
        bytes[60..64].copy_from_slice(&ROOM.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_named_as_people_write_them() {
        let is_of = |text: &str, from: &str, to: &str, protocol| {
            let end = |text: &str| {
                let (address, port) = text.rsplit_once(' ').unwrap();
                (address.parse().unwrap(), port.parse().unwrap())
            };
            text.parse::<FlowPattern>().unwrap().is_of(end(from), end(to), protocol)
        };
        let flow = "10.1.0.11 -> 10.1.0.12:80/tcp";
        assert!(is_of(flow, "10.1.0.11 4711", "10.1.0.12 80", 6));
        assert!(is_of(flow, "10.1.0.12 80", "10.1.0.11 4711", 6), "the answers");
        assert!(!is_of(flow, "10.1.0.11 4711", "10.1.0.12 80", 17));
        assert!(!is_of(flow, "10.1.0.11 80", "10.1.0.12 4711", 6));
        assert!(is_of("10.1.0.0/16", "10.2.0.1 1", "10.1.255.1 2", 1));
        assert!(!is_of("10.1.0.0/16", "10.2.0.1 1", "10.0.255.1 2", 1));
        assert!(is_of("*:53/udp", "192.0.2.1 4711", "2001:db8::1 53", 17));
        assert!(is_of("[2001:db8::1]:53", "2001:db8::2 1", "2001:db8::1 53", 17));
        assert!(is_of("2001:db8::/32 -> *", "2001:db8::2 1", "2001:db9::1 53", 6));
        assert!(is_of("0.0.0.0/0", "192.0.2.1 1", "192.0.2.2 2", 6));
        assert!(!is_of("0.0.0.0/0", "2001:db8::1 1", "2001:db8::2 2", 6));
    }

    #[test]
    fn datagrams_may_be_wanted_unless_every_flow_is_of_another_protocol() {
        let of = |flows: &[&str]| Filter {
            flows: flows.iter().map(|flow| flow.parse().unwrap()).collect(),
            ..Filter::default()
        };
        for flows in [&[][..], &["*:53"], &["10.1.0.1/udp"], &["10.1.0.1/tcp", "*:53"]] {
            assert!(of(flows).may_want_udp(), "{flows:?}");
        }
        assert!(!of(&["10.1.0.1/tcp", "10.1.0.2/icmp"]).may_want_udp());
    }

    #[test]
    fn invalid_flows_are_refused_with_the_problem() {
        for (text, problem) in [
            ("10.1.0.300", "is not an address"),
            ("10.1.0.1:0", "is not a port"),
            ("10.1.0.1:70000", "is not a port"),
            ("10.1.0.1/33", "is not a prefix length"),
            ("10.1.0.1/sctp", "is not a protocol"),
            ("[2001:db8::1", "without its ]"),
            ("[2001:db8::1]x", "after the ]"),
            ("10.1.0.1 -> 2001:db8::1", "one end is IPv4"),
            ("", "is not an address"),
        ] {
            let error = text.parse::<FlowPattern>().unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-f.:/\\[\\]>* -]{0,40}|.{0,40}") {
            let _ = text.parse::<FlowPattern>();
        }
    }
}
