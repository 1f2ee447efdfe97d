//! The faults, by check.

use std::net::{IpAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use doctor::host::{Amount, Channels, Eligible, FarEnd, Feature, Reading, Rings, Scaling};
use doctor::probed::Probed;
use netstate::MacAddr;
use netstate::entry::{Address, FdbEntry};
use netstate::udp_socket::UdpSocket as UdpSocketState;
use nix::sys::socket::SockProtocol;
use packet::vnet_hdr::Layout;
use sys::tap::{Tap, TapOptions};
use testbed::{NIC, Wire};

use super::bench::Fault;
use super::bench::How::{Both, Set, Traffic, Written};
use super::make::{
    busy_cpu, channels, features, flood, fragment, get, hardware, index, interface, ip, mtu,
    namespace, overlay_mtu, raw_packets, remake, run, steered, underlay_mtu,
};

const fn fault(code: &'static str, mode: &'static str, how: super::bench::How) -> Fault {
    Fault { code, mode, how }
}

/// A TAP whose holder does not read.
static HELD: Mutex<Option<Tap>> = Mutex::new(None);

/// Faults of hardware, a hypervisor or the whole machine are written into the data read;
/// `tests/guest.rs` makes most of them in a guest.
pub const FAULTS: &[Fault] = &[
    fault(
        "OV001",
        "vxlan",
        Set(|network| {
            let off = [("tx-udp_tnl-segmentation", false), ("tx-udp_tnl-csum-segmentation", false)];
            features(network, "a", NIC, &off);
        }),
    ),
    fault(
        "OV002",
        "vxlan",
        Set(|network| {
            features(network, "a", NIC, &[("tx-udp_tnl-csum-segmentation", false)]);
        }),
    ),
    fault(
        "OV003",
        "vxlan",
        Set(|network| {
            remake(network, "a", Wire::A, Wire::B, 42, false);
        }),
    ),
    fault("OV004", "vxlan", Set(|network| features(network, "b", NIC, &[("rx-gro", false)]))),
    fault("OV005", "vxlan", Set(|network| features(network, "b", "vxlan0", &[("rx-gro", false)]))),
    fault(
        "OV006",
        "vxlan",
        Set(|network| {
            features(network, "tenant-a", "eth0", &[("tx-tcp-segmentation", false)]);
        }),
    ),
    fault(
        "OV007",
        "vxlan",
        Set(|network| {
            ip(network, "tenant-a", "link set dev eth0 gso_max_size 16000");
        }),
    ),
    fault(
        "OV008",
        "nat",
        Written(|host| {
            let namespace = namespace(host, "a");
            let nic = index(namespace, NIC);
            let features = &mut namespace.devices.get_mut(&nic).unwrap().features;
            get(features.as_mut().unwrap()).insert("rx-lro".to_owned(), Feature::On);
        }),
    ),
    fault(
        "OV009",
        "vxlan",
        Traffic(|network, end| {
            // Length 12, and a wrong checksum.
            let datagram = [0x9c, 0x40, 0, 9, 0, 12, 0xba, 0xad, 1, 2, 3, 4];
            raw_packets(network, SockProtocol::Udp, end, |_| vec![datagram.to_vec()]);
        }),
    ),
    fault(
        "OV010",
        "vxlan",
        Set(|network| {
            features(network, "a", NIC, &[("tx-tcp-segmentation", false)]);
        }),
    ),
    fault(
        "OV011",
        "vxlan",
        Set(|network| {
            features(network, "tenant-a", "eth0", &[("tx-checksum-ip-generic", false)]);
        }),
    ),
    fault("OV013", "vxlan", Set(|network| underlay_mtu(network, 1400))),
    fault(
        "OV014",
        "vxlan",
        Set(|network| {
            mtu(network, "a", "vxlan0", 1400);
            mtu(network, "b", "vxlan0", 1400);
        }),
    ),
    fault("OV015", "vxlan", Set(|network| mtu(network, "tenant-a", "eth0", 1500))),
    fault("OV016", "vxlan", Traffic(|network, end| flood(network, end, 4000))),
    fault("OV017", "vxlan", Set(|network| overlay_mtu(network, &["a", "b"], 1450))),
    fault("OV018", "vxlan", Set(|network| overlay_mtu(network, &["b"], 1400))),
    fault(
        "OV019",
        "nat",
        Set(|network| {
            underlay_mtu(network, 1400);
        }),
    ),
    fault(
        "OV020",
        "vxlan",
        Set(|network| {
            network.host("tenant-a").unwrap().sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
        }),
    ),
    fault(
        "OV021",
        "vxlan",
        Traffic(|network, end| {
            let IpAddr::V4(server) = network.address.target.ip() else { panic!("IPv6") };
            raw_packets(network, SockProtocol::Raw, end, |id| {
                // The second fragment overlaps the first.
                [0, 1].map(|eighths| fragment(id, eighths, server)).to_vec()
            });
        }),
    ),
    fault(
        "OV022",
        "vxlan",
        Written(|host| {
            let namespace = namespace(host, "a");
            let nic = index(namespace, NIC);
            let ring = Amount { now: 256, most: 4096 };
            namespace.devices.get_mut(&nic).unwrap().rings = Some(Rings { rx: ring, tx: ring });
            get(&mut namespace.later).get_mut(&nic).unwrap().rx_missed += 10;
        }),
    ),
    fault("OV023", "vxlan", Written(|host| steered(host, "0"))),
    fault(
        "OV024",
        "vxlan",
        Written(|host| {
            let cpu = get(&mut host.machine.cpu);
            cpu.after.total.steal += 20;
            cpu.after.total.idle += 80;
        }),
    ),
    fault(
        "OV025",
        "vxlan",
        Written(|host| {
            let softnet = get(&mut host.machine.softnet);
            let cpu = softnet.after.cpus.values_mut().next().unwrap();
            cpu.dropped = cpu.dropped.wrapping_add(5);
        }),
    ),
    fault(
        "OV026",
        "vxlan",
        Written(|host| {
            let softnet = get(&mut host.machine.softnet);
            let cpu = softnet.after.cpus.values_mut().next().unwrap();
            cpu.time_squeeze = cpu.time_squeeze.wrapping_add(1000);
        }),
    ),
    fault(
        "OV027",
        "vxlan",
        Written(|host| {
            let small = Reading::Read("100".to_owned());
            host.machine.sysctls.insert("net/core/netdev_max_backlog".to_owned(), small);
        }),
    ),
    fault(
        "OV028",
        "nat",
        Written(|host| {
            let conntrack = get(&mut namespace(host, "a").conntrack);
            conntrack.after.count = conntrack.after.max * 9 / 10;
        }),
    ),
    fault(
        "OV029",
        "nat",
        Written(|host| {
            let conntrack = get(&mut namespace(host, "a").conntrack);
            conntrack.after.cpus.as_mut().unwrap()[0].insert_failed += 4;
        }),
    ),
    fault(
        "OV030",
        "vxlan",
        Set(|network| {
            let rules = "table ip nat { chain post { type nat hook postrouting priority srcnat; \
                 ip saddr 192.0.2.0/24 masquerade; }; }";
            network.host("a").unwrap().nft(rules).unwrap();
            let client = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
            client.unwrap().send_to(b"overlay", network.address.target).unwrap();
        }),
    ),
    fault(
        "OV031",
        "vxlan",
        Traffic(|network, end| {
            // A program that does not read its socket.
            let bind = || UdpSocket::bind(network.address.listen).unwrap();
            let _socket = network.server().netns().run(bind).unwrap();
            flood(network, end, 1400);
        }),
    ),
    fault(
        "OV032",
        "vxlan",
        Both(
            |network| {
                let slow = "qdisc add dev nic0 root tbf rate 8kbit burst 2kb limit 10mb";
                run(network, "a", "tc", slow);
            },
            |network, end| {
                let bind = || UdpSocket::bind("0.0.0.0:0").unwrap();
                let socket = network.host("a").unwrap().netns().run(bind).unwrap();
                socket.set_nonblocking(true).unwrap();
                // Packets that wait in the shaper count for the socket.
                while !end.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&[7; 1000], (Wire::B, 9));
                }
            },
        ),
    ),
    fault(
        "OV033",
        "vxlan",
        Set(|network| {
            network.host("b").unwrap().netlink().set_down("vxlan0").unwrap();
        }),
    ),
    fault(
        "OV034",
        "vxlan",
        Set(|network| {
            remake(network, "b", Wire::B, Wire::A, 43, true);
        }),
    ),
    fault(
        "OV035",
        "vxlan-routed",
        Set(|network| {
            let fdb = network.host("a").unwrap().netlink().fdb().unwrap();
            let entry = fdb.iter().find(|entry| entry.remote.is_some()).unwrap();
            let (mac, remote) = (entry.mac.unwrap(), entry.remote.unwrap());
            let device = network.host("a").unwrap().netlink().links().unwrap();
            let name = device.iter().find(|link| link.index == entry.link).unwrap().name.clone();
            run(network, "a", "bridge", &format!("fdb del {mac} dev {name} dst {remote}"));
        }),
    ),
    fault("OV036", "vxlan", Set(|network| ip(network, "a", "route del 10.0.0.0/24"))),
    fault(
        "OV037",
        "vxlan",
        Set(|network| {
            let mac = MacAddr([2, 0, 0, 0, 0, 9]);
            let netlink = network.host("a").unwrap().netlink();
            netlink.add_vxlan_fdb("vxlan0", mac, IpAddr::V4(Wire::A)).unwrap();
        }),
    ),
    fault(
        "OV038",
        "bridge",
        Set(|network| {
            ip(network, "tenant-b", "address add 10.0.0.11/24 dev eth0");
        }),
    ),
    fault(
        "OV039",
        "bridge",
        Set(|network| {
            let mac = testbed::mac("tenant-a", "eth0");
            network.host("tenant-b").unwrap().netlink().set_mac("eth0", mac).unwrap();
        }),
    ),
    fault("OV040", "vxlan", Written(|host| get(&mut host.machine.arp).after.fulls += 2)),
    fault(
        "OV041",
        "vxlan",
        Set(|network| {
            ip(network, "tenant-a", "neighbour replace 10.1.0.99 dev eth0 nud failed");
        }),
    ),
    fault(
        "OV042",
        "bridge",
        Traffic(|network, end| {
            let server = network.host("tenant-b").unwrap();
            server.sysctl("net/ipv4/conf/all/rp_filter", "1").unwrap();
            ip(network, "tenant-a", "address add 192.0.2.9/32 dev eth0");
            let bind = || UdpSocket::bind("192.0.2.9:0").unwrap();
            let socket = network.client().netns().run(bind).unwrap();
            while !end.load(Ordering::Relaxed) {
                let _ = socket.send_to(b"overlay", network.address.target);
            }
        }),
    ),
    fault(
        "OV043",
        "vxlan",
        Set(|network| {
            let host = network.host("a").unwrap();
            host.sysctl("net/bridge/bridge-nf-call-iptables", "1").unwrap();
        }),
    ),
    fault("OV044", "tap", Set(|_| {})),
    fault("OV045", "tap", Set(|_| {})),
    fault(
        "OV046",
        "bridge",
        Both(
            |network| {
                let options = TapOptions {
                    vnet_header: Some(Layout::V1.size()),
                    multi_queue: true,
                    ..TapOptions::named("tap0")
                };
                let host = network.host("a").unwrap();
                let tap = host.netns().run(|| Tap::open(&options).unwrap()).unwrap();
                *HELD.lock().unwrap() = Some(tap);
                ip(network, "a", "address add 192.0.2.1/24 dev tap0");
                ip(network, "a", "link set dev tap0 up");
                ip(network, "a", "neighbour add 192.0.2.2 dev tap0 lladdr 02:00:00:00:00:02");
            },
            |network, end| {
                let _tap = HELD.lock().unwrap().take();
                let bind = || UdpSocket::bind("0.0.0.0:0").unwrap();
                let socket = network.host("a").unwrap().netns().run(bind).unwrap();
                while !end.load(Ordering::Relaxed) {
                    let _ = socket.send_to(b"overlay", "192.0.2.2:9");
                }
            },
        ),
    ),
    fault(
        "OV067",
        "tap",
        Written(|host| {
            host.machine.kernel_vhost_net = true;
            for holder in host.namespaces.iter_mut().flat_map(|there| &mut there.holders) {
                holder.command = "qemu-system-x86".to_owned();
            }
        }),
    ),
    fault("OV047", "ovs-vxlan", Written(|host| host.machine.kernel_openvswitch = true)),
    fault(
        "OV048",
        "bridge",
        Both(
            |network| {
                let shaped = "qdisc add dev nic0 root tbf rate 1mbit burst 2kb limit 3kb";
                run(network, "a", "tc", shaped);
            },
            |network, end| flood(network, end, 1000),
        ),
    ),
    fault(
        "OV049",
        "vxlan",
        Written(|host| {
            let namespace = namespace(host, "a");
            let nic = index(namespace, NIC);
            namespace.devices.get_mut(&nic).unwrap().tx_timeouts = Some(2);
        }),
    ),
    fault(
        "OV050",
        "vxlan",
        Traffic(|network, end| {
            let host = network.host("a").unwrap();
            let socket = host.netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
            // The VNI of the device, with reserved bits that it does not accept.
            let mut frame = vec![0x88, 0, 0, 1, 0, 0, 42, 1];
            frame.extend([0; 60]);
            while !end.load(Ordering::Relaxed) {
                let _ = socket.send_to(&frame, (Wire::B, 4789));
            }
        }),
    ),
    fault(
        "OV051",
        "vxlan",
        Set(|network| {
            network.host("a").unwrap().netlink().set_down("veth0").unwrap();
        }),
    ),
    fault(
        "OV052",
        "tapbridge",
        Set(|network| {
            for host in network.hosts() {
                for link in host.netlink().links().unwrap() {
                    if link.kind.as_deref() == Some("tun") {
                        let set = format!("link set dev {} txqueuelen 10", link.name);
                        ip(network, host.name(), &set);
                    }
                }
            }
        }),
    ),
    fault(
        "OV053",
        "vxlan",
        Written(|host| {
            for label in ["a", "b"] {
                let namespace = namespace(host, label);
                interface(namespace, NIC).bus = Some("pci".to_owned());
                interface(namespace, "vxlan0").vxlan.as_mut().unwrap().port = 8472;
                for socket in get(&mut namespace.udp_sockets) {
                    socket.port = 8472;
                }
            }
        }),
    ),
    fault(
        "OV054",
        "vxlan",
        Written(|host| {
            if let Reading::Read(facts) = &mut host.machine.facts {
                facts.hypervisor = Some("VMware, Inc.".to_owned());
            }
            hardware(host, [(0, "0"), (0, "1")]).driver = Some("vmxnet3".to_owned());
        }),
    ),
    fault(
        "OV055",
        "vxlan",
        Written(|host| {
            busy_cpu(host);
            hardware(host, [(0, "0"), (0, "1")]).channels = Some(channels(1, 2));
        }),
    ),
    fault(
        "OV056",
        "vxlan",
        Written(|host| {
            // Source and destination address: RXH_IP_SRC | RXH_IP_DST.
            hardware(host, [(990, "0"), (10, "1")]).udp4_hash = Some(0x30);
        }),
    ),
    fault(
        "OV057",
        "vxlan",
        Written(|host| {
            busy_cpu(host);
            hardware(host, [(990, "0"), (10, "1")]).udp4_hash = Some(0xf0);
        }),
    ),
    fault(
        "OV058",
        "vxlan",
        Written(|host| {
            hardware(host, [(500, "0"), (500, "0")]);
        }),
    ),
    fault(
        "OV059",
        "vxlan",
        Written(|host| {
            host.machine.nodes = [(0, "0".to_owned()), (1, "1".to_owned())].into();
            hardware(host, [(50, "1"), (50, "0-1")]).numa_node = Some(0);
        }),
    ),
    fault(
        "OV060",
        "vxlan",
        Written(|host| {
            let governors = [("powersave".to_owned(), 2)].into();
            host.machine.scaling = Some(Scaling { driver: "acpi-cpufreq".to_owned(), governors });
        }),
    ),
    fault(
        "OV061",
        "vxlan",
        Written(|host| {
            let device = hardware(host, [(0, "0"), (0, "1")]);
            device.driver = Some("enic".to_owned());
            let queues = Amount { now: 2, most: 2 };
            device.channels = Some(Channels { rx: queues, tx: queues, ..channels(0, 0) });
        }),
    ),
    fault(
        "OV062",
        "vxlan",
        Written(|host| {
            let softnet = get(&mut host.machine.softnet);
            let cpu = softnet.after.cpus.values_mut().next().unwrap();
            cpu.flow_limit = Some(cpu.flow_limit.unwrap_or_default().wrapping_add(3));
        }),
    ),
    fault(
        "OV063",
        "vxlan",
        Written(|host| {
            // The answer of the other end to --peer, with another port.
            let mut there = interface(namespace(host, "b"), "vxlan0").clone();
            there.vxlan.as_mut().unwrap().port = 8472;
            host.far_ends.push(FarEnd { address: Wire::B.into(), tunnels: vec![there] });
        }),
    ),
    fault(
        "OV086",
        "vxlan",
        Written(|host| {
            // The answer of accel's dry run.
            let namespace = namespace(host, "a");
            let (inode, link) = (namespace.inode, index(namespace, "vxlan0"));
            let eligible = Eligible { namespace: inode, link, ports: 1, remotes: 1, slow: 0 };
            host.eligible.push(eligible);
        }),
    ),
    fault("OV087", "vxlan", Written(|host| steered(host, "1"))),
    fault(
        "OV064",
        "vxlan-routed",
        Set(|network| {
            // A network behind host a, with frames as large as the underlay's.
            ip(network, "a", "link add veth9 type veth peer name eth9");
            for device in ["veth9", "eth9"] {
                ip(network, "a", &format!("link set dev {device} up"));
            }
            ip(network, "a", "address add 192.0.2.1/24 dev veth9");
        }),
    ),
    fault(
        "OV065",
        "ovs-vxlan",
        Written(|host| {
            // A user-space datapath queries itself; the kernel's loses packets, in a guest.
            let datapaths = get(&mut namespace(host, "a").datapaths);
            datapaths.after.known.first_mut().unwrap().lost += 3;
        }),
    ),
    fault(
        "OV066",
        "vxlan",
        Both(
            |network| {
                // The lower limit first: the higher one must not be below it.
                for (name, bytes) in [("low", "131072"), ("high", "262144")] {
                    let path = format!("/proc/sys/net/ipv4/ipfrag_{name}_thresh");
                    let netns = network.server().netns();
                    netns.run(|| std::fs::write(path, bytes)).unwrap().unwrap();
                }
            },
            |network, end| {
                let IpAddr::V4(server) = network.address.target.ip() else { panic!("IPv6") };
                // Only the first fragment of each packet.
                raw_packets(network, SockProtocol::Raw, end, |id| vec![fragment(id, 0, server)]);
            },
        ),
    ),
    fault(
        "OV068",
        "vxlan-routed",
        Set(|network| {
            network.host("a").unwrap().sysctl("net/ipv4/ip_forward", "0").unwrap();
        }),
    ),
    fault(
        "OV069",
        "vxlan-routed",
        Set(|network| {
            let links = network.host("b").unwrap().netlink().links().unwrap();
            let name = &links.iter().find(|link| link.vxlan.is_some()).unwrap().name;
            ip(network, "b", &format!("link set dev {name} address 3a:7c:11:22:33:44"));
        }),
    ),
    fault(
        "OV070",
        "vxlan",
        // The kernel learns a path MTU from a message that quotes a packet of a connected socket.
        Written(|host| {
            for (_, way) in &mut namespace(host, "a").tunnels[0].ways {
                get(way).mtu = Some(1300);
            }
        }),
    ),
    fault(
        "OV090",
        "vxlan",
        Written(|host| {
            // As overlane probe --yes records it.
            let namespace = namespace(host, "a");
            let nic = interface(namespace, NIC).clone();
            let probed = Probed {
                namespace: namespace.inode,
                cookie: namespace.cookie,
                index: nic.index,
                device: nic.name,
                features: vec!["tx-udp-segmentation".to_owned()],
                peer: Wire::B.into(),
                outgoing: true,
                verdict: "corrupted".to_owned(),
                detail: "tail of the payload changed in 4 of 4 packets".to_owned(),
                classes: 4,
            };
            host.probed.push(probed);
        }),
    ),
    fault(
        "OV091",
        "vxlan",
        Written(|host| {
            // A data path address on the loopback device, as in moby#53004.
            let namespace = namespace(host, "a");
            let tunnel = interface(namespace, "vxlan0");
            tunnel.vxlan.as_mut().unwrap().local = None;
            let link = tunnel.index;
            let entry = FdbEntry {
                link,
                mac: Some(MacAddr([2, 0x42, 10, 0, 0, 2])),
                bridge: None,
                remote: Some(Wire::B.into()),
                port: None,
                vni: None,
                fixed: true,
                external: false,
            };
            get(&mut namespace.fdb).push(entry);
            let link = index(namespace, "lo");
            let address =
                Address { link, address: [9, 9, 9, 1].into(), prefix: 32, duplicate: false };
            get(&mut namespace.addresses).push(address);
        }),
    ),
    fault(
        "OV092",
        "vxlan",
        Written(|host| {
            let socket = UdpSocketState {
                address: Wire::B.into(),
                port: 4789,
                connected: false,
                queued: 0,
                drops: 0,
            };
            let there = namespace(host, "b");
            let tap = interface(there, "vxlan0");
            (tap.vxlan, tap.kind) = (None, Some("tun".to_owned()));
            get(&mut there.udp_sockets).push(socket);
            let tunnel = interface(namespace(host, "a"), "vxlan0");
            tunnel.vxlan.as_mut().unwrap().checksum = false;
        }),
    ),
    fault(
        "OV093",
        "vxlan",
        Written(|host| {
            let namespace = namespace(host, "a");
            interface(namespace, NIC).gso_max_size = Some(185_000);
            interface(namespace, "vxlan0").tso_max_size = Some(65_536);
        }),
    ),
    fault(
        "OV094",
        "vxlan",
        Written(|host| {
            // Linux 7 allows it to be switched on.
            let namespace = namespace(host, "a");
            let nic = interface(namespace, NIC);
            nic.kind = Some("geneve".to_owned());
            let nic = nic.index;
            let features = &mut namespace.devices.get_mut(&nic).unwrap().features;
            get(features.as_mut().unwrap()).insert("tx-gso-partial".to_owned(), Feature::Off);
        }),
    ),
];
