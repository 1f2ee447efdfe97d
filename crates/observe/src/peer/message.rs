//! Messages between two `watch` processes: a request of the client, then a reply of the server.
//! Each frame holds one JSON value; unknown fields are refused.
//!
//! The server reports counts, addresses of flows that the client asked for, and names of namespaces
//! and devices. It reports no packets and no payload.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::filter::{End, Filter, FlowPattern};
use crate::flow_id::FlowId;
use crate::flows::FlowCount;

/// Maximum number of flows in a reply, those with most packets first.
pub(crate) const MOST_FLOWS: usize = 256;
/// Longest name of a place, characters.
pub(crate) const NAME: usize = 64;
/// Maximum number of names of places per flow.
const MOST_NAMES: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// Selects the flows for later samples; the reply is [`Reply::Asked`].
    Ask(Asked),
    /// Asks for the counts of the selected flows.
    Sample,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Ask`].
    Asked,
    /// To [`Request::Sample`].
    Sampled(Box<Sample>),
    /// The request is refused, with the reason.
    Refused(String),
}

/// The flows that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Flows, matched in either direction; empty: all in the tunnel. [`Filter::MOST_FLOWS`] at
    /// most.
    pub flows: Vec<Pattern>,
    /// Match only tunnels with this VXLAN network identifier.
    pub vni: Option<u32>,
}

/// A [`FlowPattern`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Address, prefix length and port of one end.
    pub from: (Option<(IpAddr, u8)>, Option<u16>),
    /// Address, prefix length and port of the other end.
    pub to: (Option<(IpAddr, u8)>, Option<u16>),
    /// IP protocol number.
    pub protocol: Option<u8>,
}

impl Asked {
    /// Returns the flows that a filter names; `None` if it names neither flows nor a tunnel.
    pub fn of(filter: &Filter) -> Option<Asked> {
        let flows = filter.flows.iter().map(|flow| Pattern {
            from: (flow.from.network, flow.from.port),
            to: (flow.to.network, flow.to.port),
            protocol: flow.protocol,
        });
        let asked = Asked { flows: flows.collect(), vni: filter.vni };
        (!asked.flows.is_empty() || asked.vni.is_some()).then_some(asked)
    }

    /// Returns the flow patterns.
    ///
    /// # Errors
    /// If the request names no flow, too many flows, or an invalid prefix.
    pub fn patterns(&self) -> Result<Vec<FlowPattern>, String> {
        // All flows of a host would be too many to count, and are not the client's business.
        if self.flows.is_empty() && self.vni.is_none() {
            return Err("no flow and no VNI given: at least one must be named".to_owned());
        }
        // Each flow is compared with each packet.
        if self.flows.len() > Filter::MOST_FLOWS {
            let most = Filter::MOST_FLOWS;
            return Err(format!("{} flows: at most {most} can be asked for", self.flows.len()));
        }
        let end = |(network, port): (Option<(IpAddr, u8)>, Option<u16>)| {
            let most = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
            match network {
                Some((address, prefix)) if prefix > most(address) => {
                    Err(format!("{address}/{prefix}: invalid prefix length"))
                }
                network => Ok(End { network, port }),
            }
        };
        let patterns = self.flows.iter().map(|flow| {
            let (from, to) = (end(flow.from)?, end(flow.to)?);
            // One pattern, or two halves of the address space, would ask for all flows.
            if self.vni.is_none() && !narrows(&from) && !narrows(&to) {
                return Err(
                    "a flow with neither a port nor a network of an end: give a port, or a \
                    prefix length of at least 8 (IPv4) or 32 (IPv6)"
                        .to_owned(),
                );
            }
            Ok(FlowPattern { from, to, protocol: flow.protocol })
        });
        patterns.collect()
    }
}

/// Whether an end leaves most addresses or ports out.
fn narrows(end: &End) -> bool {
    let least = |address: IpAddr| if address.is_ipv4() { 8 } else { 32 };
    end.port.is_some() || end.network.is_some_and(|(address, prefix)| prefix >= least(address))
}

/// Counts of the flows that were asked for, at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When the request arrived, ns since 1970 by the server's clock.
    pub received_ns: i64,
    /// When the reply was sent, ns since 1970 by the server's clock.
    pub answered_ns: i64,
    /// Flows; 256 at most.
    pub flows: Vec<FlowRecord>,
    /// Flows left out for want of room.
    pub others: u64,
    /// Packets of flows that were not counted, for want of room.
    pub uncounted: u64,
    /// Incremented when entries of idle flows are removed.
    pub epoch: u64,
}

/// A flow with its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowRecord {
    pub flow: FlowId,
    pub count: FlowCount,
    /// Hops of one of its packets, in order: namespace, device, side.
    pub hops: Vec<String>,
}

impl Sample {
    /// Validates a sample from an untrusted host: limits the number of flows, truncates names, and
    /// escapes characters that control a terminal.
    ///
    /// # Errors
    /// If there are too many flows.
    /// The invalid value, as text.
    pub fn checked(mut self) -> Result<Sample, String> {
        // Received from the peer, so its size must be limited.
        if self.flows.len() > MOST_FLOWS {
            return Err(format!("{} flows: at most {MOST_FLOWS} are accepted", self.flows.len()));
        }
        // Names come from the peer: control sequences must not reach a terminal.
        let clean = |name: &String| -> String { foreign::plain(name).chars().take(NAME).collect() };
        for record in &mut self.flows {
            record.hops = record.hops.iter().take(MOST_NAMES).map(clean).collect();
            record.count.devices =
                record.count.devices.iter().take(MOST_NAMES).map(clean).collect();
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Encapsulation;
    use channel::message::{emit, parse};

    fn sample(flows: usize) -> Sample {
        let record = |number: usize| FlowRecord {
            flow: FlowId {
                source: [10, 1, 0, 11].into(),
                destination: [10, 1, 0, 12].into(),
                ports: (number as u16, 80),
                protocol: 17,
                encapsulation: Some(Encapsulation::Vxlan),
                vni: Some(42),
            },
            count: FlowCount { devices: ["b nic0".to_owned()].into(), ..FlowCount::default() },
            hops: vec!["b nic0 rx".to_owned(), "b vxlan0 rx".to_owned()],
        };
        let flows = (0..flows).map(record).collect();
        Sample { received_ns: 1, answered_ns: 2, flows, others: 0, uncounted: 0, epoch: 0 }
    }

    #[test]
    fn requests_arrive_and_are_checked() {
        let flows = ["10.1.0.11 -> 10.1.0.12:80/tcp", "[2001:db8::1]:53", "10.2.0.0/16"];
        let flows: Vec<FlowPattern> = flows.map(|text| text.parse().unwrap()).into();
        let filter = Filter { flows: flows.clone(), vni: Some(42), ..Filter::default() };
        let request = Request::Ask(Asked::of(&filter).unwrap());
        let Request::Ask(asked) = parse::<Request>(&emit(&request)).unwrap() else { panic!() };
        assert_eq!(asked.patterns().unwrap(), flows);
        assert_eq!(Asked::of(&Filter::default()), None);
        let none = Asked { flows: Vec::new(), vni: None };
        assert!(none.patterns().unwrap_err().contains("at least one"));
        let pattern = |prefix| Pattern {
            from: (Some(([10, 0, 0, 1].into(), prefix)), None),
            to: (None, None),
            protocol: None,
        };
        let of = |flows| Asked { flows, vni: None };
        assert!(of(vec![pattern(33)]).patterns().unwrap_err().contains("10.0.0.1/33"));
        assert!(of(vec![pattern(32); 9]).patterns().unwrap_err().contains("9 flows"));
        // All flows by another name.
        for all in [0, 1, 7] {
            assert!(
                of(vec![pattern(all)]).patterns().unwrap_err().contains("neither a port"),
                "/{all}"
            );
        }
        assert!(of(vec![pattern(8)]).patterns().is_ok());
        let in_a_tunnel = Asked { flows: vec![pattern(0)], vni: Some(42) };
        assert!(in_a_tunnel.patterns().is_ok());
    }

    #[test]
    fn a_full_sample_fits_a_frame_and_one_flow_more_is_refused() {
        let mut full = sample(MOST_FLOWS);
        for record in &mut full.flows {
            record.hops = vec!["n".repeat(NAME); MOST_NAMES];
            record.count.devices = [".".repeat(NAME)].into();
        }
        let bytes = emit(&Reply::Sampled(Box::new(full.clone())));
        assert!(bytes.len() <= channel::frame::REPLY_LIMIT, "{} bytes", bytes.len());
        assert_eq!(full.clone().checked(), Ok(full));
        assert!(sample(MOST_FLOWS + 1).checked().unwrap_err().contains("257 flows"));
    }

    #[test]
    fn names_from_elsewhere_do_nothing_to_a_terminal() {
        let mut evil = sample(1);
        evil.flows[0].hops = vec!["\u{1b}[2Jgone".to_owned(), "x".repeat(1 << 12)];
        evil.flows[0].hops.extend(vec![String::new(); 99]);
        evil.flows[0].count.devices = ["a\nb\u{202e}".to_owned()].into();
        let record = evil.checked().unwrap().flows.remove(0);
        assert!(!record.hops[0].contains('\u{1b}'), "{:?}", record.hops[0]);
        assert_eq!((record.hops[1].len(), record.hops.len()), (NAME, MOST_NAMES));
        let device = record.count.devices.first().unwrap();
        assert!(!device.contains(['\n', '\u{202e}']), "{device:?}");
    }

    #[test]
    fn nothing_unknown_is_taken() {
        for text in
            ["{\"ask\":{}}", "\"reboot\"", "{\"ask\":{\"flows\":[],\"vni\":1,\"x\":1}}", "["]
        {
            assert!(parse::<Request>(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = (parse::<Request>(&bytes), parse::<Reply>(&bytes));
        }
    }
}
