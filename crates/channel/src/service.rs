//! Services of a server.

/// Service of a server, requested by its clients. Each has its own protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Loads and counters, for `measure run`.
    Measure,
    /// Counts of packets by flow, for `watch --peer`.
    Watch,
}

impl Service {
    pub const ALL: [Service; 2] = [Service::Measure, Service::Watch];

    /// First bytes of a connection.
    pub(crate) fn magic(self) -> [u8; 8] {
        match self {
            Service::Measure => *b"overlane",
            Service::Watch => *b"ovlwatch",
        }
    }

    /// Protocol version. Both ends must have the same.
    pub fn version(self) -> u16 {
        match self {
            Service::Measure => 3,
            Service::Watch => 2,
        }
    }

    pub fn command(self) -> &'static str {
        match self {
            Service::Measure => "overlane measure serve",
            Service::Watch => "overlane watch --serve",
        }
    }
}
