//! Hops: the devices and processes that traffic crosses on its way, and which
//! of their counters it moves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Counters;

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
    /// A process that ends the traffic and starts it anew. Nothing else talks in its
    /// namespace, so the namespace's TCP, UDP and IP counters count it.
    Process,
    /// A stage of the path that is no device and counts what it carries itself.
    Stage,
}

/// Directions of the traffic over a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Traffic from client to server.
    Forward,
    /// Traffic from server to client.
    Reverse,
    /// Traffic of both directions together.
    Both,
}

/// Which connections a hop is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    /// All.
    All,
    /// Those that last. Short ones must cross the device, and take no stage.
    Lasting,
    /// Those of a few packets only.
    Short,
}

/// Traffic must pass the hop by: its counter shows what did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bypass {
    /// Directions of the traffic that must pass the hop by.
    pub way: Way,
    /// What came all the same, because the stage that passes the hop by sent it.
    pub excused: Option<Meter>,
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
    /// What counts a stage.
    pub meter: Option<Meter>,
    /// Whether traffic must pass it by.
    pub bypass: Option<Bypass>,
    /// Which connections it is for.
    pub connections: Connections,
}

/// What a stage has counted since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metered {
    /// Packets and bytes that it passed on.
    pub carried: Counters,
    /// Packets that it left to another way, by reason.
    pub left: BTreeMap<String, u64>,
}

impl Metered {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Metered) -> Metered {
        let before = |reason| earlier.left.get(reason).copied().unwrap_or(0);
        let left =
            self.left.iter().map(|(reason, now)| (reason, now.saturating_sub(before(reason))));
        Metered {
            carried: self.carried.since(&earlier.carried),
            left: left.filter(|(_, n)| *n > 0).map(|(reason, n)| (reason.clone(), n)).collect(),
        }
    }
}

/// Reads what a stage has counted.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn() -> Metered + Send + Sync>);

impl Meter {
    /// One that is read by `read`.
    pub fn new(read: impl Fn() -> Metered + Send + Sync + 'static) -> Meter {
        Meter(Arc::new(read))
    }

    /// What the stage has counted by now.
    pub fn read(&self) -> Metered {
        (self.0)()
    }
}

impl PartialEq for Meter {
    fn eq(&self, other: &Meter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Meter {}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
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
        Hop { kind: HopKind::Process, ..Hop::device(host, process, Side::Rx) }
    }

    /// The stage `name` in `host`, counted by `meter`.
    pub fn stage(host: &str, name: &str, forward: Side, meter: Meter) -> Hop {
        Hop { kind: HopKind::Stage, meter: Some(meter), ..Hop::device(host, name, forward) }
    }

    /// Traffic must pass this device by.
    #[must_use]
    pub fn bypassed(self, way: Way) -> Hop {
        Hop { bypass: Some(Bypass { way, excused: None }), ..self }
    }

    /// Traffic must pass this device by, but for what `excused` has counted as
    /// carried.
    #[must_use]
    pub fn bypassed_but_for(self, way: Way, excused: Meter) -> Hop {
        Hop { bypass: Some(Bypass { way, excused: Some(excused) }), ..self }
    }

    /// What the hop says is said of connections that last: short ones cross the device, and
    /// no stage.
    #[must_use]
    pub fn for_lasting_connections(self) -> Hop {
        Hop { connections: Connections::Lasting, ..self }
    }

    /// Only short connections take this hop.
    #[must_use]
    pub fn for_short_connections(self) -> Hop {
        Hop { connections: Connections::Short, ..self }
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
            meter: None,
            bypass: None,
            connections: Connections::All,
        }
    }
}
