//! A guest that runs this program once and returns its results. The same code thus measures
//! features that this machine's kernel lacks.
//!
//! The guest has no NIC. Its first process ([`run`]) starts the program with the arguments that
//! it receives, and sends back the results file, in frames on its control port.

mod frame;
mod inside;

use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testbed::{Host, Processes};

use super::console::words;
use super::initramfs;
use super::kernel::Kernel;
use super::not_started;
use super::qemu::{Accelerator, Boot, Running, accelerator, ended, last_words};
use crate::Result;
use crate::guest_files::Besides;
use crate::guest_in_force::Said;
use crate::guest_options::GuestOptions;
use frame::{HEAD, Kind};

pub use inside::run;

pub(crate) const NAME: &str = "guest";
/// Path of the program's results in the guest.
const RESULTS: &str = "/tmp/results.json";
/// Interval of the guest's alive messages.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Time limit without a message: the machine is overloaded, or the guest hangs.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// Interval at which waiting checks the stop flag.
const TICK: Duration = Duration::from_millis(20);
/// Memory of the guest, MiB, besides its file system: for testbeds, daemons and samples.
const MEMORY: usize = 768;
/// Maximum CPUs of the guest. In software emulation each is a busy thread of this machine.
const MOST_CPUS: usize = 4;
/// Maximum size of results, bytes.
const MOST_RESULTS: usize = 256 << 20;
/// Number of the program's last lines to keep for error messages.
const LAST_LINES: usize = 4;

/// A guest that is up and waits for its arguments.
pub struct ExecGuest {
    // Drop order: QEMU ends before its tree and host.
    running: Running,
    _tree: Processes,
    _host: Host,
    accelerator: Accelerator,
    said: Said,
}

/// Outcome of the program in the guest.
#[derive(Debug)]
pub struct Done {
    /// Exit status of the program, 128 + signal if killed.
    pub status: i32,
    /// Contents of its results file; empty if it wrote none.
    pub results: Vec<u8>,
    /// The last lines of its standard error.
    pub last_lines: Vec<String>,
}

/// Reason why the program has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The guest sent no message, not even that it is alive. In software emulation QEMU can hang;
    /// another guest may work.
    #[error(transparent)]
    Silent(testbed::Error),
    /// Any other failure, which another guest would hit, too.
    #[error(transparent)]
    Failed(#[from] testbed::Error),
}

impl ExecGuest {
    /// Boots a guest with these kernel modules, programs and files besides overlane.
    ///
    /// # Errors
    /// No kernel; a missing module or program, by name; a guest that does not boot, with the
    /// last lines of its console.
    pub(crate) fn start(modules: &[&str], besides: &Besides) -> Result<ExecGuest> {
        let part = format!("guest {NAME}");
        let kernel = Kernel::find().map_err(|missing| not_started(&part, missing.reason))?;
        let kernel = kernel.and(modules).map_err(|error| not_started(&part, error.to_string()))?;
        let accelerator = accelerator(&kernel)?;
        let (host, tree) = (Host::new(NAME)?, Processes::new()?);
        let initrd = initramfs::build(&kernel, besides)?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_CPUS);
        let options = GuestOptions { cpus: Some(cpus as u32), ..GuestOptions::AS_FOUND };
        let mut boot = Boot::new(&tree, &host, &kernel, &initrd)?;
        boot.memory += MEMORY;
        boot.options = options;
        boot.arguments = " --exec";
        let mut running = boot.start(&accelerator, NAME, &host, None)?;
        let said = running.up(super::qemu::BOOT_LIMIT)?;
        super::qemu::forget_files(&tree, &host)?;
        Ok(ExecGuest { running, _tree: tree, _host: host, accelerator, said })
    }

    /// Returns the note about the guest that is printed with the figures.
    pub fn note(&self) -> String {
        let Said { kernel, cpus, .. } = &self.said;
        let accelerator = match &self.accelerator {
            Accelerator::Kvm => "the guest runs under KVM".to_owned(),
            Accelerator::Tcg(reason) => {
                format!("TCG (the guest runs in software emulation; KVM: {reason})")
            }
        };
        format!("measured inside one guest: {accelerator}; guest kernel {kernel}, {cpus} CPUs")
    }

    /// Runs this program in the guest with `arguments`, which must accept `--out`. Calls `line` for
    /// each line of its standard error. When `stop` is set, asks the program to end.
    ///
    /// # Errors
    /// A guest that ends, is silent for too long, or violates the protocol.
    pub fn run(
        mut self,
        arguments: &[String],
        stop: &AtomicBool,
        mut line: impl FnMut(&str),
    ) -> std::result::Result<Done, RunError> {
        let said: Vec<u8> =
            arguments.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        // One frame holds all arguments, each terminated by a NUL.
        if said.len() > frame::LONGEST || arguments.iter().any(|word| word.contains('\0')) {
            return Err(self.failed(format!("{} bytes of arguments: too many", said.len())).into());
        }
        self.say(Kind::Arguments, &said)?;
        let mut done = Done { status: 0, results: Vec::new(), last_lines: Vec::new() };
        let mut asked = false;
        loop {
            let (kind, payload) = self.receive(stop, &mut asked)?;
            match kind {
                // It only shows that the guest is not silent.
                Kind::Alive => {}
                Kind::Line => {
                    let said = words(&payload);
                    line(&said);
                    done.last_lines.push(said);
                    let surplus = done.last_lines.len().saturating_sub(LAST_LINES);
                    done.last_lines.drain(..surplus);
                }
                // The guest is not trusted: bound its results.
                Kind::Part if done.results.len() + payload.len() <= MOST_RESULTS => {
                    done.results.extend(payload);
                }
                // The guest is not trusted: a results file of any size would fill this machine's
                // memory.
                Kind::Part => {
                    return Err(self.failed(format!("results exceed {MOST_RESULTS} bytes")).into());
                }
                Kind::Ended => {
                    self.say(Kind::Received, &[])?;
                    let status = payload.try_into().map(i32::from_le_bytes);
                    let wrong = |_| self.failed("malformed exit status");
                    return Ok(Done { status: status.map_err(wrong)?, ..done });
                }
                Kind::Failed => return Err(self.failed(words(&payload)).into()),
                // The guest is another version, or broken.
                Kind::Arguments | Kind::Stop | Kind::Received => {
                    let said = format!("unexpected frame {kind:?}, which only the host sends");
                    return Err(self.failed(said).into());
                }
            }
        }
    }

    fn failed(&self, reason: impl Into<String>) -> testbed::Error {
        not_started(&format!("command in guest {NAME}"), reason)
    }

    /// Writes a small frame. The port buffers it, so a failure means that the guest does not read.
    fn say(&mut self, kind: Kind, payload: &[u8]) -> Result<()> {
        frame::write(&mut self.running.control, kind, payload)
            .map_err(|error| self.failed(format!("write to its control port: {error}")))
    }

    fn receive(
        &mut self,
        stop: &AtomicBool,
        asked: &mut bool,
    ) -> std::result::Result<(Kind, Vec<u8>), RunError> {
        let mut head = [0; HEAD];
        self.fill(&mut head, stop, asked)?;
        let (kind, length) = frame::head(head).map_err(|error| self.failed(error.to_string()))?;
        let mut payload = vec![0; length];
        self.fill(&mut payload, stop, asked)?;
        Ok((kind, payload))
    }

    fn fill(
        &mut self,
        buffer: &mut [u8],
        stop: &AtomicBool,
        asked: &mut bool,
    ) -> std::result::Result<(), RunError> {
        let part = format!("guest {NAME}");
        let (mut filled, mut since) = (0, Instant::now());
        while filled < buffer.len() {
            // Ask once, then wait for the results so far.
            if stop.load(Ordering::Relaxed) && !*asked {
                *asked = true;
                self.say(Kind::Stop, &[])?;
            }
            let Running { control, process, console, .. } = &mut self.running;
            match control.read(&mut buffer[filled..]) {
                // QEMU closes the port when it ends, also after a panic of the guest.
                Ok(0) => return Err(ended(&part, &last_words(process), console).into()),
                Ok(length) => {
                    filled += length;
                    since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    process.check().map_err(|error| ended(&part, &error, console))?;
                    // A working guest sends a message every second.
                    if since.elapsed() > SILENCE_LIMIT {
                        let silent = format!("no message for {SILENCE_LIMIT:.0?}");
                        let silent = not_started(&part, silent + &console.words());
                        return Err(RunError::Silent(silent));
                    }
                    std::thread::sleep(TICK);
                }
                // A signal interrupted the call.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(ended(&part, &last_words(process), console).into()),
            }
        }
        Ok(())
    }
}
