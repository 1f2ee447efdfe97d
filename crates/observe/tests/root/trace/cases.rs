//! Ways to lose a packet: commands cause each in its own network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

use lab::Network;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, setsockopt,
    socket, sockopt,
};
use sys::tap::{Tap, TapOptions};
use testbed::{NIC, Wire};

use super::traffic::{connected, datagrams, server};

/// Testbed of a case.
pub struct Bed<'n> {
    pub network: &'n Network,
    /// The client's port, which is traced.
    pub port: u16,
    /// The client's socket, from this port.
    pub client: UdpSocket,
    /// The server's socket, which listens.
    pub server: UdpSocket,
}

/// Sends packets that are to be dropped, on each call.
pub type Round<'n> = Box<dyn FnMut() + 'n>;

pub struct Case {
    pub name: &'static str,
    /// The check of doctor for this fault; empty: none.
    pub check: &'static str,
    /// Mode of the lab in which it is made.
    pub mode: &'static str,
    /// The kernel's name.
    pub reason: &'static str,
    /// Host and device; `None`: the kernel reports no device.
    pub place: (&'static str, Option<&'static str>),
    pub make: for<'n> fn(Bed<'n>) -> Round<'n>,
}

impl<'n> Bed<'n> {
    fn run(&self, host: &str, program: &str, arguments: &str) {
        let mut command = Command::new(program);
        command.args(arguments.split(' '));
        self.network.host(host).unwrap().run(&mut command).unwrap();
    }

    fn ip(&self, host: &str, arguments: &str) {
        self.run(host, "ip", arguments);
    }

    fn nft(&self, host: &str, rules: &str) {
        self.network.host(host).unwrap().nft(rules).unwrap();
    }

    fn sysctl(&self, host: &str, path: &str, value: &str) {
        self.network.host(host).unwrap().sysctl(path, value).unwrap();
    }

    /// Adds a filter that drops every packet at a device.
    fn shoot(&self, host: &str, device: &str, side: &str) {
        self.run(host, "tc", &format!("qdisc add dev {device} clsact"));
        let mut command = Command::new("tc");
        // A program of one instruction: TC_ACT_SHOT.
        command.args(["filter", "add", "dev", device, side, "bpf", "da", "bytecode", "1,6 0 0 2"]);
        self.network.host(host).unwrap().run(&mut command).unwrap();
    }

    /// Recreates the VXLAN device of a host, as a port of its bridge.
    fn remake(&self, host: &str, options: &str) {
        self.ip(host, "link del vxlan0");
        self.ip(host, &format!("link add vxlan0 type vxlan dstport 4789 dev nic0 {options}"));
        self.ip(host, "link set dev vxlan0 mtu 1450 master br0 up");
    }

    /// Datagrams of `bytes` bytes from the client to the server.
    fn datagrams(self, bytes: usize, count: usize) -> Round<'n> {
        let target = self.network.address.target;
        Box::new(move || {
            // It listens, but is never read.
            let _ = &self.server;
            for _ in 0..count {
                // Rules, routes and qdiscs may refuse the send.
                let _ = self.client.send_to(&vec![7; bytes], target);
            }
        })
    }

    /// Datagrams from the client to another address.
    fn datagrams_to(self, to: impl Into<SocketAddr>) -> Round<'n> {
        let to = to.into();
        Box::new(move || {
            let _ = &self.server;
            let _ = self.client.send_to(b"overlay", to);
        })
    }

    /// Raw packets that other sockets cannot send, from the client to the server.
    fn raw(self, protocol: SockProtocol, packets: Vec<Vec<u8>>) -> Round<'n> {
        let open =
            || socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), protocol).unwrap();
        let socket = self.network.client().netns().run(open).unwrap();
        let SocketAddr::V4(target) = self.network.address.target else { panic!("IPv6") };
        Box::new(move || {
            let _ = (&self.client, &self.server);
            for packet in &packets {
                let (to, none) = (SockaddrIn::from(target), MsgFlags::empty());
                let _ = sendto(socket.as_raw_fd(), packet, &to, none);
            }
        })
    }

    /// A datagram of the client to the server with a wrong checksum. The kernel verifies up to 76
    /// bytes on arrival, longer ones when they are read.
    fn corrupt(&self, bytes: u16) -> Vec<u8> {
        let header = [self.port, lab::PORT, bytes, 0xbaad];
        let mut datagram: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
        datagram.resize(bytes.into(), 7);
        datagram
    }

    /// 24 bytes of a datagram of the client at this offset, with more fragments to follow.
    fn fragment(&self, id: u16, eighths: u8) -> Vec<u8> {
        let [high, low] = id.to_be_bytes();
        // The kernel sets length, checksum and source.
        let mut packet = vec![0x45, 0, 0, 0, high, low, 0x20, eighths, 64, 17, 0, 0, 0, 0, 0, 0];
        packet.extend(server(self.network).octets());
        packet.extend(self.port.to_be_bytes());
        packet.extend(lab::PORT.to_be_bytes());
        packet.extend([0, 100, 0, 0]);
        packet.extend([7; 16]);
        packet
    }
}

const fn case(
    (name, check, mode): (&'static str, &'static str, &'static str),
    reason: &'static str,
    place: (&'static str, Option<&'static str>),
    make: for<'n> fn(Bed<'n>) -> Round<'n>,
) -> Case {
    Case { name, check, mode, reason, place, make }
}

pub const CASES: &[Case] = &[
    // Packet filters.
    case(
        ("a rule where packets are forwarded", "", "routed"),
        "NETFILTER_DROP",
        ("a", Some("veth0")),
        |bed| {
            bed.nft("a", "table ip t { chain c { type filter hook forward priority 0; udp dport 5301 drop; }; }");
            bed.datagrams(100, 1)
        },
    ),
    case(
        ("a rule where packets come in", "", "host"),
        "NETFILTER_DROP",
        ("b", Some("nic0")),
        |bed| {
            bed.nft("b", "table ip t { chain c { type filter hook input priority 0; udp dport 5301 drop; }; }");
            bed.datagrams(100, 1)
        },
    ),
    case(("a rule where packets go out", "", "host"), "NETFILTER_DROP", ("a", None), |bed| {
        bed.nft(
            "a",
            "table ip t { chain c { type filter hook output priority 0; udp dport 5301 drop; }; }",
        );
        bed.datagrams(100, 1)
    }),
    case(("a rule of a bridge", "", "bridge"), "NETFILTER_DROP", ("a", Some("nic0")), |bed| {
        bed.nft("a", "table bridge t { chain c { type filter hook forward priority 0; udp dport 5301 drop; }; }");
        bed.datagrams(100, 1)
    }),
    case(("a tc program, incoming", "", "vxlan"), "TC_INGRESS", ("b", Some("nic0")), |bed| {
        bed.shoot("b", NIC, "ingress");
        bed.datagrams(100, 1)
    }),
    case(("a tc program, outgoing", "", "vxlan"), "TC_EGRESS", ("a", Some("vxlan0")), |bed| {
        bed.shoot("a", "vxlan0", "egress");
        bed.datagrams(100, 1)
    }),
    // Sockets.
    case(("nobody listens", "", "vxlan"), "NO_SOCKET", ("tenant-b", Some("eth0")), |bed| {
        let Bed { network, client, server, .. } = bed;
        drop(server);
        let target = network.address.target;
        Box::new(move || drop(client.send_to(b"overlay", target)))
    }),
    case(("nobody accepts", "", "vxlan"), "NO_SOCKET", ("tenant-b", Some("eth0")), |bed| {
        let to = bed.network.address.target;
        Box::new(move || drop(connected(bed.network.client(), bed.port, to)))
    }),
    case(
        ("the reader is too slow", "OV031", "vxlan"),
        "SOCKET_RCVBUFF",
        ("tenant-b", None),
        |bed| {
            setsockopt(&bed.server, sockopt::RcvBuf, &4096).unwrap();
            bed.datagrams(1400, 20)
        },
    ),
    case(
        ("a wrong checksum, short", "OV009", "vxlan"),
        "UDP_CSUM",
        ("tenant-b", Some("eth0")),
        |mut bed| {
            let packet = bed.corrupt(12);
            bed.server =
                bed.network.server().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
            bed.raw(SockProtocol::Udp, vec![packet])
        },
    ),
    case(("a wrong checksum, long", "OV009", "vxlan"), "UDP_CSUM", ("tenant-b", None), |bed| {
        let (packet, server) = (bed.corrupt(200), bed.server.try_clone().unwrap());
        let mut send = bed.raw(SockProtocol::Udp, vec![packet]);
        Box::new(move || {
            send();
            // The checksum is verified when it is read.
            let _ = server.recv(&mut [0; 64]);
        })
    }),
    // Routes and neighbours.
    case(
        ("an answer would take another way", "OV042", "bridge"),
        "IP_RPFILTER",
        ("tenant-b", Some("eth0")),
        |bed| {
            bed.sysctl("tenant-b", "net/ipv4/conf/all/rp_filter", "1");
            bed.ip("tenant-a", "address add 192.0.2.9/32 dev eth0");
            let Bed { network, port, client, server } = bed;
            drop(client);
            // A process that another thread is starting may hold the old socket for a moment.
            let client = test_support::program::eventually("the port is free", || {
                let open = || UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 9), port));
                network.client().netns().run(open).unwrap().map_err(|error| error.to_string())
            });
            Bed { network, port, client, server }.datagrams(100, 1)
        },
    ),
    case(
        ("the sender's address is the receiver's", "OV038", "bridge"),
        "IP_LOCAL_SOURCE",
        ("tenant-b", Some("eth0")),
        |bed| {
            bed.ip("tenant-b", "address add 10.0.0.11/24 dev eth0");
            bed.datagrams(100, 1)
        },
    ),
    case(
        ("no route where it is forwarded", "", "routed"),
        "IP_INNOROUTES",
        ("a", Some("veth0")),
        |bed| {
            bed.ip("a", "route del 10.1.2.2");
            bed.datagrams(100, 1)
        },
    ),
    case(("a route that drops", "", "routed"), "NOT_SPECIFIED", ("a", Some("veth0")), |bed| {
        bed.ip("a", "route replace blackhole 10.1.2.2");
        bed.datagrams(100, 1)
    }),
    case(
        ("no route for the tunnel", "OV036", "vxlan"),
        "IP_OUTNOROUTES",
        ("a", Some("vxlan0")),
        |bed| {
            bed.ip("a", "route del 10.0.0.0/24");
            bed.datagrams(100, 1)
        },
    ),
    case(("nobody has the address", "OV041", "host"), "NEIGH_FAILED", ("a", Some("nic0")), |bed| {
        bed.sysctl("a", "net/ipv4/neigh/nic0/retrans_time_ms", "50");
        bed.datagrams_to((Ipv4Addr::new(10, 0, 0, 99), lab::PORT))
    }),
    case(("another's MAC address", "OV069", "host"), "OTHERHOST", ("b", Some("nic0")), |bed| {
        bed.ip("a", "neighbour replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev nic0 nud permanent");
        bed.datagrams(100, 1)
    }),
    case(("too many routers", "", "routed"), "IP_INHDR", ("a", Some("veth0")), |bed| {
        bed.client.set_ttl(1).unwrap();
        bed.datagrams(100, 1)
    }),
    // Sizes and fragments.
    case(
        ("longer than the path takes", "OV019", "routed"),
        "PKT_TOO_BIG",
        ("a", Some("veth0")),
        |bed| {
            bed.ip("a", "link set dev nic0 mtu 1400");
            bed.datagrams(1450, 1)
        },
    ),
    case(
        ("longer than the other overlay takes", "OV018", "vxlan"),
        "NOT_SPECIFIED",
        ("b", Some("veth0")),
        |bed| {
            for device in ["vxlan0", "br0", "veth0"] {
                bed.ip("b", &format!("link set dev {device} mtu 1400"));
            }
            bed.datagrams(1420, 1)
        },
    ),
    case(
        ("the other fragments do not come", "OV066", "vxlan"),
        "FRAG_REASM_TIMEOUT",
        ("tenant-b", Some("eth0")),
        |bed| {
            bed.sysctl("tenant-b", "net/ipv4/ipfrag_time", "1");
            let fragments = (1..=20).map(|id| bed.fragment(id, 0)).collect();
            bed.raw(SockProtocol::Raw, fragments)
        },
    ),
    case(
        ("fragments overlap", "OV021", "vxlan"),
        "NOT_SPECIFIED",
        ("tenant-b", Some("eth0")),
        |bed| {
            let fragments = [bed.fragment(1, 0), bed.fragment(1, 1)].to_vec();
            bed.raw(SockProtocol::Raw, fragments)
        },
    ),
    // Devices and queues.
    case(("a queue is full", "OV048", "bridge"), "QDISC_DROP", ("a", Some("nic0")), |bed| {
        bed.run("a", "tc", "qdisc add dev nic0 root tbf rate 1mbit burst 2kb limit 3kb");
        bed.datagrams(1000, 20)
    }),
    case(
        ("nobody reads the TAP device", "OV046", "bridge"),
        "FULL_RING",
        ("a", Some("tap0")),
        |bed| {
            let host = bed.network.host("a").unwrap();
            let tap = host.netns().run(|| Tap::open(&TapOptions::named("tap0")).unwrap()).unwrap();
            bed.ip("a", "link set dev tap0 txqueuelen 10");
            bed.ip("a", "address add 192.0.2.1/24 dev tap0");
            bed.ip("a", "link set dev tap0 up");
            bed.ip("a", "neighbour add 192.0.2.2 dev tap0 lladdr 02:00:00:00:00:02");
            let socket = datagrams(host, bed.port);
            Box::new(move || {
                let _ = &tap;
                for _ in 0..20 {
                    let _ = socket.send_to(b"overlay", "192.0.2.2:9");
                }
            })
        },
    ),
    case(
        ("the other end of the veth is down", "OV051", "vxlan"),
        // Without a carrier a device has the queue that drops everything.
        "QDISC_DROP",
        ("tenant-a", Some("eth0")),
        |bed| {
            // A learned neighbour is removed with the carrier.
            let mac = testbed::mac("tenant-b", "eth0");
            let neighbour = format!("10.1.0.12 lladdr {mac} dev eth0 nud permanent");
            bed.ip("tenant-a", &format!("neighbour replace {neighbour}"));
            bed.network.host("a").unwrap().netlink().set_down("veth0").unwrap();
            bed.datagrams(100, 1)
        },
    ),
    case(
        ("the bridge's port does not forward", "", "bridge"),
        "BRIDGE_INGRESS_STP_STATE",
        ("a", Some("veth0")),
        |bed| {
            bed.run("a", "bridge", "link set dev veth0 state 0");
            bed.datagrams(100, 1)
        },
    ),
    // Tunnels.
    case(
        ("another network identifier", "OV034", "vxlan"),
        "VXLAN_VNI_NOT_FOUND",
        ("b", Some("nic0")),
        |bed| {
            bed.remake("b", "id 43 local 10.0.0.2 remote 10.0.0.1");
            bed.datagrams(100, 1)
        },
    ),
    // moby#53004: the sender's address is not the one that the entry names.
    case(
        ("a static entry, another outer source", "", "vxlan"),
        "VXLAN_ENTRY_EXISTS",
        ("b", Some("vxlan0")),
        moby_53004,
    ),
    case(
        ("header bits that the device does not take", "OV050", "vxlan"),
        "VXLAN_INVALID_HDR",
        ("b", Some("nic0")),
        |bed| {
            let host = bed.network.host("a").unwrap();
            let socket = datagrams(host, bed.port);
            // The VNI of the device, and reserved bits.
            let mut frame = vec![0x88, 0, 0, 1, 0, 0, 42, 1];
            frame.extend([0; 60]);
            Box::new(move || drop(socket.send_to(&frame, (Wire::B, 4789))))
        },
    ),
    case(
        ("the tunnel's device is down", "OV033", "vxlan"),
        "NO_SOCKET",
        ("b", Some("nic0")),
        |bed| {
            bed.network.host("b").unwrap().netlink().set_down("vxlan0").unwrap();
            bed.datagrams(100, 1)
        },
    ),
    case(
        ("no entry for the other host", "OV035", "vxlan-routed"),
        "NO_TX_TARGET",
        ("a", Some("vxlan0")),
        |bed| {
            let host = bed.network.host("a").unwrap();
            let fdb = host.netlink().fdb().unwrap();
            let entry = fdb.iter().find(|entry| entry.remote.is_some()).unwrap();
            let (mac, remote) = (entry.mac.unwrap(), entry.remote.unwrap());
            bed.run("a", "bridge", &format!("fdb del {mac} dev vxlan0 dst {remote}"));
            bed.datagrams(100, 1)
        },
    ),
    case(
        ("a tunnel's device that nothing gives a remote", "", "vxlan"),
        "TUNNEL_TXINFO",
        ("a", Some("vxlan0")),
        |bed| {
            bed.ip("a", "link del vxlan0");
            bed.ip("a", "link add vxlan0 type vxlan dstport 4789 external");
            bed.ip("a", "link set dev vxlan0 mtu 1450 master br0 up");
            bed.datagrams(100, 1)
        },
    ),
];

/// VXLAN without `local`, a static entry at the other end, and another outer source.
pub fn moby_53004(bed: Bed<'_>) -> Round<'_> {
    let host = bed.network.host("b").unwrap();
    let tenant = testbed::mac("tenant-a", "eth0");
    // Learned entries expire; Docker's entries are permanent.
    bed.remake("b", "id 42 remote 10.0.0.1");
    host.netlink().add_vxlan_fdb("vxlan0", tenant, IpAddr::V4(Wire::A)).unwrap();
    bed.remake("a", "id 42 remote 10.0.0.2");
    bed.ip("a", "address add 10.0.0.7/24 dev nic0");
    bed.ip("a", "route replace 10.0.0.0/24 dev nic0 src 10.0.0.7");
    bed.datagrams(100, 1)
}
