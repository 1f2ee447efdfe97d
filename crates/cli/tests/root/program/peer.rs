//! `watch --serve` and `watch --peer`: two hosts with a VXLAN tunnel between them, and a third on
//! their wire that drops selected packets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netstate::link::Vxlan;
use netstate::snmp::Snmp;
use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};
use testbed::{Host, NIC, Offload, Wire, mac};

use super::launch::{Ended, LIMIT, Running, eventually, run};
use super::remote::{inside, overlane, ready};
use super::schema;

const INNER_A: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const INNER_B: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// First byte of datagrams to be dropped between the hosts.
const DOOMED: u8 = 0xdd;

fn possible() -> Result<(), String> {
    need::root()?;
    need::tools(&["nsenter", "nft"])
}

struct Three {
    a: Host,
    b: Host,
    /// The bridge between them.
    between: Host,
    directory: tempfile::TempDir,
}

impl Three {
    fn new() -> Three {
        let [a, b, between] = ["a", "b", "between"].map(|name| Host::new(name).unwrap());
        a.connect(NIC, &between, "to-a", 1500).unwrap();
        b.connect(NIC, &between, "to-b", 1500).unwrap();
        between.bridge("br0", 1500, &["to-a", "to-b"]).unwrap();
        Wire { mtu: 1500, offload: Offload::Full }.address(&a, &b).unwrap();
        for (host, local, remote, own) in
            [(&a, Wire::A, Wire::B, INNER_A), (&b, Wire::B, Wire::A, INNER_B)]
        {
            let device = Vxlan {
                name: "vxlan0",
                vni: Some(packet::vxlan::Vni::new(7).unwrap()),
                local: local.into(),
                remote: Some(remote.into()),
                underlay: NIC,
                port: 4789,
                learning: true,
                udp_csum: true,
            };
            host.netlink().add_vxlan(&device, mac(host.name(), "vxlan0"), 1450).unwrap();
            host.netlink().set_up("vxlan0").unwrap();
            host.address("vxlan0", own, 24).unwrap();
        }
        // Matches the first byte of the inner datagram, behind UDP, VXLAN, Ethernet, IP and UDP
        // headers. Of a TCP segment it would be the first byte of the acknowledgement.
        let rules = format!(
            "table netdev t {{ chain c {{ type filter hook ingress device \"to-a\" priority 0; \
             udp dport 4789 @th,312,8 17 @th,464,8 {DOOMED:#x} drop; }}; }}"
        );
        between.nft(&rules).unwrap();
        let three = Three { a, b, between, directory: tempfile::tempdir().unwrap() };
        three.token("token", "a secret of the tests 7Jx0");
        three
    }

    fn token(&self, name: &str, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// `watch --serve` in b.
    fn serve(&self) -> Running {
        let (token, netns) = (self.directory.path().join("token"), path(&self.b));
        let mut words = vec!["watch", "--serve", "10.0.0.2", "--netns", &netns];
        words.extend(["--budget", "100%", "--interval", "200ms", "--token"]);
        words.push(token.to_str().unwrap());
        ready(inside(&self.b, overlane(&words)))
    }

    /// `watch --peer` in a.
    fn watch(&self, arguments: &[&str]) -> Running {
        let netns = path(&self.a);
        let mut words = vec!["watch", "--netns", &netns, "--budget", "100%", "--interval", "200ms"];
        words.extend(arguments);
        Running::start(inside(&self.a, overlane(&words)))
    }
}

fn path(host: &Host) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd())
}

fn bind(host: &Host, address: Ipv4Addr) -> UdpSocket {
    let socket = host.netns().run(|| UdpSocket::bind((address, 9000)).unwrap()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// Sends datagrams, and waits for each to arrive before it sends the next, except for dropped ones.
fn send(from: &UdpSocket, to: &UdpSocket, count: usize, is_doomed: impl Fn(usize) -> bool) {
    for number in 0..count {
        let doomed = is_doomed(number);
        let bytes = [if doomed { DOOMED } else { 1 }; 100];
        from.send_to(&bytes, to.local_addr().unwrap()).unwrap();
        if !doomed {
            to.recv(&mut [0; 200]).unwrap();
        }
    }
}

/// State of the other host, from the first interval that satisfies `is`.
#[track_caller]
fn peer(watch: &mut Running, wanted: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(wanted, || {
        let said = watch.stdout_so_far();
        let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let last = whole.lines().last().unwrap_or("null");
        let snapshot: Value = serde_json::from_str(last).unwrap();
        if is(&snapshot["peer"]) {
            schema::validate("watch", &snapshot);
            return Ok(snapshot["peer"].clone());
        }
        assert!(watch.runs(), "ended: {}", watch.stderr_so_far());
        Err(format!("{:#}\n{}", snapshot["peer"], watch.stderr_so_far()))
    })
}

/// A flow of datagrams or of a connection, by its direction.
fn flow<'a>(peer: &'a Value, direction: &str, protocol: &str) -> Option<&'a Value> {
    let flows = peer["flows"].as_array()?;
    flows.iter().find(|flow| flow["direction"] == direction && flow["flow"]["protocol"] == protocol)
}

fn number(flow: Option<&Value>, name: &str) -> u64 {
    flow.map_or(0, |flow| flow[name].as_u64().unwrap_or(0))
}

/// Waits until `left` packets of datagrams have left, and none is in flight.
#[track_caller]
fn settled(watch: &mut Running, direction: &str, left: u64) -> Value {
    let seen = peer(watch, &format!("{left} {direction}"), |peer| {
        let flow = flow(peer, direction, "udp");
        peer["problem"].is_null()
            && number(flow, "left") >= left
            && flow.is_some_and(|flow| flow["in_flight"] == 0)
    });
    flow(&seen, direction, "udp").unwrap().clone()
}

/// Both directions of each TCP connection in a report.
fn connections(peer: &Value) -> impl Iterator<Item = &Value> {
    let flows = peer["flows"].as_array().into_iter().flatten();
    flows.filter(|flow| flow["flow"]["protocol"] == "tcp")
}

/// Segments that the host sent again (RFC 4022, tcpRetransSegs).
fn retransmitted(host: &Host) -> u64 {
    let text = host.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let text = text.unwrap().unwrap();
    Snmp::parse(&text).unwrap().tcp.retrans_segs
}

#[test]
fn only_drops_between_two_hosts_are_named_by_flow() {
    require!(possible());
    let three = Three::new();
    let token = three.directory.path().join("token");
    let token = token.to_str().unwrap();
    let server = three.serve();
    let mut watch = three.watch(&["--json", "--vni", "7", "--peer", "10.0.0.2", "--token", token]);
    let begun = peer(&mut watch, "the other host's answer", |peer| {
        peer["problem"].is_null() && peer["clock"].is_object()
    });
    // Both ends use the same clock.
    let clock = &begun["clock"];
    let error = clock["error_ns"].as_u64().unwrap();
    assert!(clock["ahead_ns"].as_i64().unwrap().unsigned_abs() <= error, "{clock}");
    assert!(error > 0 && clock["round_trip_ns"].as_u64().unwrap() > 0, "{clock}");

    let (from, to) = (bind(&three.a, INNER_A), bind(&three.b, INNER_B));
    send(&from, &to, 1000, |_| false);
    let healthy = settled(&mut watch, "out", 1000);
    assert_eq!(healthy["lost"], 0, "{healthy:#}");
    assert_eq!((&healthy["left"], &healthy["came"]), (&1000.into(), &1000.into()), "{healthy:#}");
    assert_eq!(healthy["left_bytes"], healthy["came_bytes"], "{healthy:#}");
    // 100 bytes, two headers of IP and UDP, one of VXLAN and Ethernet.
    assert_eq!(healthy["left_bytes"], 1000 * (100 + 2 * 28 + 8 + 14), "{healthy:#}");
    assert_eq!(healthy["vni"], 7, "{healthy:#}");

    send(&from, &to, 500, |number| number % 10 == 3 && number < 370);
    let lossy = settled(&mut watch, "out", 1500);
    assert_eq!((&lossy["lost"], &lossy["came"]), (&37.into(), &1463.into()), "{lossy:#}");
    send(&to, &from, 200, |_| false);
    let back = settled(&mut watch, "in", 200);
    assert_eq!((&back["lost"], &back["came"]), (&0.into(), &200.into()), "{back:#}");
    let hops = lossy["there"].as_array().unwrap();
    assert!(hops.iter().any(|hop| hop.as_str().unwrap().contains("nic0 rx")), "{lossy:#}");
    assert!(lossy["came_by"][0].as_str().unwrap().ends_with(" nic0"), "{lossy:#}");

    // A connection with GSO packets on the wire, and then one without.
    let dropped = || three.a.netlink().link(NIC).unwrap().counters.tx_dropped;
    let (dropped_before, before) = (dropped(), retransmitted(&three.a));
    for (offload, bytes) in [(Offload::Full, 3_000_000), (Offload::None, 3_000_000)] {
        three.a.set_offload(NIC, offload).unwrap();
        let listener = three.b.netns().run(|| TcpListener::bind((INNER_B, 0)).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.read_to_end(&mut all).unwrap();
            all.len()
        });
        let connect = || TcpStream::connect_timeout(&address, LIMIT).unwrap();
        let mut stream = three.a.netns().run(connect).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&vec![7; bytes]).unwrap();
        drop(stream);
        assert_eq!(reading.join().unwrap(), bytes);
        let port = u64::from(address.port());
        let again = retransmitted(&three.a) - before;
        // The two hosts report the connection's last packets at different times. One packet of a
        // connection with retransmissions was once counted where it arrived, but not where it left.
        let seen = peer(&mut watch, "all of a connection", |peer| {
            let mut tcp = connections(peer).peekable();
            tcp.peek().is_some()
                && tcp.all(|flow| {
                    let [left, came, lost] =
                        ["left", "came", "lost"].map(|name| number(Some(flow), name));
                    flow["in_flight"] == 0 && left.abs_diff(came + lost) <= again
                })
                && connections(peer).any(|flow| {
                    flow["flow"]["destination_port"] == port
                        && flow["left"].as_u64() >= Some(bytes as u64 / 1450)
                })
        });
        // A veth device drops if the other end's CPU is too busy. TCP repairs it, and `watch` must
        // report it.
        let none_lost = connections(&seen).all(|flow| flow["lost"] == 0);
        assert!(none_lost || dropped() > dropped_before, "{offload}: {seen:#}");
    }

    // The other host ends halfway, and returns: earlier results remain.
    server.signal(Signal::SIGTERM);
    server.wait().expect(0);
    let away = peer(&mut watch, "the other host's end", |peer| peer["problem"].is_string());
    assert_eq!(number(flow(&away, "out", "udp"), "lost"), 37, "{away:#}");
    let _server = three.serve();
    peer(&mut watch, "the other host again", |peer| peer["problem"].is_null());
    send(&from, &to, 10, |number| number == 5);
    let again = peer(&mut watch, "one more that is lost", |peer| {
        let flow = flow(peer, "out", "udp");
        number(flow, "lost") == 38 && flow.is_some_and(|flow| flow["in_flight"] == 0)
    });
    assert_eq!(number(flow(&again, "in", "udp"), "lost"), 0, "{again:#}");
    watch.signal(Signal::SIGTERM);
    let recording = watch.wait().expect(130).stdout;
    drop(three.between);
    // The totals equal the last interval's, in text and on the page.
    let file = three.directory.path().join("recording");
    std::fs::write(&file, recording).unwrap();
    let file = file.to_str().unwrap();
    let lost = "38 lost between the hosts";
    assert!(run(["report", file]).expect(0).stdout.contains(lost));
    let page = three.directory.path().join("page.html");
    run(["report", file, "--html", page.to_str().unwrap()]).expect(0);
    assert!(std::fs::read_to_string(page).unwrap().contains(lost));
}

/// One interval in a, as text.
fn once(three: &Three, port: u16, token: &str) -> Ended {
    let address = format!("10.0.0.2:{port}");
    three.watch(&["--once", "--vni", "7", "--peer", &address, "--token", token]).wait()
}

#[test]
fn another_host_that_is_of_no_use_is_named_and_watching_goes_on() {
    require!(possible());
    let three = Three::new();
    let token = three.directory.path().join("token");
    let (token, other) =
        (token.to_str().unwrap(), three.token("other", "another secret of these 9"));
    let of = |ended: Ended, problem: &str| {
        let ended = ended.expect(0);
        assert!(ended.stdout.contains("1 packet in "), "{ended:#?}");
        let line = ended.stdout.lines().find(|line| line.starts_with("peer 10.0.0.2:"));
        let line = line.unwrap_or_else(|| panic!("{ended:#?}"));
        assert!(line.contains("does not answer: ") && line.contains(problem), "{line}");
    };
    of(once(&three, 5212, token), "is `overlane watch --serve` running there");
    let server = three.serve();
    of(once(&three, 5212, &other), "wrong token");
    let healthy = once(&three, 5212, token).expect(0);
    assert!(healthy.stdout.contains("peer 10.0.0.2:5212: clock "), "{healthy:#?}");
    assert!(healthy.stdout.contains("no packets of these flows between"), "{healthy:#?}");
    // Killed, it would leave the socket to its tracer for a moment.
    server.signal(Signal::SIGTERM);
    server.wait().expect(0);
    let words = ["measure", "serve", "--bind", "10.0.0.2:5212", "--token", token];
    let server = ready(inside(&three.b, overlane(&words)));
    of(once(&three, 5212, token), "the other end is `overlane measure serve`");
    drop(server);

    // A client that greets with one byte per second, and one that sends an invalid greeting.
    let stop = Arc::new(AtomicBool::new(false));
    let threads = [None, Some([b'x'; 48])].map(|greeting| {
        let listen = || TcpListener::bind(("10.0.0.2", 0)).unwrap();
        let listener = three.b.netns().run(listen).unwrap();
        let (port, stop) = (listener.local_addr().unwrap().port(), Arc::clone(&stop));
        listener.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || {
            let mut open = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                open.extend(listener.accept().ok().map(|(stream, _)| stream));
                for stream in &mut open {
                    // A failure of a disconnected client does not matter.
                    let _ = match greeting {
                        None => stream.write_all(b"o"),
                        Some(greeting) => stream.write_all(&greeting),
                    };
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        (port, thread)
    });
    of(once(&three, threads[0].0, token), "no data within");
    of(once(&three, threads[1].0, token), "the other end is not overlane");
    stop.store(true, Ordering::Relaxed);
    for (_, thread) in threads {
        thread.join().unwrap();
    }
}

#[test]
fn arguments_of_peer_are_checked_first() {
    for (arguments, problem) in [
        (&["--peer", "192.0.2.2"][..], "select flows"),
        (&["--peer", "a b", "--vni", "7"], "expected HOST"),
        (&["--peer", "192.0.2.2", "--filter", "udp", "--vni", "7"], "not --filter"),
        (&["--token", "/dev/null"], "--serve or --peer"),
        (&["--serve", "0.0.0.0"], "a token is required"),
        (&["--serve", "a-name"], "not an IP address"),
        (&["--serve", "127.0.0.1", "--token", "/nowhere"], "token file /nowhere"),
        (&["--serve", "127.0.0.1", "--peer", "127.0.0.1"], "cannot be used with"),
    ] {
        let ended = run([&["watch"], arguments].concat()).expect(2);
        assert!(ended.stderr.contains(problem), "{arguments:?}: {}", ended.stderr);
    }
}
