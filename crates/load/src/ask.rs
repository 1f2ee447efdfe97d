//! Measurement request for a path: task, sizes and traffic generator.

pub use results::names::{DrivenTool as Tool, Engine, UnknownName};
pub use results::workload::Task;
use results::{Beside, Cell, Profile, Role, Status, Unit, Workload};

/// Measurement request: everything that defines a cell except the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Workload, or a search with it.
    pub task: Task,
    /// Message size, bytes.
    pub message_bytes: u32,
    /// Parallel flows, each with a thread at both ends.
    pub flows: u32,
    /// Requests in flight per flow (rr).
    pub outstanding: u32,
    /// Send with UDP GSO; `udp_stream` only.
    pub gso: bool,
    /// Offered payload over all flows, bits/s; `udp_stream` only. The receiver then reports jitter
    /// and reordering. `None`: as fast as possible.
    pub rate_bits_per_s: Option<u64>,
    /// Open loop (rr): percent of the path's own maximum, 0 to 100; 0 sends one request at a time.
    /// `None`: closed loop.
    pub load_percent: Option<f64>,
    /// Bulk traffic beside the requests (rr). `None`: none.
    pub beside: Option<Beside>,
    /// Socket buffers of both ends, bytes.
    pub socket_buffer_bytes: Option<u32>,
    /// DSCP of all packets. `None`: the kernel's default.
    pub dscp: Option<u8>,
    /// ECN ([`Load::ecn`](crate::Load::ecn)).
    pub ecn: bool,
    /// Traffic generator.
    pub engine: Engine,
}

impl Ask {
    /// Returns a request with one flow of the built-in engine, closed loop, one request in flight
    /// and the workload's default message size.
    pub fn new(task: Task) -> Ask {
        Ask {
            task,
            message_bytes: task.workload().default_message_bytes(),
            flows: 1,
            outstanding: 1,
            gso: false,
            rate_bits_per_s: None,
            load_percent: None,
            beside: None,
            socket_buffer_bytes: None,
            dscp: None,
            ecn: false,
            engine: Engine::Overlane,
        }
    }

    /// Datagrams per second of the requested rate, at least 1.
    pub fn datagrams_per_s(&self) -> Option<u64> {
        let bits = 8 * u64::from(self.message_bytes);
        self.rate_bits_per_s.map(|rate| (rate.saturating_add(bits / 2) / bits).max(1))
    }

    /// Returns a cell of a mode with this load and without samples.
    pub fn cell(&self, mode: &str, offload: Profile, mtu: u32) -> Cell {
        Cell {
            mode: mode.to_owned(),
            role: Role::Measured,
            offload,
            mtu,
            workload: self.task,
            message_bytes: self.message_bytes,
            flows: self.flows,
            outstanding: self.outstanding,
            offered: None,
            beside: self.beside,
            socket_buffer_bytes: self.socket_buffer_bytes,
            setting: None,
            gso: self.gso && self.task.workload() == Workload::UdpStream,
            engine: self.engine,
            unit: self.unit(),
            status: Status::Failed,
            reason: Some(Cell::NO_SAMPLE.to_owned()),
            median: None,
            ratio: None,
            flow_shares: None,
            tcp: None,
            beside_rates: None,
            arrivals: None,
            service_demand: None,
            service_demand_reason: None,
            latency_us: None,
            histogram: Vec::new(),
            drop_point: None,
            pace: None,
            tool: None,
            loss: None,
            hops: Vec::new(),
            trend: None,
            settled_after: None,
            samples: Vec::new(),
        }
    }

    /// Unit of the cell's figures. With a given load the result is latency; otherwise the
    /// workload's unit applies.
    pub fn unit(&self) -> Unit {
        match self.load_percent {
            Some(_) => Unit::Microseconds,
            None => self.task.workload().unit(),
        }
    }
}
