//! Hops: the devices and processes on the path of traffic, and the counters that it advances.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Counters;

/// Counter of a device that traffic from client to server advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Received packets.
    Rx,
    /// Sent packets.
    Tx,
}

/// Source of a hop's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopKind {
    /// Counters of the link.
    Device,
    /// A process that terminates the traffic and originates it again. Its namespace has no other
    /// traffic, so the namespace's TCP, UDP and IP counters measure it.
    Process,
    /// A stage that is not a device and counts its packets itself.
    Stage,
}

/// Directions of the traffic over a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDirection {
    /// Traffic from client to server.
    Forward,
    /// Traffic from server to client.
    Reverse,
    /// Traffic of both directions together.
    Both,
}

/// Connections that take a hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connections {
    /// All.
    All,
    /// Established connections. Short ones cross the device and bypass the stage.
    Lasting,
    /// Connections of a few packets only.
    Short,
}

/// Traffic must bypass the hop. Its counter shows the traffic that did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bypass {
    /// Directions in which traffic must bypass the hop.
    pub way: TrafficDirection,
    /// Expected traffic on the hop: packets that the bypassing stage sent there.
    pub excused: Option<Meter>,
}

/// One hop of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Name of the test host or tenant.
    pub host: String,
    /// Name of the device or process.
    pub device: String,
    /// Counter of client-to-server traffic.
    pub forward: Side,
    /// Source of the counters.
    pub kind: HopKind,
    /// A program behind the hop that drops packets in user space, invisible to the kernel.
    pub program: Option<Program>,
    /// Counter of a stage.
    pub meter: Option<Meter>,
    /// Set if traffic must bypass the hop.
    pub bypass: Option<Bypass>,
    /// Connections that take the hop.
    pub connections: Connections,
}

/// Counts of a stage since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metered {
    /// Packets and bytes that it forwarded.
    pub carried: Counters,
    /// Packets that it left to another path, by reason.
    pub left: BTreeMap<String, u64>,
}

impl Metered {
    /// Returns the increments since `earlier`.
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

/// Reads the counts of a stage.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn() -> Metered + Send + Sync>);

impl Meter {
    /// Makes a meter from a function.
    pub fn new(read: impl Fn() -> Metered + Send + Sync + 'static) -> Meter {
        Meter(Arc::new(read))
    }

    /// Returns the counts until now.
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

/// A program that forwards packets and counts the packets it drops.
#[derive(Clone)]
pub struct Program {
    /// Name in charts (`copy loop`).
    pub name: String,
    dropped: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Program {
    /// Returns the packets dropped since its start.
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
    /// A device through which traffic to the server leaves `host`.
    pub fn tx(host: &str, device: &str) -> Hop {
        Hop::device(host, device, Side::Tx)
    }

    /// A device through which traffic to the server enters `host`.
    pub fn rx(host: &str, device: &str) -> Hop {
        Hop::device(host, device, Side::Rx)
    }

    /// A process in `host` that terminates the client's connection and opens its own to the server.
    pub fn process(host: &str, process: &str) -> Hop {
        Hop { kind: HopKind::Process, ..Hop::device(host, process, Side::Rx) }
    }

    /// The stage `name` in `host`, counted by `meter`.
    pub fn stage(host: &str, name: &str, forward: Side, meter: Meter) -> Hop {
        Hop { kind: HopKind::Stage, meter: Some(meter), ..Hop::device(host, name, forward) }
    }

    /// Marks the device as one that traffic must bypass.
    #[must_use]
    pub fn bypassed(self, way: TrafficDirection) -> Hop {
        Hop { bypass: Some(Bypass { way, excused: None }), ..self }
    }

    /// Marks the device as one that traffic must bypass, except for packets that `excused` has
    /// counted.
    #[must_use]
    pub fn bypassed_but_for(self, way: TrafficDirection, excused: Meter) -> Hop {
        Hop { bypass: Some(Bypass { way, excused: Some(excused) }), ..self }
    }

    /// Limits the hop to established connections. Short ones cross the device and bypass the stage.
    #[must_use]
    pub fn for_lasting_connections(self) -> Hop {
        Hop { connections: Connections::Lasting, ..self }
    }

    /// Limits the hop to short connections.
    #[must_use]
    pub fn for_short_connections(self) -> Hop {
        Hop { connections: Connections::Short, ..self }
    }

    /// Adds a program behind this hop. `dropped` returns the number of packets dropped since its
    /// start.
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
