//! A broken overlay: faults are found and ranked, each is repaired and proven by one `try`, and
//! everything is undone.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;
use sys::netns::NetNs;
use sys::sysfs::Sysfs;
use test_support::{inconclusive, need, require};

use super::launch::{Ended, OVERLANE, Running, eventually, overlane};
use super::schema;
use super::standing::Testbed;

const TENANT_B: &str = "10.1.0.12";
const MEASURED: [&str; 4] = ["--duration", "0.1", "--warmup", "0.02"];
const STREAM: [&str; 2] = ["--workloads", "tcp_stream"];

/// Findings that this machine may have with any overlay: steal time, and state that all
/// namespaces share, which is full queues of the CPUs and foreign neighbours in the table.
const OF_THE_MACHINE: [&str; 3] = ["OV024", "OV025", "OV040"];

/// Result of a trial: the change is better, or the reason why that is not proven.
type Proven = Result<(), String>;

/// Counts the test as inconclusive if something was not proven. Called last: assertions that do not
/// depend on a measurement come first.
fn decided(all: &[(&str, Proven)]) -> Proven {
    let open = all.iter().filter_map(|(what, proven)| Some((what, proven.as_ref().err()?)));
    let open: Vec<String> = open.map(|(what, why)| format!("{what}: {why}")).collect();
    if open.is_empty() { Ok(()) } else { Err(open.join("; ")) }
}

/// A standing overlay with a server in tenant-b.
struct Overlay {
    testbed: Testbed,
    directory: tempfile::TempDir,
    _server: Running,
}

impl Overlay {
    fn up(part: &str) -> Overlay {
        let testbed = Testbed::up("vxlan", part);
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "a secret of the tests 7Jx0").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let at = format!("{}/tenant-b", testbed.name);
        let serve = ["measure", "serve", "--bind", "0.0.0.0", "--token", token.to_str().unwrap()];
        let mut server =
            Running::start(overlane([&["lab", "exec", &at, "--", OVERLANE], &serve[..]].concat()));
        server.await_stdout("ready: ");
        let overlay = Overlay { testbed, directory, _server: server };
        // The kernel reports its carrier late.
        for host in ["a", "b"] {
            eventually("a bridge with carrier", || {
                let link = overlay.at(host, "ip -o link show dev br0");
                if link.contains("NO-CARRIER") { Err(link) } else { Ok(()) }
            });
        }
        overlay
    }

    fn hosts(&self) -> BTreeMap<&str, &str> {
        let hosts = self.testbed.described["hosts"].as_array().unwrap().iter();
        hosts.map(|h| (h["name"].as_str().unwrap(), h["netns"].as_str().unwrap())).collect()
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    #[track_caller]
    fn at(&self, host: &str, line: &str) -> String {
        self.testbed.exec(host, &["sh", "-ec", line]).expect(0).stdout
    }

    fn in_a(&self, arguments: &[&str]) -> Running {
        let at = format!("{}/tenant-a", self.testbed.name);
        let mut command = overlane([&["lab", "exec", &at, "--", OVERLANE], arguments].concat());
        command.env("OVERLANE_LOG", "overlane=debug");
        Running::start(command)
    }

    fn netns(&self) -> String {
        self.hosts().values().copied().collect::<Vec<_>>().join(",")
    }

    /// Codes of the findings at warning and above, in the order of the report, without those of the
    /// machine.
    fn findings(&self, watch: &str) -> Vec<String> {
        let netns = self.netns();
        let asked = ["doctor", "--json", "--watch", watch, "--netns", &netns];
        let host = self.in_a(&asked).wait().json();
        let shown = |finding: &Value| {
            let of = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
            [of("code"), of("severity"), of("namespace"), of("object")].join(" ")
        };
        let all: Vec<String> = host["findings"].as_array().unwrap().iter().map(shown).collect();
        // State that was not read explains a missing finding.
        eprintln!("found: {all:?}; not read: {}", host["skipped"]);
        let mut codes: Vec<String> = host["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|finding| finding["severity"] != "info")
            .filter(|finding| !OF_THE_MACHINE.iter().any(|code| finding["code"] == *code))
            .map(|finding| finding["code"].as_str().unwrap().to_owned())
            .collect();
        codes.dedup();
        codes
    }

    fn try_with(&self, what: &[&str], against: &str) -> Running {
        let (token, journal) = (self.path("token"), self.path("journal"));
        let own = ["--against", against, "--token", &token, "--journal", &journal];
        self.in_a(&[&["try", "--json", "--disturbance", "100"], what, &own].concat())
    }

    /// Tries with more and more blocks until it is proven. Under other load, a run may not prove
    /// effects of some tens of percent. An attempt that could not start gives the reason.
    #[track_caller]
    fn proven(&self, mut attempt: impl FnMut(&[&str]) -> Result<Ended, String>) -> Proven {
        let mut last = String::new();
        for blocks in ["16", "40", "100"] {
            let ended = match attempt(&["--blocks", blocks]) {
                Ok(ended) => ended,
                Err(reason) => {
                    last = reason;
                    continue;
                }
            };
            assert!(matches!(ended.code, Some(0 | 10)), "{ended:#?}");
            let trial: Value = ended.json();
            schema::validate("try", &trial);
            let reason = trial["reason"].as_str().unwrap();
            assert_eq!(trial["kept"] == true, trial["verdict"] == "better", "{trial:#}");
            assert_eq!(trial["kept"] == true, ended.code == Some(0), "{ended:#?}");
            if trial["kept"] == true {
                eprintln!("kept: {reason}");
                return Ok(());
            }
            eprintln!("not kept: {reason}");
            last = reason.to_owned();
        }
        Err(last)
    }

    /// Tries the changes that one check proposes. The finding is gone exactly if the change was
    /// kept.
    #[track_caller]
    fn repaired(&self, code: &str, how: &[&str]) -> Proven {
        let (netns, watch) = (self.netns(), "0");
        let finding = ["--finding", code, "--netns", &netns, "--watch", watch];
        let proven = self.proven(|blocks| {
            Ok(self.try_with(&[&finding[..], how, blocks].concat(), TENANT_B).wait())
        });
        let there = self.findings(watch).contains(&code.to_owned());
        assert_eq!(there, proven.is_err(), "{code}");
        proven
    }

    #[track_caller]
    fn undo_all(&self) {
        let journal = self.path("journal");
        self.in_a(&["undo", "--all", "--journal", &journal]).wait().expect(0);
    }

    /// Every field that a repair may touch, by host and name.
    fn state(&self) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        for (host, netns) in self.hosts() {
            let netns = NetNs::open(Path::new(netns)).unwrap();
            let mut put = |name: String, value: &str| {
                fields.insert(format!("{host} {name}"), value.to_owned());
            };
            let links = self.at(host, "ip -o -d link");
            for line in links.lines() {
                let device = line.split([':', '@', ' ']).nth(2).unwrap();
                // The first word is an index, which changes if a device is created anew.
                for (number, word) in settled(line).enumerate().skip(1) {
                    put(format!("link {device} word {number}"), word);
                }
                let features = self.at(host, &format!("ethtool -k {device} || true"));
                for line in features.lines().filter(|line| !line.ends_with(':')) {
                    put(format!("feature {device} {}", line.split(':').next().unwrap()), line);
                }
                let file = format!("class/net/{device}/queues/rx-0/rps_cpus");
                let rps = netns.run(|| Sysfs::of(&netns).unwrap().read(&file)).unwrap();
                put(format!("rps {device}"), &rps.unwrap_or_default());
            }
            let counted = ["nf_conntrack_count", "random", "inet_peer", "tcp_fastopen_key"];
            for line in self.at(host, "sysctl -a 2>/dev/null | grep ^net").lines() {
                if !counted.iter().any(|name| line.contains(name)) {
                    put(format!("sysctl {}", line.split(' ').next().unwrap()), line);
                }
            }
            put("packet filters".to_owned(), &self.at(host, "nft list ruleset"));
        }
        fields
    }
}

/// The words of a link's line without timers and learned states.
fn settled(line: &str) -> impl Iterator<Item = &str> {
    let mut words = line.split_ascii_whitespace();
    std::iter::from_fn(move || {
        let word = words.next()?;
        if word.ends_with("_timer") || word.ends_with("_since_change") || word == "state" {
            words.next();
        }
        Some(word)
    })
}

#[track_caller]
fn assert_same(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) {
    let differ = |name: &&String| before.get(*name) != after.get(*name);
    let names: Vec<&String> = before.keys().chain(after.keys()).filter(differ).collect();
    let shown = names.iter().map(|n| format!("{n}: {:?} {:?}", before.get(*n), after.get(*n)));
    assert!(names.is_empty(), "{:#?}", shown.collect::<Vec<_>>());
    eprintln!("{} fields as before", before.len());
}

#[test]
fn a_broken_overlay_is_found_ranked_repaired_proven_and_taken_back() {
    require!(need::root(), need::tools(&["ip", "ethtool", "nft", "sysctl", "socat", "setsid"]));
    let overlay = Overlay::up("broken");
    // A common case: the tenants' MTU exceeds the MTU of every device between them, segmentation is
    // off at one tenant as a leftover work-around, and a bridge of TAPs copies packet by packet.
    overlay.at("tenant-a", "ip link set eth0 mtu 1500; ethtool -K eth0 tso off gso off");
    overlay.at("tenant-b", "ip link set eth0 mtu 1500");
    let taps = Taps::of(&overlay);
    taps.run("socat");
    let before = overlay.state();
    let found = overlay.findings("0");
    eprintln!("ranked: {found:?}");
    assert_eq!(found, ["OV015", "OV044", "OV006"]);

    let full_size = ["--workloads", "udp_stream", "--sizes", "1472"];
    let mtu = overlay.repaired("OV015", &[&full_size, &MEASURED[..]].concat());
    let segmentation = overlay.repaired("OV006", &[&STREAM, &MEASURED[..]].concat());
    let (better, earlier) = (taps.command("tapbridge"), taps.command("socat"));
    let change = [&better[..], "--undo-with", &earlier];
    let tap = overlay.proven(|blocks| {
        let arguments = [&change[..], &STREAM, &MEASURED, blocks].concat();
        Ok(overlay.try_with(&arguments, "192.168.7.2").wait())
    });
    let all = [("OV015", mtu), ("OV044", tap), ("OV006", segmentation)];
    let left: Vec<&str> =
        all.iter().filter(|(_, proven)| proven.is_err()).map(|(code, _)| *code).collect();
    assert_eq!(overlay.findings("0"), left);
    overlay.undo_all();
    assert_same(&before, &overlay.state());
    assert_eq!(overlay.findings("0"), found, "taken back, it is found again");
    taps.run("none");
    if let Err(open) = decided(&all) {
        inconclusive!("{open}");
    }
}

/// A network of two TAPs between the tenants, joined by one program or another.
struct Taps(String);

impl Taps {
    fn of(overlay: &Overlay) -> Taps {
        let (hosts, pid, log) = (overlay.hosts(), overlay.path("pid"), overlay.path("log"));
        let [left, right] = ["tenant-a", "tenant-b"].map(|tenant| hosts[tenant]);
        let path = overlay.path("taps");
        let script = format!(
            r#"#!/bin/sh
# $1: who joins tap0 and tap1: tapbridge, socat, none.
if [ -f {pid} ]; then
    kill $(cat {pid}); while kill -0 $(cat {pid}); do sleep 0.01; done; rm {pid}
fi 2>/dev/null
left() {{ nsenter --net={left} "$@"; }}
right() {{ nsenter --net={right} "$@"; }}
# The kernel may take devices away after the process that had them is gone.
for i in $(seq 1000); do
    left ip link show tap0 || left ip link show tap1 || right ip link show tap1 || break
    sleep 0.01
done >/dev/null 2>&1
case $1 in
none) exit 0 ;;
tapbridge)
    setsid "{OVERLANE}" tapbridge --left tap0 --right tap1 --left-netns {left} \
        --right-netns {right} >{log} 2>&1 </dev/null &
    echo $! >{pid} ;;
socat)
    setsid nsenter --net={left} socat -b 65536 TUN,tun-type=tap,tun-name=tap0,iff-no-pi \
        TUN,tun-type=tap,tun-name=tap1,iff-no-pi >{log} 2>&1 </dev/null &
    echo $! >{pid}
    for i in $(seq 1000); do left ip link show tap1 && break; sleep 0.01; done
    left ip link set tap1 netns {right} ;;
esac >/dev/null 2>&1
for i in $(seq 1000); do
    left ip link show tap0 && right ip link show tap1 && break; sleep 0.01
done >/dev/null 2>&1
left ip link set tap0 address 02:00:00:00:07:01
right ip link set tap1 address 02:00:00:00:07:02
left ip addr add 192.168.7.1/24 dev tap0
right ip addr add 192.168.7.2/24 dev tap1
left ip link set tap0 up && right ip link set tap1 up
"#
        );
        test_support::install(script.as_bytes(), Path::new(&path));
        Taps(path)
    }

    fn command(&self, who: &str) -> String {
        format!("{} {who}", self.0)
    }

    fn run(&self, who: &str) {
        super::launch::sh("sh", &["-c", &self.command(who)]);
    }
}

#[test]
fn a_full_connection_table_is_found_and_a_larger_one_proven() {
    /// Filling a larger one takes long.
    const MOST: u64 = 1 << 19;
    require!(need::root(), need::tools(&["nft", "conntrack", "ip", "sysctl", "ethtool"]));
    let overlay = Overlay::up("conntrack");
    overlay.at("tenant-a", "nft 'table inet t { chain c { type filter hook output priority 0; ct state new accept; }; }'");
    let before = overlay.state();
    let limit = "net/netfilter/nf_conntrack_max";
    let most: u64 = overlay.at("tenant-a", &format!("sysctl -n {limit}")).trim().parse().unwrap();
    require!(need::that(most <= MOST, &format!("{limit} is {most}: too many to be filled")));
    // The kernel does not evict assured entries for new ones.
    let mut entries = String::new();
    for (network, port) in
        (1..=255).flat_map(|n| (1..=65535).map(move |p| (n, p))).take(most as usize + 100)
    {
        let between = format!("-s 10.200.{network}.1 -d 10.200.{network}.2");
        writeln!(
            entries,
            "-I -t 600 -u ASSURED,SEEN_REPLY {between} -p udp --sport {port} --dport 9"
        )
        .unwrap();
    }
    let file = overlay.path("entries");
    std::fs::write(&file, entries).unwrap();
    // It stops at the first entry that does not fit.
    overlay.at("tenant-a", &format!("conntrack --load-file {file} 2>/dev/null || true"));
    assert_eq!(overlay.findings("0"), ["OV028"]);
    let repaired = overlay.repaired("OV028", &[]);
    overlay.undo_all();
    overlay.at("tenant-a", "conntrack -F 2>/dev/null");
    assert_same(&before, &overlay.state());
    if let Err(open) = decided(&[("OV028", repaired)]) {
        inconclusive!("{open}");
    }
}

#[test]
fn one_cpu_that_receives_everything_is_found_and_steering_proven() {
    const RULES: u8 = 250;
    require!(need::root(), need::tools(&["nft", "ip", "sysctl", "ethtool"]));
    let overlay = Overlay::up("steering");
    // The sender's softirq segments GSO packets before the wire.
    let off =
        ["tx-udp-segmentation", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation", "tso"];
    for host in ["a", "b"] {
        overlay.at(host, &format!("ethtool -K nic0 {} off", off.join(" off ")));
    }
    // A firewall makes receiving by far the more expensive half.
    let rules: Vec<String> = (1..=RULES).map(|n| format!("ip saddr 10.77.0.{n} drop;")).collect();
    let chain = format!("type filter hook input priority 0; {}", rules.join(" "));
    overlay.at("tenant-b", &format!("nft 'table inet firewall {{ chain in {{ {chain} }}; }}'"));
    let before = overlay.state();
    let netns = overlay.netns();
    let finding = ["--finding", "OV023", "--netns", &netns];
    // Many small packets, so that receiving is most of the work.
    let many = ["--workloads", "tcp_rr", "--flows", "16", "--outstanding", "8"];
    let tenant = NetNs::open(Path::new(overlay.hosts()["tenant-a"])).unwrap();
    let attempt = |blocks: &[&str]| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| tenant.run(|| load(&stop)).unwrap());
            let found = (0..20).any(|_| overlay.findings("0.5").contains(&"OV023".to_owned()));
            let running = found.then(|| {
                let words = [&finding[..], &many, &MEASURED, blocks].concat();
                let mut running = overlay.try_with(&words, TENANT_B);
                // The measurement must not include the load that shows the fault.
                while running.runs() && !running.stderr_so_far().contains("sampling ") {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                running
            });
            stop.store(true, Ordering::Relaxed);
            // If the finding had gone meanwhile, nothing was tried. The same holds if the load that
            // shows it kept the two ends from communicating.
            let ended = running.map(Running::wait);
            let held_up =
                ["no data within", "no message within", "no answer within", "connection closed "];
            ended
                .filter(|ended| {
                    !ended.stdout.contains("has no finding here")
                        && !held_up.iter().any(|words| ended.stderr.contains(words))
                })
                .ok_or_else(|| "no CPU idles beside one that is busy with softirqs".to_owned())
        })
    };
    // Doctor's own tests show that the check detects a busy CPU. Here other programs may keep every
    // CPU busy.
    let steered = overlay.proven(attempt);
    let set = overlay.state() != before;
    assert_eq!(set, steered.is_ok(), "steering is set exactly if it was kept");
    overlay.undo_all();
    assert_same(&before, &overlay.state());
    if let Err(open) = decided(&[("OV023", steered)]) {
        inconclusive!("{open}");
    }
}

/// Sends flows of GSO packets to a closed port from one CPU.
fn load(stop: &AtomicBool) {
    const FLOWS: usize = 8;
    const DATAGRAM: i32 = 1400;
    sys::affinity::pin(0).unwrap();
    let sockets = [(); FLOWS].map(|()| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect((TENANT_B, 9)).unwrap();
        setsockopt(&socket, sockopt::UdpGsoSegment, &DATAGRAM).unwrap();
        socket
    });
    let message = [0; 40 * DATAGRAM as usize];
    while !stop.load(Ordering::Relaxed) {
        for socket in &sockets {
            // Refused, because the port is closed.
            let _ = socket.send(&message);
        }
        // Its own CPU must have idle time.
        std::thread::sleep(std::time::Duration::from_micros(800));
    }
}
