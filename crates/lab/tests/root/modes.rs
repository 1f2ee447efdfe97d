//! Every mode that this machine can build carries TCP and UDP from client to server, over its
//! declared hops.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use lab::{Capabilities, Mode, Network, Params, modes};
use netstate::{HopKind, Side};
use test_support::{bound, left_out, need, require, some_at_once};
use testbed::{Offload, Privileges};

const LIMIT: Duration = Duration::from_secs(10);
const BYTES: usize = 200_000;

fn privileged() -> Result<Capabilities, String> {
    need::networks()?;
    Ok(Capabilities::new(Privileges::Root).unwrap())
}

/// Finds a mode that this machine can build as root, or gives the reason why it cannot.
pub fn mode(name: &str) -> Result<&'static dyn Mode, String> {
    need::root()?;
    let mode = lab::find(name).unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("{name}: {}", unsupported.reason))?;
    Ok(mode)
}

/// Modes with their own tests in `k8s.rs`, `flannel.rs`, `bgp.rs`, `evpn.rs` and `network_node.rs`:
/// each takes long to build, or is accelerated only in certain conditions.
fn is_tested_elsewhere(mode: &str) -> bool {
    ["k8s", "bgp-", "evpn", "vrouter", "floating-ip", "snat"]
        .iter()
        .any(|start| mode.starts_with(start))
        || mode == "flannel+accel"
}

/// Whether the machine can build a mode; prints the reason if not.
fn can(machine: &Capabilities, mode: &dyn Mode) -> bool {
    let Err(unsupported) = mode.probe(machine) else { return true };
    assert!(!unsupported.reason.is_empty() && !unsupported.remedy.is_empty());
    left_out(&format!("{}: {}; {}", mode.name(), unsupported.reason, unsupported.remedy));
    false
}

/// Sends `BYTES` over TCP and one datagram over UDP, client to server.
fn drive(network: &Network) {
    let address = network.address;
    let (ready, listening) = mpsc::channel();
    let (server, client) = (network.server().netns().clone(), network.client().netns().clone());
    let serving = std::thread::spawn(move || {
        server
            .run(|| {
                let udp = bound(|| UdpSocket::bind(address.listen));
                udp.set_read_timeout(Some(LIMIT)).unwrap();
                let tcp = bound(|| TcpListener::bind(address.listen));
                ready.send(()).unwrap();
                let (mut stream, _) = tcp.accept().unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert_eq!(received.len(), BYTES);
                let mut datagram = [0; 64];
                assert_eq!(udp.recv(&mut datagram).unwrap(), 7);
            })
            .unwrap();
    });
    listening.recv_timeout(LIMIT).unwrap();
    client
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&address.target, LIMIT).unwrap();
            stream.set_write_timeout(Some(LIMIT)).unwrap();
            stream.write_all(&vec![7; BYTES]).unwrap();
            drop(stream);
            let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
            udp.send_to(b"overlay", address.target).unwrap();
        })
        .unwrap();
    serving.join().unwrap();
}

#[test]
fn every_mode_is_known_by_one_name() {
    let mut names: Vec<_> = modes().iter().map(|mode| mode.name()).collect();
    assert_eq!(names[0], "host", "the baseline comes first");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), modes().len());
    assert!(lab::find("vxlan").is_some() && lab::find("no-such-mode").is_none());
    for group in lab::groups() {
        assert!(!names.contains(&group.name), "{} is a mode, too", group.name);
        assert_ne!(group.name, "all");
    }
}

#[test]
fn every_buildable_mode_carries_traffic_over_its_hops() {
    let machine = require!(privileged());
    // Guests run overlane, and this program is not overlane: see cli/tests/virtual_machines.rs.
    let here = |mode: &&&dyn Mode| !mode.in_guests() && !is_tested_elsewhere(mode.name());
    let buildable: Vec<_> =
        modes().iter().filter(here).filter(|mode| can(&machine, **mode)).collect();
    some_at_once(&buildable, |mode| {
        for (mtu, offload) in [(1500, Offload::Full), (9000, Offload::None)] {
            let network = mode
                .build(&Params::new(mtu, offload))
                .unwrap_or_else(|error| panic!("{}: {error}", mode.name()));
            drive(&network);
            for hop in &network.hops {
                // Other tests cover stages and the hops that they bypass: below, and
                // tests/accel.rs.
                if hop.kind != HopKind::Device || hop.bypass.is_some() {
                    continue;
                }
                let host = network.host(&hop.host).unwrap();
                let counters = host.netlink().link(&hop.device).unwrap().counters;
                let bytes = match hop.forward {
                    Side::Rx => counters.rx_bytes,
                    Side::Tx => counters.tx_bytes,
                };
                assert!(
                    bytes > BYTES as u64,
                    "{} {offload} mtu {mtu}: {} {} carried {bytes} of {BYTES} bytes",
                    mode.name(),
                    hop.host,
                    hop.device
                );
            }
        }
    });
    let driven: Vec<_> = buildable.iter().map(|mode| mode.name()).collect();
    // Modes that need only network namespaces and TUN can be built on every test machine.
    for always in ["host", "tap", "tapbridge"] {
        assert!(driven.contains(&always), "{always} was not driven: {driven:?}");
    }
}

/// Redirected packets increment no counter of a TAP, except at the bridge.
#[test]
fn packets_redirected_by_the_kernel_cross_no_user_space() {
    let machine = require!(privileged());
    for name in ["tapbridge-bpf", "tap-netmap-bpf"] {
        let mode = lab::find(name).unwrap();
        if !can(&machine, mode) {
            continue;
        }
        let network = mode.build(&Params::new(1500, Offload::Full)).unwrap();
        drive(&network);
        let stage = network.hops.iter().find_map(|hop| hop.meter.clone()).unwrap();
        let carried = stage.read().carried;
        assert!(carried.tx_bytes > BYTES as u64 && carried.rx_packets > 0, "{name}: {carried:?}");
        let bypassed: Vec<_> = network.hops.iter().filter(|hop| hop.bypass.is_some()).collect();
        assert_eq!(bypassed.len(), 2, "{name}");
        for hop in bypassed {
            let host = network.host(&hop.host).unwrap();
            let counters = host.netlink().link(&hop.device).unwrap().counters;
            // Address resolution, and packets that a device sends when it is set up.
            let bytes = counters.tx_bytes + counters.rx_bytes;
            assert!(bytes < BYTES as u64 / 20, "{name} {}: {counters:?}", hop.device);
        }
        drop(network);
        // A hop does not keep its stage alive.
        assert_eq!(stage.read(), netstate::Metered::default(), "{name}");
    }
}

#[test]
fn hosts_of_an_ipv6_underlay_have_nothing_else_to_reach_each_other_by() {
    let machine = require!(privileged());
    for name in ["vxlan6", "vxlan6+accel", "vtep6"] {
        let mode = lab::find(name).unwrap();
        if !can(&machine, mode) {
            continue;
        }
        let network = mode.build(&Params::new(1500, Offload::Full)).unwrap();
        assert_eq!(network.tenant_mtu, 1430, "{name}");
        for host in ["a", "b"] {
            let all = network.host(host).unwrap().netlink().addresses().unwrap();
            let others: Vec<_> = all.iter().filter(|own| !own.address.is_loopback()).collect();
            assert!(
                !others.is_empty() && others.iter().all(|own| own.address.is_ipv6()),
                "{all:?}"
            );
        }
    }
}

#[test]
fn a_dropped_network_leaves_no_namespace() {
    require!(need::networks());
    let network = lab::find("vxlan").unwrap().build(&Params::new(1500, Offload::Full)).unwrap();
    let weak: Vec<_> = network.hosts().iter().map(std::sync::Arc::downgrade).collect();
    drop(network);
    assert!(weak.iter().all(|host| host.upgrade().is_none()));
}

/// No counter of the kernel has packets that a loop in user space has read and could not write.
#[test]
fn user_space_drops_are_reported_by_their_hop() {
    let machine = require!(privileged());
    for name in ["tap", "tapbridge"] {
        let mode = lab::find(name).unwrap();
        if !can(&machine, mode) {
            continue;
        }
        let network = mode.build(&Params::new(1500, Offload::Full)).unwrap();
        let program = network.hops.iter().find_map(|hop| hop.program.clone()).unwrap();
        assert_eq!(program.dropped(), 0, "{name}");
        if name == "tapbridge" {
            // Its own tests cover each of its reasons.
            continue;
        }
        network.server().netlink().set_down("tap0").unwrap();
        let target = network.address.target;
        testbed::poll("a refused frame", LIMIT, || {
            // An address request counts as a frame.
            network
                .client()
                .netns()
                .run(|| UdpSocket::bind("0.0.0.0:0").and_then(|udp| udp.send_to(b"x", target)))?
                .unwrap();
            Ok(if program.dropped() > 0 { Ok(()) } else { Err(String::new()) })
        })
        .unwrap();
        drop(network);
        // A hop does not keep its program alive.
        assert_eq!(program.dropped(), 0, "{name}");
    }
}
