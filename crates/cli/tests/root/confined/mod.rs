//! Injects system calls into a confined program, as an attacker in control of it would; each must
//! fail.

use std::process::Command;

use attacks::{Attack, Victim, connect};
use foreground::{Foreground, LIMIT, OVERLANE, path};
use test_support::inject::{self, CallOutcome};
use test_support::{need, require};
use testbed::Host;

mod attacks;
use crate::foreground;
mod units;

fn threads(process: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Open file descriptors of the process, by number.
fn descriptors(process: u32) -> Vec<i32> {
    let list = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    list.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Waits for the removal of devices, which follows the end of a killed process.
fn await_absent(host: &Host, devices: &[&str]) {
    testbed::poll("the removal of the devices", LIMIT, || {
        let left = devices.iter().find(|device| host.netlink().link(device).is_ok());
        Ok(left.map_or(Ok(()), |device| Err(format!("{device} exists"))))
    })
    .unwrap();
}

/// Makes every thread try every attack. Starts the program anew after each call that killed it.
fn withstands(start: impl Fn() -> Foreground, victim: &mut Victim, attacks: &[Attack]) {
    process_withstands(start, |program| program.child.id(), victim, attacks);
}

/// The same for a process of the program.
fn process_withstands(
    start: impl Fn() -> Foreground,
    process: impl Fn(&Foreground) -> u32,
    victim: &mut Victim,
    attacks: &[Attack],
) {
    let mut program = start();
    let mut succeeded = Vec::new();
    for (number, attack) in attacks.iter().enumerate() {
        // Each thread in turn: the confinement must apply to all.
        let threads = threads(process(&program));
        let thread = threads[number % threads.len()];
        let outcome = attack.by(thread);
        victim.expect_unharmed(attack.what);
        if !outcome.is_refused() {
            succeeded.push(format!("{}: {outcome}", attack.what));
        }
        if let CallOutcome::Killed(_) = outcome {
            // Its devices are removed when all of its threads have ended.
            let _ = program.child.kill();
            let _ = program.child.wait();
            program = start();
        }
    }
    let address = victim.address();
    for descriptor in descriptors(process(&program)) {
        let outcome = connect(process(&program).cast_signed(), descriptor, &address);
        if !outcome.is_refused() {
            succeeded.push(format!("connect by descriptor {descriptor}: {outcome}"));
        }
        if let CallOutcome::Killed(_) = outcome {
            let _ = program.child.kill();
            let _ = program.child.wait();
            program = start();
        }
    }
    assert!(succeeded.is_empty(), "{succeeded:#?}");
}

#[test]
fn vtep_harms_nobody() {
    require!(inject::possible(), need::tun());
    let (host, tenant) = (Host::new("alone").unwrap(), Host::new("tenant").unwrap());
    host.netlink().set_up("lo").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("vtep.toml");
    let text = format!(
        "local = \"127.0.0.1\"\n[[network]]\nvni = 10\ntap = \"tap0\"\nnetns = \"{}\"\n\
         remotes = [\"127.0.0.2\"]\n",
        path(&tenant)
    );
    std::fs::write(&file, text).unwrap();
    let start = || {
        let mut command = Command::new(OVERLANE);
        command.arg("vtep").arg("--config").arg(&file);
        await_absent(&tenant, &["tap0"]);
        Foreground::start(&host, command, None).0
    };
    let mut victim = Victim::new();
    let mut attacks = victim.attacks();
    attacks.extend(victim.attacks_without_rights());
    withstands(start, &mut victim, &attacks);
}

#[test]
fn tapbridge_harms_nobody() {
    tapbridges_withstand(&["uring"]);
}

#[test]
fn tapbridges_of_other_engines_harm_nobody() {
    tapbridges_withstand(&["bpf", "epoll"]);
}

fn tapbridges_withstand(engines: &[&str]) {
    require!(inject::possible(), need::tun());
    for engine in engines {
        let host = Host::new("alone").unwrap();
        let start = || {
            let mut command = Command::new(OVERLANE);
            command.args(["tapbridge", "--left", "tap0", "--right", "tap1", "--engine", engine]);
            await_absent(&host, &["tap0", "tap1"]);
            Foreground::start(&host, command, None).0
        };
        let mut victim = Victim::new();
        let mut attacks = victim.attacks();
        attacks.extend(victim.attacks_without_rights());
        withstands(start, &mut victim, &attacks);
    }
}

#[test]
fn accel_harms_nobody() {
    require!(inject::possible());
    let host = Host::new("alone").unwrap();
    let start = || {
        let mut command = Command::new(OVERLANE);
        command.args(["accel", "run", "--all"]);
        Foreground::start(&host, command, None).0
    };
    let mut victim = Victim::new();
    let attacks = victim.attacks();
    withstands(start, &mut victim, &attacks);
}

#[test]
fn a_server_of_measurements_harms_nobody() {
    require!(inject::possible());
    let host = Host::new("alone").unwrap();
    host.netlink().set_up("lo").unwrap();
    let start = || {
        let mut command = Command::new(OVERLANE);
        command.args(["measure", "serve", "--bind", "127.0.0.1"]);
        Foreground::start(&host, command, None).0
    };
    let mut victim = Victim::new();
    // Calls that it needs, or that affect only itself.
    const OWN: [&str; 10] = [
        "fork",
        "open own memory",
        "open a counter",
        "change groups",
        "load a program",
        "make a file in memory",
        "map code",
        "a pair of sockets",
        "a raw socket",
        "kill a thread",
    ];
    let mut attacks = victim.attacks();
    attacks.retain(|attack| !OWN.contains(&attack.what));
    withstands(start, &mut victim, &attacks);
}

#[test]
fn the_process_that_switches_settings_has_only_the_rights_for_it() {
    require!(inject::possible());
    let host = Host::new("alone").unwrap();
    host.netlink().set_up("lo").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(OVERLANE);
    command.args(["measure", "serve", "--bind", "127.0.0.1", "--allow-settings", "lo"]);
    command.arg("--journal").arg(directory.path().join("journal"));
    let program = Foreground::start(&host, command, None).0;
    // CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
    let rights = (1_u64 << 12) | (1 << 19) | (1 << 21);
    for thread in threads(front(&program)) {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        for (set, has) in [("CapPrm", rights), ("CapEff", rights), ("CapAmb", 0)] {
            assert!(status.contains(&format!("{set}:\t{has:016x}")), "{status}");
        }
        assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    }
    // The server itself, which clients reach, is another user.
    for thread in threads(program.child.id()) {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        assert!(!status.contains("Uid:\t0\t"), "{status}");
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        let effective = u64::from_str_radix(effective, 16).unwrap();
        assert_eq!(effective & (1 << 21), 0, "{status}");
    }
}

/// The process of `watch --serve` that faces the network is its only child, like the process of
/// `measure serve` which switches settings.
fn front(program: &Foreground) -> u32 {
    let of = program.child.id();
    let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    let children: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

#[test]
fn a_server_of_flows_harms_nobody_and_has_no_rights() {
    require!(inject::possible());
    let host = Host::new("alone").unwrap();
    host.netlink().set_up("lo").unwrap();
    let start = || {
        let mut command = Command::new(OVERLANE);
        command.args(["watch", "--serve", "127.0.0.1", "--netns", &path(&host)]);
        // The address of one that was killed is free a moment after it.
        testbed::poll("a free address", LIMIT, || {
            let bind = || std::net::TcpListener::bind("127.0.0.1:5212").map(drop);
            Ok(host.netns().run(bind).unwrap().map_err(|error| error.to_string()))
        })
        .unwrap();
        Foreground::start(&host, command, None).0
    };
    let program = start();
    for thread in threads(front(&program)) {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
        }
        assert!(!status.contains("Uid:\t0\t") && !status.contains("Gid:\t0\t"), "{status}");
        assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    }
    drop(program);
    let mut victim = Victim::new();
    // Calls that it needs, or that affect only itself.
    const OWN: [&str; 5] =
        ["fork", "change groups", "make a file in memory", "map code", "a pair of sockets"];
    let mut attacks = victim.attacks();
    attacks.retain(|attack| !OWN.contains(&attack.what));
    process_withstands(start, front, &mut victim, &attacks);
}
