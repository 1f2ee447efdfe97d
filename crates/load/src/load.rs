//! What is asked of the engine: the load, its two ends, and who is told when
//! measuring begins and ends.

use std::net::SocketAddr;
use std::time::Duration;

use results::workload::{MAX_MESSAGE_BYTES, Workload};
use sys::netns::NetNs;

use super::control::TICK;
use super::{End, EngineError, Stall};

/// Most flows of one load; each takes a thread at either end.
pub const MAX_FLOWS: u32 = 1024;

/// Most requests that one flow keeps under way.
pub const MAX_OUTSTANDING: u32 = 1024;

/// Smallest socket buffer that can be asked for, bytes; the kernel raises what
/// is below its own least (`SOCK_MIN_RCVBUF`).
pub const MIN_SOCKET_BUFFER: u32 = 1024;
/// Largest socket buffer that may be asked for, bytes.
pub const MAX_SOCKET_BUFFER: u32 = 1 << 30;

/// Longest rest between an answer and the next request: a flow looks at its phase after it.
pub const MOST_REST: Duration = TICK;

/// A load: what to send, how much of it, how long, and on which CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// What the flows do.
    pub workload: Workload,
    /// Size of a message (request and response alike), 1 to [`MAX_MESSAGE_BYTES`].
    pub message_bytes: u32,
    /// Parallel flows, 1 to [`MAX_FLOWS`].
    pub flows: u32,
    /// `udp_stream` only: the sender hands the kernel GSO packets
    /// (`UDP_SEGMENT`) and the receiver takes them whole (`UDP_GRO`).
    pub gso: bool,
    /// `udp_stream` only: offered load over all flows, datagrams/s; `None`
    /// sends as fast as the sockets take it.
    pub datagrams_per_s: Option<u64>,
    /// `tcp_rr`, `udp_rr` only: requests that each flow keeps under way, 1 to
    /// [`MAX_OUTSTANDING`]; under a schedule the most it lets run up: requests
    /// that it holds back are still timed from when they were due. One-byte
    /// datagrams can number 256 only.
    pub outstanding: u32,
    /// `tcp_rr`, `udp_rr` only: requests on a schedule (open loop), over all
    /// flows, per second, latency from the intended time; `None` sends the next
    /// one when an answer has come.
    pub transactions_per_s: Option<f64>,
    /// `tcp_rr`, `udp_rr` only: a server that stops answering at regular times,
    /// to see what a measurement makes of it.
    pub server_stall: Option<Stall>,
    /// `tcp_rr`, `udp_rr`, one request at a time: how long a flow rests between an answer
    /// and the next request, at most [`MOST_REST`]; zero: the next request at once.
    pub rest: Duration,
    /// Send and receive buffer of every socket on the data path, bytes, as given
    /// to `SO_SNDBUF` and `SO_RCVBUF`: the kernel sets aside twice as much, for
    /// its own headers. Where it grants less (`net.core.wmem_max`, `rmem_max`
    /// without `CAP_NET_ADMIN`), [`Measured::notes`](super::Measured::notes) says
    /// so. `None`: the kernel's own tuning for TCP, its default for UDP, but a
    /// receive buffer as large as can be had for the server of `udp_stream`.
    pub socket_buffer_bytes: Option<u32>,
    /// Traffic before the measured interval, discarded.
    pub warmup: Duration,
    /// Measured interval, after the warm-up.
    pub duration: Duration,
    /// CPUs of the client's threads: flow i runs on `client_cpus[i % len]`;
    /// empty: not pinned.
    pub client_cpus: Vec<usize>,
    /// CPUs of the server's threads, likewise.
    pub server_cpus: Vec<usize>,
    /// How long a path may take to carry the first exchange, and how long a
    /// flow may stand still afterwards, before it counts as broken.
    pub setup_limit: Duration,
}

impl Load {
    /// A load of one unpinned flow with the workload's default message size,
    /// 0.1 s of warm-up, 1 s measured and 5 s allowed for setting up.
    pub fn new(workload: Workload) -> Load {
        Load {
            workload,
            message_bytes: workload.default_message_bytes(),
            flows: 1,
            gso: false,
            datagrams_per_s: None,
            outstanding: 1,
            transactions_per_s: None,
            server_stall: None,
            rest: Duration::ZERO,
            socket_buffer_bytes: None,
            warmup: Duration::from_millis(100),
            duration: Duration::from_secs(1),
            client_cpus: Vec::new(),
            server_cpus: Vec::new(),
            setup_limit: Duration::from_secs(5),
        }
    }

    /// Checks every field, and that the CPUs may be used by this process.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], naming the field and what it allows.
    pub fn validate(&self) -> Result<(), EngineError> {
        self.validate_at(End::Client)?;
        self.validate_at(End::Server)
    }

    /// Checks every field, and that the CPUs of one end may be used by this
    /// process: the other end's are another machine's.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], naming the field and what it allows.
    pub fn validate_at(&self, end: End) -> Result<(), EngineError> {
        if !(1..=MAX_MESSAGE_BYTES).contains(&self.message_bytes) {
            return Err(EngineError::invalid(
                "message_bytes",
                format!("1 to {MAX_MESSAGE_BYTES}"),
                self.message_bytes,
            ));
        }
        if !(1..=MAX_FLOWS).contains(&self.flows) {
            return Err(EngineError::invalid("flows", format!("1 to {MAX_FLOWS}"), self.flows));
        }
        if self.workload != Workload::UdpStream {
            if self.gso {
                return Err(EngineError::invalid("gso", "udp_stream", self.workload));
            }
            if self.datagrams_per_s.is_some() {
                return Err(EngineError::invalid("datagrams_per_s", "udp_stream", self.workload));
            }
        }
        if self.datagrams_per_s == Some(0) {
            return Err(EngineError::invalid("datagrams_per_s", "at least 1", 0));
        }
        if !(1..=MAX_OUTSTANDING).contains(&self.outstanding) {
            let allowed = format!("1 to {MAX_OUTSTANDING}");
            return Err(EngineError::invalid("outstanding", allowed, self.outstanding));
        }
        if !self.workload.is_rr() {
            let rr = "tcp_rr or udp_rr";
            if self.outstanding != 1 {
                return Err(EngineError::invalid("outstanding", rr, self.workload));
            }
            if self.transactions_per_s.is_some() {
                return Err(EngineError::invalid("transactions_per_s", rr, self.workload));
            }
            if self.server_stall.is_some() {
                return Err(EngineError::invalid("server_stall", rr, self.workload));
            }
        }
        if let Some(stall) = &self.server_stall {
            stall.validate()?;
        }
        if !self.rest.is_zero() {
            if !self.workload.is_rr() || self.is_pipelined() {
                let got = format!("{}, {} under way", self.workload, self.outstanding);
                let allowed = "tcp_rr or udp_rr, one request at a time";
                return Err(EngineError::invalid("rest", allowed, got));
            }
            if self.rest > MOST_REST {
                let (allowed, got) = (format!("at most {MOST_REST:?}"), format!("{:?}", self.rest));
                return Err(EngineError::invalid("rest", allowed, got));
            }
        }
        if let Some(rate) = self.transactions_per_s.filter(|rate| !(*rate > 0.0 && *rate <= 1e9)) {
            return Err(EngineError::invalid("transactions_per_s", "above 0, at most 1e9", rate));
        }
        if let Some(bytes) = self
            .socket_buffer_bytes
            .filter(|bytes| !(MIN_SOCKET_BUFFER..=MAX_SOCKET_BUFFER).contains(bytes))
        {
            let allowed = format!("{MIN_SOCKET_BUFFER} to {MAX_SOCKET_BUFFER} bytes");
            return Err(EngineError::invalid("socket_buffer_bytes", allowed, bytes));
        }
        if self.duration.is_zero() {
            return Err(EngineError::invalid("duration", "more than 0 s", "0 s"));
        }
        if self.setup_limit < Duration::from_millis(100) {
            return Err(EngineError::invalid(
                "setup_limit",
                "at least 0.1 s",
                format!("{:?}", self.setup_limit),
            ));
        }
        let (field, cpus) = match end {
            End::Client => ("client_cpus", &self.client_cpus),
            End::Server => ("server_cpus", &self.server_cpus),
        };
        if let Some(cpu) = cpus.iter().find(|&&cpu| !sys::affinity::usable(cpu)) {
            return Err(EngineError::invalid(field, "CPUs this process may run on", cpu));
        }
        Ok(())
    }

    /// Whether the threads of both ends wait in `recv` until something comes. A
    /// limit there is a timer set and cleared a transaction, and with it one more
    /// exit from a virtual machine when the CPU goes idle: time of ours, not of
    /// the path. The end of the load wakes them ([`Endpoint::turn_to`]).
    ///
    /// [`Endpoint::turn_to`]: super::endpoint::Endpoint::turn_to
    pub(super) fn waits_without_limit(&self) -> bool {
        self.workload == Workload::TcpRr && !self.is_pipelined()
    }

    /// What the sockets of TCP are opened with.
    pub(super) fn tcp_options(&self, nodelay: bool) -> sys::tcp::Options {
        sys::tcp::Options { limit: TICK, nodelay, buffer_bytes: self.buffer_bytes() }
    }

    /// Socket buffers asked for, as system calls take them.
    pub(super) fn buffer_bytes(&self) -> Option<usize> {
        self.socket_buffer_bytes.map(|bytes| bytes as usize)
    }

    pub(super) fn client_cpu(&self, flow: u32) -> Option<usize> {
        cpu_of(&self.client_cpus, flow)
    }

    pub(super) fn server_cpu(&self, flow: u32) -> Option<usize> {
        cpu_of(&self.server_cpus, flow)
    }
}

fn cpu_of(cpus: &[usize], flow: u32) -> Option<usize> {
    if cpus.is_empty() { None } else { Some(cpus[flow as usize % cpus.len()]) }
}

/// Where the two endpoints run and how the client reaches the server.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// Namespace of the client's threads.
    pub client: &'a NetNs,
    /// Namespace of the server's threads.
    pub server: &'a NetNs,
    /// What the client connects to: the server itself, or an address and port
    /// published for it.
    pub target: SocketAddr,
    /// What the server binds. The address must be one of the server's own
    /// (not the wildcard), so that answers leave with it.
    pub listen: SocketAddr,
}

impl Ends<'_> {
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let usable = |field, address: SocketAddr| {
            if address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0 {
                return Err(EngineError::invalid(field, "a unicast address and a port", address));
            }
            Ok(())
        };
        usable("target", self.target)?;
        usable("listen", self.listen)
    }
}

/// Told when the measured interval begins and ends, on the thread that called
/// [`run`](super::run), so that counters can be read. The interval lies between
/// the return of [`begin`](Watch::begin) and the call of [`end`](Watch::end).
pub trait Watch {
    /// Right before the interval. No datagram of `udp_stream` is under way;
    /// the other workloads are running.
    fn begin(&mut self);
    /// Right after the interval; for `udp_stream` after the last datagram has
    /// arrived or been lost.
    fn end(&mut self);
}

/// For callers that read no counters.
impl Watch for () {
    fn begin(&mut self) {}
    fn end(&mut self) {}
}
