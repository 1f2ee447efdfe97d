//! Names from closed lists, as files, arguments and reports have them.
//!
//! Each list is an enum. Its names are written once, here or in [`crate::workload`]:
//! parsing, printing, JSON and the schema follow from them.

use std::fmt;

/// A type whose values have names.
pub trait Named: Copy + 'static {
    /// What is named (`workload`), for errors.
    const WHAT: &'static str;
    /// Every value, in the order of the documentation.
    const ALL: &'static [Self];

    /// The word that files and the command line have for it.
    fn name(self) -> &'static str;
}

/// A name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {got:?}; known: {known}")]
pub struct UnknownName {
    /// What was to be named.
    pub what: &'static str,
    /// Names that are known, separated by commas.
    pub known: String,
    /// The name that was given.
    pub got: String,
}

/// The value of this name.
///
/// # Errors
/// [`UnknownName`], with the list.
pub fn parse<T: Named>(name: &str) -> Result<T, UnknownName> {
    T::ALL.iter().copied().find(|value| value.name() == name).ok_or_else(|| UnknownName {
        what: T::WHAT,
        known: T::ALL.iter().map(|value| value.name()).collect::<Vec<_>>().join(", "),
        got: name.to_owned(),
    })
}

/// Reads a name; any other string is answered with the list.
pub(crate) struct Visitor<T>(pub(crate) std::marker::PhantomData<T>);

impl<T: Named> serde::de::Visitor<'_> for Visitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, got: &str) -> Result<T, E> {
        parse(got).map_err(|unknown: UnknownName| {
            let names: Vec<_> = T::ALL.iter().map(|value| format!("{:?}", value.name())).collect();
            let got = format!("{:?}", unknown.got);
            E::invalid_value(serde::de::Unexpected::Other(&got), &names.join(" or ").as_str())
        })
    }
}

/// Printing, parsing, JSON and schema of a [`Named`] type.
macro_rules! by_name {
    ($type:ty) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad($crate::names::Named::name(*self))
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::names::parse(name)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str($crate::names::Named::name(*self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str($crate::names::Visitor(std::marker::PhantomData))
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let all = <$type as $crate::names::Named>::ALL;
                let names: Vec<_> = all.iter().map(|value| value.name()).collect();
                schemars::json_schema!({ "type": "string", "enum": names })
            }
        }
    };
}
pub(crate) use by_name;

/// An enum whose values are names.
macro_rules! names {
    (
        $(#[$meta:meta])*
        $type:ident: $what:literal {
            $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl $type {
            /// Its name in files and arguments.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        impl Named for $type {
            const WHAT: &'static str = $what;
            const ALL: &'static [Self] = &[$($type::$variant),+];

            fn name(self) -> &'static str {
                $type::name(self)
            }
        }

        by_name!($type);
    };
}

names! {
    /// Why a run ended when it did.
    EndedBy: "end of a run" {
        /// All blocks that were asked for are done.
        Blocks = "blocks",
        /// Every interval is within the goal.
        Confidence = "confidence",
        /// More blocks would say nothing that matters of the change on trial.
        Decided = "decided",
        /// The goal was not met within the blocks allowed.
        MaxBlocks = "max_blocks",
        /// The goal would have needed far more blocks than were allowed.
        OutOfReach = "out_of_reach",
        /// Ended by Ctrl-C or SIGTERM.
        Interrupted = "interrupted",
        /// It could not go on.
        Failed = "failed",
    }
}

names! {
    /// What samples are judged by when others use the machine.
    JudgedBy: "rule of disturbance" {
        /// What stands out from the run's own background is taken once more.
        Background = "background",
        /// What is past a fixed limit is void.
        Strict = "strict",
    }
}

names! {
    /// How CPU time was counted.
    CpuClock: "CPU clock" {
        /// Scheduler and softirq trace points.
        Exact = "exact",
        /// `/proc/stat`, sampled by the timer interrupt.
        Tick = "tick",
    }
}

names! {
    /// As whom a run was made.
    Privileges: "privileges" {
        /// Root, without a user namespace of its own.
        Root = "root",
        /// An ordinary user, root in a user namespace of its own.
        UserNamespace = "user-namespace",
        /// An ordinary user, without a user namespace of its own.
        User = "user",
    }
}

names! {
    /// Where the threads of client and server run.
    PlacementPolicy: "placement" {
        /// Client and server on different CPUs.
        Split = "split",
        /// Client and server on one CPU.
        Same = "same",
        /// Not pinned: the kernel's scheduler decides.
        None = "none",
    }
}

names! {
    /// How the wire's NICs spread what they receive.
    Steering: "steering" {
        /// veth's own way: on the CPU that sent it.
        None = "none",
        /// Each flow to one CPU of the receiving host's threads.
        Rss = "rss",
    }
}

names! {
    /// What the NICs of the wire can do.
    Profile: "offload profile" {
        /// TSO, GSO, tunnel segmentation, GRO.
        Full = "full",
        /// As full, without tunnel segmentation.
        NoTunnel = "no-tunnel",
        /// TSO, GSO, tunnel segmentation and GRO are all off.
        None = "none",
        /// Real NICs, whose features the testbeds list.
        AsFound = "as-found",
    }
}

names! {
    /// Unit of a cell's figures.
    Unit: "unit" {
        /// Bits of payload per second.
        Bits = "bit/s",
        /// Datagrams received per second.
        Datagrams = "datagram/s",
        /// Requests answered per second.
        Transactions = "transaction/s",
        /// Connections opened, used and closed per second.
        Connections = "connection/s",
        /// Microseconds: a latency.
        Microseconds = "us",
    }
}

names! {
    /// Unit of CPU time per unit of work.
    DemandUnit: "unit of service demand" {
        /// Per KiB of payload.
        PerKib = "us/KiB",
        /// Microseconds of CPU time per datagram.
        PerDatagram = "us/datagram",
        /// Microseconds of CPU time per transaction.
        PerTransaction = "us/transaction",
        /// Microseconds of CPU time per connection.
        PerConnection = "us/connection",
    }
}

names! {
    /// Which way traffic goes.
    Direction: "direction" {
        /// From client to server.
        Forward = "forward",
        /// From server to client.
        Reverse = "reverse",
    }
}

names! {
    /// What a hop is, and so who counted it.
    RecordKind: "kind of hop" {
        /// A device, by its link counters.
        Device = "device",
        /// A program that terminates the traffic.
        Process = "process",
        /// Counted by itself (a fast path).
        Stage = "stage",
        /// A device that must not carry the traffic.
        Bypassed = "bypassed",
    }
}

names! {
    /// Whether there is a figure.
    Status: "status" {
        /// Measured, every figure with its proof.
        Ok = "ok",
        /// Tried, and no valid sample came of it.
        Failed = "failed",
        /// This kernel or machine cannot build it.
        Unsupported = "unsupported",
    }
}

names! {
    /// What a cell is for.
    Role: "role" {
        /// Every ratio of its offload, workload and size is taken to this cell.
        Baseline = "baseline",
        /// The baseline once more: its ratio is the noise floor (A/A).
        Aa = "aa",
        /// A mode under test.
        Measured = "measured",
    }
}

/// Load generators of others that can be driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrivenTool {
    /// <https://software.es.net/iperf/>
    Iperf3,
    /// <https://hewlettpackard.github.io/netperf/>
    Netperf,
    /// <https://github.com/linux-rdma/qperf>
    Qperf,
    /// <https://github.com/Mellanox/sockperf>
    Sockperf,
    /// <https://www.nuttcp.net>
    Nuttcp,
}

/// What makes the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// The built-in load engine.
    Overlane,
    /// A load generator of others, run as a program.
    Tool(DrivenTool),
}

impl Engine {
    /// Its name in arguments and results.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Overlane => "overlane",
            Engine::Tool(DrivenTool::Iperf3) => "iperf3",
            Engine::Tool(DrivenTool::Netperf) => "netperf",
            Engine::Tool(DrivenTool::Qperf) => "qperf",
            Engine::Tool(DrivenTool::Sockperf) => "sockperf",
            Engine::Tool(DrivenTool::Nuttcp) => "nuttcp",
        }
    }
}

impl Named for Engine {
    const WHAT: &'static str = "engine";
    const ALL: &'static [Self] = &[
        Engine::Overlane,
        Engine::Tool(DrivenTool::Iperf3),
        Engine::Tool(DrivenTool::Netperf),
        Engine::Tool(DrivenTool::Qperf),
        Engine::Tool(DrivenTool::Sockperf),
        Engine::Tool(DrivenTool::Nuttcp),
    ];

    fn name(self) -> &'static str {
        Engine::name(self)
    }
}

by_name!(Engine);
