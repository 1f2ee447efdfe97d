//! Two hosts with pods, joined as flannel joins nodes, or by bridges whose frames pass rules.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use accel::{Accel, Path, Reason, Wanted};
use netstate::route::Route;
use testbed::{Host, NIC, Offload, Wire, mac};

/// Pods of each host.
pub const PODS: usize = 16;
const DEVICE: &str = "flannel.1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Udp,
    Tcp,
    Icmp,
}

impl Protocol {
    pub const ALL: [Protocol; 3] = [Protocol::Udp, Protocol::Tcp, Protocol::Icmp];

    pub fn name(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
            Protocol::Icmp => "icmp",
        }
    }
}

/// Key of a rule: packets of a protocol from a pod to one of the other host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Pods are numbered over both hosts.
    pub from: usize,
    pub to: usize,
    pub protocol: Protocol,
}

pub const KEYS: usize = 2 * PODS * PODS * Protocol::ALL.len();

impl Key {
    pub fn numbered(number: usize) -> Key {
        let (protocol, number) = (Protocol::ALL[number % 3], number / 3);
        let (from, to) = (number % (2 * PODS), number / (2 * PODS) % PODS);
        Key { from, to: if from < PODS { PODS + to } else { to }, protocol }
    }

    pub fn all() -> impl Iterator<Item = Key> {
        (0..KEYS).map(Key::numbered)
    }

    /// Key of the answers.
    pub fn back(self) -> Key {
        Key { from: self.to, to: self.from, ..self }
    }

    /// The host with the rule of this key.
    pub fn host(self) -> usize {
        (self.from + self.to / 2 + self.protocol as usize) % 2
    }
}

pub fn address(pod: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, (pod / PODS) as u8, 10 + (pod % PODS) as u8)
}

/// How pods of the two hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// By routes to a VXLAN device, as in flannel.
    Routed,
    /// By one bridge across both hosts, with br_netfilter.
    Bridged,
}

pub struct Bed {
    accels: Option<[Accel; 2]>,
    pub hosts: [Host; 2],
    pub pods: Vec<Host>,
}

impl Bed {
    /// With the fast path in both hosts, or without.
    pub fn new(joined: Joined, fast: bool) -> Bed {
        let wire = Wire { mtu: 1500, offload: Offload::Full };
        let hosts = wire.hosts().unwrap();
        let mut pods = Vec::new();
        for (side, host) in hosts.iter().enumerate() {
            let (here, there) = ([Wire::A, Wire::B][side], [Wire::B, Wire::A][side]);
            let (own, other) = (side, 1 - side);
            host.forward().unwrap();
            let (own_mac, other_mac) = (mac(host.name(), DEVICE), mac(hosts[other].name(), DEVICE));
            sh(
                host,
                &match joined {
                    Joined::Bridged => format!(
                        "ip link add {DEVICE} address {own_mac} type vxlan id 1 local {here} remote {there} dev {NIC} dstport 8472
                        ip link set {DEVICE} mtu 1450 up
                        sysctl -qw net.bridge.bridge-nf-call-iptables=1"
                    ),
                    Joined::Routed => format!(
                        "ip link add {DEVICE} address {own_mac} type vxlan id 1 local {here} dev {NIC} dstport 8472 nolearning
                        ip link set {DEVICE} mtu 1450 up
                        ip address add 10.244.{own}.0/32 dev {DEVICE}
                        ip route add 10.244.{other}.0/24 via 10.244.{other}.0 dev {DEVICE} onlink
                        ip neighbour add 10.244.{other}.0 lladdr {other_mac} dev {DEVICE} nud permanent
                        bridge fdb append {other_mac} dev {DEVICE} dst {there} self permanent"
                    ),
                },
            );
            let ports: Vec<String> = (0..PODS).map(|n| format!("veth{n}")).collect();
            for (n, port) in ports.iter().enumerate() {
                let pod = Host::new(&format!("pod-{}-{n}", host.name())).unwrap();
                host.connect(port, &pod, "eth0", 1450).unwrap();
                pods.push(pod);
            }
            let mut ports: Vec<&str> = ports.iter().map(String::as_str).collect();
            if joined == Joined::Bridged {
                ports.push(DEVICE);
            }
            host.bridge("cni0", 1450, &ports).unwrap();
            let gateway = Ipv4Addr::new(10, 244, own as u8, 1);
            if joined == Joined::Routed {
                host.address("cni0", gateway, 24).unwrap();
            }
            for (n, pod) in pods[side * PODS..].iter().enumerate() {
                if joined == Joined::Bridged {
                    pod.address("eth0", address(side * PODS + n), 16).unwrap();
                    continue;
                }
                pod.address("eth0", address(side * PODS + n), 24).unwrap();
                pod.netlink()
                    .add_route(&Route {
                        to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                        prefix: 0,
                        via: Some(gateway.into()),
                        link: "eth0",
                        onlink: false,
                    })
                    .unwrap();
            }
        }
        if joined == Joined::Bridged {
            know_each_other(&pods);
        }
        // Connections are tracked from the first packet on, as on every node.
        let tracked = "nft 'table inet tracked { chain tracked { type filter hook prerouting priority filter; ct state new accept; }; }'";
        hosts.iter().for_each(|host| sh(host, tracked));
        let start = |host: &Host| Accel::start(host.netns(), Wanted::All).unwrap();
        let accels = fast.then(|| [start(&hosts[0]), start(&hosts[1])]);
        Bed { accels, hosts, pods }
    }

    /// Packets that the programs forwarded, and all packets that they saw.
    pub fn carried(&self) -> (u64, u64) {
        let counts = self.accels.iter().flatten().map(Accel::status).map(|status| {
            let of = |reason: &Reason| status.packets(reason.word());
            let taken = Reason::ALL.iter().filter(|reason| reason.path() == Path::Fast).map(of);
            (taken.sum::<u64>(), Reason::ALL.iter().map(of).sum::<u64>())
        });
        counts.fold((0, 0), |(fast, all), (more, seen)| (fast + more, all + seen))
    }
}

/// Adds permanent neighbours: the kernel has room for a thousand learned neighbours of all
/// namespaces together.
fn know_each_other(pods: &[Host]) {
    for (here, pod) in pods.iter().enumerate() {
        let there = if here < PODS { PODS..2 * PODS } else { 0..PODS };
        let line = |other: usize| {
            let lladdr = mac(pods[other].name(), "eth0");
            format!(
                "ip neighbour replace {} lladdr {lladdr} dev eth0 nud permanent",
                address(other)
            )
        };
        sh(pod, &there.map(line).collect::<Vec<_>>().join("\n"));
    }
}

/// Runs a shell script in a host; every command must succeed.
pub fn sh(host: &Host, script: &str) {
    host.run(Command::new("sh").args(["-ec", script])).unwrap();
}
