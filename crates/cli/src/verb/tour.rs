//! `overlane tour`: builds an overlay, breaks it, finds the fault, fixes it and accelerates it, by
//! the commands that a user would type.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::args::Tour;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::print;
use crate::screen::line::wrap;

/// Name of the testbed.
const TESTBED: &str = "tour";
/// Width of the texts.
const COLUMNS: usize = 80;
/// How long the server may take to start.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A command of the tour, as it is shown: `TOKEN` and `JOURNAL` stand for files of the tour.
struct Step {
    title: &'static str,
    text: &'static str,
    commands: &'static [&'static str],
}

const MEASURE: &str = "overlane lab exec tenant-a -- overlane measure run 10.1.0.12 --token TOKEN \
                       --workloads tcp_stream,udp_rr --blocks 5 --duration 0.2";

const STEPS: &[Step] = &[
    Step {
        title: "Measure",
        text: "tenant-a on host a talks to tenant-b on host b through a VXLAN tunnel. This is a \
               healthy overlay.",
        commands: &[MEASURE],
    },
    Step {
        title: "Break it",
        text: "The classic mistake: the tenants' MTU is 1500, but VXLAN needs 50 bytes of it. Small \
               packets pass, full-size packets do not.",
        commands: &[
            "overlane lab exec tenant-a -- ip link set eth0 mtu 1500",
            "overlane lab exec tenant-b -- ip link set eth0 mtu 1500",
            "overlane lab exec tenant-a -- ping -c 2 -W 1 -s 56 10.1.0.12",
            "overlane lab exec tenant-a -- ping -c 2 -W 1 -s 1472 10.1.0.12",
        ],
    },
    Step {
        title: "Find the cause",
        text: "doctor reads the settings and counters of all namespaces, and names the cause first. \
               Without --netns, it reads those of your machine.",
        commands: &["overlane doctor --netns tenant-a,a,b,tenant-b"],
    },
    Step {
        title: "Fix it",
        text: "Every change is written to a journal before it is made, so `overlane undo` can take \
               it back.",
        commands: &[
            "overlane doctor fix OV015 --netns tenant-a,a,b,tenant-b --yes --journal JOURNAL",
            "overlane lab exec tenant-a -- ping -c 2 -W 1 -s 1422 10.1.0.12",
        ],
    },
    Step {
        title: "Accelerate it",
        text: "eBPF programs on both hosts now carry packets past bridge and VXLAN device. The \
               devices stay as they are.",
        commands: &[
            "overlane accel on --all --netns a",
            "overlane accel on --all --netns b",
            MEASURE,
        ],
    },
    Step {
        title: "Take everything back",
        text: "",
        commands: &[
            "overlane accel off --all --netns a",
            "overlane accel off --all --netns b",
            "overlane undo --all --journal JOURNAL",
        ],
    },
];

/// Runs the tour.
///
/// # Errors
/// A usage error without root; commands that cannot be started.
pub fn run(arguments: &Tour) -> anyhow::Result<Exit> {
    if !nix::unistd::geteuid().is_root() {
        return Err(usage("tour", "requires root: doctor fix and accel change network namespaces"));
    }
    let waits = !arguments.yes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let stop = interrupt::flag_that_waits()?;
    print(
        "This tour builds two hosts with a VXLAN overlay in network namespaces, breaks the overlay,\n\
         finds the fault, fixes it and accelerates it. It takes about two minutes. Nothing outside\n\
         these namespaces changes, and they are removed at the end. Each command is shown.\n",
    )?;
    let tour = Party::start(stop, waits)?;
    tour.go()
}

/// The tour in progress. Dropping it removes the testbed.
struct Party {
    /// Token and journal.
    directory: tempfile::TempDir,
    program: PathBuf,
    stop: Arc<AtomicBool>,
    /// Whether the user presses Enter before each step.
    waits: bool,
    server: Option<Child>,
    is_up: bool,
}

impl Party {
    fn start(stop: Arc<AtomicBool>, waits: bool) -> anyhow::Result<Party> {
        // As the directory of sockets has to be.
        let mode = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().permissions(mode).tempdir();
        let directory = directory.context("create a directory for the tour")?;
        let program = std::env::current_exe().context("find this program")?;
        Ok(Party { directory, program, stop, waits, server: None, is_up: false })
    }

    fn go(mut self) -> anyhow::Result<Exit> {
        let steps = STEPS.len() + 1;
        self.headline(1, steps, "Build", "Four namespaces: two hosts, and a tenant on each.")?;
        self.is_up = self.command(&format!("overlane lab up vxlan --name {TESTBED}"))?;
        if !self.is_up {
            return Ok(self.ended());
        }
        self.serve()?;
        for (at, step) in STEPS.iter().enumerate() {
            self.headline(at + 2, steps, step.title, step.text)?;
            for command in step.commands {
                if !self.stop.load(Ordering::Relaxed) {
                    self.command(command)?;
                }
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(self.ended());
                }
            }
        }
        print(
            "\nThe same on your machine: overlane doctor, overlane watch, overlane accel check.\n",
        )?;
        Ok(Exit::Done)
    }

    fn ended(&self) -> Exit {
        if self.stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Partly }
    }

    fn headline(&self, number: usize, of: usize, title: &str, text: &str) -> anyhow::Result<()> {
        print(&format!("\n── {number}/{of} {title} ──\n"))?;
        for line in wrap(text, COLUMNS) {
            print(&format!("{line}\n"))?;
        }
        if self.waits {
            print("[Enter] ")?;
            std::io::stdout().flush().context("write standard output")?;
            self.await_enter()?;
        }
        Ok(())
    }

    /// Waits for a line, the end of the input or Ctrl-C.
    fn await_enter(&self) -> anyhow::Result<()> {
        let input = std::io::stdin();
        while !self.stop.load(Ordering::Relaxed) {
            let mut one = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
            match poll(&mut one, PollTimeout::from(100_u8)) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => {
                    input.read_line(&mut String::new()).context("read standard input")?;
                    break;
                }
                Err(error) => return Err(error).context("wait for standard input"),
            }
        }
        Ok(())
    }

    /// Shows and runs a command. Returns whether it succeeded.
    fn command(&self, shown: &str) -> anyhow::Result<bool> {
        print(&format!("\n$ {shown}\n"))?;
        let mut command = self.parsed(shown);
        let status = command.stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("run {shown}"))?;
        Ok(status.success())
    }

    /// Builds the command of a line: `overlane` is this program.
    fn parsed(&self, line: &str) -> Command {
        let words = line.split_ascii_whitespace().map(|word| match word {
            "overlane" => self.program.clone(),
            "TOKEN" => self.token(),
            "JOURNAL" => self.directory.path().join("journal"),
            word => PathBuf::from(word),
        });
        let mut words = words.collect::<Vec<_>>().into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        // Testbeds and daemons of the user are not seen, nor their names taken.
        command.args(words).env(sys::runtime_dir::VARIABLE, self.directory.path());
        command
    }

    fn token(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    /// Starts the server of measurements in tenant-b, and waits until it is ready.
    fn serve(&mut self) -> anyhow::Result<()> {
        write_token(&self.token())?;
        let shown =
            "overlane lab exec tenant-b -- overlane measure serve --bind 0.0.0.0 --token TOKEN";
        print(&format!("\n$ {shown} &\n"))?;
        let ready = self.directory.path().join("ready");
        let output = std::fs::File::create(&ready).context("create a file for the server")?;
        let mut command = self.parsed(shown);
        let command = command.stdin(Stdio::null()).stdout(output);
        self.server = Some(command.spawn().with_context(|| format!("run {shown}"))?);
        let begin = Instant::now();
        while !std::fs::read_to_string(&ready).unwrap_or_default().contains("ready") {
            anyhow::ensure!(
                begin.elapsed() < START_LIMIT,
                "{shown}: not ready within {START_LIMIT:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // It may have ended with the terminal's Ctrl-C.
            let _ = kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGTERM);
            let _ = server.wait();
        }
        if self.is_up {
            // Best effort: its namespaces end with their processes in any case.
            let _ = self.command(&format!("overlane lab down {TESTBED}"));
        }
    }
}

/// Writes a random token that only this user can read.
fn write_token(path: &Path) -> anyhow::Result<()> {
    let mut random = [0_u8; 32];
    let mut source = std::fs::File::open("/dev/urandom").context("open /dev/urandom")?;
    source.read_exact(&mut random).context("read /dev/urandom")?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(path, token).context("write the token")?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).context("restrict the token to this user")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_tour_is_one_of_ours_or_well_known() {
        for step in STEPS {
            for command in step.commands {
                assert!(command.starts_with("overlane "), "{command}");
                assert!(!command.contains("  "), "{command}");
            }
        }
    }
}
