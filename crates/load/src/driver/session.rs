//! One run of a tool: warm-up, server, client, and clean-up.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use sys::init::Init;
use sys::netns::NetNs;
use sys::program::Program;

use super::{Driver, DriverError, Job, Printed, Ready, ToolOutcome, ToolReport};
use crate::{Ends, EngineError, Load, Measured, Watch, Workload};

/// Interval at which programs are checked.
const LOOK: Duration = Duration::from_millis(5);
/// Time limit of a tool besides its traffic and the load's set-up limit: starting, calibrating its
/// clock (sockperf: 2 s), waiting for stragglers (nuttcp's UDP: 2 s), exchanging results.
const OVERHEAD: Duration = Duration::from_secs(5);
/// Time limit of a program that only prints something.
const PROMPT: Duration = Duration::from_secs(5);

/// First port for tools with a configurable port, below the kernel's range of ephemeral ports.
const FIRST_PORT: u16 = 20_000;
/// End of that range, exclusive.
const LAST_PORT: u16 = 30_000;

/// Returns a port that no recent run has used, followed by `above` more. Not every server sets
/// `SO_REUSEADDR`, and connections of an earlier run may be in `TIME_WAIT`.
fn fresh_ports(above: u32) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = u16::try_from(above).unwrap_or(u16::MAX).saturating_add(1).min(2048);
    let start = NEXT.fetch_add(count, Ordering::Relaxed);
    FIRST_PORT + start % (LAST_PORT - FIRST_PORT - 2 * 2048)
}

pub(super) fn run(
    driver: &dyn Driver,
    load: &Load,
    ends: &Ends<'_>,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<(Measured, ToolReport), DriverError> {
    let published = ends.target != ends.listen;
    // The server's port, one for traffic, and one more per flow.
    let fresh = fresh_ports(load.flows + 1);
    let mut job = Job {
        load,
        target: ends.target,
        listen: ends.listen,
        data_port: fresh + 1,
        seconds: load.duration.as_secs_f64().ceil() as u64,
    };
    if !published {
        job.target.set_port(fresh);
        job.listen.set_port(fresh);
    }
    let tree = Init::start()?;
    let session = Session { driver, job, ends, tree: &tree, stop };
    let version = session.version()?;
    session.warm_up()?;
    session.measure(watch, version)
}

struct Session<'a> {
    driver: &'a dyn Driver,
    job: Job<'a>,
    ends: &'a Ends<'a>,
    tree: &'a Init,
    stop: &'a AtomicBool,
}

impl Session<'_> {
    /// Returns the client's version line.
    fn version(&self) -> Result<String, DriverError> {
        let (option, lead) = self.driver.version();
        let client = self.driver.programs().client;
        let mut program = self.start(self.ends.client, client, &[option.to_owned()], &[])?;
        self.await_end(&mut program, PROMPT)?;
        // Some tools exit with a failure, and some print to standard error.
        let printed = program.output();
        let line = printed.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        if line.starts_with(lead) && line.len() > lead.len() {
            return Ok(line.to_owned());
        }
        Err(DriverError::Output {
            version: format!("{client} {option}"),
            expected: format!("a line that begins with {lead:?}"),
            printed,
        })
    }

    /// Runs the built-in engine over the same addresses. This fills neighbour tables, FDB and
    /// conntrack, and separates a broken path from a broken tool.
    fn warm_up(&self) -> Result<(), DriverError> {
        let load = self.job.load;
        // Without warm-up the interval includes slow start, as requested.
        if load.warmup.is_zero() {
            return Ok(());
        }
        let warm =
            Load { duration: load.warmup, warmup: Duration::ZERO, outstanding: 1, ..load.clone() };
        match crate::run(&warm, self.ends, &mut (), self.stop) {
            Ok(_) => Ok(()),
            Err(EngineError::Stopped) => Err(DriverError::Stopped),
            // The path was too full for this load. The tool may still work.
            Err(EngineError::AllLost { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn measure(
        &self,
        watch: &mut dyn Watch,
        version: String,
    ) -> Result<(Measured, ToolReport), DriverError> {
        let load = self.job.load;
        let names = self.driver.programs();
        let commands = self.driver.commands(&self.job);
        // The CPUs that the same number of flows of the built-in engine would use.
        let of = |cpus: &[usize]| cpus[..cpus.len().min(load.flows as usize)].to_vec();
        let mut server =
            self.start(self.ends.server, names.server, &commands.server, &of(&load.server_cpus))?;
        self.await_server(&mut server, commands.ready)?;
        watch.begin();
        let mut client =
            self.start(self.ends.client, names.client, &commands.client, &of(&load.client_cpus))?;
        let limit = Duration::from_secs(self.job.seconds) + load.setup_limit + OVERHEAD;
        let status = self.await_end(&mut client, limit)?;
        watch.end();
        // The tool's output after a failure is not a result.
        if !status.success() {
            return Err(DriverError::Failed {
                command: client.command().to_owned(),
                status: status.to_string(),
                printed: client.output() + &server.output(),
            });
        }
        let mut said = String::new();
        if self.driver.server_reports(load) {
            server.interrupt();
            self.await_end(&mut server, PROMPT)?;
            said = server.stdout();
        }
        let printed = client.stdout();
        let outcome = self
            .driver
            .read(&self.job, &Printed { client: &printed, server: &said })
            .map_err(|unexpected| DriverError::Output {
                version: version.clone(),
                expected: unexpected.expected,
                printed: format!("{}{}{said}", client.stdout(), client.stderr()),
            })?;
        self.accept(outcome, version, client.command())
    }

    fn accept(
        &self,
        outcome: ToolOutcome,
        version: String,
        command: &str,
    ) -> Result<(Measured, ToolReport), DriverError> {
        let load = self.job.load;
        let ToolOutcome { mut measured, figures, moved } = outcome;
        let lost = measured.units == 0 && measured.sent_units > 0;
        // The warm-up has proved the path, so a flood without arrivals is a result.
        if lost && load.workload == Workload::UdpStream && !load.warmup.is_zero() {
            measured.notes.push(crate::NOTHING_ARRIVED.to_owned());
        } else if lost {
            // A rate of zero is no measurement of the path.
            let (sent, message_bytes) = (measured.sent_units, load.message_bytes);
            return Err(EngineError::AllLost { sent, message_bytes }.into());
        }
        if measured.seconds > 1.5 * load.duration.as_secs_f64() {
            // The same words for each sample, so that the run's warning appears once. Each sample
            // records its own seconds.
            measured.notes.push(format!(
                "{} accepts whole seconds only: its samples are longer than the requested {:?}",
                self.driver.programs().client,
                load.duration,
            ));
        }
        let report = ToolReport { version, command: command.to_owned(), figures, moved };
        Ok((measured, report))
    }

    fn start(
        &self,
        netns: &NetNs,
        program: &str,
        arguments: &[String],
        cpus: &[usize],
    ) -> Result<Program, DriverError> {
        let mut command = Command::new(program);
        // C locale: decimal points, and messages that the drivers know.
        command.args(arguments).env("LC_ALL", "C");
        Ok(Program::start(self.tree, netns, &mut command, cpus)?)
    }

    /// Waits until the server accepts its client.
    fn await_server(&self, server: &mut Program, ready: Ready) -> Result<(), DriverError> {
        let begun = Instant::now();
        let (path, port, state) = match ready {
            // tcp_states.h: TCP_LISTEN; an unconnected UDP socket is TCP_CLOSE.
            Ready::Tcp(port) => ("tcp", port, "0A"),
            Ready::Udp(port) => ("udp", port, "07"),
        };
        loop {
            // The server ended before it listened, so no client could connect.
            if let Some(status) = server.ended()? {
                return Err(DriverError::Failed {
                    command: server.command().to_owned(),
                    status: status.to_string(),
                    printed: server.output(),
                });
            }
            let bound = self.ends.server.run(|| {
                ["", "6"].iter().any(|family| {
                    let table = format!("/proc/thread-self/net/{path}{family}");
                    // Without IPv6 the kernel does not have the IPv6 table.
                    std::fs::read_to_string(table).is_ok_and(|text| is_bound(&text, port, state))
                })
            })?;
            if bound {
                return Ok(());
            }
            let limit = self.job.load.setup_limit;
            if begun.elapsed() >= limit {
                // A server that hangs would block the run for ever.
                return Err(DriverError::Hung {
                    command: server.command().to_owned(),
                    what: format!("does not listen on {} port {port}", path.to_uppercase()),
                    limit,
                    printed: server.output(),
                });
            }
            self.pause()?;
        }
    }

    fn await_end(
        &self,
        program: &mut Program,
        limit: Duration,
    ) -> Result<std::process::ExitStatus, DriverError> {
        let begun = Instant::now();
        loop {
            if let Some(status) = program.ended()? {
                return Ok(status);
            }
            if begun.elapsed() >= limit {
                // Dropping it kills the program.
                return Err(DriverError::Hung {
                    command: program.command().to_owned(),
                    what: "did not end".to_owned(),
                    limit,
                    printed: program.output(),
                });
            }
            self.pause()?;
        }
    }

    fn pause(&self) -> Result<(), DriverError> {
        // Ctrl-C must end the tool, too.
        if self.stop.load(Ordering::Relaxed) {
            return Err(DriverError::Stopped);
        }
        std::thread::sleep(LOOK);
        Ok(())
    }
}

/// Returns whether a socket table (`/proc/net/tcp`, proc(5)) has an entry in `state` with this
/// local port.
fn is_bound(table: &str, port: u16, state: &str) -> bool {
    let wanted = format!("{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|address| address.rsplit_once(':'));
        local.is_some_and(|(_, port)| port == wanted) && fields.nth(1) == Some(state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_distinguished_from_a_connected_one() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n   \
                     0: 020200C0:1B58 00000000:0000 0A 00000000:00000000 00:00000000\n   \
                     1: 020200C0:1B59 010200C0:1B58 01 00000000:00000000 00:00000000\n";
        assert!(is_bound(table, 7000, "0A"));
        assert!(!is_bound(table, 7001, "0A"));
        assert!(!is_bound(table, 7000, "07"));
        assert!(!is_bound("", 7000, "0A"));
    }

    #[test]
    fn ports_are_not_given_twice_in_a_row_and_stay_in_their_range() {
        let mut last = 0;
        for _ in 0..20_000 {
            let port = fresh_ports(1025);
            assert!((FIRST_PORT..LAST_PORT - 2048).contains(&port), "{port}");
            assert_ne!(port, last);
            last = port;
        }
    }
}
