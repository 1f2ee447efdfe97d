//! Foreign programs at hooks that no namespace lists: the fast path does not forward packets that
//! they drop.

use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::Duration;

use accel::{Accel, Wanted};
use libbpf_rs::{
    Link, NF_INET_FORWARD, NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING,
    NF_INET_PRE_ROUTING, NFPROTO_IPV4, NFPROTO_IPV6, NetfilterOpts, Object, ObjectBuilder,
    ProgramMut,
};
use test_support::{need, require};
use testbed::{Host, Offload};

use super::pair::{DEVICE, PORT, Pair};
use super::paths::{ALL, Answered, NONE, ask};
use super::refusals::refused;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/foreign.bpf.o"));

/// Loads the object with this program only.
pub fn load(name: &str) -> Object {
    try_load(name).unwrap()
}

fn try_load(name: &str) -> libbpf_rs::Result<Object> {
    let mut object = ObjectBuilder::default().open_memory(OBJECT).unwrap();
    for mut program in object.progs_mut() {
        let wanted = program.name() == name;
        program.set_autoload(wanted);
    }
    object.load()
}

fn with<T>(object: &mut Object, name: &str, f: impl FnOnce(ProgramMut<'_>) -> T) -> T {
    f(object.progs_mut().find(|program| program.name() == name).unwrap())
}

fn netfilter(object: &mut Object, host: &Host, family: i32, hook: i32) -> Link {
    let options = NetfilterOpts {
        protocol_family: family,
        hooknum: hook,
        priority: -7,
        ..NetfilterOpts::default()
    };
    let attach = || with(object, "refuse", |p| p.attach_netfilter_with_opts(options).unwrap());
    host.netns().run(attach).unwrap()
}

fn start(pair: &Pair) -> Accel {
    Accel::start(pair.a.netns(), Wanted::All).unwrap()
}

/// Compares the kernel with the fast path, with the program attached before its start.
fn obeyed_from_the_start(
    pair: &Pair,
    reason: &str,
    expected: Answered,
    attach: &mut impl FnMut() -> Link,
) -> Accel {
    pair.ping(&[]);
    let link = attach();
    assert_eq!(ask(pair), expected, "{reason}: the kernel");
    let accel = start(pair);
    refused(&accel, reason, "there first");
    assert_eq!(ask(pair), expected, "{reason}, there first");
    drop(link);
    accel
}

/// As [`obeyed_from_the_start`], then with the program attached while the fast path runs.
fn obeyed(pair: &Pair, reason: &str, expected: Answered, mut attach: impl FnMut() -> Link) {
    let accel = obeyed_from_the_start(pair, reason, expected, &mut attach);
    pair.settle_sender(&accel);
    assert_eq!(ask(pair), ALL, "{reason}, gone");
    let link = attach();
    refused(&accel, reason, "later");
    assert_eq!(ask(pair), expected, "{reason}, later");
    drop(link);
}

#[test]
fn programs_at_netfilter_s_hooks_are_obeyed() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let mut object = load("refuse");
    let reason = |hook| format!("[vxlan0: BPF program at netfilter hook ip {hook}, link ");
    let first = NF_INET_LOCAL_IN;
    obeyed(&pair, &reason(first), NONE, || netfilter(&mut object, &pair.a, NFPROTO_IPV4, first));
    // `a_program_that_comes_to_a_hook_later_is_obeyed_at_once` attaches to each while it runs.
    for hook in [NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING] {
        let mut attach = || netfilter(&mut object, &pair.a, NFPROTO_IPV4, hook);
        obeyed_from_the_start(&pair, &reason(hook), NONE, &mut attach);
    }
}

/// Waits for the next tick of the coarse clock: BPF programs check the hooks once per tick. A CPU
/// without time may have its tick late.
fn await_tick() {
    use nix::time::{ClockId, clock_gettime};
    let now = || clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
    let before = now();
    while now() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_program_that_comes_to_a_hook_later_is_obeyed_at_once() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    let mut object = load("refuse");
    for hook in [NF_INET_LOCAL_IN, NF_INET_PRE_ROUTING, NF_INET_LOCAL_OUT, NF_INET_POST_ROUTING] {
        let link = netfilter(&mut object, &pair.a, NFPROTO_IPV4, hook);
        await_tick();
        assert_eq!(ask(&pair), NONE, "hook {hook}");
        drop(link);
        pair.settle(&accels);
    }
}

#[test]
fn programs_at_hooks_that_packets_do_not_pass_are_no_reason() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let mut object = load("refuse");
    let _forward = netfilter(&mut object, &pair.a, NFPROTO_IPV4, NF_INET_FORWARD);
    let _other = netfilter(&mut object, &pair.a, NFPROTO_IPV6, NF_INET_LOCAL_IN);
    let accels = pair.accelerate();
    assert!(accels[0].status().accelerates(DEVICE), "{:#?}", accels[0].status());
    assert_eq!(ask(&pair), ALL);
}

#[test]
fn programs_that_choose_sockets_are_obeyed() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let mut object = load("choose");
    let reason = "[vxlan0: BPF program selects sockets (sk_lookup)]";
    obeyed(&pair, reason, NONE, || {
        let netns = std::os::fd::AsFd::as_fd(&**pair.a.netns()).as_raw_fd();
        with(&mut object, "choose", |p| p.attach_netns(netns).unwrap())
    });
}

/// A control group, removed when dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn new() -> Result<Group, String> {
        let name = format!("overlane-accel-{}", std::process::id());
        for root in ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
            let path = std::path::Path::new(root).join(&name);
            if std::path::Path::new(root).join("cgroup.controllers").exists()
                && std::fs::create_dir(&path).is_ok()
            {
                return Ok(Group(path));
            }
        }
        Err("no control groups of version 2 are mounted".to_owned())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn programs_of_control_groups_see_nothing_on_either_path() {
    require!(need::root());
    let group = require!(Group::new());
    let pair = Pair::new(Offload::Full, false);
    // The device's socket belongs to the control group of the process that sets the device up.
    let script = format!(
        "echo $$ > {}/cgroup.procs; ip link set {DEVICE} down; ip link set {DEVICE} up",
        group.0.display()
    );
    pair.a.run(Command::new("sh").args(["-ec", &script])).unwrap();
    let directory = std::fs::File::open(&group.0).unwrap();
    let (mut out, mut into) = (load("mute"), load("deafen"));
    let _mute = with(&mut out, "mute", |p| p.attach_cgroup(directory.as_raw_fd()).unwrap());
    let _deafen = with(&mut into, "deafen", |p| p.attach_cgroup(directory.as_raw_fd()).unwrap());
    pair.ping(&[]);
    assert_eq!(ask(&pair), ALL, "the kernel");
    let accels = pair.accelerate();
    assert!(accels[0].status().accelerates(DEVICE), "{:#?}", accels[0].status());
    assert_eq!(ask(&pair), ALL, "the fast path");
}

#[test]
fn xdp_programs_attached_by_links_are_reasons() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    let mut object = load("look");
    for device in ["nic0", PORT, DEVICE, "br0"] {
        let index = pair.a.netlink().link(device).unwrap().index.cast_signed();
        let attach = || with(&mut object, "look", |p| p.attach_xdp(index));
        let Ok(link) = pair.a.netns().run(attach).unwrap() else {
            // libbpf attaches in native or generic mode; bridges may support neither.
            panic!("no XDP on {device}");
        };
        refused(&accels[0], &format!("{device}: XDP program"), device);
        pair.ping(&[]);
        drop(link);
        pair.settle(&accels);
    }
}

#[test]
fn programs_of_security_modules_are_reasons_where_they_are_about_packets() {
    require!(need::root());
    let active = require!(sys::lsm::active());
    require!(need::that(
        active.iter().any(|name| name == "bpf"),
        "the security module bpf is not active"
    ));
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    // Some kernels list the module but refuse its programs.
    let mut files = require!(try_load("read"));
    let _files = with(&mut files, "read", |p| p.attach_lsm().unwrap());
    pair.settle(&accels);
    let mut packets = load("listen");
    let link = with(&mut packets, "listen", |p| p.attach_lsm().unwrap());
    refused(
        &accels[0],
        "[vxlan0: BPF program at security hook socket_sock_rcv_skb, link ",
        "an LSM program",
    );
    drop(link);
    pair.settle(&accels);
}
