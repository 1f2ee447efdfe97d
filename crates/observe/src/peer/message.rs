//! What is said between two watches: a request of the client, a reply of the server, in turn.
//! JSON, one value a frame; anything unknown is refused.
//!
//! The far end tells counts, addresses of flows that were asked for, and names of namespaces and
//! devices. It tells no packet, and nothing of what is in one.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::filter::{End, Filter, FlowPattern};
use crate::flow_id::FlowId;
use crate::flows::FlowCount;

/// Flows that are told at most, those of most packets first.
pub(crate) const MOST_FLOWS: usize = 256;
/// Longest name of a place, characters.
pub(crate) const NAME: usize = 64;
/// Names of places that are told of a flow.
const MOST_NAMES: usize = 32;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// From now on of these flows; [`Reply::Asked`] is the answer.
    Ask(Asked),
    /// What was counted of them?
    Sample,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Ask`].
    Asked,
    /// To [`Request::Sample`].
    Sampled(Box<Sample>),
    /// Not done, and why.
    Refused(String),
}

/// Which flows are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Flows, either direction; none: all in the tunnel. [`Filter::MOST_FLOWS`] at most.
    pub flows: Vec<Pattern>,
    /// Only in tunnels with this VXLAN network identifier.
    pub vni: Option<u32>,
}

/// A [`FlowPattern`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Address, length of its prefix, port of one end.
    pub from: (Option<(IpAddr, u8)>, Option<u16>),
    /// The same of the other.
    pub to: (Option<(IpAddr, u8)>, Option<u16>),
    /// IP protocol number.
    pub protocol: Option<u8>,
}

impl Asked {
    /// What a filter names; `None` where it names neither flows nor a tunnel.
    pub fn of(filter: &Filter) -> Option<Asked> {
        let flows = filter.flows.iter().map(|flow| Pattern {
            from: (flow.from.network, flow.from.port),
            to: (flow.to.network, flow.to.port),
            protocol: flow.protocol,
        });
        let asked = Asked { flows: flows.collect(), vni: filter.vni };
        (!asked.flows.is_empty() || asked.vni.is_some()).then_some(asked)
    }

    /// The flows, where they are some.
    ///
    /// # Errors
    /// What is asked for and what may be, in words.
    pub fn patterns(&self) -> Result<Vec<FlowPattern>, String> {
        if self.flows.is_empty() && self.vni.is_none() {
            return Err("all flows of this host: at least a flow or a VNI must be named".to_owned());
        }
        if self.flows.len() > Filter::MOST_FLOWS {
            let most = Filter::MOST_FLOWS;
            return Err(format!("{} flows: at most {most} are told", self.flows.len()));
        }
        let end = |(network, port): (Option<(IpAddr, u8)>, Option<u16>)| {
            let most = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
            match network {
                Some((address, prefix)) if prefix > most(address) => {
                    Err(format!("{address}/{prefix}: no length of a prefix"))
                }
                network => Ok(End { network, port }),
            }
        };
        let patterns = self.flows.iter().map(|flow| {
            Ok(FlowPattern { from: end(flow.from)?, to: end(flow.to)?, protocol: flow.protocol })
        });
        patterns.collect()
    }
}

/// Counts of the flows that were asked for, at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When the request came, ns since 1970 by the server's clock.
    pub received_ns: i64,
    /// When this answer went, by the same.
    pub answered_ns: i64,
    /// Flows; 256 at most.
    pub flows: Vec<Told>,
    /// Flows that were asked for and have no room here.
    pub others: u64,
    /// Packets of flows that were not counted, for want of room.
    pub uncounted: u64,
    /// Times that counts of silent flows were removed.
    pub epoch: u64,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Which.
    pub flow: FlowId,
    /// What was counted of it.
    pub count: FlowCount,
    /// Hops of one of its packets, in order: namespace, device, side.
    pub hops: Vec<String>,
}

impl Sample {
    /// Checked as it comes from elsewhere: no more flows than there may be, names cut off and
    /// without characters that a terminal obeys.
    ///
    /// # Errors
    /// What cannot be, in words.
    pub fn checked(mut self) -> Result<Sample, String> {
        if self.flows.len() > MOST_FLOWS {
            return Err(format!("{} flows: at most {MOST_FLOWS} are taken", self.flows.len()));
        }
        let clean = |name: &String| -> String { foreign::plain(name).chars().take(NAME).collect() };
        for told in &mut self.flows {
            told.hops = told.hops.iter().take(MOST_NAMES).map(clean).collect();
            told.count.devices = told.count.devices.iter().take(MOST_NAMES).map(clean).collect();
        }
        Ok(self)
    }
}

/// Reads a request from a frame's payload.
///
/// # Errors
/// What is wrong with it, and where.
pub fn parse_request(payload: &[u8]) -> Result<Request, serde_json::Error> {
    serde_json::from_slice(payload)
}

/// Reads a reply.
///
/// # Errors
/// What is wrong with it, and where.
pub fn parse_reply(payload: &[u8]) -> Result<Reply, serde_json::Error> {
    serde_json::from_slice(payload)
}

/// A message as a frame's payload.
pub fn emit(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data with string keys")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Encapsulation;

    fn sample(flows: usize) -> Sample {
        let told = |number: usize| Told {
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
        let flows = (0..flows).map(told).collect();
        Sample { received_ns: 1, answered_ns: 2, flows, others: 0, uncounted: 0, epoch: 0 }
    }

    #[test]
    fn what_is_asked_arrives_and_is_checked() {
        let flows = ["10.1.0.11 -> 10.1.0.12:80/tcp", "[2001:db8::1]:53", "10.2.0.0/16"];
        let flows: Vec<FlowPattern> = flows.map(|text| text.parse().unwrap()).into();
        let filter = Filter { flows: flows.clone(), vni: Some(42), ..Filter::default() };
        let request = Request::Ask(Asked::of(&filter).unwrap());
        let Request::Ask(asked) = parse_request(&emit(&request)).unwrap() else { panic!() };
        assert_eq!(asked.patterns().unwrap(), flows);
        assert_eq!(Asked::of(&Filter::default()), None);
        let none = Asked { flows: Vec::new(), vni: None };
        assert!(none.patterns().unwrap_err().contains("at least a flow"));
        let pattern = |prefix| Pattern {
            from: (Some(([10, 0, 0, 1].into(), prefix)), None),
            to: (None, None),
            protocol: None,
        };
        let of = |flows| Asked { flows, vni: None };
        assert!(of(vec![pattern(33)]).patterns().unwrap_err().contains("10.0.0.1/33"));
        assert!(of(vec![pattern(32); 9]).patterns().unwrap_err().contains("9 flows"));
    }

    #[test]
    fn a_full_sample_fits_a_frame_and_one_flow_more_is_refused() {
        let mut full = sample(MOST_FLOWS);
        for told in &mut full.flows {
            told.hops = vec!["n".repeat(NAME); MOST_NAMES];
            told.count.devices = [".".repeat(NAME)].into();
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
        let told = evil.checked().unwrap().flows.remove(0);
        assert!(!told.hops[0].contains('\u{1b}'), "{:?}", told.hops[0]);
        assert_eq!((told.hops[1].len(), told.hops.len()), (NAME, MOST_NAMES));
        let device = told.count.devices.first().unwrap();
        assert!(!device.contains(['\n', '\u{202e}']), "{device:?}");
    }

    #[test]
    fn nothing_unknown_is_taken() {
        for text in
            ["{\"ask\":{}}", "\"reboot\"", "{\"ask\":{\"flows\":[],\"vni\":1,\"x\":1}}", "["]
        {
            assert!(parse_request(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = (parse_request(&bytes), parse_reply(&bytes));
        }
    }
}
