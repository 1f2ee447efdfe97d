//! Means to make faults: settings, traffic, and values written into a reading.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use doctor::host::{Amount, Channels, Device, Interrupt, Namespace, Reading};
use lab::Network;
use netstate::interface::Interface;
use netstate::link::Vxlan;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use testbed::NIC;

pub fn ip(network: &Network, host: &str, arguments: &str) {
    run(network, host, "ip", arguments);
}

pub fn run(network: &Network, host: &str, program: &str, arguments: &str) {
    let mut command = Command::new(program);
    command.args(arguments.split(' '));
    network.host(host).unwrap().run(&mut command).unwrap();
}

pub fn features(network: &Network, host: &str, device: &str, wanted: &[(&str, bool)]) {
    network.host(host).unwrap().set_features(device, wanted).unwrap();
}

pub fn mtu(network: &Network, host: &str, device: &str, mtu: u32) {
    network.host(host).unwrap().netlink().set_mtu(device, mtu).unwrap();
}

/// Sets the MTU of the wire. A VXLAN device cannot exceed its NIC's MTU, but the NIC's MTU can be
/// reduced.
pub fn underlay_mtu(network: &Network, to: u32) {
    for host in ["a", "b"] {
        mtu(network, host, NIC, to);
    }
}

/// Sets the overlay's MTU in one host, or both.
pub fn overlay_mtu(network: &Network, hosts: &[&str], to: u32) {
    for host in hosts {
        for device in ["vxlan0", "br0", "veth0"] {
            mtu(network, host, device, to);
        }
        mtu(network, &format!("tenant-{host}"), "eth0", to);
    }
}

/// Recreates the VXLAN device of a host, as a port of its bridge.
pub fn remake(
    network: &Network,
    host: &str,
    local: Ipv4Addr,
    remote: Ipv4Addr,
    vni: u32,
    csum: bool,
) {
    let netlink = network.host(host).unwrap().netlink();
    netlink.delete_link("vxlan0").unwrap();
    let device = Vxlan {
        name: "vxlan0",
        vni: Some(packet::vxlan::Vni::new(vni).unwrap()),
        local: IpAddr::V4(local),
        remote: Some(IpAddr::V4(remote)),
        underlay: NIC,
        port: 4789,
        learning: true,
        udp_csum: csum,
    };
    netlink.add_vxlan(&device, testbed::mac(host, "vxlan0"), 1450).unwrap();
    netlink.set_master("vxlan0", "br0").unwrap();
    netlink.set_up("vxlan0").unwrap();
}

/// Sends datagrams from the client to the server until the end.
pub fn flood(network: &Network, end: &AtomicBool, bytes: usize) {
    let socket = network.client().netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    let datagram = vec![7; bytes];
    while !end.load(Ordering::Relaxed) {
        let _ = socket.send_to(&datagram, network.address.target);
    }
}

/// Sends raw packets that other sockets cannot send, from the client to the server until the end;
/// `packets` makes some for a number.
pub fn raw_packets(
    network: &Network,
    protocol: SockProtocol,
    end: &AtomicBool,
    packets: impl Fn(u16) -> Vec<Vec<u8>>,
) {
    let open = || socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), protocol).unwrap();
    let socket = network.client().netns().run(open).unwrap();
    let SocketAddr::V4(server) = network.address.target else { panic!("IPv6") };
    for id in (1..=u16::MAX).cycle().take_while(|_| !end.load(Ordering::Relaxed)) {
        for packet in packets(id) {
            let (to, none) = (SockaddrIn::from(server), MsgFlags::empty());
            let _ = sendto(socket.as_raw_fd(), &packet, &to, none);
        }
    }
}

/// 24 bytes of a UDP datagram at this offset, with more fragments to follow.
pub fn fragment(id: u16, eighths: u8, to: Ipv4Addr) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    // The kernel sets length, checksum and source.
    let mut packet = vec![0x45, 0, 0, 0, high, low, 0x20, eighths, 64, 17, 0, 0, 0, 0, 0, 0];
    packet.extend(to.octets());
    packet.extend([7; 24]);
    packet
}

pub fn namespace<'h>(host: &'h mut doctor::Host, label: &str) -> &'h mut Namespace {
    host.namespaces.iter_mut().find(|namespace| namespace.label == label).unwrap()
}

pub fn interface<'n>(namespace: &'n mut Namespace, name: &str) -> &'n mut Interface {
    let Reading::Read(all) = &mut namespace.interfaces else { panic!("no interfaces") };
    all.iter_mut().find(|interface| interface.name == name).unwrap()
}

pub fn index(namespace: &mut Namespace, name: &str) -> u32 {
    interface(namespace, name).index
}

pub fn get<T>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Read(value) => value,
        Reading::Unread(reason) => panic!("not read: {reason}"),
    }
}

/// A CPU that only processes softirqs, beside an idle one.
pub fn busy_cpu(host: &mut doctor::Host) {
    let cpu = get(&mut host.machine.cpu);
    // A second CPU, if the machine has only one.
    let ticks = *cpu.after.cpus.values().next().unwrap();
    for side in [&mut cpu.before, &mut cpu.after] {
        side.cpus.entry(1).or_insert(ticks);
    }
    for (number, ticks) in &mut cpu.after.cpus {
        if *number == 0 { ticks.softirq += 100 } else { ticks.idle += 100 }
    }
    if let Reading::Read(facts) = &mut host.machine.facts {
        facts.online_cpus = 2;
    }
}

/// A NIC whose packets RPS spreads to the CPUs of a mask, beside a busy CPU.
pub fn steered(host: &mut doctor::Host, mask: &str) {
    busy_cpu(host);
    let namespace = namespace(host, "a");
    let nic = index(namespace, NIC);
    namespace.devices.get_mut(&nic).unwrap().rps = Some(vec![mask.to_owned()]);
    get(&mut namespace.later).get_mut(&nic).unwrap().rx_packets += 1_000_000;
}

/// Host a's NIC as hardware with two receive queues: their interrupts between the two readings, and
/// the CPUs that handle them.
pub fn hardware<'h>(host: &'h mut doctor::Host, queues: [(u64, &str); 2]) -> &'h mut Device {
    let mut own = Vec::new();
    for (number, (moved, cpus)) in (40..).zip(queues) {
        let name = format!("virtio3-input.{}", number - 40);
        let pair = get(&mut host.machine.interrupts);
        pair.before.counts.insert(name.clone(), [(0, 7)].into());
        pair.after.counts.insert(name.clone(), [(0, 7 + moved)].into());
        own.push(Interrupt { number, name, cpus: cpus.to_owned() });
    }
    if let Reading::Read(facts) = &mut host.machine.facts {
        facts.online_cpus = 2;
    }
    let namespace = namespace(host, "a");
    let nic = interface(namespace, NIC);
    nic.bus = Some("pci".to_owned());
    let index = nic.index;
    let device = namespace.devices.get_mut(&index).unwrap();
    device.interrupts = Some(own);
    device.channels = Some(channels(2, 2));
    device
}

pub fn channels(now: u32, most: u32) -> Channels {
    let none = Amount { now: 0, most: 0 };
    Channels { rx: none, tx: none, combined: Amount { now, most } }
}
