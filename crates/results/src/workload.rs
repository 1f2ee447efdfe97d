//! The workloads: one row each with the properties that all parts of the program use.
//!
//! The crate `load` defines the traffic of a workload; its name, unit and presentation are defined
//! only here.

use crate::names::{DemandUnit, Direction, Named, Unit, by_name};

/// Largest payload of a UDP datagram over IPv4: 65535 minus 20 bytes of IP and 8 bytes of UDP
/// header. The limit holds for every workload, so that cells can be compared.
pub const MAX_MESSAGE_BYTES: u32 = 65507;

/// Traffic pattern of the flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// One connection per flow; the client sends continuously.
    TcpStream,
    /// One connection per flow; requests and responses alternate.
    TcpRr,
    /// One connection per transaction: connect, request, response, close.
    TcpCrr,
    /// One connection per flow; the server sends continuously.
    TcpMaerts,
    /// Datagrams from client to server, continuously.
    UdpStream,
    /// Request and response datagrams alternate.
    UdpRr,
}

/// Transport protocol of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadTransport {
    /// A byte stream: messages merge, lost data is sent again.
    Tcp,
    /// Datagrams: messages do not merge, and lost ones are not sent again.
    Udp,
}

/// Which end sends, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// One end sends continuously, in this direction; the other end counts.
    Stream(Direction),
    /// Requests and responses, timed, on persistent connections.
    Requests,
    /// One connection per request, timed.
    Connections,
}

/// Properties of one workload.
struct Row {
    workload: Workload,
    name: &'static str,
    transport: PayloadTransport,
    pattern: Pattern,
    /// Default message size, bytes.
    default_message_bytes: u32,
}

/// Defaults: 64 KiB limited to a UDP datagram for TCP streams, the smallest common packet for
/// `udp_stream`, one byte for transactions (as netperf).
const ROWS: &[Row] = &[
    Row {
        workload: Workload::TcpStream,
        name: "tcp_stream",
        transport: PayloadTransport::Tcp,
        pattern: Pattern::Stream(Direction::Forward),
        default_message_bytes: MAX_MESSAGE_BYTES,
    },
    Row {
        workload: Workload::TcpRr,
        name: "tcp_rr",
        transport: PayloadTransport::Tcp,
        pattern: Pattern::Requests,
        default_message_bytes: 1,
    },
    Row {
        workload: Workload::TcpCrr,
        name: "tcp_crr",
        transport: PayloadTransport::Tcp,
        pattern: Pattern::Connections,
        default_message_bytes: 1,
    },
    Row {
        workload: Workload::TcpMaerts,
        name: "tcp_maerts",
        transport: PayloadTransport::Tcp,
        pattern: Pattern::Stream(Direction::Reverse),
        default_message_bytes: MAX_MESSAGE_BYTES,
    },
    Row {
        workload: Workload::UdpStream,
        name: "udp_stream",
        transport: PayloadTransport::Udp,
        pattern: Pattern::Stream(Direction::Forward),
        default_message_bytes: 64,
    },
    Row {
        workload: Workload::UdpRr,
        name: "udp_rr",
        transport: PayloadTransport::Udp,
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
        // `row` indexes by the variant's number.
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

    /// Name in arguments and results (`tcp_stream`).
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Transport protocol of the payload.
    pub fn transport(self) -> PayloadTransport {
        self.row().transport
    }

    /// Which end sends, and when.
    pub fn pattern(self) -> Pattern {
        self.row().pattern
    }

    /// Default message size, bytes.
    pub fn default_message_bytes(self) -> u32 {
        self.row().default_message_bytes
    }

    /// Unit of its rate.
    pub fn unit(self) -> Unit {
        match (self.pattern(), self.transport()) {
            (Pattern::Stream(_), PayloadTransport::Tcp) => Unit::Bits,
            (Pattern::Stream(_), PayloadTransport::Udp) => Unit::Datagrams,
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
        self.transport() == PayloadTransport::Tcp
    }

    /// Whether it is a byte stream: counted in bytes, independent of packets.
    pub fn is_byte_stream(self) -> bool {
        self.is_tcp() && self.is_stream()
    }

    /// Whether one end sends continuously.
    pub fn is_stream(self) -> bool {
        matches!(self.pattern(), Pattern::Stream(_))
    }

    /// Whether it sends requests on persistent connections. These support any number of outstanding
    /// requests, and a schedule.
    pub fn is_rr(self) -> bool {
        self.pattern() == Pattern::Requests
    }

    /// Whether each unit of work is timed.
    pub fn has_latency(self) -> bool {
        !self.is_stream()
    }

    /// Whether the client receives the counted units: answers, or the server's data.
    pub fn is_counted_by_client(self) -> bool {
        self.has_latency() || self.direction() == Direction::Reverse
    }

    /// Whether payload flows in this direction.
    pub fn sends(self, direction: Direction) -> bool {
        match self.pattern() {
            Pattern::Stream(way) => way == direction,
            Pattern::Requests | Pattern::Connections => true,
        }
    }

    /// Direction of the counted payload; for transactions, of the requests.
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

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Measure a workload.
    Steady(Workload),
    /// Search the highest rates of `udp_stream` within the loss limits.
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

    /// The workload to run, once or in trials.
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
