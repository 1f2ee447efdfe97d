//! Input of the engine: the load, its two ends, and a callback around the measured interval.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use results::Beside;
use results::workload::{MAX_MESSAGE_BYTES, Workload};
use sys::errno::Errno;
use sys::netns::NetNs;

use super::control::TICK;
use super::{End, EngineError, Stall};

/// Maximum flows of a load. Each takes a thread at either end.
pub const MAX_FLOWS: u32 = 1024;

/// Maximum requests in flight per flow.
pub const MAX_OUTSTANDING: u32 = 1024;

/// Minimum requested socket buffer, bytes. The kernel raises values below its own minimum
/// (`SOCK_MIN_RCVBUF`).
pub const MIN_SOCKET_BUFFER: u32 = 1024;
/// Maximum requested socket buffer, bytes.
pub const MAX_SOCKET_BUFFER: u32 = 1 << 30;

/// Minimum message size of numbered datagrams, bytes.
pub const NUMBERED_BYTES: u32 = sys::udp::HEAD_BYTES as u32;

/// Maximum rest between an answer and the next request: a flow checks its phase afterwards.
pub const MOST_REST: Duration = TICK;

/// A load: traffic, duration and CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Type of traffic.
    pub workload: Workload,
    /// Message size of request and response, bytes, 1 to [`MAX_MESSAGE_BYTES`].
    pub message_bytes: u32,
    /// Parallel flows, 1 to [`MAX_FLOWS`].
    pub flows: u32,
    /// `udp_stream` only: the sender sends GSO packets (`UDP_SEGMENT`) and the receiver accepts
    /// them whole (`UDP_GRO`).
    pub gso: bool,
    /// `udp_stream` only: offered load over all flows, datagrams/s. `None`: as fast as the
    /// sockets accept.
    pub datagrams_per_s: Option<u64>,
    /// `udp_stream` without GSO only: each datagram has a number and the time of sending, and the
    /// receiver reports [`Arrivals`](super::Arrivals). Takes [`NUMBERED_BYTES`].
    pub numbered: bool,
    /// `tcp_rr`, `udp_rr` only: requests in flight per flow, 1 to [`MAX_OUTSTANDING`]. With a
    /// schedule this is the maximum; requests held back are still timed from their due time.
    /// One-byte datagrams allow 256 only.
    pub outstanding: u32,
    /// `tcp_rr`, `udp_rr` only: requests on a schedule (open loop), total per second over all
    /// flows. Latency counts from the intended time. `None`: the next request follows an answer.
    pub transactions_per_s: Option<f64>,
    /// `tcp_rr`, `udp_rr` only: a server that stalls at regular times, to test what a
    /// measurement shows.
    pub server_stall: Option<Stall>,
    /// `tcp_rr`, `udp_rr` with one request at a time: rest between an answer and the next
    /// request, at most [`MOST_REST`]. Zero: no rest.
    pub rest: Duration,
    /// `tcp_rr`, `udp_rr` only: bulk TCP traffic that runs beside the requests from the warm-up to
    /// the end, one connection of 65,507-byte writes per direction.
    pub beside: Option<Beside>,
    /// Send and receive buffer of every socket on the data path, bytes, as passed to `SO_SNDBUF`
    /// and `SO_RCVBUF`. The kernel allocates twice as much, for its own headers. If it grants
    /// less (`net.core.wmem_max`, `rmem_max` without `CAP_NET_ADMIN`),
    /// [`Measured::notes`](super::Measured::notes) says so. `None`: autotuning for TCP, the
    /// kernel's default for UDP, but the largest possible receive buffer for the server of
    /// `udp_stream`.
    pub socket_buffer_bytes: Option<u32>,
    /// DSCP of all packets of both ends. `None`: the kernel's default.
    pub dscp: Option<u8>,
    /// Datagrams of both ends have the codepoint ECT(0), and TCP connections must have negotiated
    /// ECN, as the client's kernel does if `net.ipv4.tcp_ecn` is 1 in its namespace.
    pub ecn: bool,
    /// Discarded traffic before the measured interval.
    pub warmup: Duration,
    /// Measured interval, after the warm-up.
    pub duration: Duration,
    /// CPUs of the client's threads: flow i runs on `client_cpus[i % len]`. Empty: not pinned.
    pub client_cpus: Vec<usize>,
    /// CPUs of the server's threads, in the same way.
    pub server_cpus: Vec<usize>,
    /// Time limit for the first exchange, and for a flow without progress afterwards.
    pub setup_limit: Duration,
}

impl Load {
    /// Returns a load with one unpinned flow, the workload's default message size, 0.1 s of
    /// warm-up, 1 s of measurement and a set-up limit of 5 s.
    pub fn new(workload: Workload) -> Load {
        Load {
            workload,
            message_bytes: workload.default_message_bytes(),
            flows: 1,
            gso: false,
            datagrams_per_s: None,
            numbered: false,
            outstanding: 1,
            transactions_per_s: None,
            server_stall: None,
            rest: Duration::ZERO,
            beside: None,
            socket_buffer_bytes: None,
            dscp: None,
            ecn: false,
            warmup: Duration::from_millis(100),
            duration: Duration::from_secs(1),
            client_cpus: Vec::new(),
            server_cpus: Vec::new(),
            setup_limit: Duration::from_secs(5),
        }
    }

    /// Checks every field, and that this process may use the CPUs.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], with the field and its allowed values.
    pub fn validate(&self) -> Result<(), EngineError> {
        self.validate_at(End::Client)?;
        self.validate_at(End::Server)
    }

    /// Checks every field, and that this process may use the CPUs of one end. The other end is
    /// on another machine.
    ///
    /// # Errors
    /// [`EngineError::Invalid`], with the field and its allowed values.
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
        // Other workloads have neither a datagram rate nor GSO packets.
        if self.workload != Workload::UdpStream {
            // TCP segments itself; only datagrams have a segment size.
            if self.gso {
                return Err(EngineError::invalid("gso", "udp_stream", self.workload));
            }
            if self.datagrams_per_s.is_some() {
                return Err(EngineError::invalid("datagrams_per_s", "udp_stream", self.workload));
            }
        }
        if self.numbered {
            // Datagrams of one GSO packet would share a number and a time.
            if self.workload != Workload::UdpStream || self.gso {
                let got = format!("{}{}", self.workload, if self.gso { " with GSO" } else { "" });
                return Err(EngineError::invalid("numbered", "udp_stream without GSO", got));
            }
            if self.message_bytes < NUMBERED_BYTES {
                let allowed = format!("at least {NUMBERED_BYTES} for numbered datagrams");
                return Err(EngineError::invalid("message_bytes", allowed, self.message_bytes));
            }
        }
        // A schedule needs a rate.
        if self.datagrams_per_s == Some(0) {
            return Err(EngineError::invalid("datagrams_per_s", "at least 1", 0));
        }
        if !(1..=MAX_OUTSTANDING).contains(&self.outstanding) {
            let allowed = format!("1 to {MAX_OUTSTANDING}");
            return Err(EngineError::invalid("outstanding", allowed, self.outstanding));
        }
        // Only request/response workloads have requests in flight.
        if !self.workload.is_rr() {
            let rr = "tcp_rr or udp_rr";
            if self.outstanding != 1 {
                return Err(EngineError::invalid("outstanding", rr, self.workload));
            }
            if self.transactions_per_s.is_some() {
                return Err(EngineError::invalid("transactions_per_s", rr, self.workload));
            }
            // A stall of the server shows only in response times.
            if self.server_stall.is_some() {
                return Err(EngineError::invalid("server_stall", rr, self.workload));
            }
            if self.beside.is_some() {
                return Err(EngineError::invalid("beside", rr, self.workload));
            }
        }
        if let Some(stall) = &self.server_stall {
            stall.validate()?;
        }
        if !self.rest.is_zero() {
            // With several requests in flight there is no gap to rest in.
            if !self.workload.is_rr() || self.is_pipelined() {
                let got = format!("{}, {} in flight", self.workload, self.outstanding);
                let allowed = "tcp_rr or udp_rr, one request at a time";
                return Err(EngineError::invalid("rest", allowed, got));
            }
            // A longer rest would delay the check of the phase.
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
        if let Some(dscp) = self.dscp.filter(|dscp| *dscp > sys::dscp::MOST) {
            let allowed = format!("at most {}", sys::dscp::MOST);
            return Err(EngineError::invalid("dscp", allowed, dscp));
        }
        // Rates are divided by it.
        if self.duration.is_zero() {
            return Err(EngineError::invalid("duration", "more than 0 s", "0 s"));
        }
        // A shorter limit would fail while the kernel resolves a neighbour.
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
        // A thread on another CPU would run where the plan does not account for it.
        if let Some(cpu) = cpus.iter().find(|&&cpu| !sys::affinity::usable(cpu)) {
            return Err(EngineError::invalid(field, "CPUs this process may run on", cpu));
        }
        Ok(())
    }

    /// Whether the threads of both ends block in `recv` without a time limit. A limit would set
    /// and clear a timer per transaction, and in a virtual machine cause one more exit whenever
    /// the CPU goes idle. That would add the engine's own cost to the path's. The end of the load
    /// wakes the threads ([`Endpoint::turn_to`]).
    ///
    /// [`Endpoint::turn_to`]: super::endpoint::Endpoint::turn_to
    pub(super) fn waits_without_limit(&self) -> bool {
        self.workload == Workload::TcpRr && !self.is_pipelined()
    }

    /// Options of TCP sockets.
    pub(super) fn tcp_options(&self, nodelay: bool) -> sys::tcp::SocketOptions {
        let (buffer_bytes, dscp) = (self.buffer_bytes(), self.dscp);
        sys::tcp::SocketOptions { limit: TICK, nodelay, buffer_bytes, dscp }
    }

    /// Marks the datagrams of a socket.
    pub(super) fn mark_datagrams(
        &self,
        socket: &UdpSocket,
        address: &SocketAddr,
    ) -> Result<(), (&'static str, Errno)> {
        // Unmarked datagrams need no socket option.
        if self.dscp.is_none() && !self.ecn {
            return Ok(());
        }
        sys::dscp::set(socket, address, self.dscp.unwrap_or(0), self.ecn)
    }

    /// Requested socket buffers, as system calls take them.
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

/// Namespaces and addresses of the two endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// Namespace of the client's threads.
    pub client: &'a NetNs,
    /// Namespace of the server's threads.
    pub server: &'a NetNs,
    /// Address that the client connects to: the server's own, or one published for it.
    pub target: SocketAddr,
    /// Address that the server binds. It must be one of the server's own, not the wildcard, so
    /// that it becomes the source of answers.
    pub listen: SocketAddr,
}

impl Ends<'_> {
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let usable = |field, address: SocketAddr| {
            // The address is also the source of answers, so it must be a specific one.
            if address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0 {
                return Err(EngineError::invalid(field, "a unicast address and a port", address));
            }
            Ok(())
        };
        usable("target", self.target)?;
        usable("listen", self.listen)
    }
}

/// Callback at the start and the end of the measured interval, on the thread that called
/// [`run`](super::run), to read counters. The interval lies between the return of
/// [`begin`](Watch::begin) and the call of [`end`](Watch::end).
pub trait Watch {
    /// Called right before the interval. No datagram of `udp_stream` is in flight; other
    /// workloads are running.
    fn begin(&mut self);
    /// Called right after the interval; for `udp_stream` after the last datagram has arrived or
    /// counts as lost.
    fn end(&mut self);
}

/// For callers that read no counters.
impl Watch for () {
    fn begin(&mut self) {}
    fn end(&mut self) {}
}
