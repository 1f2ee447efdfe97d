//! A guest that runs this program once, and gives what came of it: what this machine's kernel
//! lacks is measured on another kernel by the same code.
//!
//! The guest has no NIC. Its first process ([`run`]) starts the program with the words
//! that it is told, and hands over the file that the program writes. Both sides say it in frames
//! on the guest's control port.

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

/// Name of the guest.
pub(crate) const NAME: &str = "guest";
/// Where the program writes its results in the guest.
const RESULTS: &str = "/tmp/results.json";
/// How often the guest says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long it may say nothing: a machine that is busy, or a guest that hangs.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// How often waiting looks at whether it should go on.
const TICK: Duration = Duration::from_millis(20);
/// MiB of the guest besides its file system: testbeds, daemons, samples.
const MEMORY: usize = 768;
/// Most CPUs of the guest: in software emulation each is a busy thread of this machine.
const MOST_CPUS: usize = 4;
/// Most bytes of results.
const MOST_RESULTS: usize = 256 << 20;
/// Lines of the program that are kept for the end of a message.
const LAST_LINES: usize = 4;

/// A guest that is up and waits for its words.
pub struct ExecGuest {
    // Fields are dropped in order: QEMU ends before what it runs in.
    running: Running,
    _tree: Processes,
    _host: Host,
    accelerator: Accelerator,
    said: Said,
}

/// What became of the program in the guest.
#[derive(Debug)]
pub struct Done {
    /// Exit status of the program, as a shell has it.
    pub status: i32,
    /// What it wrote; empty where it wrote nothing.
    pub results: Vec<u8>,
    /// The last lines that it printed to standard error.
    pub last_lines: Vec<String>,
}

/// Why nothing came of the program.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Not even that it is alive was heard from the guest. One in software emulation may stand
    /// still by QEMU's fault, which another one need not meet.
    #[error(transparent)]
    Silent(testbed::Error),
    /// Everything else, which another guest would meet, too.
    #[error(transparent)]
    Failed(#[from] testbed::Error),
}

impl ExecGuest {
    /// Boots a guest that has these modules of its kernel, programs and files besides overlane.
    ///
    /// # Errors
    /// No kernel; a module or program that is not there, by name; a guest that does not come up,
    /// with its console's last lines.
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

    /// What a reader has to know of the guest.
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

    /// Has the guest run this program with `arguments`, which has to take `--out`. `line` is told
    /// what it prints to standard error. When `stop` is set, the program is asked to end.
    ///
    /// # Errors
    /// A guest that ends, says nothing for too long, or says what it should not.
    pub fn run(
        mut self,
        arguments: &[String],
        stop: &AtomicBool,
        mut line: impl FnMut(&str),
    ) -> std::result::Result<Done, RunError> {
        let said: Vec<u8> =
            arguments.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        if said.len() > frame::LONGEST || arguments.iter().any(|word| word.contains('\0')) {
            return Err(self.failed(format!("{} bytes of arguments: too many", said.len())).into());
        }
        self.say(Kind::Arguments, &said)?;
        let mut done = Done { status: 0, results: Vec::new(), last_lines: Vec::new() };
        let mut asked = false;
        loop {
            let (kind, payload) = self.receive(stop, &mut asked)?;
            match kind {
                Kind::Alive => {}
                Kind::Line => {
                    let said = words(&payload);
                    line(&said);
                    done.last_lines.push(said);
                    let surplus = done.last_lines.len().saturating_sub(LAST_LINES);
                    done.last_lines.drain(..surplus);
                }
                Kind::Part if done.results.len() + payload.len() <= MOST_RESULTS => {
                    done.results.extend(payload);
                }
                Kind::Part => {
                    return Err(self
                        .failed(format!("results of over {MOST_RESULTS} bytes"))
                        .into());
                }
                Kind::Ended => {
                    self.say(Kind::Received, &[])?;
                    let status = payload.try_into().map(i32::from_le_bytes);
                    let wrong = |_| self.failed("an exit status that is none");
                    return Ok(Done { status: status.map_err(wrong)?, ..done });
                }
                Kind::Failed => return Err(self.failed(words(&payload)).into()),
                Kind::Arguments | Kind::Stop | Kind::Received => {
                    let said = format!("it says {kind:?}, which is for it to hear");
                    return Err(self.failed(said).into());
                }
            }
        }
    }

    fn failed(&self, reason: impl Into<String>) -> testbed::Error {
        not_started(&format!("command in guest {NAME}"), reason)
    }

    /// A small frame: the port takes it at once, or the guest does not read.
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
            if stop.load(Ordering::Relaxed) && !*asked {
                *asked = true;
                self.say(Kind::Stop, &[])?;
            }
            let Running { control, process, console, .. } = &mut self.running;
            match control.read(&mut buffer[filled..]) {
                // QEMU closes it when it ends, which it does when the guest panics.
                Ok(0) => return Err(ended(&part, &last_words(process), console).into()),
                Ok(length) => {
                    filled += length;
                    since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    process.check().map_err(|error| ended(&part, &error, console))?;
                    if since.elapsed() > SILENCE_LIMIT {
                        let silent = format!("it has said nothing for {SILENCE_LIMIT:.0?}");
                        let silent = not_started(&part, silent + &console.words());
                        return Err(RunError::Silent(silent));
                    }
                    std::thread::sleep(TICK);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(ended(&part, &last_words(process), console).into()),
            }
        }
        Ok(())
    }
}
