//! Answers and refusals of a `PeerServer`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use channel::message::{emit, parse};
use channel::{Channel, Event, RemoteError, Service, Tell, Token, open};
use observe::peer::PeerServer;
use observe::peer::message::{Asked, Reply, Request, Sample};
use observe::{Budget, Filter, Watch};
use test_support::{need, require};
use testbed::{Host, Offload, Wire, poll};

const LIMIT: Duration = Duration::from_secs(60);

fn asked(flows: &[&str], vni: Option<u32>) -> Request {
    let flows = flows.iter().map(|flow| flow.parse().unwrap()).collect();
    Request::Ask(Asked::of(&Filter { flows, vni, ..Filter::default() }).unwrap())
}

fn answer(channel: &mut Channel, payload: &[u8]) -> Reply {
    channel.send(payload).unwrap();
    parse::<Reply>(&channel.receive(LIMIT, &|| true).unwrap()).unwrap()
}

fn sample(channel: &mut Channel) -> Sample {
    match answer(channel, &emit(&Request::Sample)) {
        Reply::Sampled(sample) => *sample,
        other => panic!("{other:?}"),
    }
}

/// Connects, with another token or the right one.
type Connect<'a> = dyn Fn(Option<&Token>) -> Result<Channel, RemoteError> + 'a;

/// Serves a host's observations while `act` has sessions with it.
fn served(host: &Host, act: impl FnOnce(&mut Watch, &Connect<'_>)) {
    let only = [host.netns().try_clone().unwrap()];
    let budget = Budget { cpu: 10_000.0, most: 1 };
    let mut watch = Watch::start(Filter::default(), &only, budget).unwrap();
    let flows = watch.count_flows().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let token = Token::from("0123456789abcdef");
    let bind = || {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        PeerServer::bind(local, Some(token.clone()), Arc::clone(&stop)).unwrap()
    };
    let server = host.netns().run(bind).unwrap();
    let address = server.local();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let tell: Arc<Tell> = Arc::new(|event: Event| drop(event));
            server.run(flows, &tell).unwrap();
        });
        let connect = |other: Option<&Token>| {
            let token = other.unwrap_or(&token);
            let open = || open(address, Service::Watch, Some(token), &stop);
            host.netns().run(open).unwrap()
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            act(&mut watch, &connect);
        }));
        stop.store(true, Ordering::Relaxed);
        serving.join().unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_server_reports_only_the_requested_flows() {
    require!(need::root(), need::tool("nft"));
    let [a, b] = Wire { mtu: 1500, offload: Offload::Full }.hosts().unwrap();
    let bind = |host: &Host, address: Ipv4Addr, port: u16| {
        host.netns().run(|| UdpSocket::bind((address, port)).unwrap()).unwrap()
    };
    let from = bind(&a, Wire::A, 9001);
    let to = [9002, 9003].map(|port| bind(&b, Wire::B, port));
    to.iter().for_each(|to| to.set_read_timeout(Some(LIMIT)).unwrap());
    served(&a, |watch, connect| {
        for to in &to {
            for _ in 0..7 {
                from.send_to(b"counted", to.local_addr().unwrap()).unwrap();
                to.recv(&mut [0; 8]).unwrap();
            }
        }
        let mut channel = connect(None).unwrap();
        assert_eq!(answer(&mut channel, &emit(&asked(&["*:9002/udp"], None))), Reply::Asked);
        let got = sample(&mut channel);
        assert!(got.answered_ns >= got.received_ns && got.received_ns > 0);
        let [one] = &got.flows[..] else { panic!("{got:?}") };
        assert_eq!(one.flow.addresses().to_string(), "10.0.0.1:9001 -> 10.0.0.2:9002 udp");
        assert_eq!((one.count.left.packets, one.count.came.packets), (7, 0));
        // IP and UDP headers.
        assert_eq!(one.count.left.bytes, 7 * (7 + 28));
        assert!(one.count.devices.first().unwrap().ends_with(" nic0"), "{one:?}");
        // Only followed packets have hops; all packets are followed where that costs nothing.
        let hops = poll("hops of a followed packet", LIMIT, || {
            let length = Duration::from_millis(200);
            watch.interval(length, &|| Duration::ZERO, &BTreeMap::new(), &|| true).unwrap();
            from.send_to(b"followed", to[0].local_addr().unwrap()).unwrap();
            let hops = sample(&mut channel).flows.remove(0).hops;
            Ok(if hops.is_empty() { Err("none".to_owned()) } else { Ok(hops) })
        });
        assert!(hops.as_ref().unwrap().iter().any(|hop| hop.ends_with(" nic0 tx")), "{hops:?}");
        // The answer has the reason of a drop on this host.
        let drop = "type filter hook output priority 0; udp dport 9002 drop;";
        a.nft(&format!("table ip guard {{ chain its {{ {drop} }}; }}")).unwrap();
        poll("a dropped packet", LIMIT, || {
            let length = Duration::from_millis(200);
            // The hook refuses it to the sender.
            let _ = from.send_to(b"dropped", to[0].local_addr().unwrap());
            watch.interval(length, &|| Duration::ZERO, &BTreeMap::new(), &|| true).unwrap();
            let hops = sample(&mut channel).flows.remove(0).hops;
            let is_named = hops.last().is_some_and(|hop| hop == "dropped: NETFILTER_DROP");
            Ok(if is_named { Ok(()) } else { Err(format!("{hops:?}")) })
        })
        .unwrap();
        // Other flows are requested instead.
        assert_eq!(answer(&mut channel, &emit(&asked(&[], Some(7)))), Reply::Asked);
        assert_eq!(sample(&mut channel).flows, []);
    });
}

#[test]
fn a_client_that_asks_for_too_much_or_for_nonsense_is_refused() {
    require!(need::root());
    let host = Host::new("a").unwrap();
    host.netlink().set_up("lo").unwrap();
    served(&host, |_, connect| {
        let refused = |reply: Reply, why: &str| match reply {
            Reply::Refused(reason) => assert!(reason.contains(why), "{reason}"),
            other => panic!("{other:?}"),
        };
        let mut channel = connect(None).unwrap();
        refused(answer(&mut channel, &emit(&Request::Sample)), "sample before ask");
        let all = Asked { flows: Vec::new(), vni: None };
        refused(answer(&mut channel, &emit(&Request::Ask(all))), "at least one must be named");
        let many = ["10.0.0.1"; Filter::MOST_FLOWS + 1];
        refused(answer(&mut channel, &emit(&asked(&many, None))), "9 flows");
        // The session worked until here, and ends with an invalid message.
        refused(answer(&mut channel, b"{\"ask\":7}"), "not understood");
        assert!(
            channel.send(&emit(&Request::Sample)).is_err() || {
                channel.receive(LIMIT, &|| true).is_err()
            }
        );
        let wrong = Token::from("another secret, as long");
        let error = connect(Some(&wrong)).unwrap_err();
        assert!(matches!(error, RemoteError::WrongToken { .. }), "{error}");
    });
}
