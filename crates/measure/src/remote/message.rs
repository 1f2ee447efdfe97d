//! What is said on a control connection: a request of the client, a reply of
//! the server, in turn. JSON, one value a frame; anything unknown is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use netstate::{Counters, Interface};
use serde::{Deserialize, Serialize};

use super::Limits;
use crate::sampler::{Dropped, Fare, MachineSample, NamespaceSample};
use load::{FlowCount, Load, Phase, ServerReport, Workload};
use results::{DeviceRecord, Machine};

/// VXLAN devices that a server tells of.
pub const MOST_TUNNELS: usize = 512;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// No effect; [`Reply::Done`] shows that the server is there.
    Ping,
    /// Asks for the server's machine, device and limits.
    Describe,
    /// What VXLAN devices are there, in your namespace?
    Tunnels,
    /// How busy is the machine, watched for this long?
    Idle {
        /// Time to watch, ms; at most 2000.
        millis: u32,
    },
    /// How does your machine's own traffic fare?
    Fare,
    /// Begins a load; the server's threads wait for the client's flows.
    Start(LoadAsked),
    /// Which flow has not proved its path yet?
    WaitsFor,
    /// Turn the load's threads to a phase.
    TurnTo(Phase),
    /// Asks for the load's counters, by flow.
    Count,
    /// The measured interval begins: read the machine's counters.
    Begin,
    /// It has ended: what happened in it?
    End,
    /// Ends the load and asks for its report.
    Finish,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Describe`].
    Described(Box<Description>),
    /// To [`Request::Tunnels`]; at most [`MOST_TUNNELS`], so that they fit a frame.
    Tunnels(Vec<Interface>),
    /// To [`Request::Idle`]: share of all CPUs busy, 0..1.
    Idle(f64),
    /// To [`Request::Fare`].
    Fare {
        /// Of the machine, and of the server's namespace.
        fare: Fare,
        /// Speed of [`Description::device`], bits/s, where it says.
        link_bits_per_s: Option<f64>,
    },
    /// To [`Request::Start`].
    Started {
        /// Port for the flows.
        port: u16,
        /// What their hellos must say.
        token: u64,
    },
    /// To [`Request::WaitsFor`]: the first such flow.
    WaitsFor(Option<u32>),
    /// To [`Request::Count`].
    Counted(CountedAt),
    /// To [`Request::End`].
    Observed(Box<Observed>),
    /// To [`Request::Finish`], by flow.
    Finished(BTreeMap<u32, ServerReport>),
    /// Done; nothing to say.
    Done,
    /// Not done, and why.
    Refused(String),
}

/// The server and the way back from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the server's program.
    pub overlane: String,
    /// Its machine; `idle_load` is 0 and has its own request.
    pub machine: Machine,
    /// The boot of its kernel: one machine has one.
    pub boot: String,
    /// Its process, and the inode of its PID namespace.
    pub process: (u32, u64),
    /// Inode of its network namespace.
    pub netns: u64,
    /// CPUs that its threads may run on.
    pub cpus: Vec<usize>,
    /// The device by which its answers leave, and the client's traffic comes in
    /// unless the way there is another than the way back.
    pub device: DeviceRecord,
    /// Limits that it puts on loads.
    pub limits: Limits,
}

/// What happened at the server in a measured interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// CPU time and softirq counters of the server's machine.
    pub machine: MachineSample,
    /// Protocol counters of the server's network namespace.
    pub namespace: NamespaceSample,
    /// Traffic of [`Description::device`] in that interval.
    pub device: Counters,
    /// What its kernel dropped in that namespace; empty where BPF is not allowed.
    pub drops: Vec<Dropped>,
}

/// Counters by flow, and when they were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedAt {
    /// By the server's own clock.
    pub at_ns: u64,
    /// Counters of each flow, by index.
    pub flows: Vec<FlowCount>,
}

impl CountedAt {
    /// Converts the engine's counters for the wire.
    pub fn of(counted: &load::Counted) -> CountedAt {
        CountedAt { at_ns: nanos(counted.at), flows: counted.flows.clone() }
    }

    /// Converts them back for the engine.
    pub fn counted(&self) -> load::Counted {
        load::Counted { at: Duration::from_nanos(self.at_ns), flows: self.flows.clone() }
    }
}

/// The server's part of a [`Load`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadAsked {
    /// [`Load::workload`], by name.
    pub workload: String,
    /// [`Load::message_bytes`].
    pub message_bytes: u32,
    /// [`Load::flows`].
    pub flows: u32,
    /// [`Load::gso`].
    pub gso: bool,
    /// [`Load::outstanding`].
    pub outstanding: u32,
    /// [`Load::rest`], nanoseconds.
    pub rest_ns: u64,
    /// [`Load::socket_buffer_bytes`].
    pub socket_buffer_bytes: Option<u32>,
    /// [`Load::warmup`], nanoseconds.
    pub warmup_ns: u64,
    /// [`Load::duration`], nanoseconds.
    pub duration_ns: u64,
    /// [`Load::server_cpus`].
    pub cpus: Vec<usize>,
    /// [`Load::setup_limit`], nanoseconds.
    pub setup_limit_ns: u64,
}

impl LoadAsked {
    /// What the server has to know of a load.
    pub fn of(load: &Load) -> LoadAsked {
        // Without `..`, so that a new field is not forgotten here.
        let Load {
            workload,
            message_bytes,
            flows,
            gso,
            // Schedules are the client's business.
            datagrams_per_s: _,
            outstanding,
            transactions_per_s: _,
            // A test's, refused before it comes here.
            server_stall: _,
            rest,
            socket_buffer_bytes,
            warmup,
            duration,
            client_cpus: _,
            server_cpus,
            setup_limit,
        } = load;
        LoadAsked {
            workload: workload.name().to_owned(),
            message_bytes: *message_bytes,
            flows: *flows,
            gso: *gso,
            outstanding: *outstanding,
            rest_ns: nanos(*rest),
            socket_buffer_bytes: *socket_buffer_bytes,
            warmup_ns: nanos(*warmup),
            duration_ns: nanos(*duration),
            cpus: server_cpus.clone(),
            setup_limit_ns: nanos(*setup_limit),
        }
    }

    /// The load, for the server; not validated.
    ///
    /// # Errors
    /// An unknown workload, in words.
    pub fn load(self) -> Result<Load, String> {
        let workload: Workload = self.workload.parse().map_err(|e| format!("{e}"))?;
        Ok(Load {
            message_bytes: self.message_bytes,
            flows: self.flows,
            gso: self.gso,
            outstanding: self.outstanding,
            rest: Duration::from_nanos(self.rest_ns),
            socket_buffer_bytes: self.socket_buffer_bytes,
            warmup: Duration::from_nanos(self.warmup_ns),
            duration: Duration::from_nanos(self.duration_ns),
            server_cpus: self.cpus,
            setup_limit: Duration::from_nanos(self.setup_limit_ns),
            ..Load::new(workload)
        })
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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
    use super::*;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        let load = (any::<u32>(), any::<u32>(), any::<bool>(), any::<u64>(), any::<Option<u32>>());
        prop_oneof![
            Just(Request::Describe),
            Just(Request::Tunnels),
            Just(Request::Fare),
            any::<u32>().prop_map(|millis| Request::Idle { millis }),
            Just(Request::TurnTo(Phase::Measure)),
            Just(Request::Count),
            load.prop_map(|(message_bytes, flows, gso, duration_ns, socket_buffer_bytes)| {
                Request::Start(LoadAsked {
                    message_bytes,
                    flows,
                    gso,
                    duration_ns,
                    socket_buffer_bytes,
                    cpus: vec![flows as usize],
                    ..LoadAsked::of(&Load::new(Workload::UdpStream))
                })
            }),
        ]
    }

    #[test]
    fn a_load_arrives_as_it_was_asked() {
        let load = Load {
            message_bytes: 9,
            flows: 3,
            outstanding: 4,
            rest: Duration::from_millis(3),
            socket_buffer_bytes: Some(4096),
            server_cpus: vec![1, 5],
            ..Load::new(Workload::TcpRr)
        };
        assert_eq!(LoadAsked::of(&load).load(), Ok(load));
        let unknown =
            LoadAsked { workload: "icmp".into(), ..LoadAsked::of(&Load::new(Workload::TcpRr)) };
        assert!(unknown.load().unwrap_err().contains("tcp_stream"));
    }

    #[test]
    fn nothing_unknown_is_taken() {
        for text in ["{\"start\":{}}", "\"reboot\"", "{\"idle\":{\"millis\":1,\"x\":1}}", "[", ""] {
            assert!(parse_request(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(request in request()) {
            prop_assert_eq!(parse_request(&emit(&request)).unwrap(), request);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = (parse_request(&bytes), parse_reply(&bytes));
        }
    }
}
