//! Other people's load generators, driven over the same paths as the built-in
//! engine and held to the same account.
//!
//! [`run()`] starts a tool's server in the server's namespace and its client in the
//! client's, on the CPUs that the built-in engine's threads would have. It reads what the
//! tool prints, strictly: output of another form is an error that quotes it. [`can`] says
//! before a run what a tool cannot do, so that nothing is measured in its place. One file
//! per tool maps a load to its options, and its output to a [`Measured`].
//!
//! What is counted, and when:
//! - Warm-up is a run of the built-in engine over the same addresses. A broken path is
//!   therefore an error in the same words. What a tool does on top, such as the slow start
//!   of its connection, is within its own interval. sockperf discards its first 0.4 s by
//!   itself.
//! - The rate, the interval's length and losses are the tool's own figures, at
//!   its receiver.
//! - [`Watch`] brackets the client program's whole life. Counters and CPU time thus cover a
//!   little more than the tool's interval: starting, connecting, exchanging results, and
//!   what the tool discards. CPU time per unit of work is therefore taken over all that the
//!   tool moved ([`ToolReport::moved`]).
//! - Most tools take whole seconds: the interval is rounded up to them.
//!
//! The programs live in a process tree of their own ([`sys::init`]): they end
//! with the sample, and by any end of this process.

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

/// What a tool said of itself, besides what it measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolReport {
    /// As it prints it.
    pub version: String,
    /// The client's command line.
    pub command: String,
    /// Its own figures under its own names.
    pub figures: BTreeMap<String, f64>,
    /// Everything it moved between the watch's begin and end.
    pub moved: Moved,
}

/// Work done by a tool over its whole run, what it discards included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// In the workload's units ([`Measured::units`]).
    pub units: u64,
    /// Payload, bytes.
    pub payload_bytes: u64,
}

/// A load as a tool is asked for it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    workload: Workload,
    message_bytes: u32,
    flows: u32,
    outstanding: u32,
    gso: bool,
    scheduled: bool,
    buffer_bytes: Option<u32>,
    /// The client connects to another address or port than the server binds:
    /// only that one port leads to the server.
    published: bool,
    ipv6: bool,
}

/// One run's numbers: what both command lines are made of.
#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    load: &'a Load,
    target: SocketAddr,
    listen: SocketAddr,
    /// The port for traffic where the tool has one besides the server's; as
    /// many above it are free as the load has flows.
    data_port: u16,
    /// Seconds to send for.
    seconds: u64,
}

impl Job<'_> {
    /// A word of the command line.
    fn size(&self) -> String {
        self.load.message_bytes.to_string()
    }

    fn buffers(&self) -> Option<String> {
        self.load.socket_buffer_bytes.map(|bytes| bytes.to_string())
    }
}

/// Both command lines, the programs' names left out.
#[derive(Debug, PartialEq, Eq)]
struct Commands {
    server: Vec<String>,
    client: Vec<String>,
    /// How the server is seen to be ready.
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

/// Output of both programs of one run, from which figures are read.
#[derive(Debug, Clone, Copy)]
struct Printed<'a> {
    /// By the client, on its standard output.
    client: &'a str,
    /// By the server, where it is asked to end and to report; else empty.
    server: &'a str,
}

/// What was read of it.
#[derive(Debug)]
struct Outcome {
    measured: Measured,
    figures: BTreeMap<String, f64>,
    moved: Moved,
}

/// A tool that can be driven.
trait Driver: Sync {
    /// Client's and server's program, and the Debian package they are in.
    fn programs(&self) -> Programs;
    /// What speaks against a load, before anything is started.
    fn can(&self, wanted: &Wanted) -> Result<(), String>;
    /// Option that makes the client print its version, and what stands before it.
    fn version(&self) -> (&'static str, &'static str);
    /// Command lines of server and client, without the programs' names.
    fn commands(&self, job: &Job<'_>) -> Commands;
    /// Whether the server counts, and reports when it is interrupted.
    fn server_reports(&self, _load: &Load) -> bool {
        false
    }
    /// Reads what was printed.
    fn read(&self, job: &Job<'_>, printed: &Printed<'_>) -> Result<Outcome, Unexpected>;
}

/// Where a tool comes from.
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

/// Whether a tool can do what is asked, where the server binds `listen` and the
/// client connects to `target`.
///
/// # Errors
/// Why not: the tool lacks it, its minimum, or it is not installed.
pub fn can(tool: Tool, ask: &Ask, target: SocketAddr, listen: SocketAddr) -> Result<(), String> {
    if ask.task == Task::DropPoint {
        return Err("the search for NDR and PDR is the built-in engine's".to_owned());
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
    if wanted.gso {
        return Err(format!("{name} sends no UDP GSO packets here (--gso)"));
    }
    if wanted.scheduled {
        return Err(format!("{name} sends no requests on a schedule: it is a closed loop"));
    }
    let driver = driver(tool);
    driver.can(wanted)?;
    let Programs { client, server, install } = driver.programs();
    for program in [client, server] {
        if sys::program::find(program, &[]).is_none() {
            return Err(format!("{program} is not installed: {install}"));
        }
    }
    Ok(())
}

/// Runs a tool's load and measures it with the tool's own figures; see the
/// module's documentation for what is counted when.
///
/// # Errors
/// [`DriverError`]: what the tool cannot do, before anything is started; a
/// broken path; a tool that fails, hangs or prints something else. `Stopped`
/// within about 0.1 s of `stop` becoming true.
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

/// Refuses what only some tools do.
fn no_more_than_one(name: &str, wanted: &Wanted) -> Result<(), String> {
    if wanted.flows != 1 {
        return Err(format!("{name} runs one flow, {} are asked for", wanted.flows));
    }
    if wanted.outstanding != 1 {
        return Err(format!(
            "{name} keeps one request under way, {} are asked for",
            wanted.outstanding
        ));
    }
    Ok(())
}

/// Refuses a workload that the tool does not know.
fn workloads(name: &str, wanted: &Wanted, known: &[Workload]) -> Result<(), String> {
    if known.contains(&wanted.workload) {
        return Ok(());
    }
    let known: Vec<&str> = known.iter().map(|workload| workload.name()).collect();
    Err(format!("{name} has no {}; it has {}", wanted.workload, known.join(", ")))
}

/// Refuses a message size outside the tool's own range.
fn sizes(name: &str, wanted: &Wanted, least: u32, most: u32) -> Result<(), String> {
    if (least..=most).contains(&wanted.message_bytes) {
        return Ok(());
    }
    let workload = wanted.workload;
    Err(format!(
        "{name} sends {workload} in messages of {least} to {most} bytes, {} are asked for",
        wanted.message_bytes
    ))
}

/// Refuses a published port, through which a second one cannot be reached.
fn two_ports(name: &str, wanted: &Wanted) -> Result<(), String> {
    if wanted.published {
        return Err(format!(
            "{name} needs a port for control and another for traffic, and only one is published"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
