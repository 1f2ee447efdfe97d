//! Names from closed lists, as in files, arguments and reports.
//!
//! Each list is an enum. Its names are defined once, here or in [`crate::workload`], and used for
//! parsing, printing, JSON and the schema.

use std::fmt;

/// A type whose values have names.
pub trait Named: Copy + 'static {
    /// Kind of name (`workload`), for errors.
    const WHAT: &'static str;
    /// Every value, in the order of the documentation.
    const ALL: &'static [Self];

    /// Name in files and on the command line.
    fn name(self) -> &'static str;
}

/// An unknown name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {got:?}; known: {known}")]
pub struct UnknownName {
    /// Kind of name.
    pub what: &'static str,
    /// Known names, separated by commas.
    pub known: String,
    /// Unknown name.
    pub got: String,
}

/// Returns the value with this name.
///
/// # Errors
/// [`UnknownName`], which lists the known names.
pub fn parse<T: Named>(name: &str) -> Result<T, UnknownName> {
    T::ALL.iter().copied().find(|value| value.name() == name).ok_or_else(|| UnknownName {
        what: T::WHAT,
        known: T::ALL.iter().map(|value| value.name()).collect::<Vec<_>>().join(", "),
        got: name.to_owned(),
    })
}

/// Deserializes a name. The error for any other string lists the known names.
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
            /// Name in files and arguments.
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
    /// Why a run ended.
    EndedBy: "end of a run" {
        /// All requested blocks are done.
        Blocks = "blocks",
        /// Every interval reached the goal.
        Confidence = "confidence",
        /// More blocks would not change the verdict on the change on trial.
        Decided = "decided",
        /// The goal was not reached within the allowed blocks.
        MaxBlocks = "max_blocks",
        /// The goal would have needed far more blocks than allowed.
        OutOfReach = "out_of_reach",
        /// Ended by Ctrl-C or SIGTERM.
        Interrupted = "interrupted",
        /// An error ended it.
        Failed = "failed",
    }
}

names! {
    /// Rule for judging samples on a machine with other load.
    JudgedBy: "rule of disturbance" {
        /// Samples that stand out from the run's own background are repeated.
        Background = "background",
        /// Samples beyond a fixed limit are discarded.
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
    /// Privileges of a run.
    Privileges: "privileges" {
        /// Root, without its own user namespace.
        Root = "root",
        /// An ordinary user, root in its own user namespace.
        UserNamespace = "user-namespace",
        /// An ordinary user, without its own user namespace.
        User = "user",
    }
}

names! {
    /// CPUs of the client's and server's threads.
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
    /// How the link's NICs spread received packets.
    Steering: "steering" {
        /// veth's default: receive on the CPU that sent.
        None = "none",
        /// Each flow is received on one CPU of the receiving host's threads.
        Rss = "rss",
    }
}

names! {
    /// Offloads of the link's NICs.
    Profile: "offload profile" {
        /// TSO, GSO, tunnel segmentation, GRO.
        Full = "full",
        /// As full, without tunnel segmentation.
        NoTunnel = "no-tunnel",
        /// TSO, GSO, tunnel segmentation and GRO are all off.
        None = "none",
        /// Real NICs, with features as listed by the testbeds.
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
    /// Bulk traffic beside timed requests: one TCP connection in each of its directions.
    Beside: "bulk traffic" {
        /// The client sends.
        TcpStream = "tcp_stream",
        /// The server sends.
        TcpMaerts = "tcp_maerts",
        /// Both send at once.
        Both = "both",
    }
}

names! {
    /// Direction of traffic.
    Direction: "direction" {
        /// From client to server.
        Forward = "forward",
        /// From server to client.
        Reverse = "reverse",
    }
}

names! {
    /// Kind of a hop, and so the source of its counters.
    RecordKind: "kind of hop" {
        /// A device, by its link counters.
        Device = "device",
        /// A program that terminates the traffic.
        Process = "process",
        /// A stage that counts its own packets (a fast path).
        Stage = "stage",
        /// A device that must not carry the traffic.
        Bypassed = "bypassed",
    }
}

names! {
    /// Whether there is a figure.
    Status: "status" {
        /// Measured, and the path was verified for every figure.
        Ok = "ok",
        /// Tried, without any valid sample.
        Failed = "failed",
        /// This kernel or machine cannot build it.
        Unsupported = "unsupported",
    }
}

names! {
    /// Role of a cell.
    Role: "role" {
        /// Reference of every ratio of its offload, workload and size.
        Baseline = "baseline",
        /// The baseline measured again: its ratio is the noise floor (A/A).
        Aa = "aa",
        /// A mode under test.
        Measured = "measured",
    }
}

/// External load generators.
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

/// Source of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// The built-in load engine.
    Overlane,
    /// An external load generator, run as a program.
    Tool(DrivenTool),
}

impl Engine {
    /// Name in arguments and results.
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
