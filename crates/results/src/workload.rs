//! The workloads: one row each of what every part of the program must know of it.
//!
//! What a workload sends is in `load`; what it is called, counted in, and shown by
//! is here only.

use crate::names::{DemandUnit, Direction, Named, Unit, by_name};

/// Largest payload of a UDP datagram over IPv4: 65535 less 20 bytes of IP and
/// 8 bytes of UDP header. One limit for every workload, so that cells compare.
pub const MAX_MESSAGE_BYTES: u32 = 65507;

/// What the flows do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// One connection per flow, the client sends without pause.
    TcpStream,
    /// One connection per flow, request and response in turn.
    TcpRr,
    /// Connect, request, response, close, for every transaction.
    TcpCrr,
    /// One connection per flow, the server sends without pause.
    TcpMaerts,
    /// Datagrams from client to server without pause.
    UdpStream,
    /// One datagram there, one back, in turn.
    UdpRr,
}

/// What carries the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A byte stream: messages merge, what is lost is sent again.
    Tcp,
    /// Datagrams: messages do not merge, and what is lost is not sent again.
    Udp,
}

/// Which end sends, and what it waits for before it sends again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// One end sends without pause, which way payload goes; the other counts.
    Stream(Direction),
    /// Requests and their responses, timed, on connections that stay.
    Requests,
    /// A connection for every request, timed.
    Connections,
}

/// Properties of one workload.
struct Row {
    workload: Workload,
    name: &'static str,
    transport: Transport,
    pattern: Pattern,
    /// Message size where none was asked for, bytes.
    default_message_bytes: u32,
}

/// 64 KiB less what does not fit a UDP datagram for streams over TCP, the smallest
/// common packet for `udp_stream`, one byte for transactions (as netperf).
const ROWS: &[Row] = &[
    Row {
        workload: Workload::TcpStream,
        name: "tcp_stream",
        transport: Transport::Tcp,
        pattern: Pattern::Stream(Direction::Forward),
        default_message_bytes: MAX_MESSAGE_BYTES,
    },
    Row {
        workload: Workload::TcpRr,
        name: "tcp_rr",
        transport: Transport::Tcp,
        pattern: Pattern::Requests,
        default_message_bytes: 1,
    },
    Row {
        workload: Workload::TcpCrr,
        name: "tcp_crr",
        transport: Transport::Tcp,
        pattern: Pattern::Connections,
        default_message_bytes: 1,
    },
    Row {
        workload: Workload::TcpMaerts,
        name: "tcp_maerts",
        transport: Transport::Tcp,
        pattern: Pattern::Stream(Direction::Reverse),
        default_message_bytes: MAX_MESSAGE_BYTES,
    },
    Row {
        workload: Workload::UdpStream,
        name: "udp_stream",
        transport: Transport::Udp,
        pattern: Pattern::Stream(Direction::Forward),
        default_message_bytes: 64,
    },
    Row {
        workload: Workload::UdpRr,
        name: "udp_rr",
        transport: Transport::Udp,
        pattern: Pattern::Requests,
        default_message_bytes: 1,
    },
];

/// Every workload, in the order of the table.
const WORKLOADS: [Workload; ROWS.len()] = {
    let mut all = [Workload::TcpStream; ROWS.len()];
    let mut i = 0;
    while i < ROWS.len() {
        all[i] = ROWS[i].workload;
        // `row` takes the row by the variant's number.
        assert!(ROWS[i].workload as usize == i, "rows in the order of the variants");
        i += 1;
    }
    all
};

impl Workload {
    /// Every workload, in the order of the documentation.
    pub const ALL: [Workload; ROWS.len()] = WORKLOADS;

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its name in arguments and results (`tcp_stream`).
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What carries the payload.
    pub fn transport(self) -> Transport {
        self.row().transport
    }

    /// Which end sends, and what it waits for before it sends again.
    pub fn pattern(self) -> Pattern {
        self.row().pattern
    }

    /// Message size where none was asked for, bytes.
    pub fn default_message_bytes(self) -> u32 {
        self.row().default_message_bytes
    }

    /// Unit of its rate.
    pub fn unit(self) -> Unit {
        match (self.pattern(), self.transport()) {
            (Pattern::Stream(_), Transport::Tcp) => Unit::Bits,
            (Pattern::Stream(_), Transport::Udp) => Unit::Datagrams,
            (Pattern::Requests, _) => Unit::Transactions,
            (Pattern::Connections, _) => Unit::Connections,
        }
    }

    /// Unit of the CPU time per unit of work.
    pub fn service_demand_unit(self) -> DemandUnit {
        match self.unit() {
            Unit::Bits | Unit::Microseconds => DemandUnit::PerKib,
            Unit::Datagrams => DemandUnit::PerDatagram,
            Unit::Transactions => DemandUnit::PerTransaction,
            Unit::Connections => DemandUnit::PerConnection,
        }
    }

    /// Whether it runs over TCP.
    pub fn is_tcp(self) -> bool {
        self.transport() == Transport::Tcp
    }

    /// Whether it is a byte stream: counted in bytes, whatever packets they are in.
    pub fn is_byte_stream(self) -> bool {
        self.is_tcp() && self.is_stream()
    }

    /// Whether one end sends without pause.
    pub fn is_stream(self) -> bool {
        matches!(self.pattern(), Pattern::Stream(_))
    }

    /// Whether it is requests on connections that stay, which can be kept under way in
    /// any number, and sent on a schedule.
    pub fn is_rr(self) -> bool {
        self.pattern() == Pattern::Requests
    }

    /// Whether each unit of work is timed.
    pub fn has_latency(self) -> bool {
        !self.is_stream()
    }

    /// Whether the client takes what is counted: answers, or what the server sends.
    pub fn is_counted_by_client(self) -> bool {
        self.has_latency() || self.direction() == Direction::Reverse
    }

    /// Whether payload goes this way.
    pub fn sends(self, direction: Direction) -> bool {
        match self.pattern() {
            Pattern::Stream(way) => way == direction,
            Pattern::Requests | Pattern::Connections => true,
        }
    }

    /// The way that the payload which is counted goes; of transactions, the requests'.
    pub fn direction(self) -> Direction {
        match self.pattern() {
            Pattern::Stream(way) => way,
            Pattern::Requests | Pattern::Connections => Direction::Forward,
        }
    }
}

impl Named for Workload {
    const WHAT: &'static str = "workload";
    const ALL: &'static [Self] = &WORKLOADS;

    fn name(self) -> &'static str {
        Workload::name(self)
    }
}

by_name!(Workload);

/// What is sought of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// What a workload comes to.
    Steady(Workload),
    /// The highest rates of `udp_stream` at which loss stays within its goals.
    DropPoint,
}

/// Every task: the workloads, then the search.
const TASKS: [Task; WORKLOADS.len() + 1] = {
    let mut all = [Task::DropPoint; WORKLOADS.len() + 1];
    let mut i = 0;
    while i < WORKLOADS.len() {
        all[i] = Task::Steady(WORKLOADS[i]);
        i += 1;
    }
    all
};

impl Task {
    /// Every task, in the order of the documentation.
    pub const ALL: [Task; TASKS.len()] = TASKS;

    /// Its name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Task::Steady(workload) => workload.name(),
            Task::DropPoint => "drop_point",
        }
    }

    /// The workload that is run, once or in trials.
    pub fn workload(self) -> Workload {
        match self {
            Task::Steady(workload) => workload,
            Task::DropPoint => Workload::UdpStream,
        }
    }
}

impl Named for Task {
    const WHAT: &'static str = "workload";
    const ALL: &'static [Self] = &TASKS;

    fn name(self) -> &'static str {
        Task::name(self)
    }
}

by_name!(Task);
