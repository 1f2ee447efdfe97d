//! Consecutive lives of `overlane vtep`: random events, and invariants.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::Stop;
use testbed::{Host, NIC, mac};

use super::foreground::{Foreground, LIMIT, OVERLANE, path};
use super::noise::{self, Random};
use super::traffic::{tcp, udp};
use super::underlay::{End, VNI, address, join, peer, switch};
use super::watched::Watched;
use super::{PROGRESS, STEP};

/// Packets that may be in flight through the program while it is queried.
const UNDER_WAY: u64 = 1024;

/// Configuration of an endpoint during one life.
#[derive(Debug, Clone, Copy)]
pub struct Era {
    v6: bool,
    checksum: bool,
    hand_over: &'static str,
    engine: &'static str,
    queues: usize,
    suppress: bool,
    group: Option<&'static str>,
}

impl Era {
    pub const ALL: [Era; 4] = [
        Era {
            v6: false,
            checksum: true,
            hand_over: "tunnel-gso",
            engine: "epoll",
            queues: 1,
            suppress: false,
            group: None,
        },
        Era {
            v6: true,
            checksum: true,
            hand_over: "udp-segment",
            engine: "epoll",
            queues: 2,
            suppress: true,
            group: None,
        },
        Era {
            v6: true,
            checksum: true,
            hand_over: "tunnel-gso",
            engine: "uring",
            queues: 2,
            suppress: true,
            group: Some("ff15::10"),
        },
        Era {
            v6: false,
            checksum: false,
            hand_over: "udp-segment",
            engine: "epoll",
            queues: 1,
            suppress: false,
            group: Some("239.1.1.10"),
        },
    ];

    /// A peer that floods to the endpoint or to the group.
    fn peer(self, switch: &Host, name: &str, end: End) -> Host {
        let flood = self.group.map(|group| group.parse().unwrap());
        peer(switch, name, end, flood.unwrap_or(End::A.underlay(self.v6)), self.checksum)
    }
}

/// Totals over all lives.
#[derive(Debug, Default)]
pub struct Soaked {
    pub received: u64,
    forwarded: u64,
    answered: u64,
    pub dropped: BTreeMap<String, u64>,
    noise: u64,
    trickle: u64,
    events: BTreeMap<&'static str, u64>,
}

impl fmt::Display for Soaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} packets received, {} forwarded, {} answered, dropped {:?}; {} malformed and {} \
             plain datagrams sent beside the checked traffic; {:?}",
            self.received,
            self.forwarded,
            self.answered,
            self.dropped,
            self.noise,
            self.trickle,
            self.events
        )
    }
}

/// An endpoint, its tenant, its peers.
struct Life {
    era: Era,
    file: PathBuf,
    switch: Host,
    a: Host,
    b: Host,
    c: Option<Host>,
    tenant: Host,
    program: Foreground,
    watched: Watched,
}

/// Builds an endpoint with peers, and disturbs and checks it until `end`.
pub fn live(era: Era, index: usize, end: Instant, random: &mut Random, soaked: &mut Soaked) {
    let directory = tempfile::tempdir().unwrap();
    let mut life = Life::begin(era, directory.path().join("vtep.toml"));
    let noisy = join(&life.switch, "noisy", &[End::Known, End::Unknown]);
    let tenant = life.tenant.netns().clone();
    let stop = AtomicBool::new(false);
    let (mut printed, mut steps) = (Instant::now(), 0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (one, two) = (random.clone(), random.clone());
        let noise = scope.spawn(|| noise::datagrams(&noisy, era.v6, one, &stop));
        let trickle = scope.spawn(|| noise::trickle(&tenant, End::B, two, &stop));
        while steps < 2 || Instant::now() < end {
            let step = Instant::now();
            let event = life.happen(random);
            *soaked.events.entry(event).or_default() += 1;
            life.traffic();
            life.expect_counters(UNDER_WAY);
            life.watched.look();
            steps += 1;
            if printed.elapsed() > PROGRESS {
                printed = Instant::now();
                eprintln!("vtep, life {index}: {steps} steps; {}", life.watched.summary());
            }
            std::thread::sleep(
                STEP.saturating_sub(step.elapsed())
                    .min(end.saturating_duration_since(Instant::now())),
            );
        }
        stop.store(true, Ordering::Relaxed);
        soaked.noise += noise.join().unwrap();
        soaked.trickle += trickle.join().unwrap();
    });
    let status = life.settled();
    for direction in directions(&status) {
        let number = |key: &str| direction[key].as_u64().unwrap();
        soaked.received += number("received");
        soaked.forwarded += number("forwarded");
        soaked.answered += number("answered");
        for (reason, count) in direction["dropped"].as_object().unwrap() {
            *soaked.dropped.entry(reason.clone()).or_default() += count.as_u64().unwrap();
        }
    }
    eprintln!("vtep, life {index}: {era:?}, {steps} steps; {}", life.watched.summary());
    life.end(index.is_multiple_of(2));
}

fn directions(status: &Value) -> [&Value; 3] {
    let network = &status["networks"][0];
    [&network["to_wire"], &network["from_wire"], &status["of_no_network"]]
}

/// Received packets, and the sum of their fates.
fn sums(direction: &Value) -> (u64, u64) {
    let number = |value: &Value| value.as_u64().unwrap();
    let dropped: u64 = direction["dropped"].as_object().unwrap().values().map(number).sum();
    let fates = number(&direction["forwarded"]) + number(&direction["answered"]) + dropped;
    (number(&direction["received"]), fates)
}

impl Life {
    fn begin(era: Era, file: PathBuf) -> Life {
        let switch = switch();
        let a = join(&switch, "a", &[End::A]);
        let b = era.peer(&switch, "b", End::B);
        let tenant = Host::with_ipv6("tenant").unwrap();
        configure(&file, era, &tenant, false, "");
        let mut command = Command::new(OVERLANE);
        command.args(["vtep", "--config"]).arg(&file);
        let (program, ready) = Foreground::start(&a, command, None);
        assert!(ready.contains(&format!("hand-over {}", era.hand_over)), "{ready}");
        tenant.netlink().set_mac("tap0", mac("tenant", "tap0")).unwrap();
        for v6 in [true, false] {
            address(&tenant, "tap0", End::A.inner(v6).parse().unwrap());
        }
        let watched = Watched::new(program.child.id());
        Life { era, file, switch, a, b, c: None, tenant, program, watched }
    }

    /// Causes a random event; returns the log text that must follow.
    fn happen(&mut self, random: &mut Random) -> &'static str {
        match random.below(9) {
            0 => {
                // The namespace ends with its last holder, and with it the NIC on the switch.
                self.switch.netlink().delete_link("b").unwrap();
                self.b = self.era.peer(&self.switch, "b", End::B);
                "peers made anew"
            }
            1 => {
                self.c = match self.c.take() {
                    Some(_) => {
                        self.switch.netlink().delete_link("c").unwrap();
                        None
                    }
                    None => Some(self.era.peer(&self.switch, "c", End::C)),
                };
                self.reload("", "reloaded");
                "peers that came or went"
            }
            2 => {
                flap(&self.tenant, "tap0");
                "TAP down and up"
            }
            3 => {
                flap(&self.a, NIC);
                "NIC down and up"
            }
            4 => {
                flap(&self.b, "vxlan0");
                "peer's device down and up"
            }
            5 => {
                self.reload("ttl = 0", "not reloaded");
                self.reload("", "reloaded");
                "refused reloads"
            }
            6 => {
                for _ in 0..10 {
                    self.reload("", "reloaded");
                }
                "ten reloads at once"
            }
            7 => {
                let mut command = Command::new("ip");
                self.tenant.run(command.args(["neigh", "flush", "dev", "tap0"])).unwrap();
                "neighbours asked for anew"
            }
            _ => "nothing",
        }
    }

    fn reload(&mut self, more: &str, answer: &str) {
        configure(&self.file, self.era, &self.tenant, self.c.is_some(), more);
        self.program.signal(Signal::SIGHUP);
        let line = self.program.line();
        assert!(line.starts_with(answer), "{line}");
    }

    /// Checked traffic of every kind, both ways.
    fn traffic(&self) {
        let (tenant, b) = (&self.tenant, &self.b);
        for v6 in [false, true] {
            let (there, here) = (End::B.inner(v6), End::A.inner(v6));
            reached(tenant, &there);
            tcp(tenant, b, &there, &there, 300_000);
            tcp(b, tenant, &here, &here, 300_000);
            udp(tenant, b, &there, &there, &[1, 64, 1400, 8000, 60_000]);
            udp(b, tenant, &here, &here, &[1, 64, 1400, 8000]);
            if self.c.is_some() {
                reached(tenant, &End::C.inner(v6));
            }
        }
    }

    fn status(&self) -> Value {
        let mut command = Command::new(OVERLANE);
        command.args(["vtep", "status", "--json"]);
        let output = self.a.run(&mut command).unwrap();
        let mut all: Value = serde_json::from_str(&output).unwrap();
        all[0].take()
    }

    /// Every packet except those in flight has one fate.
    fn expect_counters(&self, under_way: u64) {
        let status = self.status();
        for direction in directions(&status) {
            let (received, fates) = sums(direction);
            assert!(fates <= received && received - fates <= under_way, "{direction}");
        }
        let network = &status["networks"][0];
        for (key, most) in [("learned", 2 * 256), ("neighbours_learned", 64)] {
            assert!(network[key].as_u64().unwrap() <= most, "{status}");
        }
    }

    /// The counters once no packet is in flight: they add up, and match the kernel's counters of
    /// the TAP.
    fn settled(&self) -> Value {
        let settled = testbed::poll("counters that add up", LIMIT, || {
            let before = self.tenant.netlink().link("tap0")?.counters;
            let status = self.status();
            let tap = self.tenant.netlink().link("tap0")?.counters;
            let [to_wire, from_wire, unassigned] = directions(&status);
            let number = |direction: &Value, key: &str| direction[key].as_u64().unwrap();
            let sent = number(from_wire, "handed_over") + number(to_wire, "answered");
            let same = [to_wire, from_wire, unassigned].iter().all(|d| {
                let (received, fates) = sums(d);
                received == fates
            }) && before == tap
                && number(to_wire, "received") == tap.tx_packets
                && sent == tap.rx_packets;
            Ok(if same { Ok(status) } else { Err(format!("{status} {tap:?}")) })
        });
        settled.unwrap()
    }

    /// Ends it by a signal, or by removing its TAP; it must leave nothing behind.
    fn end(mut self, asked: bool) {
        if asked {
            self.program.signal(Signal::SIGTERM);
        } else {
            self.tenant.netlink().delete_link("tap0").unwrap();
        }
        for _ in 0..3 {
            self.program.line();
        }
        assert_eq!(self.program.end(), Some(i32::from(!asked)));
        let links = self.a.netlink().links().unwrap();
        assert!(links.iter().all(|link| !link.name.starts_with("vtep")), "{links:?}");
    }
}

/// A device goes down and comes up again, with its addresses.
pub fn flap(host: &Host, device: &str) {
    host.netlink().set_down(device).unwrap();
    // Packets are on their way to it meanwhile.
    std::thread::sleep(STEP / 15);
    host.netlink().set_up(device).unwrap();
    host.settle().unwrap();
}

/// Waits until a ping is answered: restarted or new devices need time.
pub fn reached(host: &Host, target: &str) {
    testbed::poll(target, LIMIT, || {
        let mut command = Command::new("ping");
        command.args(["-n", "-c", "1", "-W", "1", target]);
        Ok(host.run(&mut command).map_err(|error| error.to_string()))
    })
    .unwrap();
}

fn configure(file: &PathBuf, era: Era, tenant: &Host, with_c: bool, more: &str) {
    let Era { v6, checksum, hand_over, engine, queues, suppress, group } = era;
    let ends: &[End] = if with_c { &[End::B, End::C, End::Known] } else { &[End::B, End::Known] };
    let all: Vec<_> = ends.iter().map(|end| end.underlay(v6).to_string()).collect();
    let flood = match group {
        Some(group) => format!("group = {group:?}"),
        None => format!("replicate = {:?}", &all[..all.len() - 1]),
    };
    let text = format!(
        "local = \"{}\"\nchecksum = {checksum}\nzero-checksum6 = {}\nhand-over = \
         \"{hand_over}\"\nengine = \"{engine}\"\nqueues = {queues}\n{more}\n[[network]]\nvni = \
         {VNI}\ntap = \"tap0\"\nnetns = \"{}\"\nremotes = {all:?}\n{flood}\nageing = \
         10\nmax-learned = 256\nneigh-suppress = {suppress}\nmax-neighbours = 64\n",
        End::A.underlay(v6),
        !checksum,
        path(tenant),
    );
    std::fs::write(file, text).unwrap();
}
