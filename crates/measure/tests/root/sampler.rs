//! The samplers against known loads: in private namespaces, as root.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use measure::sampler::{
    Attributed, CpuClock, Machine, MachineSample, Namespace, NamespaceSample, loss,
};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use pair::Pair;
use results::{CpuSeconds, Loss};
use sys::netns::NetNs;
use test_support::{need, require};
use testbed::{Host, Wire};

use crate::pair;

/// Long enough for some hundred timer ticks on each CPU.
const INTERVAL: Duration = Duration::from_millis(1500);

/// The sampler with the exact clock, or the reason for leaving out the test.
fn exact() -> Result<Machine, String> {
    let machine = Machine::open(true).unwrap();
    if machine.clock() == CpuClock::Exact {
        assert_eq!(machine.clock_reason(), None);
        return Ok(machine);
    }
    let reason = machine.clock_reason().expect("a reason for ticks");
    // In a strict run everything must be present, so a missing clock is a fault.
    let present = need::networks().is_ok()
        && sys::userns::in_initial_user_namespace()
        && std::path::Path::new("/sys/kernel/btf/vmlinux").exists()
        && !std::path::Path::new("/sys/kernel/realtime").exists();
    assert!(!present, "no exact clock: {reason}");
    Err(format!("no exact CPU clock: {reason}"))
}

/// Held by tests that compare two clocks: another test's load between the readings would be in one
/// clock only.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    Duration::from(time).as_secs_f64()
}

fn busy(cpu: &CpuSeconds) -> f64 {
    cpu.user + cpu.system + cpu.softirq + cpu.irq
}

fn total(cpu: &CpuSeconds) -> f64 {
    busy(cpu) + cpu.idle + cpu.steal
}

fn softirq_ticks() -> u64 {
    let stat = netstate::proc::ProcFile::open(netstate::cpu::PROC_STAT).unwrap();
    netstate::cpu::CpuStat::read(&stat).unwrap().total.softirq
}

/// Samples the same load with both clocks.
fn both(exact: &Machine, tick: &Machine, load: impl FnOnce()) -> (MachineSample, MachineSample) {
    let before = (tick.begin().unwrap(), exact.begin().unwrap());
    load();
    let after = (exact.end().unwrap(), tick.end().unwrap());
    (exact.difference(&before.1, &after.0), tick.difference(&before.0, &after.1))
}

fn socket(host: &Host, address: Ipv4Addr) -> UdpSocket {
    host.netns().run(|| UdpSocket::bind((address, 0))).unwrap().unwrap()
}

/// Sender in a, receiver in b, with no datagram in flight and ARP resolved.
fn sockets(pair: &Pair) -> (UdpSocket, UdpSocket) {
    let (sender, receiver) = (socket(&pair.a, Wire::A), socket(&pair.b, Wire::B));
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    // When the latest datagram arrives, the path is up, and delayed earlier ones have arrived.
    for attempt in 0..=u8::MAX {
        sender.send(&[attempt]).unwrap();
        let mut datagram = [0; 1];
        while receiver.recv(&mut datagram).is_ok() {
            if datagram[0] == attempt {
                return (sender, receiver);
            }
        }
    }
    panic!("nothing crosses the veth pair");
}

#[test]
fn all_time_of_all_cpus_is_charged_to_something() {
    let machine = require!(exact());
    let before = machine.begin().unwrap();
    std::thread::sleep(INTERVAL);
    let sample = machine.difference(&before, &machine.end().unwrap());
    let ratio = total(&sample.cpu) / (sample.seconds * sample.cpus as f64);
    assert!((0.99..1.01).contains(&ratio), "{ratio} of the time, {sample:?}");
    assert!(sample.seconds >= INTERVAL.as_secs_f64());
}

#[test]
fn a_spinning_thread_is_charged_as_a_task_in_user_mode() {
    let _alone = alone();
    let machine = require!(exact());
    let tick = Machine::open(false).unwrap();
    // The tick only samples: load in step with it, and ticks that the hypervisor swallowed, are not
    // faults of the exact clock. A fault of the exact clock would show every time.
    let agrees = (0..5).any(|_| {
        let mut spun = 0.0;
        let (exact, tick) = both(&machine, &tick, || {
            let (start, cpu) = (Instant::now(), thread_cpu_seconds());
            while start.elapsed() < INTERVAL {
                std::hint::spin_loop();
            }
            spun = thread_cpu_seconds() - cpu;
        });
        // The thread's own clock is exact, too, and includes interrupts on top of it.
        assert!(busy(&exact.cpu) > 0.95 * spun, "{spun} s spun, {exact:?}");
        assert!(exact.cpu.user > 0.5 * spun, "{spun} s spun, {exact:?}");
        // Shares, as the two intervals are not quite the same.
        let ratio = exact.busy_share() / tick.busy_share();
        eprintln!("ratio {ratio}: {exact:?} {tick:?}");
        (0.85..1.18).contains(&ratio)
    });
    assert!(agrees, "the two clocks never agreed");
}

#[test]
fn datagrams_over_veth_are_charged_as_softirq() {
    let _alone = alone();
    let machine = require!(exact());
    let tick = Machine::open(false).unwrap();
    let pair = Pair::new();
    let (sender, receiver) = sockets(&pair);
    let stop = AtomicBool::new(false);
    let (exact, tick) = both(&machine, &tick, || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = receiver.recv(&mut [0; 64]);
                }
            });
            // Until some hundred ticks fell into softirqs.
            let (start, deadline) = (softirq_ticks(), Instant::now() + Duration::from_secs(120));
            while softirq_ticks() < start + netstate::cpu::user_hz() / 2 {
                assert!(Instant::now() < deadline, "no softirqs");
                for _ in 0..1000 {
                    // Dropped at the receiver or refused here: both are load.
                    let _ = sender.send(&[0; 64]);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
    assert!(exact.softnet_processed > 1000, "{exact:?}");
    // No CPU processes a packet in IP and UDP in less than 100 ns.
    assert!(exact.cpu.softirq > 1e-7 * exact.softnet_processed as f64, "{exact:?}");
    // Wide: the tick only samples softirqs.
    let share = |cpu: &CpuSeconds| cpu.softirq / total(cpu);
    let ratio = share(&exact.cpu) / share(&tick.cpu);
    assert!((0.5..2.0).contains(&ratio), "ratio {ratio}: {exact:?} {tick:?}");
    let ratio = total(&exact.cpu) / (exact.seconds * exact.cpus as f64);
    assert!((0.99..1.01).contains(&ratio), "{ratio} of the time, {exact:?}");
}

#[test]
fn without_preference_ticks_are_used_and_say_so() {
    let machine = Machine::open(false).unwrap();
    assert_eq!(machine.clock(), CpuClock::Tick);
    let record = machine.record(results::Privileges::Root, 0.25).unwrap();
    assert_eq!((record.cpu_clock.name(), record.idle_load), ("tick", 0.25));
    assert_eq!(record.cpu_clock_reason.as_deref(), Some("not requested"));
    assert!(record.cpus > 0);
    let idle = machine.idle_load(Duration::from_millis(200), || true).unwrap();
    assert!((0.0..=1.0).contains(&idle), "{idle}");
}

/// The test that starts itself as another user.
const ORDINARY: &str = "sampler::an_ordinary_user_gets_ticks_with_a_reason_and_every_other_figure";

#[test]
fn an_ordinary_user_gets_ticks_with_a_reason_and_every_other_figure() {
    if std::env::var_os("OVERLANE_TEST_ORDINARY").is_some() {
        return as_an_ordinary_user();
    }
    require!(need::networks());
    let initial = sys::userns::in_initial_user_namespace();
    require!(need::that(initial, "a user namespace has no other user to become"));
    // The build directory may not be readable for other users, but the program is then.
    let directory = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir()
        .unwrap();
    let program = directory.path().join("sampler");
    test_support::install(&std::fs::read("/proc/self/exe").unwrap(), &program);
    let output = Command::new(&program)
        .args(["--exact", ORDINARY, "--nocapture"])
        .env("OVERLANE_TEST_ORDINARY", "1")
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

/// Run by the test above as another user.
fn as_an_ordinary_user() {
    let machine = Machine::open(true).unwrap();
    assert_eq!(machine.clock(), CpuClock::Tick);
    let reason = machine.clock_reason().unwrap();
    assert!(reason.contains("CAP_BPF"), "{reason}");
    let before = machine.begin().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let sample = machine.difference(&before, &machine.end().unwrap());
    assert!(total(&sample.cpu) > 0.0, "{sample:?}");
    let here = Namespace::open_in(&NetNs::current().unwrap(), "here");
    // The own namespace need not be entered, which requires privileges.
    assert!(here.is_ok(), "{here:?}");
}

/// A spinning process whose parent has ended.
struct Orphan(nix::unistd::Pid);

impl Orphan {
    fn start() -> Orphan {
        let shell = "sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!";
        let output = Command::new("sh").args(["-c", shell]).output().unwrap();
        let pid = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        Orphan(nix::unistd::Pid::from_raw(pid))
    }
}

/// A Python program in a host whose parent has ended.
fn orphan_in(host: &Host, program: &str) -> Result<Orphan, String> {
    need::tool("python3")?;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flood.py");
    std::fs::write(&file, program).unwrap();
    let shell = format!("python3 {} >/dev/null 2>&1 & echo $!", file.display());
    let started = host.netns().run(|| Command::new("sh").args(["-c", &shell]).output());
    let output = started.unwrap().unwrap();
    let pid = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let orphan = Orphan(nix::unistd::Pid::from_raw(pid));
    // The file is read before any CPU time is used.
    while orphan.seconds() < 0.2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(orphan)
}

impl Orphan {
    /// CPU time it has used.
    fn seconds(&self) -> f64 {
        let processes = netstate::process::Processes::read().unwrap();
        let ticks = processes.by_pid[&self.0.as_raw().cast_unsigned()].ticks;
        ticks as f64 / netstate::cpu::user_hz() as f64
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(self.0, nix::sys::signal::Signal::SIGKILL);
    }
}

#[test]
fn other_processes_load_is_seen_until_they_are_declared_ours() {
    let orphan = Orphan::start();
    let strange = Machine::open(false).unwrap();
    let mut adopting = Machine::open(false).unwrap();
    adopting.add_own_process(orphan.0.as_raw().cast_unsigned());
    // Both over the same interval, because other programs use this machine, and until the orphan
    // has used a second of CPU time.
    let before = (strange.begin().unwrap(), adopting.begin().unwrap());
    let used = || orphan.seconds();
    let (start, deadline) = (used(), Instant::now() + Duration::from_secs(120));
    while used() < start + 1.0 {
        assert!(Instant::now() < deadline, "the orphan gets no CPU");
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = (strange.end().unwrap(), adopting.end().unwrap());
    let strange = strange.difference(&before.0, &after.0);
    let adopting = adopting.difference(&before.1, &after.1);
    let seconds = |s: &MachineSample| s.disturbance.other_share * s.seconds * s.cpus as f64;
    let orphans = seconds(&strange) - seconds(&adopting);
    // Half of it, because the two intervals differ by some milliseconds of other load.
    assert!(orphans > 0.5, "{orphans} s: {strange:?} {adopting:?}");
}

#[test]
fn time_of_the_load_is_its_own_whatever_else_runs() {
    let machine = require!(exact());
    let orphan = Orphan::start();
    let mut adopting = require!(exact());
    adopting.add_own_process(orphan.0.as_raw().cast_unsigned());
    let before = (machine.begin().unwrap(), adopting.begin().unwrap());
    let (mine, orphans) = (thread_cpu_seconds(), orphan.seconds());
    // Until both have used CPU time.
    let deadline = Instant::now() + Duration::from_secs(120);
    while thread_cpu_seconds() < mine + 0.5 || orphan.seconds() < orphans + 1.0 {
        assert!(Instant::now() < deadline, "no CPU");
        (0..10_000).for_each(|_| std::hint::spin_loop());
    }
    let after = (machine.end().unwrap(), adopting.end().unwrap());
    let used = thread_cpu_seconds() - mine;
    let load = |machine: &Machine, before, after| match machine.difference(before, after).attributed
    {
        Attributed::Load(seconds) => seconds,
        Attributed::Unknown(reason) => panic!("{reason}"),
    };
    let own = load(&machine, &before.0, &after.0);
    let with_orphan = load(&adopting, &before.1, &after.1);
    // Both contain packets of other tests by interrupt and kernel threads, because no background
    // was learned before.
    assert!(own > 0.8 * used, "{own} s of {used} s used");
    assert!(with_orphan - own > 0.8, "{own} s, with the orphan {with_orphan} s");
}

#[test]
fn datagrams_count_for_the_task_that_sends_them() {
    let mut machine = require!(exact());
    let pair = Pair::new();
    let (sender, receiver) = sockets(&pair);
    // A program outside of this process's tree floods the same path.
    let to = receiver.local_addr().unwrap();
    let flood = format!(
        "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.connect(({:?},{}))\n\
         while True:\n  try: s.send(b'x'*64)\n  except OSError: pass",
        to.ip().to_string(),
        to.port(),
    );
    let orphan = require!(orphan_in(&pair.a, &flood));
    let pid = orphan.0.as_raw().cast_unsigned();
    let measured = |machine: &Machine| {
        let before = machine.begin().unwrap();
        let start = orphan.seconds();
        let deadline = Instant::now() + Duration::from_secs(120);
        while orphan.seconds() < start + 1.0 {
            assert!(Instant::now() < deadline, "no CPU");
            sender.send(&[0; 64]).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        match machine.difference(&before, &machine.end().unwrap()).attributed {
            Attributed::Load(seconds) => seconds,
            Attributed::Unknown(reason) => panic!("{reason}"),
        }
    };
    let strange = measured(&machine);
    machine.add_own_process(pid);
    let adopted = measured(&machine);
    // Its softirqs count for it: a second of CPU time as the kernel counts it includes both.
    assert!(adopted - strange > 0.5, "{strange} s as another program's, {adopted} s as its own");
}

#[test]
fn datagrams_lost_at_a_full_socket_buffer_are_all_attributed_to_it() {
    require!(need::networks());
    let pair = Pair::new();
    let (sender, receiver) = sockets(&pair);
    setsockopt(&receiver, sockopt::RcvBuf, &4096).unwrap();
    let machine = Machine::open(false).unwrap();
    let namespaces = [
        Namespace::open_in(pair.a.netns(), "tenant-a").unwrap(),
        Namespace::open_in(pair.b.netns(), "tenant-b").unwrap(),
    ];
    let before = machine.begin().unwrap();
    let snapshots = namespaces.each_ref().map(|n| n.snapshot().unwrap());
    for _ in 0..200 {
        sender.send(&[0; 512]).unwrap();
    }
    let mut received = 0;
    // ksoftirqd may deliver late, so wait until each datagram is read or dropped.
    let deadline = Instant::now() + Duration::from_secs(10);
    let samples = loop {
        while receiver.recv(&mut [0; 512]).is_ok() {
            received += 1;
        }
        let samples: Vec<_> = namespaces
            .iter()
            .zip(&snapshots)
            .map(|(namespace, before)| namespace.difference(before, &namespace.snapshot().unwrap()))
            .collect();
        if received + samples[1].counters.udp.rcvbuf_errors >= 200 {
            break samples;
        }
        assert!(Instant::now() < deadline, "{received} received, {samples:?}");
    };
    let machine = machine.difference(&before, &machine.end().unwrap());
    assert!(received < 200, "nothing was lost");
    assert_eq!(samples[0].counters.udp.out_datagrams, 200);
    assert_eq!(samples[1].udp_errors()["UdpRcvbufErrors"], 200 - received);
    assert_eq!(samples[1].udp_errors()["UdpInErrors"], 200 - received);
    assert_eq!(samples[1].tcp_retransmits(), 0);
    let loss = loss::attribute(&loss::Evidence {
        sent: 200,
        received,
        datagrams_per_skb: 1.0,
        datagrams_per_receive: 1.0,
        namespaces: &samples,
        softnet_dropped: machine.softnet_dropped,
        devices: &[],
        programs: &[],
        drops: &[],
    });
    assert_eq!(loss.places, [("tenant-b socket buffer".to_owned(), 200 - received)].into());
    assert_eq!(loss.unattributed, 0);
}

/// Counts of b and the machine for datagrams that have no receiver.
fn lost(
    pair: &Pair,
    sent: u64,
    send: impl FnOnce(),
    counted: impl Fn(&NamespaceSample) -> u64,
) -> Loss {
    let namespaces = [
        Namespace::open_in(pair.a.netns(), "a").unwrap(),
        Namespace::open_in(pair.b.netns(), "b").unwrap(),
    ];
    let before = namespaces.each_ref().map(|n| n.snapshot().unwrap());
    send();
    let samples = testbed::poll("counters of lost datagrams", Duration::from_secs(10), || {
        let samples: Vec<_> = namespaces
            .iter()
            .zip(&before)
            .map(|(n, before)| n.difference(before, &n.snapshot().unwrap()))
            .collect();
        let seen: u64 = samples.iter().map(&counted).sum();
        Ok(if seen >= sent { Ok(samples) } else { Err(format!("{seen} of {sent}")) })
    })
    .unwrap();
    loss::attribute(&loss::Evidence {
        sent,
        received: samples[1].counters.udp.in_datagrams,
        datagrams_per_skb: 1.0,
        datagrams_per_receive: 1.0,
        namespaces: &samples,
        softnet_dropped: 0,
        devices: &[],
        programs: &[],
        drops: &[],
    })
}

#[test]
fn datagrams_for_a_closed_port_are_attributed_to_it() {
    require!(need::networks());
    let pair = Pair::new();
    let (_, receiver) = sockets(&pair);
    let closed = receiver.local_addr().unwrap();
    drop(receiver);
    let sender = socket(&pair.a, Wire::A);
    let send = || (0..50).for_each(|_| assert_eq!(sender.send_to(&[0; 64], closed).unwrap(), 64));
    let loss = lost(&pair, 50, send, |sample| sample.counters.udp.no_ports);
    assert_eq!(loss.places, [("b no socket".to_owned(), 50)].into());
    assert_eq!(loss.unattributed, 0);
}

#[test]
fn datagrams_dropped_by_a_queueing_discipline_are_attributed_to_the_senders_ip_layer() {
    require!(need::networks());
    let pair = Pair::new();
    let (sender, _receiver) = sockets(&pair);
    let mut tc = Command::new("tc");
    // One byte per second and no queue: packets beyond the first burst are dropped.
    tc.args("qdisc add dev nic0 root tbf rate 8bit burst 1600 limit 1".split(' '));
    let limited = pair.a.run(&mut tc);
    require!(limited.map_err(|e| format!("needs tc with tbf (kernel sch_tbf): {e}")));
    // For the kernel, each send succeeds.
    let send = || (0..50).for_each(|_| assert_eq!(sender.send(&[0; 512]).unwrap(), 512));
    let loss = lost(&pair, 50, send, |sample| {
        sample.counters.ip.out_discards + sample.counters.udp.in_datagrams
    });
    assert!(loss.received < 10, "{loss:?}");
    let expected = [("a IP output discard".to_owned(), 50 - loss.received)];
    assert_eq!((loss.places, loss.unattributed), (expected.into(), 0));
}

#[test]
fn conntrack_entries_are_counted_or_their_absence_explained() {
    require!(need::networks());
    let namespace = NetNs::new().unwrap();
    let sampler = Namespace::open_in(&namespace, "a").unwrap();
    let snapshot = sampler.snapshot().unwrap();
    let sample = sampler.difference(&snapshot, &snapshot);
    match sampler.conntrack_reason() {
        None => assert_eq!(sample.conntrack_entries, Some(0)),
        Some(reason) => {
            assert!(reason.contains("nf_conntrack"), "{reason}");
            assert_eq!(sample.conntrack_entries, None);
        }
    }
    assert_eq!(sampler.label(), "a");
}
