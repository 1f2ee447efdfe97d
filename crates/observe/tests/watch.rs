//! `Watch` beside a network under load: rates, cuts and drops are those that the kernel counts.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Network, Params};
use observe::{Budget, Filter, Side, Snapshot, Watch};
use test_support::{need, require};
use testbed::{Offload, poll};

const LIMIT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(300);
/// All packets are followed, whatever that costs.
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
    let listener = network.server().netns().run(|| TcpListener::bind(address.listen).unwrap());
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
                // Not a flood: every segment is to be followed, on a machine that is busy.
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
        let way = beside_a_stream(&network, || {
            poll("a way from end to end", LIMIT, || {
                let snapshot = interval(&mut watch, &network);
                let is_whole = |way: &&observe::WaySeen| {
                    let ends = (way.hops.first(), way.hops.last());
                    let names = ends.0.zip(ends.1).map(|(a, b)| (&*a.namespace, &*b.namespace));
                    let is_large = way.hops.first().is_some_and(|hop| hop.gso_packets > 2.0);
                    names == Some(("tenant-a", "tenant-b")) && is_large
                };
                Ok(snapshot.ways.iter().find(is_whole).cloned().ok_or_else(|| snapshot.text()))
            })
            .unwrap()
        });
        for hop in &way.hops {
            let place = (hop.namespace.as_str(), hop.device.as_deref(), hop.side);
            // The last packet of each write may be too short to be a GSO packet.
            let cuts = place == ("a", Some("nic0"), Side::Tx) && is_cut;
            assert_eq!(hop.cut > 0.0, cuts, "{offload}: {place:?}\n{}", way.text());
            if cuts {
                assert!(hop.bytes > 1514.0, "{offload}: {place:?}\n{}", way.text());
            }
            if is_cut && place == ("b", Some("nic0"), Side::Rx) {
                assert!(hop.bytes <= 1514.0, "{offload}: {place:?}\n{}", way.text());
            }
            if place.2 != Side::Socket {
                let counted = hop.counted.unwrap_or_else(|| panic!("{place:?} counts nothing"));
                assert!(counted.packets_per_s > 0.0, "{place:?}\n{}", way.text());
            }
        }
        let outside = way.hops.iter().filter(|hop| hop.device.as_deref() == Some("nic0"));
        assert!(outside.map(|hop| hop.vni).all(|vni| vni.is_some()), "{}", way.text());
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
    // The neighbour is known before.
    let listen = network.address.listen;
    let server = network.server().netns().run(|| UdpSocket::bind(listen).unwrap()).unwrap();
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
    // A neighbour asked for again, or a listener's report, is one besides.
    assert!(found <= DATAGRAMS + 5, "{found} of {DATAGRAMS} drops");
}

#[test]
fn fewer_packets_are_followed_where_that_costs_too_much() {
    require!(need::root());
    let network = network(Offload::Full);
    let mut watch = watch(&network, Budget { cpu: 0.1, most: 1 });
    let cost = std::cell::Cell::new(Duration::ZERO);
    // Half of a CPU, whenever it is asked.
    let own = || {
        cost.set(cost.get() + Duration::from_millis(50));
        cost.get()
    };
    let before = interval(&mut watch, &network).sample;
    let costly = watch.interval(INTERVAL, &own, &hosts(&network), &|| true).unwrap();
    assert!(costly.sample > before, "{} after {before}", costly.sample);
    assert!(costly.own_cpu > costly.budget);
    let cheap = interval(&mut watch, &network);
    assert!(cheap.sample < costly.sample, "{} after {}", cheap.sample, costly.sample);
}
