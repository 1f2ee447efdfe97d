//! `overlane tapbridge` in the same way: the left tenant's bridge also has a TAP that sends
//! malformed frames with vnet headers of all kinds.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use packet::vnet_hdr::Layout;
use sys::tap::{Tap, TapOptions};
use test_support::Stop;
use testbed::{Host, mac};

use super::foreground::{Foreground, LIMIT, OVERLANE, path};
use super::noise::{Random, frame};
use super::traffic::{tcp, udp};
use super::tunnel::{flap, reached};
use super::underlay::address;
use super::watched::Watched;
use super::{PROGRESS, STEP};

/// Arguments of each life.
const LIVES: [&[&str]; 3] = [
    &["--engine", "epoll", "--busy-poll", "100"],
    &["--engine", "uring", "--queues", "2"],
    &["--no-offload=right"],
];

/// Runs lives for `duration`, each of [`LIVES`] for a part of it.
pub fn live(duration: Duration, random: &mut Random) {
    let start = Instant::now();
    for (index, arguments) in LIVES.into_iter().enumerate() {
        let end = start + duration * (index as u32 + 1) / LIVES.len() as u32;
        let mut life = Life::begin(arguments);
        let source = life.left.netns().run(|| noise_tap().unwrap()).unwrap();
        life.left.netlink().set_master("noise0", "br0").unwrap();
        life.left.netlink().set_up("noise0").unwrap();
        let stop = AtomicBool::new(false);
        let (mut printed, mut steps, mut sent) = (Instant::now(), 0, 0);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            let own = random.clone();
            let noise = scope.spawn(|| frames(&source, own, &stop));
            while steps < 2 || Instant::now() < end {
                let step = Instant::now();
                match random.below(3) {
                    0 => flap(&life.left, "tap0"),
                    1 => flap(&life.right, "tap0"),
                    _ => {}
                }
                life.traffic();
                for (received, fates) in life.counters() {
                    assert!(fates <= received && received - fates <= 256, "{received} {fates}");
                }
                life.watched.look();
                steps += 1;
                if printed.elapsed() > PROGRESS {
                    printed = Instant::now();
                    let summary = life.watched.summary();
                    eprintln!("tapbridge, life {index}: {steps} steps; {summary}");
                }
                let rest = STEP.saturating_sub(step.elapsed());
                std::thread::sleep(rest.min(end.saturating_duration_since(Instant::now())));
            }
            stop.store(true, Ordering::Relaxed);
            sent = noise.join().unwrap();
        });
        let received = life.settled();
        assert!(received[0] > 100 && received[1] > 100 && sent > 10, "{received:?}, {sent}");
        eprintln!(
            "tapbridge, life {index}: {arguments:?}, {steps} steps, {sent} malformed frames sent, \
             {received:?} received; {}",
            life.watched.summary()
        );
        life.end(index.is_multiple_of(2));
    }
}

/// Creates the TAP that sends malformed frames.
fn noise_tap() -> sys::Result<Tap> {
    let options =
        TapOptions { vnet_header: Some(Layout::V1.size()), ..TapOptions::named("noise0") };
    Tap::open(&options)
}

/// Writes malformed frames until `stop`. Returns the number that the kernel accepted.
fn frames(tap: &Tap, mut random: Random, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..5 {
            let mut header = vec![0; Layout::V1.size()];
            if random.below(2) == 0 {
                let length = header.len();
                header = random.bytes(length);
                header[0] = random.below(4) as u8;
                header[1] = [0, 1, 3, 4, 5][random.below(5)];
                // Otherwise nearly all would be refused.
                header[3] = 0;
                header[5] = random.below(6) as u8;
                (header[7], header[9]) = (0, 0);
            }
            header.extend(frame(&mut random));
            sent += u64::from(tap.write(&header).is_ok());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    sent
}

struct Life {
    left: Host,
    right: Host,
    program: Foreground,
    watched: Watched,
}

impl Life {
    fn begin(arguments: &[&str]) -> Life {
        let left = Host::with_ipv6("left").unwrap();
        let right = Host::with_ipv6("right").unwrap();
        let mut command = Command::new(OVERLANE);
        command.args(["tapbridge", "--left", "tap0", "--right", "tap0"]);
        command.args(["--left-netns", &path(&left), "--right-netns", &path(&right)]);
        command.args(arguments);
        let (program, ready) = Foreground::start(&left, command, None);
        assert!(ready.starts_with("ready: tap0 and tap0 are joined"), "{ready}");
        for host in [&left, &right] {
            host.netlink().set_mac("tap0", mac(host.name(), "tap0")).unwrap();
            host.netlink().set_up("tap0").unwrap();
        }
        left.bridge("br0", 1500, &["tap0"]).unwrap();
        for (host, device, last) in [(&left, "br0", 1), (&right, "tap0", 2)] {
            address(host, device, format!("fd09::{last}").parse().unwrap());
            address(host, device, [10, 9, 0, last].into());
        }
        let watched = Watched::new(program.child.id());
        Life { left, right, program, watched }
    }

    fn traffic(&self) {
        let (left, right) = (&self.left, &self.right);
        for (here, there) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            reached(left, there);
            tcp(left, right, there, there, 300_000);
            tcp(right, left, here, here, 300_000);
            udp(left, right, there, there, &[1, 64, 1400, 8000, 60_000]);
            udp(right, left, here, here, &[1, 64, 1400, 8000]);
        }
    }

    /// Received packets and their fates, for each direction.
    fn counters(&mut self) -> [(u64, u64); 2] {
        self.program.signal(Signal::SIGUSR1);
        [(), ()].map(|()| {
            let line = self.program.line();
            let after = |word: &str| {
                let Some((_, rest)) = line.split_once(word) else { return 0 };
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                digits.parse().unwrap()
            };
            (after(": received "), after("forwarded ") + after("answered ") + after("dropped "))
        })
    }

    /// Received packets of each direction once none is in flight; the kernel's counters agree.
    fn settled(&mut self) -> [u64; 2] {
        let sent = |host: &Host| host.netlink().link("tap0").unwrap().counters.tx_packets;
        testbed::poll("counters that add up", LIMIT, || {
            let counters = self.counters();
            let received = counters.map(|(received, _)| received);
            let same = counters.iter().all(|(received, fates)| received == fates)
                && received == [sent(&self.left), sent(&self.right)];
            Ok(if same { Ok(received) } else { Err(format!("{counters:?}")) })
        })
        .unwrap()
    }

    /// Ends it by a signal, or by removing one of its TAPs.
    fn end(mut self, asked: bool) {
        if asked {
            self.program.signal(Signal::SIGTERM);
        } else {
            self.right.netlink().delete_link("tap0").unwrap();
        }
        for _ in 0..2 {
            self.program.line();
        }
        assert_eq!(self.program.end(), Some(i32::from(!asked)));
    }
}
