//! `Watch` on a network under load: its rates, segmentations and drops match the kernel's counters.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lab::{Network, Params};
use observe::{Budget, Filter, Side, Snapshot, Watch};
use test_support::{bound, need, require};
use testbed::{Offload, poll};

const LIMIT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(300);
/// Follows all packets, at any cost.
const ALL: Budget = Budget { cpu: 10_000.0, most: 1 };

fn network(offload: Offload) -> Network {
    lab::find("vxlan").unwrap().build(&Params::new(1500, offload)).unwrap()
}

fn inode(netns: &sys::netns::NetNs) -> u32 {
    u32::try_from(netns.inode()).unwrap()
}

fn hosts(network: &Network) -> BTreeMap<u32, String> {
    network.hosts().iter().map(|h| (inode(h.netns()), h.name().to_owned())).collect()
}

fn watch(network: &Network, budget: Budget) -> Watch {
    let only = network.hosts().iter().map(|host| host.netns().try_clone().unwrap());
    Watch::start(Filter::default(), &only.collect::<Vec<_>>(), budget).unwrap()
}

fn interval(watch: &mut Watch, network: &Network) -> Snapshot {
    watch.interval(INTERVAL, &|| Duration::ZERO, &hosts(network), &|| true).unwrap()
}

/// Runs `act` while a stream goes from client to server.
fn beside_a_stream<T>(network: &Network, act: impl FnOnce() -> T) -> T {
    let (stop, address) = (AtomicBool::new(false), network.address);
    let listener = network.server().netns().run(|| bound(|| TcpListener::bind(address.listen)));
    let listener = listener.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut room = vec![0; 1 << 20];
            while stream.read(&mut room).is_ok_and(|count| count > 0) {}
        });
        scope.spawn(|| {
            let connect = || TcpStream::connect_timeout(&address.target, LIMIT).unwrap();
            let mut stream = network.client().netns().run(connect).unwrap();
            let bytes = vec![7; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(&bytes).unwrap();
                // Not a flood: a busy machine must be able to follow every segment.
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn packets_are_cut_where_the_wire_takes_no_gso_packets_and_nowhere_else() {
    require!(need::root());
    for (offload, is_cut) in [(Offload::None, true), (Offload::Full, false)] {
        let network = network(offload);
        let mut watch = watch(&network, ALL);
        let path = beside_a_stream(&network, || {
            poll("a path from end to end", LIMIT, || {
                let snapshot = interval(&mut watch, &network);
                let is_whole = |path: &&observe::PathSeen| {
                    let ends = (path.hops.first(), path.hops.last());
                    let names = ends.0.zip(ends.1).map(|(a, b)| (&*a.namespace, &*b.namespace));
                    let is_large = path.hops.first().is_some_and(|hop| hop.gso_packets > 2.0);
                    names == Some(("tenant-a", "tenant-b")) && is_large
                };
                Ok(snapshot.paths.iter().find(is_whole).cloned().ok_or_else(|| snapshot.text()))
            })
            .unwrap()
        });
        for hop in &path.hops {
            let place = (hop.namespace.as_str(), hop.device.as_deref(), hop.side);
            // The last packet of each write may be too short to be a GSO packet.
            let cuts = place == ("a", Some("nic0"), Side::Tx) && is_cut;
            assert_eq!(hop.cut > 0.0, cuts, "{offload}: {place:?}\n{}", path.text());
            if cuts {
                assert!(hop.bytes > 1514.0, "{offload}: {place:?}\n{}", path.text());
            }
            if is_cut && place == ("b", Some("nic0"), Side::Rx) {
                assert!(hop.bytes <= 1514.0, "{offload}: {place:?}\n{}", path.text());
            }
            if place.2 != Side::Socket {
                let counted = hop.counted.unwrap_or_else(|| panic!("{place:?} counts nothing"));
                assert!(counted.packets_per_s > 0.0, "{place:?}\n{}", path.text());
            }
        }
        let outside = path.hops.iter().filter(|hop| hop.device.as_deref() == Some("nic0"));
        assert!(outside.map(|hop| hop.vni).all(|vni| vni.is_some()), "{}", path.text());
    }
}

#[test]
fn drops_are_counted_exactly_and_named() {
    const DATAGRAMS: u64 = 500;
    require!(need::root(), need::tools(&["nft"]));
    let network = network(Offload::Full);
    let bridge = "table netdev t { chain c { type filter hook ingress device \"nic0\" priority 0; \
                  udp dport 4789 drop; }; }";
    let b = network.hosts().iter().find(|host| host.name() == "b").unwrap();
    let nft = |text: &str| {
        let mut command = std::process::Command::new("nft");
        let done = b.netns().run(|| command.arg(text).status()).unwrap().unwrap();
        assert!(done.success(), "{text}");
    };
    let target = network.address.target;
    let socket = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    // Makes the neighbour known first.
    let listen = network.address.listen;
    let server = network.server().netns().run(|| bound(|| UdpSocket::bind(listen))).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    poll("a datagram at the server", LIMIT, || {
        socket.send_to(b"there", target).unwrap();
        Ok(server.recv(&mut [0; 8]).map_err(|error| error.to_string()))
    })
    .unwrap();
    nft(bridge);
    let mut watch = watch(&network, ALL);
    for _ in 0..DATAGRAMS {
        socket.send_to(b"dropped", target).unwrap();
    }
    let mut found = 0;
    poll("every drop", LIMIT, || {
        let snapshot = interval(&mut watch, &network);
        let of =
            |drop: &&observe::DropSeen| drop.reason == "NETFILTER_DROP" && drop.namespace == "b";
        let drops: Vec<_> = snapshot.drops.iter().filter(of).collect();
        assert!(drops.iter().all(|drop| drop.device.as_deref() == Some("nic0")), "{drops:?}");
        assert!(drops.iter().all(|drop| drop.meaning.is_some()), "{drops:?}");
        found += drops.iter().map(|drop| drop.packets).sum::<u64>();
        Ok(if found >= DATAGRAMS { Ok(()) } else { Err(format!("{found}: {}", snapshot.text())) })
    })
    .unwrap();
    // It may include a repeated neighbour request or a listener's report.
    assert!(found <= DATAGRAMS + 5, "{found} of {DATAGRAMS} drops");
}

/// A fragmented and reassembled datagram is one drop, not one for each fragment.
#[test]
fn a_reassembled_datagram_is_dropped_once() {
    const DATAGRAMS: u64 = 100;
    require!(need::root());
    let network = network(Offload::Full);
    let mut watch = watch(&network, ALL);
    let target = network.address.target;
    let socket = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    // Three fragments of the tenant's MTU; the path MTU must not be probed.
    network.client().sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    for _ in 0..DATAGRAMS {
        // The port is closed.
        socket.send_to(&[7; 3500], target).unwrap();
    }
    let mut found = 0;
    let mut count = |watch: &mut Watch| {
        let snapshot = interval(watch, &network);
        let of =
            |drop: &&observe::DropSeen| drop.reason == "NO_SOCKET" && drop.namespace == "tenant-b";
        found += snapshot.drops.iter().filter(of).map(|drop| drop.packets).sum::<u64>();
        (found, snapshot.text())
    };
    poll("every drop", LIMIT, || match count(&mut watch) {
        (found, _) if found >= DATAGRAMS => Ok(Ok(())),
        (found, text) => Ok(Err(format!("{found}: {text}"))),
    })
    .unwrap();
    // No drop arrives later.
    let (found, text) = count(&mut watch);
    assert_eq!(found, DATAGRAMS, "{text}");
}

/// Two ports without a listener; one of them is selected.
#[test]
fn drops_of_a_flow_are_counted_apart_from_all_others() {
    const DATAGRAMS: u64 = 50;
    require!(need::root());
    let network = network(Offload::Full);
    let target = network.address.target;
    let (asked, other) = (target.port(), target.port() + 1);
    let flows = vec![format!("{}:{asked}/udp", target.ip()).parse().unwrap()];
    let only = network.hosts().iter().map(|host| host.netns().try_clone().unwrap());
    let filter = Filter { flows, ..Filter::default() };
    let mut watch = Watch::start(filter, &only.collect::<Vec<_>>(), ALL).unwrap();
    let socket = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    for port in [asked, other].repeat(DATAGRAMS as usize) {
        socket.send_to(b"dropped", (target.ip(), port)).unwrap();
    }
    let (mut of_flow, mut all) = (0, 0);
    poll("every drop", LIMIT, || {
        let snapshot = interval(&mut watch, &network);
        let count = |drops: &[observe::DropSeen]| {
            let of = |drop: &&observe::DropSeen| {
                drop.reason == "NO_SOCKET" && drop.namespace == "tenant-b"
            };
            drops.iter().filter(of).map(|drop| drop.packets).sum::<u64>()
        };
        of_flow += count(snapshot.flow_drops.as_ref().unwrap());
        all += count(&snapshot.drops);
        assert!(snapshot.text().contains("dropped, of the filter's packets"));
        let text = || Err(format!("{of_flow} of {all}: {}", snapshot.text()));
        Ok(if of_flow >= DATAGRAMS && all >= 2 * DATAGRAMS { Ok(()) } else { text() })
    })
    .unwrap();
    assert_eq!(of_flow, DATAGRAMS);
}

#[test]
fn the_network_is_looked_at_less_where_that_costs_too_much() {
    require!(need::root());
    let network = network(Offload::Full);
    let mut watch = watch(&network, Budget { cpu: 100.0, most: 1 });
    let cost = std::cell::Cell::new(Duration::ZERO);
    // More than a CPU, at every call.
    let own = || {
        cost.set(cost.get() + Duration::from_millis(50));
        cost.get()
    };
    let always = |watch: &mut Watch| {
        poll("a look at everything", LIMIT, || {
            let seen = watch.interval(INTERVAL, &|| cost.get(), &hosts(&network), &|| true);
            let seen = seen.unwrap();
            let is_all = seen.looked > 0.9 && seen.sample == 1;
            Ok(if is_all { Ok(()) } else { Err(format!("{}, {}", seen.looked, seen.sample)) })
        })
        .unwrap();
    };
    always(&mut watch);
    let costly = watch.interval(INTERVAL, &own, &hosts(&network), &|| true).unwrap();
    assert!(costly.looked < 0.5, "{} of the time", costly.looked);
    assert!(costly.own_cpu > costly.budget, "{}%", costly.own_cpu);
    always(&mut watch);
}

/// Windows begin and end during a stream: packets in flight at that time are neither lost nor
/// dropped.
#[test]
fn packets_in_windows_are_followed_whole() {
    const PATHS: usize = 10;
    require!(need::root());
    let network = network(Offload::Full);
    let cost = std::cell::Cell::new(Duration::ZERO);
    // In a window more than the budget, otherwise less.
    let own = || {
        cost.set(cost.get() + Duration::from_micros(2500));
        cost.get()
    };
    let mut watch = watch(&network, Budget { cpu: 20.0, most: 1 });
    let (mut paths, mut looked, mut intervals) = (0, 0.0, 0.0);
    beside_a_stream(&network, || {
        poll("paths in windows", LIMIT, || {
            let seen = watch.interval(INTERVAL, &own, &hosts(&network), &|| true).unwrap();
            (looked, intervals) = (looked + seen.looked, intervals + 1.0);
            let is_of_stream = |path: &&observe::PathSeen| {
                path.example.as_ref().is_some_and(|example| example.to_string().contains("tcp"))
            };
            for path in seen.paths.iter().filter(is_of_stream) {
                let at = |hop: Option<&observe::HopSeen>| hop.map(|hop| hop.namespace.clone());
                let ends =
                    [at(path.hops.first()), at(path.hops.last())].map(Option::unwrap_or_default);
                // The kernel may free an acknowledgement in its receiver without an event.
                let is_whole = ends == ["tenant-a", "tenant-b"] || ends == ["tenant-b", "tenant-a"];
                let is_under_way = path.ending.contains("under way");
                // TCP drops a segment that it has received before. The segment's first hops may be
                // older than the window.
                if path.ending.contains("dropped: TCP_") {
                    continue;
                }
                let is_lost = path.ending.contains("dropped") || !(is_whole || is_under_way);
                assert!(ends[0].starts_with("tenant") && !is_lost, "{}", seen.text());
                paths += 1;
            }
            let is_in_windows = looked < 0.8 * intervals;
            Ok(if paths >= PATHS && is_in_windows { Ok(()) } else { Err(seen.text()) })
        })
        .unwrap();
    });
}

#[test]
fn queue_lengths_and_cpu_times_are_reported() {
    require!(need::root(), need::tools(&["tc"]));
    let network = network(Offload::Full);
    let mut command = std::process::Command::new("tc");
    command.args(["qdisc", "add", "dev", "nic0", "root", "tbf"]);
    // Ten of the datagrams take less than a second.
    command.args(["rate", "80kbit", "burst", "2kb", "limit", "100kb"]);
    network.host("a").unwrap().run(&mut command).unwrap();
    let (listen, target) = (network.address.listen, network.address.target);
    let receiver = network.server().netns().run(|| bound(|| UdpSocket::bind(listen))).unwrap();
    let sender = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let mut watch = watch(&network, ALL);
    let snapshot = poll("a queue that holds packets", LIMIT, || {
        for _ in 0..20 {
            sender.send_to(&[7; 1000], target).unwrap();
        }
        let snapshot = interval(&mut watch, &network);
        let hops = || snapshot.paths.iter().flat_map(|path| &path.hops);
        let is_held = hops().any(|hop| {
            let place = (hop.namespace.as_str(), hop.device.as_deref(), hop.side);
            place == ("a", Some("nic0"), Side::Tx) && hop.queued > Some(0)
        });
        Ok(if is_held { Ok(snapshot.clone()) } else { Err(snapshot.text()) })
    })
    .unwrap();
    drop(receiver);
    // No packet waits at a device without a queue, or on the receiving side.
    for hop in snapshot.paths.iter().flat_map(|path| &path.hops) {
        assert!(hop.queued.is_none() || hop.side == Side::Tx, "{}", snapshot.text());
    }
    assert!(snapshot.text().contains(" packets in its queue"), "{}", snapshot.text());
    let softirqs = snapshot.softirqs().unwrap();
    assert!(softirqs.starts_with("softirq CPU ") && softirqs.contains("; backlog "), "{softirqs}");
    assert!(snapshot.cpus.iter().all(|cpu| (0.0..=100.0).contains(&cpu.softirq)), "{softirqs}");
}

/// All packets are selected, and the budget allows all. But their cost is checked before more are
/// followed.
#[test]
fn in_a_flood_no_more_packets_are_followed_than_there_is_room_for() {
    // `ROOM` of filter.rs, in each `CHOOSING` of windows.rs.
    const ROOM: f64 = 256.0;
    const ANEW: f64 = 0.020;
    require!(need::root());
    let network = network(Offload::Full);
    let (listen, target) = (network.address.listen, network.address.target);
    let receiver = network.server().netns().run(|| bound(|| UdpSocket::bind(listen))).unwrap();
    let sender = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let mut watch = watch(&network, ALL);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Enough threads to get a share of a CPU beside other programs.
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // A full queue does not matter.
                    let _ = sender.send_to(&[7; 10], target);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let flood = poll("a flood", LIMIT, || {
            let before = sent.load(Ordering::Relaxed);
            let seen = interval(&mut watch, &network);
            let came = (sent.load(Ordering::Relaxed) - before) as f64;
            // Also once when a window opens, and when devices were searched.
            let most = ROOM * (seen.seconds / ANEW + 3.0);
            let followed = seen.followed;
            assert!(followed as f64 <= most, "{followed} of {came}, at most {most}");
            // On a machine with fewer packets this shows nothing.
            let is_flood = came > 2.0 * most && followed > 0;
            Ok(if is_flood { Ok(()) } else { Err(format!("{followed} of {came}")) })
        });
        stop.store(true, Ordering::Relaxed);
        flood.unwrap();
    });
    drop(receiver);
}
