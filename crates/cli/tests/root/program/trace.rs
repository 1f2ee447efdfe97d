//! `overlane trace`: its refusals, and its capture file.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use lab::{Network, Params};
use nix::sys::signal::Signal;
use test_support::{need, require};
use testbed::{Host, Offload, Processes};

use super::launch::{Running, entries, eventually, overlane, run};

#[test]
fn arguments_that_are_wrong_are_refused() {
    for (arguments, problem) in [
        (&["--payload", "10"][..], "--pcapng"),
        (&["--pcapng", "x", "--payload", "1501"], "--payload: 1501: expected at most 1500 bytes"),
        (&["--pcapng", "/nowhere/x"], "--pcapng: cannot create /nowhere/x: No such file"),
    ] {
        let ended = run([&["trace"], arguments].concat()).expect(2);
        assert!(ended.stderr.contains(problem), "{ended:?}");
    }
    assert!(!Path::new("x").exists());
}

#[test]
fn a_device_that_no_namespace_has_is_refused() {
    require!(need::root());
    for verb in ["trace", "watch"] {
        let ended = run([verb, "--device", "nosuchdev0"]).expect(2);
        assert!(ended.stderr.contains("--device: \"nosuchdev0\": no namespace"), "{ended:?}");
        let ended = run([verb, "--device", "nosuchdev0", "--netns", "host"]).expect(2);
        assert!(ended.stderr.contains("no namespace of --netns has this device"), "{ended:?}");
    }
}

#[test]
fn invalid_expressions_are_refused_with_libpcaps_message() {
    require!(observe::Expression::compile("ip").map_err(|error| error.to_string()));
    for (expression, problem) in [
        ("tcp port", "syntax error"),
        ("port 70000", "70000"),
        ("host 10.1.0.300", "10.1.0.300"),
        ("ip broadcast", "netmask not known"),
        ("ip protochain 17", "loop"),
        ("inbound", "not in the packet"),
    ] {
        for verb in ["trace", "watch"] {
            let ended = run([verb, "--filter", expression]).expect(2);
            let is_reported = ended.stderr.contains("--filter: ") && ended.stderr.contains(problem);
            assert!(is_reported, "{verb}: {ended:?}");
        }
    }
}

#[test]
fn a_capture_is_never_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.pcapng");
    fs::write(&path, "mine").unwrap();
    let ended = run(["trace", "--pcapng", path.to_str().unwrap()]).expect(2);
    assert!(ended.stderr.contains("--pcapng: ") && ended.stderr.contains("exists"), "{ended:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    assert_eq!(entries(directory.path()), ["c.pcapng"]);
}

fn network() -> Result<Network, String> {
    need::root()?;
    let params = Params::new(1500, Offload::Full);
    lab::find("vxlan").unwrap().build(&params).map_err(|error| error.to_string())
}

/// tshark's output for a capture.
fn tshark(path: &Path, more: &[&str]) -> String {
    let mut command = Command::new("tshark");
    let output = command.arg("-r").arg(path).args(more).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = stderr.lines().filter(|line| !line.contains("Running as user")).collect();
    assert!(output.status.success() && said.is_empty(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Datagrams with a reader, in a tunnel: the file has every step, and ends with a complete block
/// after Ctrl-C.
#[test]
fn a_capture_shows_journeys_in_tshark() {
    const BYTES: usize = 100;
    require!(need::root(), need::tools(&["tshark", "capinfos"]));
    let network = network().unwrap();
    let (client, server) = (network.client(), network.server());
    // A process finds namespaces by the processes in them.
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping: Vec<_> = network.hosts().iter().map(sleep).collect();
    let open = |address: &str| UdpSocket::bind(address).unwrap();
    let sender = client.netns().run(|| open("0.0.0.0:0")).unwrap();
    let listen = network.address.listen.to_string();
    let receiver = server.netns().run(|| open(&listen)).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let port = sender.local_addr().unwrap().port();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.pcapng");
    let flow = format!("*:{port} -> {}/udp", network.address.target);
    let mut arguments = vec!["trace", "--flow", &flow, "--pcapng", path.to_str().unwrap()];
    arguments.extend(["--payload", "4"]);
    let mut tracing = Running::start(overlane(arguments));
    tracing.await_stderr("tracing: ");
    // A datagram that was not flooded, as the first ones may be.
    let text = eventually("a datagram from socket to socket", || {
        sender.send_to(&[7; BYTES], network.address.target).unwrap();
        while receiver.recv(&mut [0; BYTES]).is_ok() {}
        let text = tracing.stdout_so_far();
        let whole = text.split("packet ").find(|packet| {
            let is_read = packet.contains(" read by ") || packet.contains("received by the socket");
            is_read && !packet.contains("copy") && !packet.contains("DROPPED")
        });
        whole.map(str::to_owned).ok_or(text.clone())
    });
    let number = text.split(':').next().unwrap();
    tracing.signal(Signal::SIGINT);
    tracing.wait().expect(130);
    // Each device is an interface, in the order of the path.
    let fields = ["-T", "fields", "-E", "separator=|", "-E", "aggregator=;"];
    let names =
        ["frame.interface_name", "frame.len", "frame.cap_len", "udp.payload", "frame.comment"];
    let names: Vec<&str> = names.iter().flat_map(|name| ["-e", name]).collect();
    let of_it = format!("frame.comment contains \"packet {number}, \"");
    let text = tshark(&path, &[&["-Y", &of_it][..], &fields, &names].concat());
    let steps: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
    let all = steps.len();
    assert!(all >= 8, "{text}");
    for (at, step) in steps.iter().enumerate() {
        let [name, length, captured, payload, comment] = &step[..] else { panic!("{step:?}") };
        let (length, captured): (usize, usize) =
            (length.parse().unwrap(), captured.parse().unwrap());
        let place = format!("packet {number}, step {} of {all}: ", at + 1);
        assert!(comment.contains(&place), "{step:?}");
        assert!(comment.contains(" bytes, checksum "), "{step:?}");
        assert_eq!(comment.contains("end: re"), at == all - 1, "{step:?}");
        // Headers and four bytes.
        assert_eq!(length - captured, BYTES - 4, "{step:?}");
        assert!(payload.ends_with("07070707"), "{step:?}");
        assert!(!name.is_empty());
    }
    // In the tunnel, and out of it again.
    let inside =
        tshark(&path, &["-Y", "vxlan.vni and ip.src and udp", "-T", "fields", "-e", "vxlan.vni"]);
    assert!(inside.lines().count() >= 4, "{inside}");
    let broken = tshark(&path, &["-Y", "_ws.malformed"]);
    assert_eq!(broken, "");
    let about = Command::new("capinfos").arg(&path).output().unwrap();
    let about = String::from_utf8(about.stdout).unwrap();
    for line in ["pcapng", "Strict time order:   True", "Capture application: overlane "] {
        assert!(about.contains(line), "{line}: {about}");
    }
    assert!(about.contains("Time resolution = 0x09"), "{about}");
}

/// While the tracer is stopped, more events arrive than the ring holds: 10 steps of 20,000
/// datagrams.
#[test]
fn under_overload_packets_are_sampled() {
    require!(need::root());
    let network = network().unwrap();
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping: Vec<_> = network.hosts().iter().map(sleep).collect();
    let sender = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let port = sender.local_addr().unwrap().port();
    let flow = format!("*:{port} -> {}/udp", network.address.target);
    // The requested sampling is kept.
    for asked in [&[][..], &["--sample", "1/1"]] {
        let mut tracing = Running::start(overlane([&["trace", "--flow", &flow], asked].concat()));
        tracing.await_stderr("tracing: ");
        tracing.signal(Signal::SIGSTOP);
        for _ in 0..20_000 {
            // The path may drop some.
            let _ = sender.send_to(&[7; 100], network.address.target);
        }
        tracing.signal(Signal::SIGCONT);
        let text = "events lost: now tracing 1 in ";
        if asked.is_empty() {
            tracing.await_stderr(text);
        }
        tracing.signal(Signal::SIGINT);
        let ended = tracing.wait().expect(130);
        assert!(!ended.stderr.contains(", 0 events lost"), "{}", ended.stderr);
        assert_eq!(ended.stderr.contains(text), asked.is_empty(), "{}", ended.stderr);
    }
}

/// Gives the server an address of this test: `trace` sees all namespaces of the machine, and other
/// tests have networks with the same addresses.
fn own_address(network: &Network, last: u8) -> String {
    let std::net::IpAddr::V4(target) = network.address.target.ip() else { unreachable!() };
    let [a, b, c, _] = target.octets();
    let address = format!("{a}.{b}.{c}.{last}");
    let mut add = Command::new("ip");
    network
        .server()
        .run(add.args(["address", "add", &format!("{address}/24"), "dev", "eth0"]))
        .unwrap();
    address
}

/// The kernel frees its copy of an answer to a ping as if it were unwanted.
#[test]
fn an_answered_ping_is_no_drop() {
    require!(need::root(), need::tool("ping"));
    let network = network().unwrap();
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping: Vec<_> = network.hosts().iter().map(sleep).collect();
    let target = own_address(&network, 201);
    let flow = format!("{target}/icmp");
    let mut tracing = Running::start(overlane(["trace", "--flow", &flow]));
    tracing.await_stderr("tracing: ");
    let answer = format!(": {target} -> ");
    let ping = || network.client().run(Command::new("ping").args(["-c", "1", "-W", "5", &target]));
    eventually("an answer at the client", || {
        ping().map_err(|error| error.to_string())?;
        let text = tracing.stdout_so_far();
        let mut packets = text.split("packet ");
        packets.any(|packet| packet.contains(&answer)).then_some(()).ok_or(text.clone())
    });
    tracing.signal(Signal::SIGINT);
    let ended = tracing.wait().expect(130);
    assert!(!ended.stdout.contains("DROPPED"), "{}", ended.stdout);
}

/// Neither for `watch`: not as the end of its path, and not among the drops.
#[test]
fn an_answered_ping_is_no_drop_of_an_interval() {
    require!(need::root(), need::tool("ping"));
    let network = network().unwrap();
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping: Vec<_> = network.hosts().iter().map(sleep).collect();
    let target = own_address(&network, 202);
    let flow = format!("{target}/icmp");
    let watch = ["watch", "--text", "--interval", "300ms", "--budget", "100%", "--flow", &flow];
    let watching = Running::start(overlane(watch));
    let answered = format!("such as {target} -> ");
    let ping = || network.client().run(Command::new("ping").args(["-c", "1", "-W", "5", &target]));
    eventually("a path of an answer", || {
        ping().map_err(|error| error.to_string())?;
        let text = watching.stdout_so_far();
        let answer = text.lines().any(|line| line.contains(&answered) && line.contains("received"));
        answer.then_some(()).ok_or(text)
    });
    watching.signal(Signal::SIGINT);
    let ended = watching.wait().expect(130);
    assert!(!ended.stdout.contains("ping_rcv"), "{}", ended.stdout);
    assert!(!ended.stdout.contains(": dropped: NO_SOCKET"), "{}", ended.stdout);
}

/// The rule is in a chain that the hook's chain jumps to, as in Kubernetes.
#[test]
fn the_chain_of_the_rule_that_dropped_a_packet_is_named() {
    require!(need::root(), need::tool("nft"));
    let network = network().unwrap();
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping: Vec<_> = network.hosts().iter().map(sleep).collect();
    let target = network.address.target.ip();
    let rules = format!(
        "table inet filter {{
            chain policy-web {{ tcp dport 8080 counter drop comment \"policy: no web\"; }}
            chain input {{
                type filter hook input priority 0; policy accept;
                ip daddr {target} jump policy-web
            }}
        }}"
    );
    network.server().nft(&rules).unwrap();
    let flow = format!("{target}:8080/tcp");
    let arguments = ["trace", "--drops-only", "--explain", "--count", "1", "--flow", &flow];
    let mut tracing = Running::start(overlane(arguments));
    tracing.await_stderr("tracing: ");
    let patience = std::time::Duration::from_millis(200);
    let connect = || std::net::TcpStream::connect_timeout(&(target, 8080).into(), patience).is_ok();
    eventually("the dropped packet", || {
        assert!(!network.client().netns().run(connect).unwrap());
        let text = tracing.stdout_so_far();
        if text.contains("NETFILTER_DROP") { Ok(()) } else { Err(text) }
    });
    let ended = tracing.wait().expect(0);
    assert!(ended.stdout.contains("policy-web"), "{}", ended.stdout);
}

/// Rules on output and on input, and a policy.
#[test]
fn a_drop_names_the_rule() {
    require!(need::root(), need::tool("nft"));
    let [a, b] = ["a", "b"].map(|name| Arc::new(Host::new(name).unwrap()));
    a.connect("nic0", &b, "nic0", 1500).unwrap();
    a.address("nic0", Ipv4Addr::new(10, 77, 0, 1), 24).unwrap();
    b.address("nic0", Ipv4Addr::new(10, 77, 0, 2), 24).unwrap();
    // A process finds namespaces by the processes in them.
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping = [&a, &b].map(sleep);
    let chain = |hook: &str, policy: &str, rule: &str| {
        format!(
            "table ip guard {{ chain its {{ type filter hook {hook} priority 0; policy {policy}; \
             {rule} }}; }}"
        )
    };
    let sender = a.netns().run(|| UdpSocket::bind("10.77.0.1:0").unwrap()).unwrap();
    let port = sender.local_addr().unwrap().port();
    let flow = format!("*:{port} -> 10.77.0.2:5301/udp");
    for (host, rules, expected) in [
        (&a, chain("output", "accept", "udp dport 5301 drop;"), "handle 2 of ip guard its"),
        (&b, chain("input", "accept", "udp dport 5301 drop;"), "handle 2 of ip guard its"),
        (&b, chain("input", "drop", "tcp dport 22 accept;"), "the policy of ip guard its"),
    ] {
        host.nft(&rules).unwrap();
        let mut tracing = Running::start(overlane(["trace", "--flow", &flow, "--drops-only"]));
        tracing.await_stderr("tracing: ");
        eventually("a drop with its rule", || {
            // The output hook refuses it at once.
            let _ = sender.send_to(b"overlay", "10.77.0.2:5301");
            let text = tracing.stdout_so_far();
            let is_named = text.contains("DROPPED: NETFILTER_DROP") && text.contains(expected);
            is_named.then_some(()).ok_or(text)
        });
        tracing.signal(Signal::SIGINT);
        tracing.wait().expect(130);
        host.nft("delete table ip guard").unwrap();
    }
}

/// The object is an entry or a setting of the namespace of the drop.
#[test]
fn a_drop_names_the_entry_or_setting() {
    require!(need::root(), need::tool("ip"), need::tool("bridge"));
    let [a, b] = ["a", "b"].map(|name| Arc::new(Host::new(name).unwrap()));
    a.connect("nic0", &b, "nic0", 1500).unwrap();
    a.address("nic0", Ipv4Addr::new(10, 77, 0, 1), 24).unwrap();
    b.address("nic0", Ipv4Addr::new(10, 77, 0, 2), 24).unwrap();
    let ip = |host: &Host, line: &str| {
        host.run(Command::new("ip").args(line.split(' '))).unwrap();
    };
    b.sysctl("net/ipv4/conf/all/forwarding", "0").unwrap();
    b.sysctl("net/ipv4/conf/nic0/forwarding", "0").unwrap();
    ip(&a, "route add 10.99.0.0/24 via 10.77.0.2");
    ip(&a, "neigh add 10.77.0.9 lladdr 02:00:00:00:00:09 dev nic0");
    for (vni, remote) in [(100, ""), (101, " remote 10.77.0.2"), (103, " remote 10.77.0.2")] {
        let options = format!("type vxlan id {vni} dstport 4789 dev nic0{remote}");
        let own = format!("address 02:00:00:00:{vni:02x}:01");
        ip(&a, &format!("link add vx{vni} {own} {options}"));
        ip(&a, &format!("address add 10.{vni}.0.1/24 dev vx{vni}"));
        ip(&a, &format!("link set vx{vni} up"));
        let neighbour = format!("10.{vni}.0.2 lladdr 02:00:00:00:00:02 dev vx{vni}");
        ip(&a, &format!("neigh add {neighbour}"));
    }
    for vni in [102, 103] {
        ip(&b, &format!("link add vx{vni} type vxlan id {vni} dstport 4789 dev nic0"));
        ip(&b, &format!("link set vx{vni} up"));
    }
    // Host b expects this sender behind another remote endpoint.
    let entry = "fdb add 02:00:00:00:67:01 dev vx103 dst 10.77.0.9 self permanent";
    b.run(Command::new("bridge").args(entry.split(' '))).unwrap();
    // A process finds namespaces by those who are in them.
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping = [&a, &b].map(sleep);
    let sender = a.netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let _own = b.netns().run(|| UdpSocket::bind("127.0.0.1:5301").unwrap()).unwrap();
    for (to, reason, expected) in [
        ("10.77.0.2", "NO_SOCKET", "UDP port 5301 is open at 127.0.0.1 only"),
        (
            "10.100.0.2",
            "NO_TX_TARGET",
            "vx100 has no forwarding entry for 02:00:00:00:00:02, and no default remote",
        ),
        (
            "10.101.0.2",
            "VXLAN_VNI_NOT_FOUND",
            "no VXLAN device of port 4789 has VNI 101: vx102 has 102",
        ),
        (
            "10.103.0.2",
            "VXLAN_ENTRY_EXISTS",
            "vx103 has 02:00:00:00:67:01 at 10.77.0.9, fixed; the packet came from 10.77.0.1",
        ),
        ("10.77.0.9", "OTHERHOST", "the packet is for 02:00:00:00:00:09; nic0 has "),
        ("10.99.0.9", "IP_INADDRERRORS", "net.ipv4.conf.nic0.forwarding = 0"),
    ] {
        await_drop(&sender, to, reason, expected);
    }
}

/// Sends datagrams to an address until `trace` reports a drop with this reason and object.
fn await_drop(sender: &UdpSocket, to: &str, reason: &str, expected: &str) {
    let port = sender.local_addr().unwrap().port();
    let flow = format!("*:{port} -> {to}:5301/udp");
    let mut tracing = Running::start(overlane(["trace", "--flow", &flow, "--drops-only"]));
    tracing.await_stderr("tracing: ");
    eventually("a drop with its object", || {
        let _ = sender.send_to(b"overlay", (to, 5301));
        let text = tracing.stdout_so_far();
        let is_named = text.contains(&format!("DROPPED: {reason}")) && text.contains(expected);
        is_named.then_some(()).ok_or(text)
    });
    tracing.signal(Signal::SIGINT);
    tracing.wait().expect(130);
}

/// The object is a bridge or the route back.
#[test]
fn a_drop_names_the_bridge_or_the_route_back() {
    require!(need::root(), need::tool("ip"), need::tool("bridge"));
    let [a, b] = ["a", "b"].map(|name| Arc::new(Host::new(name).unwrap()));
    let ip = |host: &Host, line: &str| {
        host.run(Command::new("ip").args(line.split(' '))).unwrap();
    };
    let bridge = |host: &Host, line: &str| {
        host.run(Command::new("bridge").args(line.split(' '))).unwrap();
    };
    for (link, at) in [("nic0", 77), ("nic1", 78)] {
        a.connect(link, &b, link, 1500).unwrap();
        a.address(link, Ipv4Addr::new(10, at, 0, 1), 24).unwrap();
    }
    b.address("nic0", Ipv4Addr::new(10, 77, 0, 2), 24).unwrap();
    // The bridge of host b floods to no port.
    ip(&b, "link add br0 type bridge mcast_snooping 0");
    ip(&b, "link add port1 type veth peer name far1");
    for link in ["nic1", "port1"] {
        ip(&b, &format!("link set {link} master br0 up"));
    }
    for link in ["br0", "far1"] {
        ip(&b, &format!("link set {link} up"));
    }
    bridge(&b, "link set dev port1 flood off");
    ip(&a, "neigh add 10.78.0.9 lladdr 02:00:00:00:00:09 dev nic1");
    // The source address is behind another device of host b.
    ip(&a, "address add 10.55.0.1/32 dev nic0");
    ip(&a, "route add 10.77.0.3 dev nic0 src 10.55.0.1");
    ip(&b, "address add 10.77.0.3/24 dev nic0");
    // Host b would not answer ARP from this address.
    ip(&b, "link set nic0 address 02:00:00:00:00:02");
    ip(&a, "neigh add 10.77.0.3 lladdr 02:00:00:00:00:02 dev nic0");
    ip(&b, "route add 10.55.0.0/24 dev far1");
    b.sysctl("net/ipv4/conf/all/rp_filter", "1").unwrap();
    // A process finds namespaces by those who are in them.
    let processes = Processes::new().unwrap();
    let sleep = |host: &Arc<Host>| processes.start(host, Command::new("sleep").arg("600")).unwrap();
    let _sleeping = [&a, &b].map(sleep);
    let sender = a.netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    for (to, reason, expected) in [
        (
            "10.78.0.9",
            "NO_TX_TARGET",
            "br0 has no forwarding entry for 02:00:00:00:00:09, and floods it to none of its 1 \
             other ports",
        ),
        ("10.77.0.3", "IP_RPFILTER", "the route back to 10.55.0.1 uses far1; it arrived on nic0"),
    ] {
        await_drop(&sender, to, reason, expected);
    }
}
