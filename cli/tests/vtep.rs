//! `overlane vtep` as a program: readiness, signals, reload, rights, bad input.

use std::io::{BufRead, BufReader, Lines};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use netstate::link::Vxlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use packet::vxlan::{PORT, Vni};
use testbed::{Host, NIC, Offload, Wire, mac};

const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");
const LIMIT: Duration = Duration::from_secs(60);

fn privileged() -> bool {
    let may = sys::userns::may_administer_networks() && sys::tap::available().is_ok();
    if !may {
        eprintln!("skipped: needs root (CAP_NET_ADMIN) and /dev/net/tun");
    }
    may
}

/// An endpoint in host a, its TAP in a tenant, the kernel's VXLAN in host b;
/// killed when dropped.
struct Vtep {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    tenant: Host,
    _a: Host,
    _b: Host,
}

fn path(host: &Host) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd())
}

impl Vtep {
    fn start(arguments: impl FnOnce(&str) -> Vec<String>, notify: Option<&str>) -> Vtep {
        let [a, b, tenant] = ["a", "b", "tenant"].map(|name| Host::new(name).unwrap());
        let wire = Wire { mtu: 1500, offload: Offload::Full };
        wire.join(&a, &b).unwrap();
        wire.address(&a, &b).unwrap();
        let device = Vxlan {
            name: "vxlan0",
            vni: Vni::new(10).unwrap(),
            local: Wire::B.into(),
            remote: Some(Wire::A.into()),
            underlay: NIC,
            port: PORT,
            learning: true,
            udp_csum: true,
        };
        b.netlink().add_vxlan(&device, mac("b", "vxlan0"), 1450).unwrap();
        b.address("vxlan0", std::net::Ipv4Addr::new(10, 1, 0, 2), 24).unwrap();
        let mut command = Command::new(OVERLANE);
        command.arg("vtep").args(arguments(&path(&tenant)));
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify);
        }
        let mut child = a.netns().run(|| command.stdout(Stdio::piped()).spawn()).unwrap().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        let wanted = "ready: 10.0.0.1 port 4789; VNI 10 on tap0, MTU 1450, uncut: CSUM|TSO4";
        assert!(ready.starts_with(wanted), "{ready}");
        Vtep { child, lines, tenant, _a: a, _b: b }
    }

    fn by_arguments(notify: Option<&str>) -> Vtep {
        let arguments = |tenant: &str| {
            ["--vni", "10", "--tap", "tap0:10.1.0.1/24", "--netns", tenant]
                .into_iter()
                .chain(["--local", "10.0.0.1", "--remote", "10.0.0.2", "--queues", "2"])
                .map(str::to_owned)
                .collect()
        };
        Vtep::start(arguments, notify)
    }

    fn ping(&self) {
        let mut command = Command::new("ping");
        command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5", "10.1.0.2"]);
        self.tenant.run(&mut command).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn expect_counters(&mut self) {
        for (name, zero) in [
            ("VNI 10 tap0 to wire", false),
            ("VNI 10 wire to tap0", false),
            ("of no network", true),
        ] {
            let line = self.line();
            assert!(line.starts_with(&format!("{name}: received ")), "{line}");
            assert!(line.contains("received 0 ") == zero && line.contains("dropped 0"), "{line}");
        }
    }
}

impl Drop for Vtep {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_when_it_is_ready_shows_counters_and_ends_when_told() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let notified = UnixDatagram::bind(&path).unwrap();
    notified.set_read_timeout(Some(LIMIT)).unwrap();
    let mut vtep = Vtep::by_arguments(path.to_str());
    let mut message = [0; 64];
    let length = notified.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
    vtep.ping();
    vtep.signal(Signal::SIGUSR1);
    vtep.expect_counters();
    vtep.signal(Signal::SIGHUP);
    assert!(vtep.line().contains("started by arguments"));
    vtep.signal(Signal::SIGINT);
    vtep.expect_counters();
    assert!(vtep.lines.next().is_none());
    assert_eq!(vtep.child.wait().unwrap().code(), Some(0));
    assert!(vtep.tenant.netlink().link("tap0").is_err(), "the device stayed");
}

#[test]
fn every_thread_has_given_up_its_rights() {
    if !privileged() {
        return;
    }
    let vtep = Vtep::by_arguments(None);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", vtep.child.id())).unwrap();
    let mut count = 0;
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
        }
        count += 1;
    }
    assert_eq!(count, 3, "a thread a queue, and the first");
    vtep.ping();
}

#[test]
fn a_file_is_read_again_when_told() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("vtep.toml");
    let write = |tenant: &str, remote: &str, more: &str| {
        let text = format!(
            "local = \"10.0.0.1\"\n{more}\n[[network]]\nvni = 10\ntap = \"tap0\"\n\
             netns = \"{tenant}\"\naddress = [\"10.1.0.1/24\"]\nremotes = [\"{remote}\"]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let arguments = |tenant: &str| {
        write(tenant, "10.0.0.3", "");
        vec!["--config".to_owned(), file.to_str().unwrap().to_owned()]
    };
    let mut vtep = Vtep::start(arguments, None);
    let tenant = path(&vtep.tenant);
    write(&tenant, "10.0.0.2", "ttl = 0");
    vtep.signal(Signal::SIGHUP);
    let line = vtep.line();
    assert!(line.starts_with("not reloaded") && line.contains("ttl"), "{line}");
    write(&tenant, "10.0.0.2", "ttl = 9");
    vtep.signal(Signal::SIGHUP);
    assert!(vtep.line().contains("start it anew"));
    write(&tenant, "10.0.0.2", "");
    vtep.signal(Signal::SIGHUP);
    assert_eq!(vtep.line(), "reloaded");
    vtep.ping();
}

#[test]
fn what_cannot_be_is_refused_with_its_name() {
    let vtep = |arguments: &[&str]| -> Output {
        Command::new(OVERLANE).arg("vtep").args(arguments).output().unwrap()
    };
    let whole = ["--vni", "10", "--tap", "tap0", "--local", "10.0.0.1", "--remote", "10.0.0.2"];
    for (more, named) in [
        (&["--remote", "fd00::2"][..], "fd00::2"),
        (&["--remote", "239.0.0.1"], "multicast group"),
        (&["--fdb", "02:00"], "MAC=REMOTE"),
        (&["--replicate", "10.0.0.9"], "10.0.0.9 is not among"),
        (&["--queues", "0"], "queues"),
        (&["--mtu", "10"], "mtu"),
        (&["--proxy"], "--proxy"),
    ] {
        let output = vtep(&[&whole[..], more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(named), "{more:?}: {error}");
    }
    for arguments in [&whole[2..], &whole[..6], &["--config", "/no/such/file"]] {
        assert_eq!(vtep(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
