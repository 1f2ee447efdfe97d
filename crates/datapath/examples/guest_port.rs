//! Compares the cost of a guest's port over vhost-user and over TAP: a guest driver in a thread
//! sends through `tapbridge` to another guest. Prints frames per second at the receiver and CPU
//! time of the whole machine for each, as ratios to TAP in the same round.
//!
//! For vhost-user, the driver fills virtio rings as Linux does. For TAP, it replaces QEMU without
//! vhost: one `write` and one `read` per frame, with a bridge between its TAP device and the TAP
//! device of `tapbridge`. Neither includes other work of a guest's kernel: the ratios compare the
//! ports.
//!
//! `cargo run --release -p overlane-datapath --example guest_port [ROUNDS]`, as root.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapath::tapbridge::{Bridge, EngineChoice, Port, PortOptions, Running};
use datapath::vhost_user;
use datapath::vhost_user::features::{EVENT_INDEX, offered};
use datapath::vhost_user::{GuestPort, GuestPortOptions};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::tap::{Offload, Tap, TapOptions};
use testbed::Host;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

#[path = "../src/vhost_user/tests/guest.rs"]
#[allow(dead_code)]
mod guest;

use guest::{BUFFER, Driver, Guest, frame, gso_packet};

/// Entries of each ring, QEMU's default.
const SIZE: u16 = 256;

const SAMPLE: Duration = Duration::from_secs(1);
/// Time before counting starts.
const WARM_UP: Duration = Duration::from_millis(200);
/// Interval at which a waiting driver checks for the end of the sample.
const WAIT_MS: u16 = 20;
/// virtio's header without the fields of tunnels.
const HEADER: usize = 12;
/// Address of the sent frame in the guest's memory.
const SENT_AT: u64 = 4 << 20;
/// The endpoint's devices, one in each namespace.
const OWN: &str = "own0";
const BRIDGED: &str = "tap0";

/// The driver's end of a port.
enum End {
    Rings(Box<Guest>),
    Tap(Tap),
}

/// Two ends with `tapbridge` between them.
struct Bed {
    name: &'static str,
    ends: [End; 2],
    _running: Running,
    /// Namespaces of the devices, and the sockets' directory.
    _held: (Vec<Host>, tempfile::TempDir),
}

impl Bed {
    fn by_vhost_user(name: &'static str) -> Bed {
        let directory = tempfile::tempdir().expect("a directory for sockets");
        let paths = ["left", "right"].map(|name| directory.path().join(name));
        let port = |path: &Path| GuestPort::listen(&GuestPortOptions::at(path)).unwrap();
        let running = start(Bridge::new(port(&paths[0]), port(&paths[1]), None).unwrap());
        let all = offered(Offload::PLAIN, 1);
        assert!(all & EVENT_INDEX != 0);
        let ends = paths.map(|path| End::Rings(Box::new(Guest::up(&path, all, 1))));
        Bed { name, ends, _running: running, _held: (Vec::new(), directory) }
    }

    fn by_tap(name: &'static str) -> Bed {
        let hosts = ["left", "right"].map(|name| Host::new(name).unwrap());
        let [left, right] = hosts.each_ref().map(|host| {
            let port = Port::open(&PortOptions::named(BRIDGED), host.netns()).unwrap();
            let options = TapOptions { vnet_header: Some(HEADER), ..TapOptions::named(OWN) };
            let own = host.netns().run(|| Tap::open(&options)).unwrap().unwrap();
            own.negotiate_offload(Offload::PLAIN).unwrap();
            own.set_nonblocking(true).unwrap();
            host.bridge("bridge", 1500, &[BRIDGED, OWN]).unwrap();
            for device in [BRIDGED, OWN] {
                host.netlink().set_up(device).unwrap();
            }
            (port, own)
        });
        let running = start(Bridge::new(left.0, right.0, None).unwrap());
        let ends = [End::Tap(left.1), End::Tap(right.1)];
        let directory = tempfile::tempdir().expect("a directory");
        Bed { name, ends, _running: running, _held: (Vec::from(hosts), directory) }
    }

    /// Frames and machine's CPU seconds of a sample.
    fn sample(&mut self, header: [u8; HEADER], frame: &[u8]) -> Sample {
        let [left, right] = &mut self.ends;
        // Makes bridges learn the receiver's port.
        let mut back = frame.to_vec();
        back[..12].rotate_left(6);
        back.truncate(200);
        right.send_until([0; HEADER], &back, Some(1), &AtomicBool::new(false));
        let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| right.receive_until(frame.len(), &received, &stop));
            scope.spawn(|| left.send_until(header, frame, None, &stop));
            std::thread::sleep(WARM_UP);
            let (from, busy, begun) = (received.load(Ordering::Relaxed), busy(), Instant::now());
            std::thread::sleep(SAMPLE);
            let seconds = begun.elapsed().as_secs_f64();
            let frames = received.load(Ordering::Relaxed) - from;
            let spent = self::busy() - busy;
            stop.store(true, Ordering::Relaxed);
            Sample { rate: frames as f64 / seconds, cpu: spent / frames.max(1) as f64 }
        })
    }
}

/// Sample of a bed in a round.
#[derive(Clone, Copy)]
struct Sample {
    /// Frames a second.
    rate: f64,
    /// CPU seconds a frame.
    cpu: f64,
}

fn start(bridge: Bridge) -> Running {
    bridge.engine(EngineChoice::Auto).unwrap().start().unwrap()
}

/// CPU time that was not idle, of all CPUs, in seconds (proc(5), /proc/stat).
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
    let all = text.lines().next().expect("a line of all CPUs");
    let ticks: Vec<u64> = all.split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
    // user, nice, system, then idle and iowait, irq, softirq, steal.
    (ticks[..3].iter().sum::<u64>() + ticks[5..8].iter().sum::<u64>()) as f64 / 100.0
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags) {
    let _ = poll(&mut [PollFd::new(fd, flags)], PollTimeout::from(WAIT_MS));
}

impl End {
    /// Sends until `stop`, or the given number of frames.
    fn send_until(
        &mut self,
        header: [u8; HEADER],
        frame: &[u8],
        most: Option<u64>,
        stop: &AtomicBool,
    ) {
        let bytes = [&header[..], frame].concat();
        let goes_on = |sent| most.is_none_or(|most| sent < most) && !stop.load(Ordering::Relaxed);
        let mut sent = 0;
        match self {
            End::Tap(tap) => {
                while goes_on(sent) {
                    match tap.write(&bytes) {
                        Ok(_) => sent += 1,
                        Err(_) => wait(tap.as_fd(), PollFlags::POLLOUT),
                    }
                }
            }
            End::Rings(guest) => {
                let Guest { memory, rings, .. } = &mut **guest;
                memory.write_slice(&bytes, GuestAddress(SENT_AT)).unwrap();
                let ring = &mut rings[1];
                for index in 0..SIZE {
                    ring.descriptor(memory, index, (SENT_AT, bytes.len() as u32, 0, 0));
                }
                while goes_on(sent) {
                    if in_flight(ring) == SIZE && reap(ring, memory) == 0 {
                        // Like virtio_net: ask for an interrupt when three quarters are done.
                        wish(ring, memory, SIZE / 4 * 3);
                        if reap(ring, memory) == 0 {
                            wait(ring.call.as_fd(), PollFlags::POLLIN);
                            let _ = ring.call.read();
                        }
                        continue;
                    }
                    let head = ring.available % SIZE;
                    ring.offer(memory, head);
                    sent += 1;
                }
                // All frames are consumed before the next sample starts.
                while in_flight(ring) > 0 {
                    reap(ring, memory);
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Counts frames of this length until `stop`.
    fn receive_until(&mut self, length: usize, received: &AtomicU64, stop: &AtomicBool) {
        let mut buffer = vec![0; HEADER + 65_536 + 32];
        while !stop.load(Ordering::Relaxed) {
            match self {
                End::Tap(tap) => match tap.read(&mut buffer) {
                    Ok(read) => {
                        received.fetch_add((read == HEADER + length).into(), Ordering::Relaxed);
                    }
                    Err(_) => wait(tap.as_fd(), PollFlags::POLLIN),
                },
                End::Rings(guest) => {
                    let Guest { memory, rings, .. } = &mut **guest;
                    let ring = &mut rings[0];
                    // The first buffer's header has the number of buffers.
                    let buffers = (HEADER + length).div_ceil(BUFFER as usize) as u64;
                    let mut seen = 0;
                    while let Some((head, _)) = ring.used(memory) {
                        ring.offer(memory, head as u16);
                        seen += 1;
                    }
                    received.fetch_add(seen / buffers, Ordering::Relaxed);
                    if seen == 0 {
                        wait(ring.call.as_fd(), PollFlags::POLLIN);
                        let _ = ring.call.read();
                    }
                }
            }
        }
    }
}

/// Collects all used buffers without asking for an interrupt; returns their number.
fn reap(ring: &mut Driver, memory: &GuestMemoryMmap) -> u16 {
    let index: u16 = memory.load(GuestAddress(ring.used_at() + 2), Ordering::Acquire).unwrap();
    index.wrapping_sub(std::mem::replace(&mut ring.used, index))
}

/// Asks for an interrupt after `more` used buffers (`used_event`, virtio 1.2, 2.7.10).
fn wish(ring: &Driver, memory: &GuestMemoryMmap, more: u16) {
    let at = GuestAddress(ring.available_at() + 4 + 2 * u64::from(SIZE));
    memory.store(ring.used.wrapping_add(more - 1), at, Ordering::SeqCst).unwrap();
}

/// Chains that the device has not returned.
fn in_flight(ring: &Driver) -> u16 {
    ring.available.wrapping_sub(ring.used)
}

/// Returns the median, the minimum and the maximum.
fn median(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (below, above) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    ((below + above) / 2.0, sorted[0], sorted[sorted.len() - 1])
}

fn main() -> ExitCode {
    for missing in [test_support::need::root(), test_support::need::tun()] {
        if let Err(missing) = missing {
            eprintln!("{missing}");
            return ExitCode::FAILURE;
        }
    }
    let asked = std::env::args().nth(1).unwrap_or_else(|| "12".to_owned());
    let Some(rounds) = asked.parse().ok().filter(|rounds: &usize| *rounds > 0) else {
        eprintln!("usage: guest_port [ROUNDS]: expected 1 or more, got {asked:?}");
        return ExitCode::from(2);
    };
    let mut beds = [Bed::by_tap("TAP"), Bed::by_tap("TAP (A/A)"), Bed::by_vhost_user("vhost-user")];
    println!("{rounds} rounds of {SAMPLE:?}; ratios to TAP: median (smallest - largest)");
    let gso = gso_packet(65_000, 1448);
    for (what, header, frame) in [
        ("64-byte datagrams", [0; HEADER], frame(64)),
        ("GSO packets of 65,000 bytes", gso.0, gso.1),
    ] {
        println!("\n{what}\n{:<12} {:>9}  {:<22} CPU a frame", "", "frames/s", "frames");
        let mut samples = [const { Vec::<Sample>::new() }; 3];
        for round in 0..rounds {
            for at in 0..beds.len() {
                // Each bed comes first equally often.
                let at = (at + round) % beds.len();
                samples[at].push(beds[at].sample(header, &frame));
            }
        }
        for (bed, own) in beds.iter().zip(&samples) {
            let ratios = |of: fn(&Sample) -> f64| {
                let ratios: Vec<_> =
                    own.iter().zip(&samples[0]).map(|(own, tap)| of(own) / of(tap)).collect();
                let (middle, least, most) = median(&ratios);
                format!("{middle:.2} ({least:.2} - {most:.2})")
            };
            let rates: Vec<_> = own.iter().map(|sample| sample.rate).collect();
            println!(
                "{:<12} {:>9.0}  {:<22} {}",
                bed.name,
                median(&rates).0,
                ratios(|sample| sample.rate),
                ratios(|sample| sample.cpu)
            );
        }
    }
    ExitCode::SUCCESS
}
