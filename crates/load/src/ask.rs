//! Measurement request for a path: task, sizes and traffic generator.

use results::Unit;
pub use results::names::{DrivenTool as Tool, Engine, UnknownName};
pub use results::workload::Task;

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
    /// Open loop (rr): percent of the path's own maximum, 0 to 100; 0 sends one request at a time.
    /// `None`: closed loop.
    pub load_percent: Option<f64>,
    /// Socket buffers of both ends, bytes.
    pub socket_buffer_bytes: Option<u32>,
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
            load_percent: None,
            socket_buffer_bytes: None,
            engine: Engine::Overlane,
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
