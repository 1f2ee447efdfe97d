//! Hops: the devices and processes that traffic crosses on its way, and which
//! of their counters it moves.

use std::fmt;
use std::sync::Arc;

/// Which counter of a device the traffic from client to server moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It is received by the device.
    Rx,
    /// It is sent by the device.
    Tx,
}

/// What a hop is counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopKind {
    /// The link's own counters.
    Device,
    /// A process that ends the traffic and starts it anew; counted by the TCP,
    /// UDP and IP counters of its namespace, in which nothing else talks.
    Process,
}

/// One hop of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Name of the test host or tenant.
    pub host: String,
    /// Device name, or the process's.
    pub device: String,
    /// Where client-to-server traffic is counted.
    pub forward: Side,
    /// What it is counted by.
    pub kind: HopKind,
    /// What drops packets behind the hop in user space, out of the kernel's
    /// sight.
    pub program: Option<Program>,
}

/// A program that moves packets and counts those it drops.
#[derive(Clone)]
pub struct Program {
    /// Its name in figures (`copy loop`).
    pub name: String,
    dropped: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Program {
    /// Packets it has dropped since it began.
    pub fn dropped(&self) -> u64 {
        (self.dropped)()
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.dropped, &other.dropped)
    }
}

impl Eq for Program {}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Program").field(&self.name).finish()
    }
}

impl Hop {
    /// Traffic to the server leaves `host` by `device`.
    pub fn tx(host: &str, device: &str) -> Hop {
        Hop::device(host, device, Side::Tx)
    }

    /// Traffic to the server comes into `host` by `device`.
    pub fn rx(host: &str, device: &str) -> Hop {
        Hop::device(host, device, Side::Rx)
    }

    /// `process` in `host` ends the client's connection and makes its own to
    /// the server.
    pub fn process(host: &str, process: &str) -> Hop {
        Hop {
            host: host.to_owned(),
            device: process.to_owned(),
            forward: Side::Rx,
            kind: HopKind::Process,
            program: None,
        }
    }

    /// Packets cross the program `name` behind this hop; `dropped` says how many
    /// it has dropped since it began.
    #[must_use]
    pub fn before(self, name: &str, dropped: impl Fn() -> u64 + Send + Sync + 'static) -> Hop {
        let program = Program { name: name.to_owned(), dropped: Arc::new(dropped) };
        Hop { program: Some(program), ..self }
    }

    fn device(host: &str, device: &str, forward: Side) -> Hop {
        Hop {
            host: host.to_owned(),
            device: device.to_owned(),
            forward,
            kind: HopKind::Device,
            program: None,
        }
    }
}
