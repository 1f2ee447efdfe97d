//! What is asked of a path: a task, its sizes, and what makes the traffic.

use results::Unit;
pub use results::names::{DrivenTool as Tool, Engine, UnknownName};
pub use results::workload::Task;

/// What is asked of a path: everything of a cell but the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// Workload, or a search with it.
    pub task: Task,
    /// Message size, bytes.
    pub message_bytes: u32,
    /// Parallel flows, each with a thread at both ends.
    pub flows: u32,
    /// Requests that each flow keeps under way (rr).
    pub outstanding: u32,
    /// Send with UDP GSO; `udp_stream` only.
    pub gso: bool,
    /// Open loop (rr): percent of the path's own maximum, 0 to 100, 0 for one
    /// request at a time; `None`: closed loop.
    pub load_percent: Option<f64>,
    /// Socket buffers of both ends, bytes.
    pub socket_buffer_bytes: Option<u32>,
    /// What makes the traffic.
    pub engine: Engine,
}

impl Ask {
    /// One flow of the built-in engine, closed loop, one request under way, the
    /// workload's own message size.
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

    /// Unit of the cell's figures: at a load the rate is given, and latency is
    /// what is sought; else the workload's.
    pub fn unit(&self) -> Unit {
        match self.load_percent {
            Some(_) => Unit::Microseconds,
            None => self.task.workload().unit(),
        }
    }
}
