//! Drivers for external load generators, which run over the same paths as the built-in engine and
//! report in the same form.
//!
//! [`run()`] starts a tool's server in the server's namespace and its client in the client's, on
//! the CPUs that the built-in engine's threads would use. It parses the tool's output strictly:
//! an unknown format is an error that quotes the output. [`can`] says before a run what a tool
//! does not support, so that nothing else is measured instead. One file per tool maps a load to
//! its options, and its output to a [`Measured`].
//!
//! Counting:
//! - Warm-up is a run of the built-in engine over the same addresses, so a broken path gives the
//!   same error message. A tool's own start, such as the slow start of its connection, is within
//!   its interval. sockperf discards its first 0.4 s by itself.
//! - Rate, length of the interval and losses are the tool's own figures, at its receiver.
//! - [`Watch`] covers the client program's whole life. Counters and CPU time thus cover a little
//!   more than the tool's interval: start, connection, exchange of results, and discarded traffic.
//!   CPU time per unit is therefore based on everything that the tool moved
//!   ([`ToolReport::moved`]).
//! - Most tools accept whole seconds only: the interval is rounded up.
//!
//! The programs run in a process tree of their own ([`sys::init`]). They end with the sample, and
//! with this process.

mod error;
mod figures;
mod iperf3;
mod netperf;
mod nuttcp;
mod qperf;
mod session;
mod sockperf;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

pub use error::{DriverError, Unexpected};

use crate::ask::{Ask, Engine, Task, Tool};
use crate::{Ends, Load, Measured, Watch, Workload};

/// Report of a tool besides its measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolReport {
    /// Version, as printed.
    pub version: String,
    /// The client's command line.
    pub command: String,
    /// The tool's own figures by its own names.
    pub figures: BTreeMap<String, f64>,
    /// Everything it moved between the watch's begin and end.
    pub moved: Moved,
}

/// Work done by a tool over its whole run, discarded traffic included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// In the workload's units ([`Measured::units`]).
    pub units: u64,
    pub payload_bytes: u64,
}

/// Properties of a load that a tool must support.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    workload: Workload,
    message_bytes: u32,
    flows: u32,
    outstanding: u32,
    gso: bool,
    scheduled: bool,
    buffer_bytes: Option<u32>,
    /// The client connects to another address or port than the server binds, and only that port
    /// leads to the server.
    published: bool,
    ipv6: bool,
}

/// Values for both command lines of a run.
#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    load: &'a Load,
    target: SocketAddr,
    listen: SocketAddr,
    /// Port for traffic, if the tool uses one besides the server's. As many ports above it are
    /// free as the load has flows.
    data_port: u16,
    /// Duration of sending, seconds.
    seconds: u64,
}

impl Job<'_> {
    /// Returns the message size as an argument.
    fn size(&self) -> String {
        self.load.message_bytes.to_string()
    }

    fn buffers(&self) -> Option<String> {
        self.load.socket_buffer_bytes.map(|bytes| bytes.to_string())
    }
}

/// Both command lines, without the programs' names.
#[derive(Debug, PartialEq, Eq)]
struct Commands {
    server: Vec<String>,
    client: Vec<String>,
    /// Condition under which the server is ready.
    ready: Ready,
}

/// A socket of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// Listens on this TCP port.
    Tcp(u16),
    /// Has bound this UDP port.
    Udp(u16),
}

/// Output of both programs of a run.
#[derive(Debug, Clone, Copy)]
struct Printed<'a> {
    /// The client's standard output.
    client: &'a str,
    /// The server's output, if the server reports when interrupted; otherwise empty.
    server: &'a str,
}

/// Parsed output.
#[derive(Debug)]
struct ToolOutcome {
    measured: Measured,
    figures: BTreeMap<String, f64>,
    moved: Moved,
}

/// A supported external tool.
trait Driver: Sync {
    /// Returns the client's and the server's program, and their Debian package.
    fn programs(&self) -> Programs;
    /// Checks before a run whether the tool supports a load.
    fn can(&self, wanted: &Wanted) -> Result<(), String>;
    /// Returns the client's version option, and the text before the version.
    fn version(&self) -> (&'static str, &'static str);
    /// Returns the command lines of server and client, without the programs' names.
    fn commands(&self, job: &Job<'_>) -> Commands;
    /// Whether the server counts, and reports when it is interrupted.
    fn server_reports(&self, _load: &Load) -> bool {
        false
    }
    /// Parses the output.
    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<ToolOutcome, Unexpected>;
}

/// Programs and package of a tool.
#[derive(Debug, Clone, Copy)]
struct Programs {
    client: &'static str,
    server: &'static str,
    install: &'static str,
}

fn driver(tool: Tool) -> &'static dyn Driver {
    match tool {
        Tool::Iperf3 => &iperf3::Iperf3,
        Tool::Netperf => &netperf::Netperf,
        Tool::Qperf => &qperf::Qperf,
        Tool::Sockperf => &sockperf::Sockperf,
        Tool::Nuttcp => &nuttcp::Nuttcp,
    }
}

/// Checks whether a tool supports the request when the server binds `listen` and the client
/// connects to `target`.
///
/// # Errors
/// The reason: an unsupported feature, a limit, or a missing program.
pub fn can(tool: Tool, ask: &Ask, target: SocketAddr, listen: SocketAddr) -> Result<(), String> {
    // The search needs paced datagrams and their loss in each short trial.
    if ask.task == Task::DropPoint {
        return Err("only the built-in engine searches for NDR and PDR".to_owned());
    }
    if ask.dscp.is_some() {
        return Err("only the built-in engine marks packets (--dscp)".to_owned());
    }
    // Other tools neither mark datagrams nor report congestion marks.
    if ask.ecn {
        return Err("only the built-in engine checks and counts ECN (--ecn)".to_owned());
    }
    if ask.beside.is_some() {
        return Err("only the built-in engine sends bulk traffic beside (--beside)".to_owned());
    }
    // Rates of tools are paced differently, so their loss would not be comparable.
    if ask.rate_bits_per_s.is_some() {
        return Err("only the built-in engine sends at a given rate (--rate)".to_owned());
    }
    let wanted = Wanted {
        workload: ask.task.workload(),
        message_bytes: ask.message_bytes,
        flows: ask.flows,
        outstanding: ask.outstanding,
        gso: ask.gso,
        scheduled: ask.load_percent.is_some(),
        buffer_bytes: ask.socket_buffer_bytes,
        published: target != listen,
        ipv6: target.is_ipv6(),
    };
    check(tool, &wanted)
}

fn check(tool: Tool, wanted: &Wanted) -> Result<(), String> {
    let name = Engine::Tool(tool).name();
    // UDP_SEGMENT is an option of the built-in engine only.
    if wanted.gso {
        return Err(format!("{name} does not send UDP GSO packets (--gso)"));
    }
    if wanted.scheduled {
        return Err(format!("{name} does not send requests on a schedule: it is a closed loop"));
    }
    let driver = driver(tool);
    driver.can(wanted)?;
    let Programs { client, server, install } = driver.programs();
    // Checked last: for an unsupported load, installing the tool would not help.
    for program in [client, server] {
        // The mode is measured without this tool; the command to install it is shown.
        if sys::program::find(program, &[]).is_none() {
            return Err(format!("{program} is not installed: {install}"));
        }
    }
    Ok(())
}

/// Runs a tool's load and returns the tool's own figures. The module's documentation describes
/// how they are counted.
///
/// # Errors
/// [`DriverError`]: an unsupported load, before anything is started; a broken path; a tool that
/// fails, hangs or prints an unknown format. `Stopped` within about 0.1 s of `stop` becoming
/// true.
pub fn run(
    tool: Tool,
    load: &Load,
    ends: &Ends<'_>,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<(Measured, ToolReport), DriverError> {
    load.validate()?;
    let wanted = Wanted {
        workload: load.workload,
        message_bytes: load.message_bytes,
        flows: load.flows,
        outstanding: load.outstanding,
        gso: load.gso,
        scheduled: load.transactions_per_s.is_some() || load.datagrams_per_s.is_some(),
        buffer_bytes: load.socket_buffer_bytes,
        published: ends.target != ends.listen,
        ipv6: ends.target.is_ipv6(),
    };
    check(tool, &wanted)
        .map_err(|reason| DriverError::Unsupported { tool: Engine::Tool(tool).name(), reason })?;
    session::run(driver(tool), load, ends, watch, stop)
}

/// Refuses several flows or several requests in flight.
fn no_more_than_one(name: &str, wanted: &Wanted) -> Result<(), String> {
    // Several processes would start at different times.
    if wanted.flows != 1 {
        return Err(format!("{name} runs one flow, requested: {}", wanted.flows));
    }
    if wanted.outstanding != 1 {
        return Err(format!(
            "{name} keeps one request in flight, requested: {}",
            wanted.outstanding
        ));
    }
    Ok(())
}

/// Refuses a workload that the tool does not support.
fn workloads(name: &str, wanted: &Wanted, known: &[Workload]) -> Result<(), String> {
    if known.contains(&wanted.workload) {
        return Ok(());
    }
    let known: Vec<&str> = known.iter().map(|workload| workload.name()).collect();
    Err(format!("{name} does not support {}; it supports {}", wanted.workload, known.join(", ")))
}

/// Refuses a message size outside the tool's range.
fn sizes(name: &str, wanted: &Wanted, least: u32, most: u32) -> Result<(), String> {
    if (least..=most).contains(&wanted.message_bytes) {
        return Ok(());
    }
    let workload = wanted.workload;
    Err(format!(
        "{name} sends {workload} in messages of {least} to {most} bytes, requested: {}",
        wanted.message_bytes
    ))
}

/// Refuses a published port, since a second port is not reachable.
fn two_ports(name: &str, wanted: &Wanted) -> Result<(), String> {
    // The translation of a published port covers one port only.
    if wanted.published {
        return Err(format!(
            "{name} needs a port for control and another for traffic, and only one is published"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
