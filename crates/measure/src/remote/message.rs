//! Messages of a control connection: a client's request and the server's reply, in turn. JSON,
//! one value per frame. Unknown fields are refused.

use std::collections::BTreeMap;
use std::time::Duration;

use netstate::{Counters, Interface};
use serde::{Deserialize, Serialize};

use super::Limits;
use crate::sampler::{Dropped, HostLoad, MachineSample, NamespaceSample};
use load::{FlowCount, Load, Phase, ServerReport, Workload};
use results::{Beside, DeviceRecord, Machine};

/// Maximum number of VXLAN devices in a reply.
pub const MOST_TUNNELS: usize = 512;

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// No effect. [`Reply::Done`] shows that the server is there.
    Ping,
    /// Returns the server's machine, device and limits.
    Describe,
    /// Returns the VXLAN devices in the server's namespace.
    Tunnels,
    /// Returns how busy the machine is, observed for this time.
    Idle {
        /// Time to observe, ms; at most 2000.
        millis: u32,
    },
    /// Returns the counters of the machine's own traffic.
    #[serde(rename = "fare")]
    HostLoad,
    /// Starts a load. The server's threads wait for the client's flows.
    Start(LoadAsked),
    /// Returns the first flow that has not proved its path yet.
    WaitsFor,
    /// Moves the load's threads to a phase.
    TurnTo(Phase),
    /// Returns the load's counters by flow.
    Count,
    /// Start of the measured interval: the server reads the machine's counters.
    Begin,
    /// End of the measured interval: returns the counter differences.
    End,
    /// Ends the load and returns its report.
    Finish,
    /// A request of a probe. Servers before this request refuse it.
    Probe(probe::message::Ask),
}

/// Reply of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Reply {
    /// Reply to [`Request::Describe`].
    Described(Box<Description>),
    /// Reply to [`Request::Tunnels`], at most [`MOST_TUNNELS`] to fit a frame.
    Tunnels(Vec<Interface>),
    /// Reply to [`Request::Idle`]: share of all CPUs busy, 0..1.
    Idle(f64),
    /// Reply to [`Request::HostLoad`].
    #[serde(rename = "fare")]
    HostLoad {
        /// Counters of the machine and of the server's namespace.
        #[serde(rename = "fare")]
        load: HostLoad,
        /// Speed of [`Description::device`], bits/s, if known.
        link_bits_per_s: Option<f64>,
    },
    /// Reply to [`Request::Start`].
    Started {
        /// Port for the flows.
        port: u16,
        /// Token for the flows' hellos.
        token: u64,
    },
    /// Reply to [`Request::WaitsFor`].
    WaitsFor(Option<u32>),
    /// Reply to [`Request::Count`].
    Counted(CountedAt),
    /// Reply to [`Request::End`].
    Observed(Box<Observed>),
    /// Reply to [`Request::Finish`], by flow.
    Finished(BTreeMap<u32, ServerReport>),
    /// Reply to [`Request::Probe`].
    Probe(Box<probe::message::Answer>),
    /// Reply to [`Request::Start`] while other clients' loads run. Ask again.
    Busy,
    /// Done, without data.
    Done,
    /// Refused, with the reason.
    Refused(String),
}

/// The server, and the device on the way back from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the server's program.
    pub overlane: String,
    /// Its machine. `idle_load` is 0; it has a request of its own.
    pub machine: Machine,
    /// Boot ID of its kernel, which identifies the machine.
    pub boot: String,
    /// PID of its process, and the inode of its PID namespace.
    pub process: (u32, u64),
    /// Inode of its network namespace.
    pub netns: u64,
    /// CPUs available to its threads.
    pub cpus: Vec<usize>,
    /// Device of its answers. The client's traffic arrives on it, too, unless routing is
    /// asymmetric.
    pub device: DeviceRecord,
    /// Limits for loads.
    pub limits: Limits,
}

/// Counter differences at the server over a measured interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    /// CPU time and softirq counters of the server's machine.
    pub machine: MachineSample,
    /// Protocol counters of the server's network namespace.
    pub namespace: NamespaceSample,
    /// Traffic of [`Description::device`].
    pub device: Counters,
    /// Drops by the kernel in that namespace; empty if BPF is not allowed.
    pub drops: Vec<Dropped>,
}

/// Counters by flow, and the time of the reading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedAt {
    /// Time by the server's own clock.
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
    /// [`Load::numbered`]. Servers of older versions refuse it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub numbered: bool,
    /// [`Load::outstanding`].
    pub outstanding: u32,
    /// [`Load::rest`], nanoseconds.
    pub rest_ns: u64,
    /// [`Load::beside`]. Servers of older versions refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// [`Load::socket_buffer_bytes`].
    pub socket_buffer_bytes: Option<u32>,
    /// [`Load::dscp`]. Servers of older versions refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<u8>,
    /// [`Load::ecn`]. Servers of older versions refuse it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ecn: bool,
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
    /// Converts a load for the server.
    pub fn of(load: &Load) -> LoadAsked {
        // No `..`: a new field must be handled here.
        let Load {
            workload,
            message_bytes,
            flows,
            gso,
            // Only the client needs schedules.
            datagrams_per_s: _,
            numbered,
            outstanding,
            transactions_per_s: _,
            // For tests only, refused before this.
            server_stall: _,
            rest,
            beside,
            socket_buffer_bytes,
            dscp,
            ecn,
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
            numbered: *numbered,
            outstanding: *outstanding,
            rest_ns: nanos(*rest),
            beside: *beside,
            socket_buffer_bytes: *socket_buffer_bytes,
            dscp: *dscp,
            ecn: *ecn,
            warmup_ns: nanos(*warmup),
            duration_ns: nanos(*duration),
            cpus: server_cpus.clone(),
            setup_limit_ns: nanos(*setup_limit),
        }
    }

    /// Converts to the server's load. It is not validated.
    ///
    /// # Errors
    /// An unknown workload, as text.
    pub fn load(self) -> Result<Load, String> {
        let workload: Workload = self.workload.parse().map_err(|e| format!("{e}"))?;
        Ok(Load {
            message_bytes: self.message_bytes,
            flows: self.flows,
            gso: self.gso,
            numbered: self.numbered,
            outstanding: self.outstanding,
            rest: Duration::from_nanos(self.rest_ns),
            beside: self.beside,
            socket_buffer_bytes: self.socket_buffer_bytes,
            dscp: self.dscp,
            ecn: self.ecn,
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

#[cfg(test)]
mod tests {
    use super::*;
    use channel::message::{emit, parse};
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        let load = (any::<u32>(), any::<u32>(), any::<bool>(), any::<u64>(), any::<Option<u32>>());
        prop_oneof![
            Just(Request::Describe),
            Just(Request::Tunnels),
            Just(Request::HostLoad),
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
            beside: Some(Beside::Both),
            ecn: true,
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
            assert!(parse::<Request>(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(request in request()) {
            prop_assert_eq!(parse::<Request>(&emit(&request)).unwrap(), request);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            let _ = (parse::<Request>(&bytes), parse::<Reply>(&bytes));
        }
    }
}
